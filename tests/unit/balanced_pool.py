"""A pool of batching replicas behind one waiting line, as a small discrete-event model: what a picker does to it."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.core.outcome import Latency
from gateway.core.snapshot import Candidate
from tests.support.least_in_flight import LeastInFlight

FAILS_AFTER_S = 0.0005


class Picker(Protocol):
    def pick(
        self, candidates: Sequence[Candidate], in_flight: Mapping[str, int], *, now_s: float, waiting: int
    ) -> str | None: ...

    def observe(self, replica: str, lesson: Latency, elapsed_s: float, now_s: float, *, in_flight: int) -> None: ...


class Unlearned:
    """`LeastInFlight`, which looks at no time."""

    def __init__(self, chance: random.Random) -> None:
        self._picker = LeastInFlight(chance)

    def pick(
        self, candidates: Sequence[Candidate], in_flight: Mapping[str, int], *, now_s: float, waiting: int
    ) -> str | None:
        return self._picker.pick(candidates, in_flight)

    def observe(self, replica: str, lesson: Latency, elapsed_s: float, now_s: float, *, in_flight: int) -> None: ...


class Replica:
    """Runs batches of at most `batch` on each of `instances`, in `fixed_s + each_s * size` times what `factor` says at
    that instant, give or take a tenth; no delay before a batch. Where it `fails`, it does so at once.
    """

    def __init__(
        self,
        name: str,
        *,
        instances: int = 1,
        batch: int = 8,
        fixed_s: float = 0.020,
        each_s: float = 0.001,
        factor: Callable[[float], float] = lambda now_s: 1.0,
        fails: Callable[[float], bool] = lambda now_s: False,
    ) -> None:
        self.name = name
        self.slots = 2 * instances * batch
        self.batch = batch
        self.idle = instances
        self.line: deque[Sent] = deque()
        self.factor = factor
        self.fails = fails
        self._fixed_s = fixed_s
        self._each_s = each_s
        self.capacity_per_s = instances * batch / (fixed_s + each_s * batch)

    def duration_s(self, size: int, now_s: float, chance: random.Random) -> float:
        return (self._fixed_s + self._each_s * size) * self.factor(now_s) * chance.uniform(0.9, 1.1)


class Sent(NamedTuple):
    arrived_s: float
    sent_s: float
    in_flight: int
    """On that replica, this one included."""


@dataclass(frozen=True)
class Ended:
    replica: str
    arrived_s: float
    sent_s: float
    ended_s: float
    failed: bool


def same(count: int, *, batch: int = 8) -> list[Replica]:
    return [Replica(f"gpu/{number}", batch=batch) for number in range(count)]


def run(picker: Picker, replicas: Sequence[Replica], rate_per_s: float, calls: int, seed: int = 1) -> list[Ended]:
    """So many calls at that mean rate, in the order of their ends."""
    chance = random.Random(seed)
    candidates = tuple(Candidate(each.name, each.slots) for each in replicas)
    by_name = {each.name: each for each in replicas}
    in_flight: dict[str, int] = {}
    waiting: deque[float] = deque()
    events: list[tuple[float, int, Replica | None, list[Sent], bool]] = [(0.0, 0, None, [], False)]
    ended: list[Ended] = []
    arrived = numbered = 0
    while events:
        now_s, _, replica, batch, failed = heapq.heappop(events)
        if replica is None:
            waiting.append(now_s)
            arrived += 1
            if arrived < calls:
                numbered += 1
                heapq.heappush(events, (now_s + chance.expovariate(rate_per_s), numbered, None, [], False))
        else:
            for sent in batch:
                in_flight[replica.name] -= 1
                ended.append(Ended(replica.name, sent.arrived_s, sent.sent_s, now_s, failed))
                lesson = Latency.PENALTY if failed else Latency.RECORD
                picker.observe(replica.name, lesson, now_s - sent.sent_s, now_s, in_flight=sent.in_flight)
            replica.idle += not failed
        started = {} if replica is None else {replica.name: replica}
        while waiting:
            name = picker.pick(candidates, in_flight, now_s=now_s, waiting=len(waiting) - 1)
            if name is None:
                break
            chosen = by_name[name]
            in_flight[name] = in_flight.get(name, 0) + 1
            assert in_flight[name] <= chosen.slots
            sent = Sent(waiting.popleft(), now_s, in_flight[name])
            if chosen.fails(now_s):
                numbered += 1
                heapq.heappush(events, (now_s + FAILS_AFTER_S, numbered, chosen, [sent], True))
            else:
                chosen.line.append(sent)
                started[name] = chosen
        for each in started.values():
            while each.idle and each.line:
                each.idle -= 1
                taken = [each.line.popleft() for _ in range(min(each.batch, len(each.line)))]
                numbered += 1
                end_s = now_s + each.duration_s(len(taken), now_s, chance)
                heapq.heappush(events, (end_s, numbered, each, taken, False))
    assert len(ended) == calls, "calls were left waiting for ever"
    assert not any(in_flight.values())
    return ended


def p99_s(ended: Sequence[Ended]) -> float:
    ordered = sorted(each.ended_s - each.arrived_s for each in ended if not each.failed)
    return ordered[int(0.99 * len(ordered))]


def shares(ended: Sequence[Ended], from_s: float = 0.0) -> dict[str, float]:
    """Of the calls that were sent from that instant on."""
    counts = Counter(each.replica for each in ended if each.sent_s >= from_s)
    return {replica: count / counts.total() for replica, count in counts.items()}
