"""`grpc-timeout`: how long the caller waits.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Timeout": one to eight digits and a unit.
"""

from __future__ import annotations

import re
from math import ceil

from gateway.core.codes import Code
from gateway.wire.grpc.errors import GrpcFault

_UNIT_NS = {b"n": 1, b"u": 10**3, b"m": 10**6, b"S": 10**9, b"M": 60 * 10**9, b"H": 3600 * 10**9}
# More digits than eight, and spaces, because gRPC's library takes them.
_TIMEOUT = re.compile(rb" *([0-9]{1,18}) *([HMSmun]) *")
LONGEST_S = 99_999_999.0
"""The longest that `encode_timeout` says: three years."""
_WHOLE_MS_MAX_S = 99_999.0
"""More would need a ninth digit."""

_VALUES_MAX = 1024
_VALUE_BYTES_MAX = 16
_parsed: dict[bytes, float] = {}
"""Values seen before: callers set one time limit for all their calls, and gRPC's library rounds what is left of it."""


def parse_timeout(value: bytes) -> float:
    """The seconds that `grpc-timeout` grants, counted from its arrival. With 0 the deadline has passed.

    Raises `GrpcFault` (INTERNAL) for what is no timeout.
    """
    timeout_s = _parsed.get(value)
    if timeout_s is None:
        found = _TIMEOUT.fullmatch(value)
        if found is None:
            raise GrpcFault(Code.INTERNAL, "grpc-timeout must be one to eight digits and one of the units HMSmun")
        timeout_s = int(found[1]) * _UNIT_NS[found[2]] / 1e9
        if len(value) <= _VALUE_BYTES_MAX:
            if len(_parsed) >= _VALUES_MAX:
                _parsed.clear()
            _parsed[value] = timeout_s
    return timeout_s


def encode_timeout(timeout_s: float) -> bytes:
    """`timeout_s` as a value of `grpc-timeout`, rounded up to whole milliseconds, from `_WHOLE_MS_MAX_S` on to whole
    seconds. No time left is `1m`, because the protocol wants a positive number; more than `LONGEST_S` is that. Raises
    ValueError for NaN alone.
    """
    if timeout_s < _WHOLE_MS_MAX_S:
        return b"%dm" % max(1, ceil(max(0.0, timeout_s) * 1000))
    return b"%dS" % ceil(min(timeout_s, LONGEST_S))
