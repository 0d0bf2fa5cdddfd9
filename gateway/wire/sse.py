"""Server-sent events, both directions, without I/O.

The stream is bytes throughout: an event's data are handed on as they came, valid UTF-8 or not, so nothing is lost in
transit and a character cut across reads is whole again.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTENT_TYPE = b"text/event-stream; charset=utf-8"
EVENT_BYTES_MAX = 64 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


def encode_event(data: bytes) -> bytes:
    """The frame of one event: `data:` before each line of `data`, and one blank line behind them."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"data: %b\n\n" % data


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `data` has its lines joined with LF. `event` is the type that a sender gave ("message" if none),
    `last_event_id` the last id that came, with this event or before it.
    """

    data: bytes
    event: str = "message"
    last_event_id: str = ""

    @property
    def text(self) -> str:
        """`data` as text; what is not UTF-8 is replaced, as the standard has it."""
        return self.data.decode(errors="replace")


class SseTooLarge(ValueError):
    """An event, or a line, grows beyond the bound."""


class SseDecoder:
    """Makes events of bytes, however these were cut.

    `retry_ms` is the last reconnection time that the sender named, None if it named none. `event_bytes_max` bounds the
    bytes held for one event.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_event",
        "_event_bytes_max",
        "_held_bytes",
        "_last_event_id",
        "_line",
        "_start",
        "retry_ms",
    )

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.retry_ms: int | None = None
        self._event_bytes_max = event_bytes_max
        self._line = bytearray()
        """The line whose end has not come."""
        self._after_cr = False
        """The last byte was a CR: an LF that follows belongs to it."""
        self._start = True
        """Nothing but perhaps a part of a byte order mark has come."""
        self._data: list[bytes] = []
        self._event = ""
        self._last_event_id = ""
        self._held_bytes = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take the bytes of one read; return the events that they complete. Raises `SseTooLarge`."""
        if self._start:
            self._line += data
            if len(self._line) < len(_BOM) and _BOM.startswith(self._line):
                return []
            self._start = False
            data = bytes(self._line).removeprefix(_BOM)
            self._line.clear()
        events: list[SseEvent] = []
        pos = 0
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                pos = 1
        while match := _LINE_END.search(data, pos):
            line = data[pos : match.start()]
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            self._take(line, events)
            pos = match.end()
            self._after_cr = pos == len(data) and data[pos - 1] == 0x0D
        self._line += data[pos:]
        self._bound(0)
        return events

    def end(self) -> SseEvent | None:
        """The stream has ended: what stands there without its blank line, complete lines and the last one alike. The
        standard has it thrown away, for it may be cut short; the caller decides.
        """
        events: list[SseEvent] = []
        if self._start:
            self._line.clear()
        if self._line:
            self._take(bytes(self._line), events)
            self._line.clear()
        self._take(b"", events)
        return events[0] if events else None

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            if self._data:
                events.append(SseEvent(b"\n".join(self._data), self._event or "message", self._last_event_id))
            self._data, self._event, self._held_bytes = [], "", 0
            return
        name, _, value = line.partition(b":")
        if not name:
            return  # a comment: keep-alive
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._bound(len(line))
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self._last_event_id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= 18:
            self.retry_ms = int(value)

    def _bound(self, more: int) -> None:
        self._held_bytes += more
        if self._held_bytes + len(self._line) > self._event_bytes_max:
            raise SseTooLarge(f"an event of the stream is larger than {self._event_bytes_max} bytes")
