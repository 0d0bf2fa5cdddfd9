"""Who made a gRPC error: the replica, or the gRPC library on its behalf.

A status carries no mark of its maker: code, text and metadata look alike whether the peer sent them or the library
made them up when a connection failed (grpcio 1.85; seen on real sockets, the tests provoke each). UNAVAILABLE from
Triton means that the server lives and refuses, UNAVAILABLE from the library means that nobody knows; confusing them
keeps dead replicas in service. Two signs together decide:

1. The library's own texts, all of which start with one of `LOCAL_PREFIXES`.
2. For UNAVAILABLE, the state of the channel: a peer that answered has a connection that is ready. This catches texts
   that a later grpcio invents. It errs on the safe side: an answer whose connection broke just after it reads as lost.
"""

from __future__ import annotations

import re

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault

NOT_SENT_PREFIXES = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "DNS resolution failed",
    "Name resolution",
    "errors resolving",
    "empty address list",
    "Empty address",
    "Sent message larger than max",
    "CLIENT: Sent message larger than max",
)
"""Nothing left this machine: no connection, or the message was refused by the library."""

SENT_PREFIXES = (
    "Stream removed",
    "Socket closed",
    "Transport closed",
    "Endpoint closing",
    "Connection reset",
    "Broken pipe",
    "Connection closed",
    "recvmsg:",
    "sendmsg:",
    "keepalive",
    "ping timeout",
    "GOAWAY",
    "RST_STREAM",
    "Received RST_STREAM",
    "Received http2 header with status",
    "CLIENT: Received message larger than max",
    "Received message larger than max",
    "Cancelling all calls",
    "Channel closed",
    "Too many pings",
    "max_age",
)
"""The request, or part of it, may have arrived; the peer did not say how it ended. An HTTP status without a gRPC status
is from something between the gateway and the replica.
"""

LOCAL_PREFIXES = NOT_SENT_PREFIXES + SENT_PREFIXES
_TOO_LARGE = "message larger than max"
_LIMIT = re.compile(r"(?<= vs\. )\d+(?=\))")
_LONG_WORDS = "received metadata size exceeds"
_LOCAL_LOWER = tuple(prefix.lower() for prefix in LOCAL_PREFIXES)
_NOT_SENT_LOWER = tuple(prefix.lower() for prefix in NOT_SENT_PREFIXES)


def to_fault(
    code_number: int, text: str, *, channel_ready: bool, timed_out: bool, message_bytes_max: int
) -> UpstreamFault:
    """The fault for a status. Of what the library made up only a message over its size keeps RESOURCE_EXHAUSTED.

    `channel_ready`: the channel's connection stood when the error was seen. `timed_out`: the caller's own time limit
    had passed by then, so DEADLINE_EXCEEDED is the library's timer (or a server's answer that raced it).
    `message_bytes_max`: the configured limit, which is told in place of the library's own, larger on the way out.
    """
    code = Code(code_number)
    lowered = text.lower()
    if _LONG_WORDS in lowered:
        # The peer did answer, with an error too long to read; only a caller's own text, quoted, makes one that long.
        return UpstreamFault(
            Code.INVALID_ARGUMENT, "the request was refused, in more words than can be passed on", from_peer=True
        )
    if lowered.startswith(_LOCAL_LOWER):
        if code is Code.RESOURCE_EXHAUSTED and _TOO_LARGE not in lowered:
            code = Code.UNAVAILABLE  # A stream that was reset to calm us down, not a message over its size.
        if _TOO_LARGE in lowered:
            text = _LIMIT.sub(str(message_bytes_max), text, count=1)
        return UpstreamFault(code, text, from_peer=False, sent=not lowered.startswith(_NOT_SENT_LOWER))
    if code is Code.DEADLINE_EXCEEDED:
        return UpstreamFault(code, text, from_peer=not timed_out)
    if code is Code.UNAVAILABLE and not channel_ready:
        return UpstreamFault(code, text, from_peer=False)
    return UpstreamFault(code, text, from_peer=True)
