"""Hedging in a small pool: what it brings where a few executions are slow by chance, and what it costs where the pool
is busy or slow as a whole. The delay, the verdict and a plain ratio budget work together here.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import statistics
from collections import Counter, deque
from dataclasses import replace

from gateway.decide.hedge import HedgeDelay, HedgeSettings, HedgeView, hedge_verdict

SETTINGS = HedgeSettings()


class Call:
    __slots__ = ("answered", "arrived_s", "hedged", "sent_s", "service_s")

    def __init__(self, arrived_s: float, service_s: float) -> None:
        self.arrived_s = arrived_s
        self.service_s = service_s
        self.sent_s = 0.0
        self.hedged = False
        self.answered = False


class Pool:
    """Twelve servers that run one call at a time, and one queue in front of them. A call takes 20 ms +- 5 ms, one of
    fifty twenty times as long; a hedge may meet that too. What runs is never taken back: a loser keeps its server until
    it is through. Calls arrive by chance (Poisson) so that `load` of the capacity is in use.
    """

    SERVERS, MEAN_S, STRAGGLERS, SLOWER, HAS_S = 12, 0.020, 0.02, 20.0, 5.0

    def __init__(self, load: float, settings: HedgeSettings | None = SETTINGS, stretch_at_s: float = math.inf) -> None:
        self.delay = None if settings is None else HedgeDelay(settings)
        self.settings = settings or SETTINGS
        self.stretch_at_s = stretch_at_s
        """From then on everything takes twice as long."""
        mean_s = self.MEAN_S * (1 - self.STRAGGLERS + self.STRAGGLERS * self.SLOWER)
        self._rate = load * self.SERVERS / mean_s
        self._arrivals, self._services = random.Random(1), random.Random(2)
        self._others, self._chance = random.Random(3), random.Random(4)
        self._events: list[tuple[float, int, str, Call]] = []
        self._numbers = itertools.count()
        self._queue: deque[Call] = deque()
        self._running = self._hedges_out = 0
        self._tokens = 0.0
        self.latencies_s: list[float] = []
        """In the order of arrival of the answers."""
        self.hedged_s: list[float] = []
        """When hedges were sent."""
        self.triggers_s: dict[int, float | None] = {}
        """By second of the clock."""
        self.words: Counter[str] = Counter()

    def _service_s(self, now_s: float, chance: random.Random) -> float:
        service_s = self.MEAN_S * chance.uniform(0.75, 1.25) * (2 if now_s >= self.stretch_at_s else 1)
        return service_s * (self.SLOWER if chance.random() < self.STRAGGLERS else 1)

    def _at(self, at_s: float, kind: str, call: Call) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), kind, call))

    def _arrive(self, now_s: float) -> None:
        at_s = now_s + self._arrivals.expovariate(self._rate)
        self._at(at_s, "arrives", Call(at_s, self._service_s(at_s, self._services)))

    def run(self, calls: int) -> Pool:
        self._arrive(0.0)
        while len(self.latencies_s) < calls:
            now_s, _, kind, call = heapq.heappop(self._events)
            if kind == "arrives":
                self._arrive(now_s)
                self._queue.append(call)
                self._serve(now_s)
            elif kind == "asks":
                if not call.answered:
                    self._ask(call, now_s)
            else:
                self._running -= 1
                if not call.answered:
                    self._answer(call, now_s, kind)
                self._serve(now_s)
        return self

    def _serve(self, now_s: float) -> None:
        while self._queue and self._running < self.SERVERS:
            call = self._queue.popleft()
            call.sent_s = now_s
            self._running += 1
            self._at(now_s + call.service_s, "primary", call)
            if self.delay is not None:
                self._tokens = min(10.0, self._tokens + 0.05)
                delay_s = self.delay.delay_s(self.HAS_S - (now_s - call.arrived_s), now_s, self._chance)
                if int(now_s) not in self.triggers_s:
                    self.triggers_s[int(now_s)] = self.delay.statistics(now_s)["trigger_s"]
                if delay_s is not None:
                    self._at(now_s + delay_s, "asks", call)

    def _ask(self, call: Call, now_s: float) -> None:
        assert self.delay is not None
        free = self.SERVERS - self._running
        in_flight = [1] * self._running + [0] * free
        view = HedgeView(
            answered=call.answered,
            read_only=True,
            replayable=True,
            cancel_works=True,
            cancels_capped=False,
            errors_climbing=False,
            limit_shrinking=False,
            waiting=len(self._queue),
            slots=self.SERVERS,
            mean_in_flight=self.delay.mean_in_flight,
            in_flight=self._running,
            hedges_out=self._hedges_out,
            other_in_flight=0 if free else None,
            median_in_flight=statistics.median(in_flight),
        )
        word: str = hedge_verdict(view, self.settings)
        if word == "hedge" and self._tokens < 1:
            word = "no_token"
        self.words[word] += 1
        if word == "hedge":
            self._tokens -= 1
            call.hedged = True
            self._running += 1
            self._hedges_out += 1
            self.hedged_s.append(now_s)
            self._at(now_s + self._service_s(now_s, self._others), "hedge", call)
            return
        again_s = self.delay.again_s(now_s - call.sent_s, self.HAS_S - (now_s - call.arrived_s))
        if again_s is not None:
            self._at(now_s + again_s, "asks", call)

    def _answer(self, call: Call, now_s: float, kind: str) -> None:
        call.answered = True
        self.latencies_s.append(now_s - call.arrived_s)
        if call.hedged:
            self._hedges_out -= 1
        if self.delay is not None:
            observe = self.delay.observe if kind == "primary" else self.delay.observe_at_least
            observe(now_s - call.sent_s, now_s)

    def quantile_s(self, q: float, skip: int = 2000) -> float:
        """Of the latencies, without the first ones, of which too little was known."""
        values = sorted(self.latencies_s[skip:])
        return values[math.ceil(q * len(values)) - 1]

    @property
    def hedged_share(self) -> float:
        return len(self.hedged_s) / len(self.latencies_s)


def test_at_half_load_the_tail_is_a_fifth_for_one_execution_in_twenty() -> None:
    without, hedged = Pool(0.5, None).run(30_000), Pool(0.5).run(30_000)
    assert without.quantile_s(0.99) > 0.3, "or there is no tail to cut"
    for q in (0.99, 0.999):
        assert hedged.quantile_s(q) <= 0.2 * without.quantile_s(q), q
    assert hedged.quantile_s(0.5) <= 1.02 * without.quantile_s(0.5)
    assert hedged.hedged_share <= 0.05


def test_at_nine_tenths_load_there_are_nearly_no_hedges_and_no_harm() -> None:
    without, hedged = Pool(0.9, None).run(15_000), Pool(0.9).run(15_000)
    assert hedged.hedged_share <= 0.005
    assert hedged.quantile_s(0.99) <= 1.05 * without.quantile_s(0.99)


def test_the_load_of_the_instant_would_let_too_many_through_at_nine_tenths() -> None:
    assert Pool(0.9, replace(SETTINGS, load_max=1.0)).run(15_000).hedged_share > 0.005


def test_when_everything_is_twice_as_slow_at_once_hedges_do_not_multiply_and_the_delay_follows() -> None:
    at_s = 60
    pool = Pool(0.25, stretch_at_s=float(at_s)).run(10_000)
    before, after = pool.triggers_s[at_s - 1], pool.triggers_s[at_s + 3]
    assert before is not None
    assert after is not None
    assert after > 1.5 * before
    per_second = Counter(int(hedged_s) for hedged_s in pool.hedged_s)
    calls = pool._rate
    assert all(per_second[second] <= 0.05 * calls + 10 for second in per_second)
    settled = [per_second[second] for second in range(at_s + 4, at_s + 24)]
    assert sum(settled) / len(settled) <= 0.04 * calls
    assert pool.hedged_share <= 0.05
