"""FH-18: the adaptive limit learns from nothing, or from fast failures. Its six tries and the rest of its kind, on the
whole of admission: queue, picker, breakers and limit decide together here, on virtual time, over an upstream that runs
8 calls at once for 50 ms each and lets the others wait.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable

import pytest

from gateway.core.call import Attempt, Call
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.slot_limit import LimitRule, SlotLimit
from gateway.decide.ticket import Granted, Queued, Refused, Ticket
from gateway.layers.admit import AdmitLayer
from gateway.layers.track import TrackLayer
from gateway.runtime.wheel import TimerWheel
from tests.simulation.loop import simulate
from tests.support.calls import make_call
from tests.support.fleet import HandFleet, replica

PLACES, SLOTS, CAP = 8, 16, 64
SERVICE_S = 0.05
CAPACITY = PLACES / SERVICE_S
BAD_S = 0.001

Fault = tuple[Outcome, float]
"""What a call ends as instead, and after how long."""


class World:
    """One model version on one replica. Every value of the limit is kept, and held against the bounds."""

    def __init__(
        self,
        seed: int = 18,
        service_s: Callable[[float], float] = lambda now_s: SERVICE_S,
        fault: Callable[[float], Fault | None] = lambda now_s: None,
        patience_s: float = 20.0,
    ) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.admission = Admission(self.chance, fit=SlotLimit(LimitRule(), self.chance.random))
        self.admission.update((Candidate("pool/a", SLOTS, PLACES, 0),), 0.0)
        self.shed_s: list[float] = []
        self.answered_s: list[float] = []
        self.limits: list[tuple[float, int, str]] = [(0.0, SLOTS, "start")]
        self._service_s, self._fault, self._patience_s = service_s, fault, patience_s
        self._free = PLACES
        self._behind: deque[Permit] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def baseline_s(self) -> float:
        return float(self.admission.statistics(self.now_s)["adaptive"]["baseline_s"])

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), what))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
            self._log()
        self.now_s = until_s

    def _log(self) -> None:
        admission = self.admission
        assert PLACES <= admission.limit <= CAP
        assert admission.limit == sum(each.slots for each in admission.candidates)
        assert 0.0 <= self.baseline_s < math.inf
        if admission.limit != self.limits[-1][1]:
            adaptive = admission.fit.adaptive
            assert adaptive is not None
            self.limits.append((self.now_s, admission.limit, adaptive.why))

    def load(self, rate: float, until_s: float) -> None:
        """Calls as a Poisson process, from now on."""

        def next_one() -> None:
            if self.now_s < until_s:
                self.arrive()
                self.at(self.now_s + self.chance.expovariate(rate), next_one)

        self.at(self.now_s + self.chance.expovariate(rate), next_one)

    def arrive(self) -> None:
        deadline_s = self.now_s + self._patience_s
        permit = self.admission.take(deadline_s, self.now_s)
        if permit is None:
            decision = self.admission.offer(Ticket(self.now_s, deadline_s), self.now_s)
            if isinstance(decision, Granted):
                permit = decision.permit
            elif isinstance(decision, Refused):
                self.shed_s.append(self.now_s)
            else:
                assert isinstance(decision, Queued)
            self._decided()
        if permit is not None:
            self._send(permit)

    def _decided(self) -> None:
        decided, self.admission.decided = self.admission.decided, []
        for ticket in decided:
            if ticket.permit is None:
                self.shed_s.append(self.now_s)
            else:
                self._send(ticket.permit)

    def _send(self, permit: Permit) -> None:
        permit.attempt = Attempt(permit.replica, self.now_s)
        fault = self._fault(self.now_s)
        if fault is not None:
            outcome, after_s = fault
            self.at(self.now_s + after_s, lambda: self._end(permit, outcome))
        elif self._free:
            self._free -= 1
            self._begin(permit)
        else:
            self._behind.append(permit)

    def _begin(self, permit: Permit) -> None:
        def done() -> None:
            if self._behind:
                self._begin(self._behind.popleft())
            else:
                self._free += 1
            self._end(permit, Outcome.OK)

        self.at(self.now_s + self._service_s(self.now_s), done)

    def _end(self, permit: Permit, outcome: Outcome) -> None:
        assert permit.attempt is not None
        permit.attempt.outcome, permit.attempt.ended_s = outcome, self.now_s
        if outcome is Outcome.OK:
            self.answered_s.append(self.now_s)
        self.admission.give_back(permit, self.now_s)
        self._decided()

    def goodput(self, since_s: float, until_s: float) -> float:
        return sum(since_s <= at_s < until_s for at_s in self.answered_s) / (until_s - since_s)

    def limits_between(self, since_s: float, until_s: float) -> list[int]:
        """Every limit that held in that time, but for those of measurements."""
        before = [one for one in self.limits if one[0] <= since_s and one[2] != "probe"][-1:]
        within = [one for one in self.limits if since_s < one[0] < until_s and one[2] != "probe"]
        return [limit for _, limit, _ in before + within]


def test_1_after_ten_windows_of_silence_the_first_second_is_served() -> None:
    world = World()
    world.run(10.0)
    world.load(50, 11.0)
    world.run(13.0)
    assert len(world.answered_s) > 30
    assert world.shed_s == []
    assert world.limits == [(0.0, SLOTS, "start")]


def test_2_five_minutes_of_overload() -> None:
    world = World()
    world.load(400, 300.0)
    for minute in (1, 5):
        world.run(60.0 * minute)
        assert world.baseline_s == pytest.approx(SERVICE_S, rel=0.2)
    assert all(PLACES <= limit <= 24 for _, limit, _ in world.limits)
    assert world.goodput(1.0, 300.0) >= 0.95 * CAPACITY
    assert len(world.limits) > 3, "it measures"


@pytest.mark.parametrize("rate", [100, 400])
@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.CALLER_FAULT, Outcome.TRANSPORT, Outcome.ABANDONED])
def test_3_quick_failures_do_not_move_it(rate: float, outcome: Outcome) -> None:
    world = World(fault=lambda now_s: (outcome, BAD_S) if now_s > 15 and world.chance.random() < 0.3 else None)
    world.load(rate, 40.0)
    world.run(40.0)
    before = world.limits_between(0.0, 15.0)[-1]
    assert all(0.7 * before <= limit <= 1.3 * before for limit in world.limits_between(15.0, 40.0))
    assert world.baseline_s >= 0.9 * SERVICE_S, "a millisecond is not what the model takes"


@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.OVERLOAD, Outcome.EXPIRED])
def test_4_after_twenty_seconds_of_errors_it_has_recovered_in_ten(outcome: Outcome) -> None:
    world = World(fault=lambda now_s: (outcome, BAD_S) if 15 <= now_s < 35 else None)
    world.load(400, 50.0)
    world.run(34.9)
    before = world.limits_between(0.0, 15.0)[-1]
    assert world.admission.limit == (before if outcome is Outcome.BROKEN else PLACES), "drops count, errors do not"
    world.run(50.0)
    assert world.limits_between(45.0, 45.1)[-1] >= 0.9 * before
    assert world.goodput(45.0, 50.0) >= 0.95 * CAPACITY


@pytest.mark.parametrize("rate", [8, 400])
def test_5_a_change_of_speed_is_followed_in_thirty_seconds_both_ways(rate: float) -> None:
    world = World(service_s=lambda now_s: 0.5 if 40 <= now_s < 80 else SERVICE_S)
    world.load(rate, 115.0)
    for at_s, latency_s in ((40.0, 0.05), (70.0, 0.5), (80.0, 0.5), (110.0, 0.05)):
        world.run(at_s)
        assert world.baseline_s == pytest.approx(latency_s, rel=0.2), f"at {at_s} s"
    world.run(115.0)
    assert all(PLACES <= limit <= 24 for _, limit, _ in world.limits)
    assert world.goodput(82.0, 115.0) >= 0.9 * min(rate, CAPACITY)


@pytest.mark.parametrize("latency_s", [0.05, 20.0])
def test_6_one_call_a_minute_moves_nothing(latency_s: float) -> None:
    world = World(service_s=lambda now_s: latency_s, patience_s=60.0)
    for minute in range(180):
        world.at(60.0 * minute, world.arrive)
    world.run(60.0 * 180)
    assert world.limits == [(0.0, SLOTS, "start")]
    assert len(world.answered_s) == 180


def test_after_idle_hours_the_first_burst_is_served_whatever_was_before() -> None:
    world = World(fault=lambda now_s: (Outcome.OVERLOAD, BAD_S) if now_s < 20 else None)
    world.load(400, 20.0)
    world.run(20.0)
    assert world.admission.limit == PLACES
    shed = len(world.shed_s)
    world.run(5 * 3600.0)
    for _ in range(SLOTS):
        world.arrive()
    assert world.admission.in_flight == SLOTS, "all at once: what an overload taught hours ago is no reason any more"
    world.run(world.now_s + 1.0)
    assert len(world.shed_s) == shed


def test_gateways_that_start_together_do_not_measure_together() -> None:
    def probes_s(seed: int) -> list[float]:
        world = World(seed)
        world.load(180, 130.0)
        world.run(130.0)
        return [at_s for at_s, _, why in world.limits if why == "probe"]

    first, second = probes_s(1), probes_s(2)
    assert len(first) >= 2
    assert len(second) >= 2
    assert min(abs(one - other) for one in first[1:] for other in second[1:]) > 0.5


# Through the layers.


class Upstream:
    """`Service`: runs any number of calls; each takes as long as its model does."""

    def __init__(self, takes_s: dict[str, float]) -> None:
        self._takes_s = takes_s

    async def send(self, call: Call) -> Reply:
        await asyncio.sleep(self._takes_s[call.model])
        attempt = call.trail.attempts[-1]
        attempt.outcome, attempt.ended_s = Outcome.OK, asyncio.get_running_loop().time()
        return Reply(b"")


class LoopClock:
    """`Clock` of the virtual loop."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return self.now_s()


