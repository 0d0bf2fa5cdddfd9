"""`grpc-timeout`: how long the caller waits.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Timeout": one to eight digits and a unit.
"""

from __future__ import annotations

import re

from gateway.core.codes import Code
from gateway.wire.grpc.errors import GrpcFault

_UNIT_NS = {b"n": 1, b"u": 10**3, b"m": 10**6, b"S": 10**9, b"M": 60 * 10**9, b"H": 3600 * 10**9}
# More digits than eight, and spaces, because gRPC's library takes them.
_TIMEOUT = re.compile(rb" *([0-9]{1,18}) *([HMSmun]) *")
LONGEST_S = 99_999_999.0
"""The longest that `encode_timeout` says: three years."""
_LONGEST = b"99999999S"

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
    """`timeout_s` as a value of `grpc-timeout`, rounded down by less than 2.5 %.

    Three significant digits, of which the last goes in steps of 2 (numbers that begin with 1), 5 (2 to 4) or 10: while
    a time limit runs out the same value is sent again and again, and so the same header block. No time left is `1n`,
    because the protocol wants a positive number; more than `LONGEST_S` is that. Raises ValueError for NaN alone.
    """
    if timeout_s >= LONGEST_S:
        return _LONGEST
    if timeout_s <= 1e-9:
        return b"1n"
    # To the nearest nanosecond: 0.29 s is a little less than 290 ms in binary, and would become 285.
    left_ns = round(timeout_s * 1e9)
    if left_ns >= 100:
        scale = 10 ** (len(str(left_ns)) - 3)
        number = left_ns // scale
        left_ns = (number - number % (2 if number < 200 else 5 if number < 500 else 10)) * scale
        if left_ns >= 10**14:
            return b"%dS" % (left_ns // 10**9)
        if left_ns >= 10**8:
            return b"%dm" % (left_ns // 10**6)
        if left_ns >= 10**5:
            return b"%du" % (left_ns // 10**3)
    return b"%dn" % left_ns
