"""What goes wrong on our own connections, as faults: each knows who made it, and whether the request had left."""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.wire.grpc import GrpcFault, code_of_http, code_of_reset
from gateway.wire.http2 import CONNECTION_LOST, ErrorCode, Http2Client


def lost(text: str, *, sent: bool) -> UpstreamFault:
    """There is no connection (any more). `sent`: bytes of the request may have arrived."""
    return UpstreamFault(Code.UNAVAILABLE, text, from_peer=False, sent=sent)


def expired(timeout_s: float, *, sent: bool) -> UpstreamFault:
    """The caller's own time limit has passed."""
    text = f"no answer within {timeout_s:g} s" if sent else f"no connection within {timeout_s:g} s"
    return UpstreamFault(Code.DEADLINE_EXCEEDED, text, from_peer=False, sent=sent)


def too_large(size: int, limit: int) -> UpstreamFault:
    """A request that is not sent for its size, bytes."""
    # The words of gRPC's library, whose numbers `core.faults` reads.
    text = f"Sent message larger than max ({size} vs. {limit})"
    return UpstreamFault(Code.RESOURCE_EXHAUSTED, text, from_peer=False, sent=False)


def of_reset(
    codec: Http2Client, code: int, text: str, *, from_peer: bool, unprocessed: bool, sent: bool
) -> UpstreamFault:
    """The stream ended without an orderly end, as `Stream.on_reset` tells it."""
    if unprocessed:
        return lost(f"the replica did not take the call ({name(code)}: {text})", sent=False)
    if from_peer:
        # A stream that was reset to calm us down is no message over its size, which RESOURCE_EXHAUSTED would mean.
        means = Code.UNAVAILABLE if code == ErrorCode.ENHANCE_YOUR_CALM else code_of_reset(code)
        return UpstreamFault(means, f"the replica reset the stream with {name(code)}", from_peer=False)
    if code == ErrorCode.ENHANCE_YOUR_CALM and not codec.closed:
        # The peer did answer, with an error too long to read; only a caller's own text, quoted, makes one that long.
        text = "the request was refused, in more words than can be passed on"
        return UpstreamFault(Code.INVALID_ARGUMENT, text, from_peer=True)
    if code in (CONNECTION_LOST, ErrorCode.NO_ERROR):
        return lost(text, sent=sent)
    return lost(f"the replica broke the protocol: {text}", sent=sent)


def of_grpc(fault: GrpcFault) -> UpstreamFault:
    """What came is no message of gRPC, or one that is too large."""
    return UpstreamFault(fault.code, fault.text, from_peer=fault.code is not Code.RESOURCE_EXHAUSTED)


def no_status() -> UpstreamFault:
    """The answer ended, and did not say how."""
    return UpstreamFault(Code.UNKNOWN, "the answer ended without a gRPC status", from_peer=False)


def of_http(status: int) -> UpstreamFault:
    """An answer with an HTTP status and no gRPC status is from something between the gateway and the replica."""
    return UpstreamFault(
        code_of_http(status), f"the answer has HTTP status {status} and no gRPC status", from_peer=False
    )


def name(code: int) -> str:
    """An HTTP/2 error code in words."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
