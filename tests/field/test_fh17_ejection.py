"""FH-17 · Outlier ejection overshoots its own maximum and takes the whole pool out.

Its whole kind, through a model's own stack (admission, track, and a transport of the test) on virtual time, with the
knobs of a policy file. The deciders alone are judged in `tests/unit/test_decide_ejection.py`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.snapshot import ReplicaState
from gateway.decide.tuning import Tuning
from gateway.layers.admit import AdmitLayer
from gateway.layers.cancels import Cancels
from gateway.observe.metrics import Metrics
from gateway.observe.readings import balance_readings
from gateway.policy.schema import Admission, Ejection, ModelPolicy, Objective
from gateway.runtime.wheel import TimerWheel
from gateway.stack import build_model_stack
from tests.simulation.loop import simulate
from tests.support.attempts import LoopClock
from tests.support.calls import make_call
from tests.support.fleet import HandFleet, replica

SLOTS = 8
SERVICE_S = 0.02
Behaviour = Callable[[str, float], tuple[float, bool]]
"""Replica and seconds since the start, to how long a call takes there and whether it goes well."""


def names(count: int) -> list[str]:
    return [f"gpu/{number:02}" for number in range(count)]


class Pool:
    """One model's stack over a fleet of `size`, and what its calls came to."""

    def __init__(self, size: int, behaviour: Behaviour, *, seed: int = 1, model: str = "fraud", **knobs: Any) -> None:
        self.clock = LoopClock()
        self.began_s = self.clock.now_s()
        self.behaviour = behaviour
        self.wheel = TimerWheel(self.clock)
        self.model = model
        self.fleet = HandFleet(*self.views(names(size)))
        self.sent: list[tuple[float, str]] = []
        """When and where."""
        self.ended: list[tuple[float, str, bool]] = []
        self.calls: list[Call] = []
        policy = ModelPolicy(
            model=model, pool="gpu", objective=Objective(p99_ms=100), ladder="none", impact="an error is seen",
            admission=Admission(slots_per_replica=SLOTS), ejection=Ejection(**knobs),
        )  # fmt: skip
        self.layer: AdmitLayer = build_model_stack(
            policy,
            transport=self,
            fleet=self.fleet,
            cancels=Cancels(self.clock),
            clock=self.clock,
            wheel=self.wheel,
            chance=random.Random(seed),
            limit_chance=random.Random(seed + 1),
            tuning=Tuning(),
            seconds={},
        )

    def views(self, which: list[str], down: tuple[str, ...] = ()) -> list[Any]:
        return [
            replica(
                each.partition("/")[2],
                {(self.model, "1"): SLOTS},
                state=ReplicaState.DOWN if each in down else ReplicaState.LIVE,
            )
            for each in which
        ]

    @property
    def at_s(self) -> float:
        return self.clock.now_s() - self.began_s

    async def send(self, call: Call) -> Reply:
        """As the transport."""
        attempt = call.trail.attempts[-1]
        self.sent.append((self.at_s, attempt.replica))
        takes_s, well = self.behaviour(attempt.replica, self.at_s)
        await asyncio.sleep(takes_s)
        attempt.ended_s = call.trail.answered_s = self.clock.now_s()
        self.ended.append((self.at_s, attempt.replica, well))
        if well:
            attempt.outcome = Outcome.OK
            return Reply(b"answer")
        attempt.outcome = Outcome.BROKEN
        raise GatewayError(Reason.UPSTREAM_BROKEN, "503")

    async def one(self) -> None:
        call = make_call(self.model, arrived_s=self.clock.now_s(), deadline_s=self.clock.now_s() + 30.0)
        call.trail.version_routed = "1"
        self.calls.append(call)
        try:
            await self.layer.send(call)
        except GatewayError as error:
            if error.reason is not Reason.UPSTREAM_BROKEN:
                raise

    async def clients(self, count: int, until_s: float, pause_s: float = 0.0) -> None:
        """So many, each with one call out at any time."""

        async def client() -> None:
            while self.at_s < until_s:
                await self.one()
                if pause_s:
                    await asyncio.sleep(pause_s)

        await asyncio.gather(*(client() for _ in range(count)))

    def ejection(self) -> dict[str, Any]:
        found: dict[str, Any] = self.layer.statistics(self.clock.now_s())["1"]["ejection"]
        return found

    def standings(self) -> dict[str, str]:
        return {each: row["standing"] for each, row in self.ejection()["by_replica"].items()}

    def goodput(self, from_s: float, to_s: float) -> float:
        return sum(well for at_s, _, well in self.ended if from_s <= at_s < to_s) / (to_s - from_s)

    def to(self, which: str, from_s: float = 0.0) -> Iterator[float]:
        return (at_s for at_s, where in self.sent if where == which and at_s >= from_s)


