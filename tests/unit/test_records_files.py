"""Record files: names, rotation, torn lines, and files and directories that vanish or fill up under the writer; and
reading them back with `tail`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.outcome import Outcome
from gateway.core.printable import printable
from gateway.records.file_store import FileStore, record_files
from gateway.records.record import PredictionRecord
from gateway.records.render import Renderer, dropped_line
from gateway.records.store import FAILURES, failure_reason
from gateway.records.tail import Tailer, pretty, tail
from tests.unit.records_support import ANSWER, record, served_call

ROOT = Path(__file__).resolve().parents[2]
LINE = b'{"n":%d}\n'


class Wall:
    """Seconds since the epoch, by hand."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "records"


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def store(directory: Path, wall: Wall) -> Iterator[FileStore]:
    made = make(directory, wall)
    yield made
    made.close()


def make(directory: Path, wall: Wall, file_bytes_max: int = 100, files_max: int = 5) -> FileStore:
    return FileStore(directory, file_bytes_max=file_bytes_max, files_max=files_max, wall_s=wall)


def content(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in record_files(directory))


def numbers(directory: Path) -> list[int]:
    return [json.loads(line)["n"] for line in content(directory).splitlines()]


def test_files_are_private_and_named_by_time_and_sequence(store: FileStore, directory: Path) -> None:
    store.open()
    store.append(LINE % 1)
    store.sync()
    (path,) = record_files(directory)
    assert path.name == "records-20270115T080000.000Z-000001.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_rotation_by_size_keeps_the_order_and_prunes_the_oldest(store: FileStore, directory: Path, wall: Wall) -> None:
    for number in range(200):
        store.append(LINE % number)
        if number % 40 == 39:
            wall.now_s += 1
    files = record_files(directory)
    assert len(files) == 5
    assert all(path.stat().st_size <= 100 for path in files)
    found = numbers(directory)
    assert found == list(range(found[0], 200))
    assert len(found) > 30


def test_names_sort_by_age_though_the_clock_goes_back(directory: Path, wall: Wall) -> None:
    for number in range(4):
        each = make(directory, wall)
        each.append(LINE % number)
        each.close()
        wall.now_s -= 3600
    assert numbers(directory) == [0, 1, 2, 3]


def test_a_line_longer_than_a_file_still_gets_written(store: FileStore, directory: Path) -> None:
    store.append(b"x" * 500 + b"\n")
    store.append(LINE % 1)
    assert [path.stat().st_size for path in record_files(directory)] == [501, 8]


def test_other_files_in_the_directory_are_left_alone(directory: Path, wall: Wall) -> None:
    directory.mkdir(mode=0o700)
    others = [directory / "notes.txt", directory / "records-0.jsonl", directory / "zrecords.jsonl"]
    for path in others:
        path.write_text("mine")
    store = make(directory, wall, files_max=1)
    for number in range(50):
        store.append(LINE % number)
    store.close()
    assert all(path.read_text() == "mine" for path in others)
    assert len(record_files(directory)) == 1


def test_a_torn_line_of_a_killed_run_is_ended_by_the_next(directory: Path, wall: Wall) -> None:
    first = make(directory, wall)
    first.append(LINE % 1)
    first.close()
    (old,) = record_files(directory)
    with old.open("ab") as file:
        file.write(b'{"n":2,"to')
    second = make(directory, wall)
    second.append(LINE % 3)
    second.close()
    assert content(directory) == b'{"n":1}\n{"n":2,"to\n{"n":3}\n'


def test_a_file_deleted_under_us_is_replaced_at_the_next_write(store: FileStore, directory: Path) -> None:
    store.append(LINE % 1)
    record_files(directory)[0].unlink()
    store.append(LINE % 2)
    store.sync()
    assert numbers(directory) == [2]


def test_a_file_renamed_under_us_is_left_and_a_new_one_begun(store: FileStore, directory: Path) -> None:
    store.append(LINE % 1)
    moved = record_files(directory)[0].rename(directory / "kept.jsonl")
    store.append(LINE % 2)
    assert moved.read_bytes() == LINE % 1
    assert numbers(directory) == [2]


def test_a_directory_removed_under_us_is_made_again(store: FileStore, directory: Path) -> None:
    store.append(LINE % 1)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    store.append(LINE % 2)
    store.sync()
    assert numbers(directory) == [2]


