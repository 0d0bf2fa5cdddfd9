"""What can go wrong on a connection or a stream."""

from __future__ import annotations

import enum
from typing import Final


class ErrorCode(enum.IntEnum):
    """Error codes of RST_STREAM and GOAWAY (RFC 9113 section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


CONNECTION_LOST: Final = -1
"""`code` of `Stream.on_reset` when the transport went away: no code of the protocol tells why."""


class Http2Fault(Exception):
    """The peer broke the protocol or a limit so that the connection ends. Recorded as `fault`, never raised outside.

    `text` is a sentence for logs and the GOAWAY frame; it holds none of the peer's bytes.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Http2UsageError(Exception):
    """This side's caller asked for something that the protocol forbids: a bug, not a fault of the peer."""


class StreamUnavailable(Exception):
    """`Http2Client.open` cannot open a stream on this connection, now or ever; nothing was sent. `text` says why."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
