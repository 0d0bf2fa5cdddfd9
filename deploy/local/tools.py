"""Programs that people have, unmodified and set up without root rights: curl, wrk and h2load, which make load, and
Redis, which gateways share.

What is on PATH is used. Else Debian's package is downloaded with all that it needs and this machine lacks, and unpacked
into a folder of its own under `.run/tools`: nothing is installed, and dpkg's database stays as it is. Where apt's own
lists are missing or too old, fresh ones are fetched into that folder too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import LocalFleetError
from deploy.local.layout import RUN_DIR, Progress, exclusive, print_progress

TOOLS_DIR = RUN_DIR / "tools"
STAMP = ".sluice-stamp"
FETCH_TIMEOUT_S = 300.0
_TAIL_LINES = 8
_LOADER = "error while loading shared libraries"


@dataclass(frozen=True, slots=True)
class Kind:
    """A tool: Debian's package that has it, how it is asked for its version, and what that looks like.

    Exit codes do not tell: wrk's `-v` ends with 1.
    """

    package: str
    ask: str
    version: re.Pattern[str]


KINDS: Mapping[str, Kind] = {
    "curl": Kind("curl", "--version", re.compile(r"^curl ([0-9.]+)", re.MULTILINE)),
    "wrk": Kind("wrk", "-v", re.compile(r"^wrk (?:debian/)?([0-9.]+)", re.MULTILINE)),
    "h2load": Kind("nghttp2-client", "--version", re.compile(r"^h2load nghttp2/([0-9.]+)", re.MULTILINE)),
    "redis-server": Kind("redis-server", "--version", re.compile(r"^Redis server v=([0-9.]+)", re.MULTILINE)),
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that was seen to start, its version, and the folders of the libraries that it needs of its own."""

    program: Path
    version: str
    libraries: tuple[Path, ...]

    def variables(self) -> dict[str, str]:
        """The environment variables to run it with."""
        return _variables(self.libraries)


def ensure_tool(name: str, directory: Path = TOOLS_DIR, progress: Progress = print_progress) -> Tool:
    """The tool of that name in `KINDS`, set up first if need be. Raises LocalFleetError with a remedy.

    Safe to call from several processes at once; the first sets it up, the others wait. It takes some seconds and a
    download of up to 2 MB, or 12 MB where apt has no lists.
    """
    kind = KINDS[name]
    on_path = shutil.which(name)
    if on_path is not None:
        return _tried(Path(on_path), (), kind)
    root = directory / kind.package
    program = root / "usr" / "bin" / name
    with exclusive("tools"):
        if not ((root / STAMP).exists() and program.exists()):
            problem = cannot_set_up(name)
            if problem is not None:
                raise problem
            progress(f"{name}: not on PATH; setting up Debian's package {kind.package} in {root}")
            _set_up(root, program, kind)
            _tried(program, _libraries(root), kind)
            (root / STAMP).touch()
        return _tried(program, _libraries(root), kind)


def cannot_set_up(name: str) -> LocalFleetError | None:
    """Why the tool can be had in neither way, known beforehand; `None` if nothing speaks against it."""
    if shutil.which(name) or (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    return LocalFleetError(
        f"{name} is not on PATH, and without apt-get and dpkg-deb Debian's package cannot be fetched",
        f"install {name} (Debian: {KINDS[name].package}) by this machine's own means, so that it is on PATH",
    )


def _set_up(root: Path, program: Path, kind: Kind) -> None:
    if root.exists():
        shutil.rmtree(root)
    archives = root / "archives"
    (archives / "partial").mkdir(parents=True)
    lists = root / "lists"
    remedy = f"sudo apt-get update && sudo apt-get install -y {kind.package}"
    try:
        said = _apt(root, "install", "--yes", "--download-only", "--no-install-recommends", "--no-remove", kind.package)
    except _AptFailedError:
        (lists / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={lists}"]
        try:
            _apt(root, *own, "update")
            said = _apt(
                root,
                *own,
                "install",
                "--yes",
                "--download-only",
                "--no-install-recommends",
                "--no-remove",
                kind.package,
            )
        except _AptFailedError as error:
            raise LocalFleetError(f"apt-get could not fetch {kind.package}; its last lines:\n{error}", remedy) from None
    for archive in sorted(archives.glob("*.deb")):
        done = _run(["dpkg-deb", "--extract", str(archive), str(root)])
        if done.returncode:
            raise LocalFleetError(f"{archive.name} could not be unpacked:\n{_tail(done.stdout)}", remedy)
    if not program.exists():
        raise LocalFleetError(f"the fetched packages have no {program.name}; apt-get said:\n{_tail(said)}", remedy)
    shutil.rmtree(archives)
    shutil.rmtree(lists, ignore_errors=True)


class _AptFailedError(Exception):
    """With apt-get's last lines."""


def _apt(root: Path, *words: str) -> str:
    """Run apt-get so that it writes under `root` alone, and wants no lock and no other user for that."""
    options = {
        "Dir::Cache": str(root),
        "Dir::Cache::archives": str(root / "archives"),
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
    }
    argv = ["apt-get", "--quiet"]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    done = _run([*argv, *words])
    if done.returncode:
        raise _AptFailedError(_tail(done.stdout))
    return done.stdout


def _libraries(root: Path) -> tuple[Path, ...]:
    folders = [root / "usr" / "lib", root / "lib"]
    return tuple(each for folder in folders for each in (*sorted(folder.glob("*-linux-gnu*")), folder) if each.is_dir())


def _variables(libraries: Sequence[Path]) -> dict[str, str]:
    if not libraries:
        return dict(os.environ)
    before = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), *([before] if before else [])])}


def _tried(program: Path, libraries: tuple[Path, ...], kind: Kind) -> Tool:
    """Start it once: the loader names a library that is missing. Raises LocalFleetError."""
    remedy = f"sudo apt-get install -y {kind.package}"
    try:
        done = _run([str(program), kind.ask], _variables(libraries))
    except OSError as error:  # of another architecture, or the folder is mounted noexec
        raise LocalFleetError(f"{program} cannot be run: {error.strerror}", remedy) from None
    found = kind.version.search(done.stdout)
    if found is None or _LOADER in done.stdout:
        raise LocalFleetError(f"{program} {kind.ask} tells no version:\n{_tail(done.stdout)}", remedy)
    return Tool(program, found[1].rstrip("."), libraries)


def _run(argv: Sequence[str], variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, both of its outputs as one. What takes too long ends like a failure."""
    known = {**(os.environ if variables is None else variables), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            argv,
            env=known,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return subprocess.CompletedProcess(argv, 1, f"{said}\n(ended after {FETCH_TIMEOUT_S:g} s without an end)")


def _tail(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()][-_TAIL_LINES:]
    return "    " + "\n    ".join(lines or ["(nothing)"])