def test_a_directory_that_became_a_file_is_an_error_that_heals(store: FileStore, directory: Path) -> None:
    store.append(LINE % 1)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    directory.write_text("in the way")
    with pytest.raises(OSError) as failed:
        store.append(LINE % 2)
    assert failure_reason(failed.value) in FAILURES
    directory.unlink()
    store.append(LINE % 3)
    assert numbers(directory) == [3]


def test_two_gateways_never_share_a_directory(store: FileStore, directory: Path, wall: Wall) -> None:
    store.open()
    other = make(directory, wall)
    with pytest.raises(OSError, match="another gateway") as refused:
        other.open()
    assert failure_reason(refused.value) == "locked"
    store.close()
    other.open()
    other.close()


def test_a_directory_that_cannot_be_made_names_the_remedy(tmp_path: Path, wall: Wall) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"records\.dir"):
        make(tmp_path / "file" / "records", wall).open()


class ShortDisk:
    """An `os.write` that takes a few bytes and then has no space; `os.ftruncate` may fail as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, truncates: bool) -> None:
        self._write = os.write
        self.full = False
        self.taken = 0
        monkeypatch.setattr(os, "write", self.write)
        if not truncates:
            monkeypatch.setattr(os, "ftruncate", self.refuse)

    def write(self, fd: int, data: Any) -> int:
        if not self.full:
            return self._write(fd, data)
        if self.taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken += 1
        return self._write(fd, bytes(data)[:3])

    def refuse(self, fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("truncates", [True, False])
def test_a_write_that_failed_half_way_leaves_no_half_line_behind(
    directory: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    disk = ShortDisk(monkeypatch, truncates=truncates)
    store = make(directory, wall)
    store.append(LINE % 1)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        store.append(LINE % 2)
    disk.full = False
    store.append(LINE % 2)
    store.close()
    lines = content(directory).splitlines()
    if truncates:
        assert lines == [b'{"n":1}', b'{"n":2}']
    else:
        assert lines == [b'{"n":1}', b'{"n', b'{"n":2}'], "the torn piece is a line of its own"


def test_a_slow_sync_does_not_hold_up_appending(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(LINE % 1)
    begun, gate = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        begun.set()
        assert gate.wait(10)

    monkeypatch.setattr(os, "fsync", slow)
    syncing = threading.Thread(target=store.sync)
    syncing.start()
    assert begun.wait(10)
    store.append(LINE % 2)
    assert numbers(directory) == [1, 2]
    gate.set()
    syncing.join(10)
    assert not syncing.is_alive()


def test_no_file_descriptor_is_left(directory: Path, wall: Wall) -> None:
    store = make(directory, wall)
    for number in range(100):
        store.append(LINE % number)
        if number % 30 == 0:
            store.sync()
    assert held(directory)
    store.close()
    assert held(directory) == []


def held(directory: Path) -> list[str]:
    """What this process has open in there. Other threads of it may open and close what they like meanwhile."""
    names = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    found = [os.readlink(name) for name in names if name.is_symlink()]
    return [each for each in found if each.startswith(str(directory))]


KILLED = """
import asyncio, sys
from pathlib import Path
from gateway.policy.schema import RecordsPolicy
from gateway.records.file_store import FileStore, breathe
from gateway.records.log import RecordLog
from gateway.runtime.clock import SystemClock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import ThreadWorkers
from tests.unit.records_support import record

async def main():
    clock = SystemClock()
    store = FileStore(Path(sys.argv[1]), file_bytes_max=65536, files_max=1000, wall_s=clock.wall_s)
    store.open()
    log = RecordLog(RecordsPolicy(), clock, ThreadWorkers(2, "records"), store, breathe=breathe)
    log.start(Supervisor())
    number = 0
    while True:
        for _ in range(5):
            log.offer(record(number))
            number += 1
        print(log.statistics(0)["written"], flush=True)
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


def test_what_was_counted_as_written_survives_a_kill_and_nothing_is_doubled(directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, cwd=ROOT) as killed:
        assert killed.stdout is not None
        written = 0
        for line in killed.stdout:
            written = int(line)
            if written >= 1000:
                break
        killed.kill()
        rest = killed.stdout.read().split()
        written = int(rest[-1]) if rest else written
    lines = content(directory).splitlines()
    found = [json.loads(line)["request_id"] for line in lines[:-1]]
    assert found == [f"r-{number}" for number in range(len(found))]
    assert len(lines) >= written >= 1000


