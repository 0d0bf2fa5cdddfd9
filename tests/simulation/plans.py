"""What clients are going to do: calls, streams of calls, sequences of calls. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.call import SequenceStep
from tests.simulation.streamer import StreamOrder


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One client request. `kind` says what it must come to: see `checks.py`."""

    number: int
    at_s: float
    kind: str
    model: str
    version: str = ""
    rows: int = 1
    width: int = 16
    timeout_s: float | None = None
    leaves_after_s: float | None = None
    """The client goes away this long after it asked."""
    body_after_s: float = 0.0
    """The body is complete this long after the headers."""
    queue_timeout_us: int = 0
    route: str = "infer"
    """`infer`, `generate`, `generate_stream`, or `stream`: a message of a session."""
    session: int | None = None
    position: int = 0
    """The how-manieth message of its session it is, from 1."""
    order: StreamOrder | None = None
    """What is asked of a decoupled model; None for every other."""
    wants_end: bool = False
    sequence: SequenceStep | None = None
    body_id: str | None = None
    """The request id in the body; None for one of its own."""
    driven: bool = False
    """A sequence or a session sends it when its turn comes; `at_s` is the earliest time."""
    priority: str | None = None
    """The class that its caller asks for; of one on a session the session says it."""

    @property
    def question(self) -> bytes:
        """The input tensor: unique to this call, and told from a warm-up's by its first bytes."""
        order = b"" if self.order is None else self.order.encode()
        return (f"call-{self.number:05d}-".encode() + order).ljust(self.rows * self.width, b".")

    @property
    def id(self) -> str:
        return f"id-{self.number}" if self.body_id is None else self.body_id

    @property
    def streamed(self) -> bool:
        """Its reply is a stream of responses."""
        return self.route != "infer"

    @property
    def goes_by_stream(self) -> bool:
        """It goes to its replica on a stream: what gives any number of responses, and steps that came on one."""
        return self.streamed and (self.order is not None or self.sequence is not None)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One ModelStreamInfer of a client."""

    number: int
    at_s: float
    messages: tuple[tuple[float, int], ...]
    """(seconds after the session's begin, number of the call), in order."""
    closes_after_s: float = 0.0
    """It half-closes this long after its last message."""
    leaves_after_s: float | None = None
    read_pause_s: float = 0.0
    """It takes one response in so much time."""
    timeout_s: float | None = None
    """Of the whole stream, as `grpc-timeout`."""
    call_timeout_s: float | None = None
    """Of each call, as a header."""
    true_status: bool = False
    driven: bool = False
    must: bool = False
    priority: str | None = None
    """The class that is asked for all its calls."""

    @property
    def request_id(self) -> str:
        return f"sess-{self.number:05d}"


@dataclass(frozen=True, slots=True)
class Leg:
    """Part of a sequence: single calls one after the other (`burst`: without waiting), or a session of its own."""

    calls: tuple[int, ...] = ()
    session: int | None = None
    pause_s: float = 0.0
    burst: bool = False


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One sequence, as its client thinks of it. `legs` are empty if its steps ride on sessions that others share."""

    model: str
    id: int | str
    at_s: float
    steps: tuple[int, ...]
    """Numbers of its calls, in order."""
    legs: tuple[Leg, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the fleet. `what` names a row of `run.py`."""

    at_s: float
    what: str
    machine: str
    arguments: tuple[object, ...] = ()
