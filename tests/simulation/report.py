"""What a run leaves behind for the checks: the clients' side, the records' side, the machines' side."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field

from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from tests.simulation.scenario import Scenario
from tests.simulation.trace import Trace


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer as its client understood it, whatever protocol it came by."""

    model: str
    version: str
    id: str
    output: bytes


@dataclass(slots=True)
class Ending:
    """How one call ended for its client."""

    at_s: float
    """When the gateway had it ready: its return, or the first byte it wrote."""
    status: str
    """`ok`, a reason's label, `left` (the client went away), `closed` (the connection ended without an answer), or
    `fault` for what must never happen.
    """
    answer: Answer | None = None
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
    left_at_s: dict[int, float] = field(default_factory=dict)
    """When the client of a call went away."""
    known_at: dict[int, bool] = field(default_factory=dict)
    """Whether, all the while the call was under way, the gateway had heard of some version of its model."""
    violations: list[str] = field(default_factory=list)
    """What was judged on the spot, and what was left at the end."""
    callbacks: int = 0
    virtual_s: float = 0.0

    def violate(self, text: str) -> None:
        self.trace.add("VIOLATION", text)
        self.violations.append(text)

    def end(self, number: int, ending: Ending) -> None:
        """A client got its response."""
        self.endings.setdefault(number, []).append(ending)
        self.trace.add("ended", request_id(number), ending.status)


class Front:
    """The service that the edges send to: notes the call, passes it on, knows how many are inside."""

    def __init__(self, report: Report, inner: Service) -> None:
        self._report = report
        self._inner = inner
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def send(self, call: Call) -> Reply:
        self._report.calls[int(call.request_id[5:])] = call
        self._inside += 1
        self._empty.clear()
        try:
            return await self._inner.send(call)
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

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
        entry = Entry(outcome.value, label, trail.version_served, trail.policy_revision, attempts)
        self._report.records.setdefault(call.request_id, []).append(entry)


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
