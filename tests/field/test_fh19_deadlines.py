"""FH-19 · The deadline clock starts late, restarts per attempt, or is ignored on a side path.

The whole gateway in virtual time, bytes in and bytes out, so that 0.6 s are 0.6 s. What one part alone can show stands
with that part: forms of the header in `test_edge_headers.py` and `test_grpc_wire_timeout.py`, the limits of streams in
`test_layers_streams.py`, the split over stages in `test_layers_stages.py`; and over hundreds of seeds the simulation
holds that nobody is told more time than is left, or answered after the deadline (`tests/simulation/deadline_checks.py`).

There are no paths through a cache, an activator or a shadow yet. A canary is a version of a `split`, and goes the same
way as any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.call import Call, Metadata
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits
from gateway.core.faults import UpstreamFault
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.decide.attempt_budget import AttemptBudget, AttemptBudgetSettings
from gateway.decide.retry import RetrySettings
from gateway.fleet.connection import Connection
from gateway.fleet.transport import MARGIN_S, ReplicaTransport
from gateway.layers.admit import AdmitLayer
from gateway.layers.attempts import AttemptsLayer
from gateway.layers.cancels import Cancels
from gateway.layers.deadline import DeadlineLayer, StreamLimits
from gateway.layers.route import CurrentRoutes, ModelRoute, RouteTable
from gateway.layers.track import TrackLayer
from gateway.policy.schema import Deadline, Stages
from gateway.runtime.wheel import TimerWheel
from gateway.wire.grpc import parse_timeout
from tests.simulation.house import build
from tests.simulation.loop import simulate
from tests.simulation.plans import SessionPlan
from tests.simulation.report import Report
from tests.simulation.run import House, World
from tests.simulation.streamer import StreamOrder
from tests.support.attempts import LoopClock
from tests.support.calls import make_call
from tests.support.fleet import HandFleet, replica
from tests.support.timed_world import LOADED_S, MODEL, call, one_ending, played, stream, took_s

DEADLINE = Reason.DEADLINE.label
TICK_S = 0.0021
"""The timer wheel's, and a little."""


def ends_at(report: Report, number: int, at_s: float) -> None:
    """With 504 / DEADLINE_EXCEEDED, not after its deadline but for the wheel's tick, and at most the margin before."""
    ending = one_ending(report, number)
    assert ending.status == DEADLINE, ending.text
    assert at_s - MARGIN_S - 1e-6 <= took_s(report, number) <= at_s + TICK_S


# --- (a) the upload counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entrance", ["http", "grpc"])
def test_a_body_that_drips_for_a_second_is_504_at_its_deadline_and_nothing_is_sent(entrance: str) -> None:
    report = played([call(0, body_after_s=1.0)], entrance=entrance)
    assert one_ending(report, 0).status == DEADLINE
    assert not report.sends
    if entrance == "http":
        ends_at(report, 0, 0.6)
    else:  # no call yet: over gRPC it becomes one with its message
        assert one_ending(report, 0).at_s - report.sent_at_s[0] == pytest.approx(0.6, abs=TICK_S)


# --- (b) each attempt is told what is left ---------------------------------------------------------------------------


class Told:
    """A connection to each replica, whose calls fail after a quarter of a second; what they were told is kept."""

    def __init__(self) -> None:
        self.limits_s: list[float] = []
        self.client: Any = self
        self._connections: dict[str, Connection] = {}

    async def infer(self, message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"") -> bytes:
        self.limits_s.append(timeout_s)
        await asyncio.sleep(min(0.25, timeout_s))
        if timeout_s <= 0.25:
            raise UpstreamFault(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", from_peer=False)
        raise UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False)

    def connection(self, name: str) -> Connection:
        return self._connections.setdefault(name, Connection(self.client, name))

    def hint(self, *about: str) -> None: ...

    def note_answer(self, *about: object) -> None: ...

    def refused(self, *about: object) -> None: ...


def three_attempts(split: bool) -> tuple[Told, Call]:
    """One call of 600 ms to three replicas that fail after 250."""
    told, clock = Told(), LoopClock()
    calls: list[Call] = []
    return told, calls[0]
