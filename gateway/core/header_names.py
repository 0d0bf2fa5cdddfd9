"""Names of client headers that the gateway treats in a way of its own, in lower case.

HTTP headers and gRPC metadata are the same pairs here.
"""

from __future__ import annotations

REQUEST_ID = "x-request-id"
TIMEOUT_MS = "x-request-timeout-ms"
API_KEY = "x-api-key"
EXPLAIN = "x-sluice-explain"
PRIORITY = "x-sluice-priority"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    }
)
"""Of one connection (RFC 9110 section 7.6.1, and RFC 7540 section 3.2.1)."""

PEERS_OWN = HOP_BY_HOP | {"host", "expect", "accept-encoding", "user-agent"}
"""Besides names that begin with one of `PEERS_OWN_PREFIXES`: what each peer says for itself of the connection, the
message or the protocol. A copy of somebody else's would break the request; gRPC's library writes its own."""
PEERS_OWN_PREFIXES = ("content-", "grpc-", ":")

TRUE_STATUS = "triton_grpc_error"
"""By this callers of ModelStreamInfer ask that a model's error end the stream with its status."""

TRACE_CONTEXT = frozenset({TRACEPARENT, TRACESTATE})

NEVER_FORWARDED = (
    PEERS_OWN
    | {"authorization", API_KEY, "cookie", TIMEOUT_MS, "inference-header-content-length", TRUE_STATUS}
    | TRACE_CONTEXT
)  # fmt: skip
"""Besides names that begin with one of `NEVER_PREFIXES`. `cookie` is a credential. Trace context goes on whatever the
policy forwards, once it is valid, and therefore not by this way. `triton_grpc_error` must never reach Triton 2.51: on
such a stream a model that reports an error, and then its end apart from it, crashes the whole server; the edge does for
the caller what it asks for."""
NEVER_PREFIXES = ("content-", "x-sluice-", "proxy-", "grpc-", ":")


def never_forwarded(name: str) -> bool:
    """Whether no policy makes a client's header `name` go on to a model server."""
    return name in NEVER_FORWARDED or name.startswith(NEVER_PREFIXES)
