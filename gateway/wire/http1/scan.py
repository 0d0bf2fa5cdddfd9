"""Heads that are not complete yet: collecting them, and finding what is wrong as soon as its byte has been seen."""

from __future__ import annotations

import re

from gateway.wire.http1.events import Refusal
from gateway.wire.http1.limits import Http1Limits
from gateway.wire.http1.request_line import request_line

# A control byte, a CR without LF, or a LF without CR.
_BAD_BYTE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n")

_LF, _CR, _TLS_HANDSHAKE = 0x0A, 0x0D, 0x16


class HeadScan:
    """Checks a growing prefix of one head: line lengths, count, size, control bytes and the request line.

    `check` may be called after each read with the longer prefix; it looks at new bytes only. Of several violations it
    raises the one whose first offending byte comes first.
    """

    __slots__ = ("_limits", "_lines", "_seen", "_start")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits = limits
        self._lines = 0  # complete lines so far; the request line is line 0
        self._start = 0  # where the line in work starts
        self._seen = 0  # up to here its bytes are known to be good

    def check(self, head: bytes | bytearray) -> None:
        """Raise Refusal for the first violation, if there is one."""
        limits = self._limits
        stop = min(len(head), limits.head_max_bytes)
        while True:
            lf = head.find(b"\n", self._seen, stop)
            # A CR at the end of a prefix is judged with the byte after it.
            open_end = stop - 1 if stop and head[stop - 1] == _CR else stop
            self._check_line(head, lf + 1 if lf >= 0 else open_end)
            if lf < 0:
                self._seen = max(self._seen, open_end)
                break
            if self._lines == 0:
                request_line(bytes(head[: lf - 1]))
            elif self._lines > limits.header_count_max and lf - 1 > self._start:
                raise Refusal(431, f"more than {limits.header_count_max} header lines")
            self._lines += 1
            self._start = self._seen = lf + 1
        if len(head) > limits.head_max_bytes:
            raise Refusal(431, f"the request head is larger than {limits.head_max_bytes} bytes")

    def _check_line(self, head: bytes | bytearray, end: int) -> None:
        """Judge the bytes of the line in work up to `end` (past its LF, if that is there)."""
        first = self._lines == 0
        longest = self._limits.request_line_max_bytes if first else self._limits.header_line_max_bytes
        bad = _BAD_BYTE.search(head, self._seen, end)
        length = end - self._start
        if length and head[end - 1] == _LF:
            length -= 2 if length > 1 and head[end - 2] == _CR else 1
        if length > longest and (bad is None or bad.start() >= self._start + longest):
            if first:
                raise Refusal(414, f"the request line is longer than {longest} bytes")
            raise Refusal(431, f"a header line is longer than {longest} bytes")
        if bad is None:
            return
        if bad.start() == 0 and head[0] == _TLS_HANDSHAKE:
            raise Refusal(400, "these bytes look like TLS; this port speaks plain HTTP/1.1")
        raise Refusal(400, "control byte, or CR or LF alone, in the request head")


class HeadCollector:
    """Cuts heads out of reads. `partial` holds what has arrived of an incomplete one."""

    __slots__ = ("_limits", "_scan", "blank_lines", "cr_seen", "partial")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits = limits
        self._scan = HeadScan(limits)
        self.blank_lines = 0
        self.cr_seen = False  # half of a blank line in front of a request
        self.partial = bytearray()

    def take(self, data: bytes, pos: int) -> tuple[bytes | None, int]:
        """Take bytes from `pos`: a whole head if they complete one, and where it ends. Raises Refusal."""
        partial = self.partial
        if partial:
            before = len(partial)
            partial += memoryview(data)[pos:]
            end = partial.find(b"\r\n\r\n", max(0, before - 3))
            if end < 0:
                self._scan.check(partial)
                return None, len(data)
            head = bytes(memoryview(partial)[: end + 4])
            partial.clear()
            self.blank_lines = 0
            return head, pos + end + 4 - before
        if data[pos] <= _CR or self.cr_seen:
            self._skip_blank(data[pos])
            return None, pos + 1
        end = data.find(b"\r\n\r\n", pos)
        if end < 0:
            partial += memoryview(data)[pos:]
            self._scan = HeadScan(self._limits)
            self._scan.check(partial)
            return None, len(data)
        self.blank_lines = 0
        return data[pos : end + 4], end + 4

    def _skip_blank(self, byte: int) -> None:
        """An empty line in front of a request line, byte by byte: some old clients send one behind a body."""
        if self.cr_seen:
            if byte != _LF:
                raise Refusal(400, "CR without LF in front of a request")
            self.cr_seen = False
            self.blank_lines += 1
            if self.blank_lines > self._limits.leading_blank_lines_max:
                raise Refusal(400, "too many empty lines in front of a request")
        elif byte == _CR:
            self.cr_seen = True
        else:
            raise Refusal(400, "control byte in front of a request")
