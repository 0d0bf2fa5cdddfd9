"""Errors as HTTP: the one table from reason and code to status, the body, and `retry-after`.

Nothing below the edge knows a status. A reason that the gateway gives has its status here; for what Triton says, the
canonical code decides, as Triton's own HTTP server maps it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

import orjson

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason

CODE_STATUS: Mapping[Code, int] = MappingProxyType(
    {
        Code.OK: 200,
        Code.CANCELLED: 400,
        Code.UNKNOWN: 400,
        Code.INVALID_ARGUMENT: 400,
        Code.DEADLINE_EXCEEDED: 504,
        Code.NOT_FOUND: 404,
        Code.ALREADY_EXISTS: 400,
        Code.PERMISSION_DENIED: 403,
        Code.RESOURCE_EXHAUSTED: 503,
        Code.FAILED_PRECONDITION: 400,
        Code.ABORTED: 503,
        Code.OUT_OF_RANGE: 400,
        Code.UNIMPLEMENTED: 501,
        Code.INTERNAL: 500,
        Code.UNAVAILABLE: 503,
        Code.DATA_LOSS: 500,
        Code.UNAUTHENTICATED: 401,
    }
)
"""What a code means where the reason says no more. 400 for CANCELLED, UNKNOWN and ALREADY_EXISTS is Triton's choice."""

REASON_STATUS: Mapping[Reason, int] = MappingProxyType(
    {
        Reason.UNKNOWN_ROUTE: 404,
        Reason.TOO_LARGE: 413,
        Reason.QUOTA: 429,
        Reason.ANSWER_TOO_LARGE: 500,
        Reason.SLOW_BODY: 408,
    }
)
"""Reasons whose status is not their code's: HTTP has a word for them that gRPC lacks."""

NO_SUCH_ROUTE = "Not Found"
NO_SUCH_METHOD = "Method Not Allowed"
MODEL_NOT_READY = "Model version not ready"
"""Triton's own texts."""

RETRY_STATUSES = frozenset({429, 503})
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_MAX_S = 3600


def status_of(error: GatewayError) -> int:
    """The HTTP status of `error`."""
    return REASON_STATUS.get(error.reason) or CODE_STATUS[error.code]


def error_body(message: str) -> bytes:
    """Triton's error shape: a JSON object whose only member is `error`."""
    try:
        return orjson.dumps({"error": message})
    except orjson.JSONEncodeError:  # lone surrogates, which no encoding of ours can carry
        return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def retry_delay_s(error: GatewayError, chance: random.Random) -> float:
    """When to come back: the error's own estimate or one second, plus up to half of it by chance so that callers
    refused together do not come back together. At most an hour.
    """
    base_s = error.retry_after_s
    if base_s is None or not base_s > 0:
        base_s = RETRY_AFTER_DEFAULT_S
    return min(base_s * (1.0 + 0.5 * chance.random()), RETRY_AFTER_MAX_S)


def retry_after_s(error: GatewayError, chance: random.Random) -> int:
    """The same for HTTP's `retry-after`, which counts whole seconds: at least 1. Up or down by chance, in proportion:
    were all rounded up, everybody who is to come back in a second and a bit would do so at the same time.
    """
    whole, rest = divmod(retry_delay_s(error, chance), 1.0)
    return max(1, int(whole) + (chance.random() < rest))


def internal_error() -> GatewayError:
    """What a caller learns of a fault of the gateway itself: that it is one, and how to find it in the log."""
    return GatewayError(Reason.INTERNAL, "an internal fault of the gateway; its log tells more under this request's id")
