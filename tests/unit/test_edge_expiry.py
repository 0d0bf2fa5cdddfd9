"""Who leaves at the end of its own time has not changed its mind."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.edge.expiry import expires
from gateway.layers.record import RecordLayer
from tests.support.calls import make_call
from tests.support.clock import ManualClock
from tests.support.service import ScriptedService


@pytest.mark.parametrize(
    ("timeout_s", "left_s", "expired"),
    [
        (0.600, 0.021, False),
        (0.600, 0.019, True),
        (0.600, -0.010, True),
        (0.010, 0.008, False),
        (0.010, 0.002, True),
        (None, 0.0, False),
    ],
)
def test_it_is_the_end_of_its_time_within_20_ms_and_the_last_quarter_of_a_short_limit(
    timeout_s: float | None, left_s: float, expired: bool
) -> None:
    limit_s = timeout_s or 1.0
    call = make_call(arrived_s=1000.0, timeout_s=timeout_s, deadline_s=1000.0 + limit_s)
    assert expires(call, 1000.0 + limit_s - left_s) is expired


def test_a_policy_s_shorter_maximum_is_not_the_callers_time() -> None:
    call = make_call(arrived_s=1000.0, timeout_s=60.0, deadline_s=1030.0)
    assert not expires(call, 1030.0)


@pytest.mark.parametrize(
    ("cut", "outcome"),
    [
        (None, Outcome.ABANDONED),
        (GatewayError(Reason.DEADLINE, "time is up"), Outcome.EXPIRED),
        (GatewayError(Reason.DRAINING, "the gateway stops"), Outcome.ABANDONED),
    ],
)
async def test_the_record_says_which(cut: GatewayError | None, outcome: Outcome) -> None:
    ended: list[Outcome] = []

    class Sink:
        def call_ended(
            self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
        ) -> None:
            ended.append(outcome)

    inner, call = ScriptedService(), make_call()
    task = asyncio.ensure_future(RecordLayer(inner, ManualClock(), (Sink(),)).send(call))
    await inner.arrivals.get()
    call.cut, call.abandoned = cut, True
    task.cancel()
    await asyncio.wait((task,))
    assert ended == [outcome]
