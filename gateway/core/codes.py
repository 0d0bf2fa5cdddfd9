"""Canonical status codes: how a call ended, in words no protocol owns.

The names and numbers are gRPC's, because Triton's own errors arrive in them. Turning a code into an HTTP status is
the edge's business.
"""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """The seventeen canonical codes (https://grpc.io/docs/guides/status-codes/)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
