"""What a run leaves behind for the checks: the clients' side, the records' side, the machines' side."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.call import Call
from gateway.core.criticality import CLASS_NAMES
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.core.reply import Next, Reply, Response, StreamReply
from gateway.core.service import Service
from tests.simulation.scenario import Scenario
from tests.simulation.sequencer import SequenceLog, Step
from tests.simulation.trace import Trace


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer as its client understood it, whatever protocol it came by."""

    model: str
    version: str
    id: str
    output: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a stream, or one event, as its client understood it: an answer, an error's text, or neither."""

    at_s: float
    """When the gateway wrote it (over HTTP: when it arrived)."""
    place: int
    """Its place among all messages of its stream."""
    answer: Answer | None
    error: str = ""
    final: bool | None = None
    """`triton_final_response`; None where it does not stand."""

    @property
    def bare(self) -> bool:
        """It tells the end and nothing else."""
        return not self.error and self.answer is not None and not self.answer.output


@dataclass(slots=True)
class Ending:
    """How one call ended for its client."""

    at_s: float
    """When the gateway had it ready: its return, or the first byte it wrote."""
    status: str
    """`ok`, a reason's label, `left` (the client went away), `closed` (the connection ended without an answer), or
    `fault` for what must never happen. Of a call with many responses also: `error` (one was told in its place), `cut`
    (the connection ended inside the answer), `unread` (the gateway never took it), `unsent`.
    """
    answer: Answer | None = None
    text: str = ""
    parts: tuple[Part, ...] = ()
    """What came for a call with any number of responses."""


@dataclass(frozen=True, slots=True)
class SessionEnding:
    """How one stream ended: `ok`, a reason's label, `left`, `expired` or `closed`."""

    at_s: float
    status: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One prediction record."""

    outcome: str
    reason: str
    """Empty for a call that was answered."""
    version: str
    policy_revision: str
    attempts: tuple[tuple[str, str], ...]
    """(replica, outcome)."""
    responses: int = 0
    text: str = ""
    """The error text."""
    criticality: str = ""
    """The class, in its word."""


class Told(NamedTuple):
    """What a machine was told of the time that a call has."""

    machine: str
    at_s: float
    """When it heard it."""
    limit_s: float


@dataclass(slots=True)
class Report:
    """Everything that the checks look at, and the trace."""

    scenario: Scenario
    trace: Trace
    calls: dict[int, Call] = field(default_factory=dict)
    """The call objects, by the number of their plan. Missing: the request never became a call."""
    endings: dict[int, list[Ending]] = field(default_factory=dict)
    records: dict[str, list[Entry]] = field(default_factory=dict)
    records_dropped: int = 0
    """How many records the log says it dropped."""
    sends: Counter[bytes] = field(default_factory=Counter)
    """How often each question left the gateway."""
    executed: Counter[bytes] = field(default_factory=Counter)
    """How often each question was run, over all machines."""
    out_until_s: dict[bytes, float] = field(default_factory=dict)
    """When the gateway stopped waiting for each question's answer from a machine."""
    limits: dict[bytes, list[tuple[float, float]]] = field(default_factory=dict)
    """When each question that goes by itself left the gateway, and how long the gateway was going to wait for it."""
    told: dict[bytes, list[Told]] = field(default_factory=dict)
    """What machines were told of that, where they were told in bytes."""
    cancels_made_s: dict[str, list[float]] = field(default_factory=dict)
    """Of each machine, when the product's client cancelled something there, streams included, or heard that it had done
    so by itself; where calls leave in bytes.
    """
    left_at_s: dict[int, float] = field(default_factory=dict)
    """When the client of a call went away."""
    sent_at_s: dict[int, float] = field(default_factory=dict)
    """When a client sent each call that has a place in a session or a sequence."""
    sent_to: dict[int, tuple[str, str]] = field(default_factory=dict)
    """(machine, version) that each call was sent to."""
    cancels_at_s: dict[str, list[float]] = field(default_factory=dict)
    """When single calls were cancelled on each machine: sent, or arrived there."""
    sent_on_s: dict[int, float] = field(default_factory=dict)
    """When it was sent there."""
    begun_s: dict[int, float] = field(default_factory=dict)
    """When each session was opened."""
    sessions: dict[int, SessionEnding] = field(default_factory=dict)
    first_s: dict[int, float] = field(default_factory=dict)
    """When the stack had the first response, or the error, of each call with any number of responses."""
    wait_s: dict[int, float] = field(default_factory=dict)
    """The longest wait for one of its further responses."""
    errors: dict[int, list[str]] = field(default_factory=dict)
    """What the stack said went wrong with each call with any number of responses."""
    blurred: set[int] = field(default_factory=set)
    """Calls that share their id with others of their stream, where an error could have been another's as well."""
    slow: set[int] = field(default_factory=set)
    """Calls whose clients did not take at once what was written for them."""
    by_stream: set[int] = field(default_factory=set)
    """Calls that go upstream on a stream, and not as single ones."""
    over_s: dict[int, float] = field(default_factory=dict)
    """When the stack had the answer, the first response or the error of each call."""
    entered_s: dict[int, float] = field(default_factory=dict)
    """When each call came to the stack."""
    done_s: dict[int, float] = field(default_factory=dict)
    """When the stack had done with it."""
    granted_elsewhere_s: list[float] = field(default_factory=list)
    """When the other gateway, if there is one, let a call of the same tenant in."""
    store_losses: int = 0
    """How often the shared store forgot everything."""
    ended_calls: set[int] = field(default_factory=set)
    """Calls that the stack has done with: the reply is closed, or there never was one."""
    sequence_logs: list[SequenceLog] = field(default_factory=list)
    """What the machines ran of sequences."""
    known_at: dict[int, bool] = field(default_factory=dict)
    """Whether, all the while the call was under way, the gateway had heard of some version of its model."""
    violations: list[str] = field(default_factory=list)
    """What was judged on the spot, and what was left at the end."""
    callbacks: int = 0
    virtual_s: float = 0.0
    on_call_ended: Callable[[int], None] = field(default=lambda number: None)
    on_call_finished: Callable[[int], None] = field(default=lambda number: None)
    """A reply says that nothing of the call is out any more."""
    on_session_ended: Callable[[str], None] = field(default=lambda request_id: None)

    def violate(self, text: str) -> None:
        self.trace.add("VIOLATION", text)
        self.violations.append(text)

    def end(self, number: int, ending: Ending) -> None:
        """A client got its response."""
        self.endings.setdefault(number, []).append(ending)
        self.trace.add("ended", request_id(number), ending.status, *([len(ending.parts)] if ending.parts else []))

    def call_ended(self, number: int) -> None:
        """The stack has done with a call."""
        self.ended_calls.add(number)
        self.done_s.setdefault(number, self.trace.now_s())
        self.on_call_ended(number)

    @property
    def steps(self) -> Iterator[Step]:
        """All steps of sequences that ran, machine by machine."""
        for log in self.sequence_logs:
            yield from log.steps

    def sequence_outputs(self) -> dict[bytes, int]:
        """The output of every step of a sequence that ran, and the number of its call."""
        return {step.output: int(step.question[5:10]) for step in self.steps if step.question.startswith(b"call-")}

    def number_of(self, call: Call) -> int:
        """The number of the plan that `call` came from."""
        if not call.stream_position:
            return int(call.request_id[5:])
        session = self.scenario.sessions[int(call.request_id[5:])]
        return session.messages[call.stream_position - 1][1]


