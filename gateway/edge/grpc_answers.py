"""What a gRPC answer says about itself: which of it goes into initial metadata, which into trailing.

Where the two servers of the port differ is how they send it.
"""

from __future__ import annotations

import random

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import REQUEST_ID
from gateway.edge.headers import response_headers
from gateway.edge.status import retry_delay_s

Pairs = list[tuple[str, str]]

INITIAL = frozenset({"x-request-id", "x-sluice-model", "x-sluice-model-version", "x-sluice-rung", "x-sluice-impact",
                     "x-sluice-cache"})  # fmt: skip
"""These go into initial metadata, the rest into trailing; an error has no initial metadata and carries all in
trailing.
"""
ATTEMPTS = "x-sluice-attempts"
"""Trailing, and not said of a stream, whose calls each have their own."""

_OVERLOADS = frozenset(
    {
        Reason.QUOTA,
        Reason.QUEUE_FULL,
        Reason.SHED,
        Reason.BODY_MEMORY,
        Reason.UPSTREAM_QUEUE_FULL,
        Reason.RECORD_FULL,
    }
)


def answered(call: Call, story: str) -> tuple[Pairs, Pairs]:
    """Initial and trailing metadata of a good answer."""
    pairs = response_headers(call, None, story)
    return [pair for pair in pairs if pair[0] in INITIAL], [pair for pair in pairs if pair[0] not in INITIAL]


def failed(call: Call, error: GatewayError, story: str, chance: random.Random) -> Pairs:
    """Trailing metadata of a call that ended in `error`. `chance` jitters the pushback of a shed one."""
    return response_headers(call, error, story) + _pushback(error, chance)


def refused(request_id: str, error: GatewayError, chance: random.Random) -> Pairs:
    """Trailing metadata where a request that is no call, or a stream, ends in `error`."""
    return [(REQUEST_ID, request_id), ("x-sluice-reason", error.reason.label), *_pushback(error, chance)]


def _pushback(error: GatewayError, chance: random.Random) -> Pairs:
    """When a client's library may try again by itself (gRPC proposal A6)."""
    if error.reason not in _OVERLOADS:
        return []
    return [("grpc-retry-pushback-ms", str(int(retry_delay_s(error, chance) * 1000)))]


def stream_opened(pairs: Pairs) -> Pairs:
    """Initial metadata of a stream, of what its first response says."""
    return [pair for pair in pairs if pair[0] != ATTEMPTS]