def played(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(lambda loop: act())


def bad_ones(bad: set[str]) -> Behaviour:
    return lambda where, at_s: (0.005, False) if where in bad else (SERVICE_S, True)


# --- the cap ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 10, 34, 50, 67, 99, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("panic_below", [0.0, 0.5])
def test_of_k_that_fail_in_the_same_tenth_of_a_second_no_more_go_than_the_cap_says(
    size: int, cap: int, panic_below: float
) -> None:
    async def act(failing: int) -> None:
        bad, chance = set(names(size)[:failing]), random.Random(failing)
        subject = Pool(
            size,
            lambda where, at_s: (chance.uniform(0.0, 0.1), False) if where in bad else (SERVICE_S, True),
            share_max=cap / 100,
            panic_below=panic_below,
            pause_ms=10_000,
        )
        await asyncio.gather(*(subject.one() for _ in range(size * SLOTS)))
        assert subject.at_s < 0.11
        figures, standings = subject.ejection(), subject.standings()
        allowed = min(math.floor(size * cap / 100 + 1e-9), size - 1)
        assert figures["ejected"] == min(failing, allowed)
        assert figures["kept"] == failing - figures["ejected"]
        assert figures["ejected"] < size
        panic = (size - failing) / size < panic_below
        assert figures["panic"] is panic
        assert sum(each == "panic" for each in standings.values()) == (failing if panic else 0)
        before = len(subject.sent)
        for _ in range(3 * size):
            await asyncio.gather(*(subject.one() for _ in range(SLOTS // 2)))
        went = Counter(where for _, where in subject.sent[before:])
        out = {each for each, standing in standings.items() if standing == "ejected"}
        assert not out & set(went), "who is out gets none"
        assert sum(went.values()) == 3 * size * (SLOTS // 2), "and all calls are sent"

    for failing in range(1, size + 1):
        played(lambda failing=failing: act(failing))  # type: ignore[misc]


def test_the_cap_counts_for_each_model_alone() -> None:
    async def act() -> None:
        bad = {"fraud": set(names(4)[:2]), "other": set(names(4)[2:])}
        pools = [Pool(4, bad_ones(bad[model]), model=model, pause_ms=10_000) for model in bad]
        await asyncio.gather(*(pool.clients(16, 0.5) for pool in pools))
        for pool in pools:
            out = {each for each, standing in pool.standings().items() if standing == "ejected"}
            assert out == bad[pool.model], "half of either set, which is all of the fleet"
            assert pool.goodput(0.3, 0.5) > 0.9 * 16 / SERVICE_S

    played(act)


# --- all bad ----------------------------------------------------------------------------------------------------------


def test_all_bad_for_half_a_minute_and_one_heals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.ejection")

    async def act() -> None:
        def behaviour(where: str, at_s: float) -> tuple[float, bool]:
            return (SERVICE_S, True) if where == "gpu/01" and at_s >= 30.0 else (0.005, False)

        subject = Pool(3, behaviour)
        task = asyncio.ensure_future(subject.clients(6, 60.0, pause_s=0.01))
        await asyncio.sleep(29.0)
        figures = subject.ejection()
        assert (figures["panic"], figures["healthy"], figures["ejected"]) == (True, 0, 1)
        for second in range(2, 29):
            went = Counter(where for at_s, where in subject.sent if second <= at_s < second + 1)
            assert sum(went.values()) > 100, "traffic flows, rather than to be refused in full"
        went = Counter(where for _, where in subject.sent)
        assert set(went) == set(names(3))
        assert min(went.values()) > 0.2 * sum(went.values()), "and is spread over all of them"
        visible(subject)
        await task
        best = SLOTS / SERVICE_S
        assert subject.goodput(0.0, 30.0) == 0
        back_s = min(at_s for at_s, _, well in subject.ended if well)
        assert back_s < 32.0
        assert subject.goodput(35.0, 60.0) > 0.9 * min(best, 6 / (SERVICE_S + 0.01)) / 3, "within five seconds"

    def visible(subject: Pool) -> None:
        metrics = Metrics({"fraud": 0.1}, ["gpu"], version="0", revision="r", replica_key=b"k")
        metrics.fleet_changed(subject.fleet.snapshot, 0.0)
        rows = [("gpu", "fraud", "1", row) for row in subject.layer.judgements(0.0).values()]
        shown = {(name, key[3:]): value for name, key, value in balance_readings(rows, metrics)}
        assert shown["sluice_ejection_panic", ()] == 1
        assert shown["sluice_ejection_panics_total", ()] == 1
        assert shown["sluice_ejection_replicas", ("panic",)] == 3
        assert any("panic, calls go to all that are up" in line for line in caplog.messages)
        told = [note for call in subject.calls for note in call.trail.notes or ()]
        assert {note.word for note in told if note.decider == "breaker"} >= {"panic"}
        assert all(note.saw["replicas"] == 3 for note in told)

    played(act)


def test_when_all_heal_all_are_used_again() -> None:
    async def act() -> None:
        subject = Pool(3, lambda where, at_s: (SERVICE_S, True) if at_s >= 10.0 else (0.005, False))
        await subject.clients(12, 25.0, pause_s=0.04)
        figures = subject.ejection()
        assert (figures["healthy"], figures["panic"], figures["panics"]) == (3, False, 1)
        assert subject.goodput(15.0, 25.0) > 0.95 * 12 / (SERVICE_S + 0.04)
        went = Counter(where for at_s, where in subject.sent if at_s > 22.0)
        assert max(went.values()) < 1.6 * min(went.values()), went

    played(act)


# --- the set changes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panic_below", [0.0, 0.5])
def test_five_of_ten_are_out_and_then_five_healthy_ones_are_scaled_away(panic_below: float) -> None:
    async def act() -> None:
        bad = set(names(10)[:5])
        subject = Pool(10, bad_ones(bad), pause_ms=60_000, pause_max_ms=60_000, panic_below=panic_below)
        await subject.clients(60, 0.5)
        assert subject.ejection()["ejected"] == 5
        subject.fleet.publish(*subject.views(names(5)))
        figures = subject.ejection()
        assert figures["ejected"] <= 2, "at once, without a call or a moment between"
        before = len(subject.sent)
        await asyncio.gather(*(subject.one() for _ in range(24)))
        assert len({where for _, where in subject.sent[before:]}) >= 3, "at least half of the rest are in use"

    played(act)


def test_replicas_that_join_make_room_for_one_that_has_failed_for_long() -> None:
    async def act() -> None:
        subject = Pool(2, bad_ones(set(names(2))), panic_below=0.0, pause_ms=60_000, pause_max_ms=60_000)
        await subject.clients(8, 0.5)
        assert subject.ejection()["ejected"] == 1
        subject.fleet.publish(*subject.views(names(4)))
        assert subject.ejection()["ejected"] == 2
        before = len(subject.sent)
        await subject.clients(8, 1.0)
        assert {where for _, where in subject.sent[before:]} == set(names(4)[2:])

    played(act)


def test_those_that_are_down_use_up_nothing_of_the_cap() -> None:
    async def act() -> None:
        subject = Pool(8, bad_ones({"gpu/00"}), pause_ms=60_000, pause_max_ms=60_000)
        await asyncio.gather(*(subject.one() for _ in range(8 * SLOTS)))
        assert subject.ejection()["ejected"] == 1
        subject.fleet.publish(*subject.views(names(8), down=tuple(names(8)[5:])))
        await subject.clients(30, 0.5)
        figures = subject.ejection()
        assert (figures["replicas"], figures["down"], figures["ejected"], figures["panic"]) == (5, 3, 1, False)

    played(act)


# --- the way back -----------------------------------------------------------------------------------------------------


def test_one_that_fails_each_time_it_returns_is_asked_more_and_more_rarely_and_forgiven_when_it_behaves() -> None:
    async def act() -> None:
        def behaviour(where: str, at_s: float) -> tuple[float, bool]:
            return (0.005, False) if where == "gpu/00" and at_s < heals_s else (SERVICE_S, True)

        heals_s = 120.0
        subject = Pool(3, behaviour, pause_ms=200, pause_max_ms=25_600, slow_start_ms=1000)
        await subject.clients(6, 200.0, pause_s=0.1)
        asked = [at_s for at_s in subject.to("gpu/00", 1.0) if at_s < heals_s]
        gaps = [later - earlier for earlier, later in pairwise(asked)]
        pauses = [gap for gap in gaps if gap > 1.2]  # shorter ones were the picker's, or the first ones
        assert len(pauses) >= 5
        for earlier, later in zip(pauses, pauses[2:], strict=False):
            assert later > earlier or later > 12.0, gaps
        assert max(gaps) < 25.6 + 1.0
        assert 10 < len(asked) + len([at_s for at_s in subject.to("gpu/00") if at_s < 1.0]) < 40
        back = list(subject.to("gpu/00", heals_s + 26.0))
        assert len(back) > 0.2 * sum(at_s > heals_s + 26.0 for at_s, _ in subject.sent), "it has its share again"
        assert subject.ejection()["by_replica"]["gpu/00"]["state"] == "closed"

    played(act)


def test_fifty_that_are_out_do_not_all_return_in_the_same_second() -> None:
    async def act() -> None:
        bad = set(names(100)[:50])
        subject = Pool(
            100,
            lambda where, at_s: (0.005, False) if where in bad and at_s < 0.3 else (SERVICE_S, True),
            share_max=0.5,
        )
        await asyncio.gather(*(subject.one() for _ in range(100 * SLOTS)))
        assert subject.at_s < 0.3
        assert subject.ejection()["ejected"] == 50
        await subject.clients(60, 9.0, pause_s=0.1)
        first = sorted(min(subject.to(each, 0.4)) for each in bad)
        assert len(first) == 50
        for at_s in first:
            assert sum(at_s <= other < at_s + 1.0 for other in first) <= 11, "a tenth of the set in a second"
        assert first[-1] - first[0] > 3.5

    played(act)


def test_the_return_is_gentle() -> None:
    async def act() -> None:
        subject = Pool(
            2,
            lambda where, at_s: (0.005, False) if where == "gpu/00" and at_s < 1.0 else (SERVICE_S, True),
            slow_start_ms=10_000,
        )
        await subject.clients(10, 30.0, pause_s=0.01)
        closed_s = next(
            at_s
            for at_s in subject.to("gpu/00", 1.0)
            if sum(1.0 <= other <= at_s for other in subject.to("gpu/00")) > 3
        )
        shares = []
        for second in (0, 5, 15):
            from_s = closed_s + second
            went = Counter(where for at_s, where in subject.sent if from_s <= at_s < from_s + 1.0)
            shares.append(went["gpu/00"] / sum(went.values()))
        assert shares[0] < 0.3
        assert shares[0] < shares[1] < 0.5
        assert shares[2] == pytest.approx(0.5, abs=0.06)

    played(act)