class Front:
    """The service that the edges send to: notes the call, passes it on, knows how many are inside."""

    def __init__(self, report: Report, inner: Service) -> None:
        self._report = report
        self._inner = inner
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def send(self, call: Call) -> Reply:
        report = self._report
        number = report.number_of(call)
        report.calls[number] = call
        report.entered_s[number] = report.trace.now_s()
        self._inside += 1
        self._empty.clear()
        reply: Reply | None = None
        try:
            reply = await self._inner.send(call)
            return reply
        except GatewayError as error:
            report.errors.setdefault(number, []).append(error.message)
            raise
        finally:
            self._inside -= 1
            report.over_s[number] = report.trace.now_s()
            if not self._inside:
                self._empty.set()
            if call.session is not None:
                report.first_s[number] = report.trace.now_s()
            if isinstance(reply, StreamReply) and reply.finished and number in report.by_stream:
                report.on_call_finished(number)
            if isinstance(reply, StreamReply) and not reply.finished:
                if reply.first is not None and reply.first.error is not None:
                    report.errors.setdefault(number, []).append(reply.first.error.message)
                reply.guard(lambda following: self._timed(number, following))
                reply.on_close(lambda outcome: report.call_ended(number))
            else:
                report.call_ended(number)

    def _timed(self, number: int, following: Next) -> Next:
        report = self._report

        async def timed() -> Response | None:
            began_s = report.trace.now_s()
            try:
                response = await following()
                if response is not None and response.error is not None:
                    report.errors.setdefault(number, []).append(response.error.message)
                return response
            except GatewayError as error:
                report.errors.setdefault(number, []).append(error.message)
                raise
            finally:
                took_s = report.trace.now_s() - began_s
                report.wait_s[number] = max(took_s, report.wait_s.get(number, 0.0))

        return timed

    async def drain(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()


class Sink:
    """One of the stack's sinks: makes the entry of each ended call."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        trail = call.trail
        attempts = tuple((each.replica, each.outcome.value if each.outcome else "out") for each in trail.attempts)
        label = "" if error is None else error.reason.label
        entry = Entry(
            outcome.value,
            label,
            trail.version_served,
            trail.policy_revision,
            attempts,
            criticality=CLASS_NAMES[call.criticality],
        )
        self._report.records.setdefault(record_key(call), []).append(entry)


def record_key(call: Call) -> str:
    """By what the record of a call is found: many calls of one stream share their request id."""
    return stream_key(call.request_id, call.stream_position)


def stream_key(request: str, position: int) -> str:
    return f"{request}/{position}" if position else request


def request_id(number: int) -> str:
    """The `x-request-id` of a planned call."""
    return f"call-{number:05d}"


class ErrorLog(logging.Handler):
    """What the product logs as an error is a violation: it says itself that something went wrong that should not."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        self._report.violate(f"logged by {record.name}: {text}")
