"""Reading the record files back: the last lines, and new ones as they come, over rotations.

The reader is as tolerant as the writer is careful: a line without its end is not shown until it has one, a torn line
of a killed run is shown as torn, and files may vanish at any time. What is printed has no control characters in it:
model names and ids are whatever a caller sent.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from gateway.core.printable import printable
from gateway.records.file_store import record_files
from gateway.records.render import LINE_BYTES_MAX

_BLOCK_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024


class Tailer:
    """Follows the newest record file of a directory. A directory that is missing counts as empty."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._fd = -1
        self._rest = b""

    def last(self, count: int) -> list[bytes]:
        """The last `count` complete lines, oldest first, without line breaks; the next `poll` goes on behind them."""
        self.close()
        lines: deque[bytes] = deque()
        for path in reversed(self._files()):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # pruned since it was listed
            end = os.fstat(fd).st_size
            found, rest = _last_lines(fd, end, count - len(lines))
            lines.extendleft(reversed(found))
            if self._path is None:
                # Only the newest file can still grow.
                os.lseek(fd, end, os.SEEK_SET)
                self._path, self._fd, self._rest = path, fd, rest
            else:
                os.close(fd)
            if len(lines) >= count:
                break
        return list(lines)[-count:] if count > 0 else []

    def poll(self) -> Iterator[bytes]:
        """Complete lines that have come since, without line breaks."""
        while True:
            if self._fd >= 0:
                yield from self._read()
            following = self._next_file()
            if following is None:
                return
            if self._fd >= 0:
                # What was written between the last read and the rotation.
                yield from self._read()
                if self._rest:
                    yield self._rest
                os.close(self._fd)
            self._rest = b""
            self._path = following
            try:
                self._fd = os.open(following, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = -1  # pruned since it was listed

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._path = None
        self._rest = b""

    def _read(self) -> Iterator[bytes]:
        while block := os.read(self._fd, _READ_BYTES):
            *lines, self._rest = (self._rest + block).split(b"\n")
            yield from lines
            if len(self._rest) > LINE_BYTES_MAX:
                # Nothing that the writer makes: do not gather it without end.
                yield self._rest
                self._rest = b""

    def _next_file(self) -> Path | None:
        for path in self._files():
            if self._path is None or path.name > self._path.name:
                return path
        return None

    def _files(self) -> list[Path]:
        try:
            return record_files(self._directory)
        except FileNotFoundError:
            return []


def _last_lines(fd: int, end: int, count: int) -> tuple[list[bytes], bytes]:
    """The last `count` complete lines before `end`, and what stands behind the last line break."""
    blocks: list[bytes] = []
    breaks = 0
    at = end
    while at > 0 and breaks <= count:
        start = max(0, at - _BLOCK_BYTES)
        block = os.pread(fd, at - start, start)
        blocks.append(block)
        breaks += block.count(b"\n")
        at = start
    *lines, rest = b"".join(reversed(blocks)).split(b"\n")
    if at > 0 and lines:
        lines = lines[1:]  # its beginning was not read
    return lines[-count:] if count > 0 else [], rest


def tail(
    directory: Path,
    *,
    count: int,
    follow: bool,
    as_json: bool,
    write: Callable[[str], None],
    wait: Callable[[], bool],
) -> int:
    """`sluice log tail`: hand the last `count` lines to `write`, then new ones for as long as `wait()` (which pauses
    between two looks) says so. Returns how many lines were shown. Raises OSError if the directory cannot be read.
    """
    tailer = Tailer(directory)
    shown = 0
    try:
        for line in tailer.last(count):
            write(as_text(line) if as_json else pretty(line))
            shown += 1
        while follow and wait():
            for line in tailer.poll():
                write(as_text(line) if as_json else pretty(line))
                shown += 1
    finally:
        tailer.close()
    return shown


def as_text(line: bytes) -> str:
    """The line as it stands; JSON escapes control characters already, a torn line may hold anything."""
    return printable(line.decode("utf-8", "replace"))


def pretty(line: bytes) -> str:
    """One record for a person: time, status, model/version, duration, where, and what went wrong."""
    try:
        record = orjson.loads(line)
        return printable(_pretty(record))
    except (orjson.JSONDecodeError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return printable(f"(torn or foreign line, {len(line)} bytes) {line[:80].decode('utf-8', 'replace')}")


def _pretty(record: dict[str, Any]) -> str:
    if "dropped" in record:
        reasons = ", ".join(f"{reason} {count}" for reason, count in record["reasons"].items())
        since = _clock(record["since"])
        return f"{_clock(record['until'])} (dropped)  {record['dropped']} records since {since}: {reasons}"
    version = record["version"] or record["version_routed"] or "-"
    stages = " ".join(f"{name} {value:g}" for name, value in record["stages_ms"].items())
    parts = [
        _clock(record["time"]),
        f"{record['status']:<8}",
        f"{record['model']}/{version}",
        f"{record['duration_ms']:.1f} ms",
        f"[{stages}]",
        ", ".join(_attempt(each) for each in record["attempts"]) or "no attempt",
        *_conversation(record),
    ]
    if record["reason"]:
        parts.append(f"{record['reason']}: {record['message']}" if record["message"] else record["reason"])
    parts.append(f"tenant={record['tenant']} id={record['request_id']}")
    return "  ".join(parts)


def _conversation(record: dict[str, Any]) -> list[str]:
    """What only streams and sequences have; lines of before there were any lack the fields."""
    message, responses, sequence = record.get("stream_message"), record.get("responses"), record.get("sequence")
    told = [f"message {message}"] if message else []
    answered = bool(record["version"])
    if responses is not None and (responses > 1 or (responses == 0 and answered) or (responses and record["reason"])):
        told.append(f"{responses} {'response' if responses == 1 else 'responses'}")
    if sequence:
        ends = [end for end in ("start", "end") if sequence[end]]
        told.append(" ".join(["sequence", f"{sequence['id']!r}", "+".join(ends)]).rstrip())
    return told


def _attempt(attempt: dict[str, Any]) -> str:
    ending = "" if attempt["outcome"] == "ok" else f" {attempt['outcome']}"
    kind = "" if attempt["kind"] == "primary" else f"{attempt['kind']} "
    return f"{kind}{attempt['replica']}{ending}"


def _clock(time: str) -> str:
    return time[11:23]
