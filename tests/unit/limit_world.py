"""A small world on virtual time for the adaptive limit: callers, a gateway that counts, servers that serve.

Two kinds of server. `Fifo` runs `capacity` calls at once and lets the rest wait. `Batching` obeys Triton's rules: an
instance that is free takes whatever waits at that moment, up to a full batch, and a batch of b takes s0 + s1*b; so the
first call of a burst runs alone, and a full load that leaves none waiting is half a load.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from gateway.core.outcome import Verdict
from gateway.decide.limit import AdaptiveLimit


@dataclass(slots=True)
class Call:
    arrived_s: float
    sent_s: float = 0.0
    replica: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    at_s: float
    arrived_s: float
    rtt_s: float
    verdict: Verdict


class Server(Protocol):
    def offer(self, call: Call) -> None: ...


class World:
    """Arrivals are a Poisson process of `rate(now_s)` calls per second. A call that finds no slot waits if fewer than
    `queue_max` do, else it is shed. Every limit is checked against the bounds, and kept.
    """

    def __init__(self, limit: AdaptiveLimit, seed: int, queue_max: int = 0) -> None:
        self.limit = limit
        self.chance = Random(seed)
        self.now_s = 0.0
        self.queue_max = queue_max
        self.waiting: deque[Call] = deque()
        self.in_flight = 0
        self.shed_s: list[float] = []
        self.ended: list[Ended] = []
        self.limits: list[tuple[float, int, str]] = [(0.0, limit.limit, limit.why)]
        self.server: Server = Fifo(self, 1, lambda now_s: 1.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, what)

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
        self.now_s = until_s

    def offer_load(self, rate: float, until_s: float) -> None:
        """`rate` calls per second from now until then."""

        def arrive() -> None:
            if self.now_s < until_s:
                self.arrive()
                self.after(self.chance.expovariate(rate), arrive)

        self.after(self.chance.expovariate(rate), arrive)

    def arrive(self) -> None:
        call = Call(self.now_s)
        if self.in_flight < self.limit.limit:
            self._send(call)
        elif len(self.waiting) < self.queue_max:
            self.waiting.append(call)
        else:
            self.shed_s.append(self.now_s)

    def _send(self, call: Call) -> None:
        self.in_flight += 1
        call.sent_s = self.now_s
        self.server.offer(call)

    def end(self, call: Call, verdict: Verdict = Verdict.SUCCESS) -> None:
        rtt_s = self.now_s - call.sent_s
        self.ended.append(Ended(self.now_s, call.arrived_s, rtt_s, verdict))
        limit = self.limit
        limit.ended(verdict, call.sent_s, rtt_s, self.in_flight, self.now_s)
        self.in_flight -= 1
        statistics_bounds(limit)
        if limit.limit != self.limits[-1][1]:
            self.limits.append((self.now_s, limit.limit, limit.why))
        while self.waiting and self.in_flight < limit.limit:
            self._send(self.waiting.popleft())

    def answered(self, since_s: float, until_s: float) -> list[Ended]:
        return [one for one in self.ended if since_s <= one.at_s < until_s and one.verdict is Verdict.SUCCESS]

    def goodput(self, since_s: float, until_s: float) -> float:
        """Answers per second."""
        return len(self.answered(since_s, until_s)) / (until_s - since_s)

    def p90_s(self, since_s: float, until_s: float) -> float:
        """Of the time from send to reply."""
        ordered = sorted(one.rtt_s for one in self.answered(since_s, until_s))
        return ordered[math.ceil(0.9 * len(ordered)) - 1]

    def limits_between(self, since_s: float, until_s: float, *, probes: bool = True) -> list[int]:
        """Every limit that held in that time; `probes`: with those of measurements."""
        before = [one for one in self.limits if one[0] <= since_s][-1:]
        within = [one for one in self.limits if since_s < one[0] < until_s]
        return [limit for _, limit, why in before + within if probes or why != "probe"]


def statistics_bounds(limit: AdaptiveLimit) -> None:
    """What must hold at all times."""
    assert isinstance(limit.limit, int)
    assert limit.floor <= limit.limit <= limit.cap
    assert limit.floor <= limit._limit <= limit.cap
    assert 0 <= limit.baseline_s < math.inf


class Fifo:
    """`service_s(now_s)`: how long a call takes that begins now. `fault` may end a call before that, without a place:
    the verdict, and after how many seconds.
    """

    def __init__(
        self,
        world: World,
        capacity: int,
        service_s: Callable[[float], float],
        fault: Callable[[float], tuple[Verdict, float] | None] = lambda now_s: None,
    ) -> None:
        self._world = world
        self._free = capacity
        self._service_s = service_s
        self._fault = fault
        self._waiting: deque[Call] = deque()
        world.server = self

    def offer(self, call: Call) -> None:
        fault = self._fault(self._world.now_s)
        if fault is not None:
            verdict, after_s = fault
            self._world.after(after_s, lambda: self._world.end(call, verdict))
        elif self._free:
            self._free -= 1
            self._begin(call)
        else:
            self._waiting.append(call)

    def _begin(self, call: Call) -> None:
        def done() -> None:
            if self._waiting:
                self._begin(self._waiting.popleft())
            else:
                self._free += 1
            self._world.end(call)

        self._world.after(self._service_s(self._world.now_s), done)


class Batching:
    """`replicas` of `instances` each; a call goes to the replica with the fewest in flight. `jitter`: the standard
    deviation of a batch's time, as a share. `wire_s`: one way.
    """

    def __init__(
        self, world: World, replicas: int, instances: int, batch: int, s0: float, s1: float, jitter: float = 0.0
    ) -> None:
        self._world = world
        self._batch, self._s0, self._s1, self._jitter = batch, s0, s1, jitter
        self._wire_s = 0.0002
        self._out = [0] * replicas
        self._free = [instances] * replicas
        self._waiting: list[deque[Call]] = [deque() for _ in range(replicas)]
        self.unloaded_s = s0 + s1 * batch + 2 * self._wire_s
        """A full batch's time, seen from the gateway."""
        self.capacity = replicas * instances * batch / (s0 + s1 * batch)
        """Calls per second."""
        world.server = self

    def offer(self, call: Call) -> None:
        call.replica = min(range(len(self._out)), key=self._out.__getitem__)
        self._out[call.replica] += 1

        def come() -> None:
            self._waiting[call.replica].append(call)
            self._perhaps_begin(call.replica)

        self._world.after(self._wire_s, come)

    def _perhaps_begin(self, replica: int) -> None:
        waiting = self._waiting[replica]
        if not waiting or not self._free[replica]:
            return
        self._free[replica] -= 1
        calls = [waiting.popleft() for _ in range(min(self._batch, len(waiting)))]
        time_s = self._s0 + self._s1 * len(calls)
        if self._jitter:
            time_s *= max(0.2, self._world.chance.gauss(1.0, self._jitter))

        def done() -> None:
            self._free[replica] += 1
            self._perhaps_begin(replica)
            for call in calls:
                self._world.after(self._wire_s, lambda call=call: self._answer(call))  # type: ignore[misc]

        self._world.after(time_s, done)

    def _answer(self, call: Call) -> None:
        self._out[call.replica] -= 1
        self._world.end(call)