# --- tail ------------------------------------------------------------------------------------------------------


def test_the_last_lines_come_over_several_files(store: FileStore, directory: Path) -> None:
    for number in range(40):
        store.append(LINE % number)
    for count in (0, 1, 5, 30):
        shown = Tailer(directory).last(count)
        assert [json.loads(line)["n"] for line in shown] == list(range(40 - count, 40))


def test_the_last_lines_of_a_large_file_are_found_from_its_end(directory: Path, wall: Wall) -> None:
    store = make(directory, wall, file_bytes_max=10_000_000)
    for number in range(3):
        store.append(b'{"n":%d,"pad":"%s"}\n' % (number, b"x" * 100_000))
    store.close()
    assert [json.loads(line)["n"] for line in Tailer(directory).last(2)] == [1, 2]


def test_following_goes_over_rotations_and_waits_for_the_end_of_a_line(directory: Path, wall: Wall) -> None:
    store = make(directory, wall, files_max=100)
    store.append(LINE % 0)
    tailer = Tailer(directory)
    assert len(tailer.last(10)) == 1
    assert list(tailer.poll()) == []
    for number in range(1, 60):
        store.append(LINE % number)
    assert [json.loads(line)["n"] for line in tailer.poll()] == list(range(1, 60))
    store.close()
    with record_files(directory)[-1].open("ab") as file:
        file.write(b'{"n":')
        file.flush()
        assert list(tailer.poll()) == []
        file.write(b"60}\n")
    assert list(tailer.poll()) == [b'{"n":60}']
    tailer.close()


def test_following_shows_a_torn_line_as_one_and_goes_on(directory: Path, wall: Wall) -> None:
    tailer = Tailer(directory)
    assert tailer.last(5) == [], "a directory that is not there yet is empty"
    first = make(directory, wall)
    first.append(LINE % 1)
    first.close()
    with record_files(directory)[0].open("ab") as file:
        file.write(b'{"n":2,"to')
    second = make(directory, wall)
    second.append(LINE % 3)
    second.close()
    assert list(tailer.poll()) == [b'{"n":1}', b'{"n":2,"to', b'{"n":3}']
    tailer.close()


def test_following_survives_files_that_are_pruned_before_they_were_read(directory: Path, wall: Wall) -> None:
    store = make(directory, wall, files_max=2)
    store.append(LINE % 0)
    tailer = Tailer(directory)
    tailer.last(1)
    for number in range(1, 200):
        store.append(LINE % number)
    seen = [json.loads(line)["n"] for line in tailer.poll()]
    assert seen[-1] == 199
    assert seen == sorted(seen)
    tailer.close()
    store.close()


def test_a_record_is_shown_in_one_line_for_people_or_as_it_stands(directory: Path, wall: Wall) -> None:
    store = make(directory, wall, file_bytes_max=10_000_000)
    store.append(Renderer().line(record(7)))
    store.append(dropped_line(3, {"queue_records": 3}, 1_800_000_000.0, 1_800_000_001.0))
    shown: list[str] = []
    waits = iter((True, True, False))

    def wait() -> bool:
        store.append(LINE % 1)
        return next(waits)

    assert tail(directory, count=10, follow=True, as_json=False, write=shown.append, wait=wait) == len(shown)
    assert shown[0].startswith("08:00:00.250  OK        fraud/2  11.0 ms  [receive 1 ")
    assert "default/10.0.0.1:8001" in shown[0]
    assert "3 records since 08:00:00.000: queue_records 3" in shown[1]
    assert shown[2].startswith("(torn or foreign line")
    assert len(shown) == 4
    raw: list[str] = []
    tail(directory, count=5, follow=False, as_json=True, write=raw.append, wait=lambda: False)
    assert json.loads(raw[0])["request_id"] == "r-7"
    store.close()


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    call = served_call()
    call.model = "a\x1b]0;owned\x07\u202e\n"
    each = PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011)
    for text in (pretty(Renderer().line(each)), pretty(b"\x1b[2J\xff torn"), pretty(b"[1]"), printable("\ud800\x00")):
        assert text.isprintable()
