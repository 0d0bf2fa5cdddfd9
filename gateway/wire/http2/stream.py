"""One stream, as its user sees it."""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.wire.hpack import HeaderBlock

# Bits of `Stream.state`.
REMOTE_DONE: Final = 1  # END_STREAM has come; equals the flag
HEAD_IN: Final = 2  # the head of the request or of the final response has come
HEAD_OUT: Final = 4
LOCAL_DONE: Final = 8  # this side's END_STREAM is sent, or queued behind data
QUEUED: Final = 16  # data waits for windows: `queue`, `queued` and `finish` are set
FULL: Final = 32  # send_data has said False: on_writable is due
WAITING: Final = 64  # client: not opened yet, `id` is 0
OVER: Final = 128  # the connection has forgotten the stream


class Stream:
    """Base of the user's streams. The user's class has `__slots__`, keeps identity as its equality, and overrides.

    The slots belong to the connection, which sets them when the stream begins; `id` may be read, `is_over` too. A
    stream of a client has `id` 0 while it waits for a slot.

    The callbacks run inside `receive()` (on_writable: inside `take()`; on_reset: also inside `goaway()` and `lost()`).
    They may send, reset, acknowledge and open; they must not call `receive()` or `take()`, and must not raise: what
    they raise is a bug and propagates to the driver, which should then call `lost()`.

    Order: on_headers, on_data any number of times, on_trailers at most once; then nothing more of the receiving side.
    The `end` of on_headers and on_data, and on_trailers, end it. on_reset may come at any time before the stream is
    over, once, as the last call. After the user's own `reset()` nothing is called.
    """

    __slots__ = (
        "finish",
        "id",
        "queue",
        "queued",
        "state",
        "unacknowledged",
        "window_in",
        "window_out",
    )

    id: int
    state: int
    window_in: int  # bytes that the peer may still send; negative after a lowered SETTINGS
    window_out: int  # bytes that this side may still send; negative after a lowered SETTINGS
    unacknowledged: int  # taken by the user and not yet returned to the peer; negative after grow_window
    queue: deque[bytes | memoryview]  # never holds an empty piece; only with QUEUED
    queued: int  # bytes in it
    finish: bytes | None  # what ends the stream behind it: b"" END_STREAM on its last data, else a block of trailers

    @property
    def is_over(self) -> bool:
        """Whether the connection has forgotten the stream: whatever is sent on it is dropped."""
        return self.state & OVER != 0

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        """The head of the request (server) or of the final response (client). With `end` nothing follows."""

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        """Payload: data[start:stop], without padding; may be empty with `end`. `data` must not be kept: copy out.

        `stop - start` bytes are to be given back by `acknowledge()` when they have been taken, or the peer stalls.
        """

    def place(self, size: int) -> memoryview | None:
        """Where some of the next `size` bytes of payload can be received to, so that they need not be copied; None if
        there is no such place. Asked again and again, and means nothing until `on_placed`.
        """
        return None

    def on_placed(self, size: int) -> None:
        """So much payload has been received to the last place: as on_data, without an end."""

    def on_trailers(self, block: HeaderBlock) -> None:
        """The trailers; nothing follows."""

    def on_head_too_large(self, end: bool) -> bool:
        """Server: a request whose head is over `header_list_max_bytes`; the fields are lost. True if it is handled.

        A user that handles it answers here or later, as after on_headers. Otherwise the stream is refused
        (RST_STREAM, ENHANCE_YOUR_CALM) and no other callback follows.
        """
        return False

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        """The stream is over without an orderly end.

        `code` is an ErrorCode, or CONNECTION_LOST. `from_peer`: the peer said so; else this side found a fault, or the
        connection is gone. `unprocessed`: the peer has done nothing for it, it is safe to send again.
        """

    def on_writable(self) -> None:
        """Less than half of `high_water_bytes` is queued now, after `send_data` had said False."""