def test_models_of_ten_milliseconds_and_of_twenty_seconds_have_limits_of_their_own() -> None:
    async def act() -> dict[str, float]:
        clock = LoopClock()
        takes_s = {"quick": 0.01, "slow": 20.0}
        fleet = HandFleet(replica("a", {("quick", "1"): 4, ("slow", "1"): 32}))
        layers = {
            name: AdmitLayer(
                TrackLayer(Upstream(takes_s), clock), model=name, pool="gpu", fleet=fleet, queue_max=None, clock=clock,
                wheel=TimerWheel(clock), chance=random.Random(4), limit=LimitRule(),
            )
            for name in takes_s
        }  # fmt: skip

        async def caller(name: str, count: int) -> None:
            for _ in range(count):
                call = make_call()
                call.model, call.trail.version_routed = name, "1"
                await (await layers[name].send(call)).aclose(Outcome.OK)

        await asyncio.gather(*(caller("quick", 600) for _ in range(2)), *(caller("slow", 12) for _ in range(16)))
        now_s = clock.now_s()
        return {name: layer.statistics(now_s)["1"]["adaptive"]["baseline_s"] for name, layer in layers.items()}

    found = simulate(lambda loop: act())
    assert found["quick"] == pytest.approx(0.01, rel=0.02)
    assert found["slow"] == pytest.approx(20.0, rel=0.02)
