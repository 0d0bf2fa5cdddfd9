"""Messages, records and a store that misbehaves on command, for the tests of the records."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Iterable

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.records.record import PredictionRecord, Tensors
from gateway.wire.kserve import protobuf as pb


def described(name: str, datatype: str, shape: Iterable[int]) -> bytes:
    dims = b"".join(pb.varint(dim) for dim in shape)
    return pb.text_field(1, name) + pb.text_field(2, datatype) + pb.len_field(3, dims)


def request(*tensors: tuple[str, str, tuple[int, ...], bytes]) -> bytes:
    """A ModelInferRequest with raw inputs."""
    heads = b"".join(pb.len_field(5, described(name, datatype, shape)) for name, datatype, shape, _ in tensors)
    return pb.text_field(1, "fraud") + heads + b"".join(pb.len_field(7, raw) for *_, raw in tensors)


def answer(*tensors: tuple[str, str, tuple[int, ...], bytes]) -> bytes:
    """A ModelInferResponse."""
    heads = b"".join(pb.len_field(5, described(name, datatype, shape)) for name, datatype, shape, _ in tensors)
    who = pb.text_field(1, "fraud") + pb.text_field(2, "2")
    return who + heads + b"".join(pb.len_field(6, raw) for *_, raw in tensors)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


REQUEST = request(("x", "FP32", (1, 3), floats(1, 2, 3)))
ANSWER = answer(("score", "FP32", (1, 1), floats(0.5)))


def served_call(number: int = 0, *, message: bytes | None = REQUEST) -> Call:
    """A call that was answered, with a full trail."""
    call = Call(
        request_id=f"r-{number}",
        model="fraud",
        version="",
        arrived_s=100.0,
        arrived_wall_s=1_800_000_000.25,
        message=message,
        metadata=(("traceparent", "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"),),
        timeout_s=0.5,
        protocol="grpc",
    )
    call.deadline_s = 100.5
    trail = call.trail
    trail.received_s, trail.routed_s, trail.admitted_s, trail.answered_s = 100.001, 100.002, 100.004, 100.010
    trail.pool, trail.policy_revision, trail.routed_by = "default", "0123456789ab", "newest"
    trail.version_routed = trail.version_served = "2"
    attempt = Attempt("default/10.0.0.1:8001", 100.004)
    attempt.ended_s, attempt.outcome = 100.010, Outcome.OK
    trail.attempts.append(attempt)
    return call


def record(
    number: int = 0,
    *,
    message: bytes | None = REQUEST,
    reply: bytes | None = ANSWER,
    outcome: Outcome = Outcome.OK,
    error: GatewayError | None = None,
    tensors: Tensors = "summary",
) -> PredictionRecord:
    return PredictionRecord(
        served_call(number, message=message), outcome, error, reply, 100.011, tensors=tensors, impact=""
    )


class FaultyStore:
    """A record store in memory whose `fault` is raised by every append, and which hangs while `gate` is closed."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.fault: Exception | None = None
        self.sync_fault: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.appends = 0
        self.syncs = 0
        self.closed = False

    def append(self, lines: bytes) -> None:
        self.appends += 1
        self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.chunks.append(lines)

    def sync(self) -> None:
        self.syncs += 1
        if self.sync_fault is not None:
            raise self.sync_fault

    def close(self) -> None:
        self.closed = True

    @property
    def lines(self) -> list[bytes]:
        return b"".join(self.chunks).splitlines()


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")
