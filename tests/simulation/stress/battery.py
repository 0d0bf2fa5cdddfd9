"""Many seeds of one row: its scenario, its baseline and its best goodput on each, in several processes."""

from __future__ import annotations

import functools
import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from load.faults import Span
from load.scenario import LoadedScenario
from tests.simulation.loop import SimulationError
from tests.simulation.stress.invariants import broken
from tests.simulation.stress.play import Played, play, play_closed
from tests.simulation.stress.policies import Setting, setting_of
from tests.simulation.stress.pool import Pooled
from tests.simulation.stress.rows import Row

CHUNK = 10
"""Seeds that are added up before a process hands them on."""


@dataclass(slots=True)
class Loops:
    """What closed loops of one size came to."""

    answers: int = 0
    seconds: float = 0.0

    def merge(self, other: Loops) -> None:
        self.answers += other.answers
        self.seconds += other.seconds

    @property
    def rps(self) -> float:
        return self.answers / self.seconds


@dataclass(slots=True)
class Tried:
    """What one row came to on some seeds."""

    row: Row
    pooled: Pooled
    baseline: Pooled | None
    loops: dict[int, Loops] = field(default_factory=dict)
    """By the number of callers."""
    calls: int = 0
    """Of all runs, warm-ups included."""
    broken: dict[int, list[str]] = field(default_factory=dict)
    """What was not as it must be, by seed."""

    @classmethod
    def of(cls, row: Row, scenario: LoadedScenario) -> Tried:
        """Nothing yet."""
        before = scenario.before()
        return cls(row, Pooled.of(scenario), None if before is None else Pooled.of(before))

    @property
    def seeds(self) -> int:
        return self.pooled.seeds

    @property
    def best_rps(self) -> float | None:
        """The best goodput of the closed loops; None if there were none."""
        return max((loops.rps for loops in self.loops.values()), default=None)

    @property
    def spans(self) -> list[Span]:
        return self.pooled.spans

    def merge(self, other: Tried) -> None:
        """What came of other seeds too."""
        self.pooled.merge(other.pooled)
        if self.baseline is not None and other.baseline is not None:
            self.baseline.merge(other.baseline)
        for callers, loops in other.loops.items():
            self.loops.setdefault(callers, Loops()).merge(loops)
        self.calls += other.calls
        self.broken.update(other.broken)


def attempt(row: Row, seeds: Sequence[int], scenario: LoadedScenario | None = None) -> Tried:
    """These seeds, in this process. `scenario` instead of the row's own is for those who know what must break."""
    scenario = scenario or row.scenario()
    setting, before = setting_of(scenario), scenario.before()
    other = None if before is None else setting_of(before)
    tried = Tried.of(row, scenario)
    for seed in seeds:
        try:
            played = play(scenario, setting, seed)
            _add(tried, tried.pooled, played, [*broken(scenario, played)], "")
            if before is not None and other is not None and tried.baseline is not None:
                beside = play(before, other, seed)
                _add(tried, tried.baseline, beside, beside.wrong, "in the baseline ")
            _measure(tried, scenario, setting, seed)
        except SimulationError as error:
            tried.broken.setdefault(seed, []).append(f"the run ended with {type(error).__name__}: {error}")
    return tried


def _add(tried: Tried, pooled: Pooled, played: Played, found: Sequence[str], where: str) -> None:
    tried.calls += len(played.ended)
    pooled.add(played)
    if found:
        tried.broken.setdefault(played.seed, []).extend(f"{where}{text}" for text in found)


def _measure(tried: Tried, scenario: LoadedScenario, setting: Setting, seed: int) -> None:
    """The closed loop of one size, another for each seed."""
    capacity, length_s = scenario.spec.capacity, tried.row.capacity_s
    if not length_s or capacity is None or capacity.callers is None:
        return
    callers = capacity.callers[seed % len(capacity.callers)]
    played = play_closed(scenario, setting, seed, callers, length_s)
    tried.calls += len(played.ended)
    deadlines_s = [each.deadline_ms / 1000 for each in scenario.spec.traffic]
    answers = sum(
        not each.error and 0 <= each.offset_s + each.took_s < length_s and each.took_s <= deadlines_s[each.traffic]
        for each in played.ended
    )
    tried.loops.setdefault(callers, Loops()).merge(Loops(answers, length_s))


def _start_worker() -> None:
    # What the imports left is never garbage: without this each run's collection would walk over it.
    gc.collect()
    gc.freeze()


def all_of(row: Row, seeds: Sequence[int], jobs: int, tell: Callable[[int], None] = lambda done: None) -> Tried:
    """All seeds of a row. `tell` hears how many are done. The same seeds give the same figures, whatever `jobs` is."""
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    whole = Tried.of(row, row.scenario())
    for tried in _each(row, chunks, jobs):
        whole.merge(tried)
        tell(whole.seeds)
    return whole


def _each(row: Row, chunks: Sequence[Sequence[int]], jobs: int) -> Iterator[Tried]:
    if jobs == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield attempt(row, chunk)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_start_worker) as pool:
        yield from pool.imap(functools.partial(attempt, row), chunks)
