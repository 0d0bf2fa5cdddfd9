"""curl, wrk, h2load, redis-server for the tests: found on PATH, set up from Debian's packages, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import deploy.local.__main__ as local
from deploy.local import LocalFleetError
from deploy.local.tools import KINDS, STAMP, ensure_tool

WRK = "#!/bin/sh\necho 'wrk debian/9.9 [epoll] Copyright'\nexit 1\n"
APT = """#!/bin/sh
echo "$@" >> {log}
for word in "$@"; do case "$word" in Dir::Cache::archives=*) archives="${{word#*=}}";; esac; done
case "$*" in
*Dir::State::lists*update) exit 0;;
*Dir::State::lists*install*) {with_lists};;
*) {without};;
esac
"""
UNPACK = """#!/bin/sh
mkdir -p "$3/usr/bin" "$3/usr/lib/some-linux-gnu"
cp "$2" "$3/usr/bin/wrk"
chmod +x "$3/usr/bin/wrk"
"""
FETCH = 'cp {wrk} "$archives/wrk_9.9.deb"'
SHELL = ("sh", "cp", "mkdir", "chmod")


class Machine:
    """A PATH of its own, with scripts in place of apt-get and dpkg-deb."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = directory / "bin"
        self.tools = directory / "tools"
        self.log = directory / "apt.log"
        self.wrk = directory / "wrk"
        self.bin.mkdir()
        self.wrk.write_text(WRK)
        for name in SHELL:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        monkeypatch.setenv("PATH", str(self.bin))

    def put(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def apt(self, without: str, with_lists: str) -> None:
        texts = {"without": without, "with_lists": with_lists}
        texts = {key: text.format(wrk=self.wrk) for key, text in texts.items()}
        self.put("apt-get", APT.format(log=self.log, **texts))
        self.put("dpkg-deb", UNPACK)

    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_what_is_on_path_is_used(machine: Machine) -> None:
    machine.put("wrk", WRK)
    tool = ensure_tool("wrk", machine.tools)
    assert (tool.program, tool.version, tool.libraries) == (machine.bin / "wrk", "9.9", ())
    assert not machine.tools.exists()


def test_a_package_is_unpacked_once(machine: Machine) -> None:
    machine.apt(FETCH, "exit 100")
    said: list[str] = []
    tool = ensure_tool("wrk", machine.tools, said.append)
    root = machine.tools / "wrk"
    assert tool.program == root / "usr" / "bin" / "wrk"
    assert tool.libraries == (root / "usr" / "lib" / "some-linux-gnu", root / "usr" / "lib")
    assert tool.variables()["LD_LIBRARY_PATH"].startswith(str(tool.libraries[0]))
    assert "Debian's package wrk" in said[0]
    assert not (root / "archives").exists()
    assert ensure_tool("wrk", machine.tools) == tool
    assert machine.runs() == 1


def test_what_was_broken_off_is_set_up_anew(machine: Machine) -> None:
    machine.apt(FETCH, "exit 100")
    ensure_tool("wrk", machine.tools)
    (machine.tools / "wrk" / STAMP).unlink()
    left = machine.tools / "wrk" / "left"
    left.touch()
    ensure_tool("wrk", machine.tools)
    assert machine.runs() == 2
    assert not left.exists()


def test_without_lists_apt_gets_lists_of_its_own(machine: Machine) -> None:
    machine.apt("echo 'E: Unable to locate package wrk'; exit 100", FETCH)
    assert ensure_tool("wrk", machine.tools).version == "9.9"
    assert machine.runs() == 3, "install, update, install"
    assert not (machine.tools / "wrk" / "lists").exists()


def test_what_apt_said_is_told(machine: Machine) -> None:
    machine.apt("exit 100", "echo 'E: Failed to fetch: no network'; exit 100")
    with pytest.raises(LocalFleetError, match="no network") as caught:
        ensure_tool("wrk", machine.tools)
    assert "apt-get install -y wrk" in caught.value.remedy


def test_a_package_without_the_program_is_told(machine: Machine) -> None:
    machine.apt("echo 'wrk is already the newest version'", "exit 100")
    with pytest.raises(LocalFleetError, match="already the newest version"):
        ensure_tool("wrk", machine.tools)


def test_a_program_that_does_not_start_is_told_and_tried_again(machine: Machine) -> None:
    machine.wrk.write_text("#!/bin/sh\necho 'wrk: error while loading shared libraries: libluajit'; exit 127\n")
    machine.apt(FETCH, "exit 100")
    with pytest.raises(LocalFleetError, match="libluajit"):
        ensure_tool("wrk", machine.tools)
    machine.wrk.write_text(WRK)
    assert ensure_tool("wrk", machine.tools).version == "9.9"


@pytest.mark.parametrize("name", KINDS)
def test_without_apt_the_reason_is_told(machine: Machine, name: str) -> None:
    with pytest.raises(LocalFleetError, match=f"{name} is not on PATH") as caught:
        ensure_tool(name, machine.tools)
    assert KINDS[name].package in caught.value.remedy


def test_check_tells_it_beforehand(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert local.main(["check", "--any-ports", "--tools"]) == local.MACHINE
    said = capsys.readouterr().out
    assert all(f"{name} is not on PATH" in said for name in KINDS)
    local.main(["check", "--any-ports"])
    assert "not on PATH, and without" not in capsys.readouterr().out
    machine.apt("exit 100", "exit 100")
    local.main(["check", "--any-ports", "--tools"])
    assert "not on PATH, and without" not in capsys.readouterr().out
