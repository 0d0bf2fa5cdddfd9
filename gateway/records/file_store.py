"""Records in files: JSON lines, rotated by size, pruned by number, one writer per directory.

Names sort by age: `records-<UTC time>-<sequence>.jsonl`. A file is made exclusively and never opened again by a later
run; a torn last line that a killed run left is given its line break, so that files can be concatenated. A file that is
deleted or renamed under us, or whose directory is, is noticed at the next write, which then goes to a new file.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

_log = logging.getLogger("sluice.records")

NAME = re.compile(r"records-(\d{8}T\d{6}\.\d{3}Z)-(\d{6})\.jsonl")
_LOCK = ".lock"
_ROTATED_UNSYNCED_MAX = 4
_BREATH_S = 0.0001
_never = threading.Event()


def breathe() -> None:
    """Let go of the interpreter for a moment. A thread that computes keeps it for up to 5 ms at a time, and that would
    stand in the latency of every call meanwhile.
    """
    _never.wait(_BREATH_S)


def record_files(directory: Path) -> list[Path]:
    """The record files, oldest first; other files in the directory are not looked at. Raises OSError."""
    return sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))


class FileStore:
    """A `RecordStore` over a directory. `wall_s` is seconds since the epoch, for names."""

    def __init__(self, directory: Path, *, file_bytes_max: int, files_max: int, wall_s: Callable[[], float]) -> None:
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._wall_s = wall_s
        self._mutex = threading.Lock()
        self._fd = -1
        self._path = directory
        self._size = 0
        self._rotated: list[int] = []
        self._directory_changed = False
        self._lock_fd = -1
        self._look_for_torn = True
        self._closed = False

    def open(self) -> None:
        """Make sure that the directory can be written, before the gateway says that it is up. Raises OSError whose
        text says what to do.
        """
        with self._mutex:
            try:
                self._take_directory()
            except BlockingIOError as error:
                raise OSError(
                    errno.EAGAIN,
                    f"another gateway writes its prediction records to {self._directory}: give each its own "
                    "`records.dir` in fleet.yaml",
                ) from error
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"prediction records cannot be written to {self._directory} ({error.strerror}): make the directory "
                    "writable, or set `records.dir` in fleet.yaml",
                ) from error

    def append(self, lines: bytes) -> None:
        with self._mutex:
            if self._closed:
                raise OSError(errno.EBADF, "the record store is closed")
            if self._fd >= 0 and not self._still_there():
                _log.warning("the record file %s was deleted or renamed; a new one is begun", self._path.name)
                self._retire()
            if self._fd >= 0 and self._size and self._size + len(lines) > self._file_bytes_max:
                self._retire()
            if self._fd < 0:
                self._create()
            self._write(lines)

    def sync(self) -> None:
        with self._mutex:
            fds = self._rotated
            self._rotated = []
            if self._fd >= 0:
                fds.append(os.dup(self._fd))
            directory_changed = self._directory_changed
            self._directory_changed = False
        # Outside the mutex: a disk that takes a second to sync must not stop the appending.
        try:
            for fd in fds:
                os.fsync(fd)
            if directory_changed:
                self._sync_directory()
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        with self._mutex:
            for fd in (self._fd, self._lock_fd, *self._rotated):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._lock_fd = -1
            self._rotated = []
            self._closed = True

    def _write(self, lines: bytes) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            self._undo()
            raise
        self._size += len(lines)

    def _undo(self) -> None:
        """Take back a half-written append: the same lines will come again."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            _log.warning("the record file %s ends in a torn line; a new one is begun", self._path.name, exc_info=True)
            self._retire()
            self._look_for_torn = True

    def _still_there(self) -> bool:
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)

    def _retire(self) -> None:
        """Done with the current file; it is closed once it has been synced."""
        fd, self._fd = self._fd, -1
        if len(self._rotated) < _ROTATED_UNSYNCED_MAX:
            self._rotated.append(fd)
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _create(self) -> None:
        self._take_directory()
        files = record_files(self._directory)
        if self._look_for_torn:
            if files:
                _terminate(files[-1])
            self._look_for_torn = False
        newest = NAME.fullmatch(files[-1].name) if files else None
        stamp = _stamp(self._wall_s())
        number = 1
        if newest is not None and stamp <= newest.group(1):
            # The clock went back, or has not moved: names must sort by age all the same.
            stamp = newest.group(1)
            number = int(newest.group(2)) + 1
        path = self._directory / f"records-{stamp}-{number:06d}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._path = path
        self._size = 0
        self._directory_changed = True
        self._prune([*files, path])

    def _prune(self, files: list[Path]) -> None:
        for path in files[: max(0, len(files) - self._files_max)]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("the old record file %s cannot be deleted: %s", path.name, error.strerror)

    def _take_directory(self) -> None:
        """Make the directory if it is gone, and hold its lock."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._directory / _LOCK
        if self._lock_fd >= 0:
            try:
                there = os.stat(lock)
                mine = os.fstat(self._lock_fd)
                if (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev):
                    return
            except FileNotFoundError:
                pass
            os.close(self._lock_fd)
            self._lock_fd = -1
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _terminate(path: Path) -> None:
    """Give a torn last line its line break."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            _log.warning("the record file %s ended in a torn line, from a run that was killed", path.name)
            os.write(fd, b"\n")
    finally:
        os.close(fd)


def _stamp(wall_s: float) -> str:
    when = datetime.fromtimestamp(wall_s, UTC)
    return f"{when:%Y%m%dT%H%M%S}.{when.microsecond // 1000:03d}Z"
