"""The short ways that nearly every call takes through the deciders, held equal to the full ways by twins: one object
of a pair goes the short way where it may, the other never.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.core.call import Attempt
from gateway.core.outcome import Latency, Outcome, Verdict
from gateway.core.permit import Permit
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.breaker import BreakerSettings, Probe
from gateway.decide.ejection import Ejection, EjectionSettings
from gateway.decide.pacer import Pacer
from gateway.decide.quantiles import FRESH_MAX, QuantileSettings, QuantileWindow
from gateway.decide.score import ScoredPicker, ScoreSettings
from gateway.decide.service_time import ServiceTimeSettings
from gateway.decide.standing import Row, StandingSettings

S, F, N = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL


class Thorough(ScoredPicker):
    """Never goes the short way."""

    __slots__ = ()

    def choose(self, pool: tuple[Candidate, ...], in_flight: dict[str, int], **more: Any) -> str | None:
        return self.pick(pool, in_flight, weight=lambda replica: 1.0, **more)

    def learn(
        self, replica: str, lesson: Latency, elapsed_s: float, now_s: float, in_flight: int, work: float, hint_s: float
    ) -> None:
        known = self._known
        row = known.of(replica)
        if row is not None and not now_s - elapsed_s < row.since_s - 1e-6:
            known.now_s = max(known.now_s, now_s)
            if lesson is not Latency.SKIP:
                known._learn(row, lesson, elapsed_s, in_flight, work, hint_s)


def shown(row: Row) -> dict[str, Any]:
    parts: dict[str, Any] = {name: getattr(row, name) for name in Row.__slots__}
    for name in ("served", "fault"):
        estimate = parts[name]
        parts[name] = None if estimate is None else (estimate.cost_s, estimate.stamp_s)
    return parts


def state(picker: ScoredPicker) -> Any:
    known = picker._known
    figures = (known.now_s, known.due_s, known.reference_s)
    return figures, [shown(row) for row in known.rows], picker.why, picker.statistics(known.now_s)["picked"]


def pools(chance: random.Random) -> tuple[Candidate, ...]:
    """Mostly of equal slots, as pools are."""
    names = chance.sample("abcdefghi", chance.choice((0, 1, 2, 4, 4, 4, 9)))
    odd = chance.random() < 0.1
    return tuple(Candidate(name, chance.randint(0, 3) if odd else 4) for name in names)


@pytest.mark.parametrize("seed", range(8))
def test_picks_and_lessons_are_the_same_by_the_short_way(seed: int) -> None:
    chance = random.Random(seed)
    settings = ScoreSettings(
        hot_from=3, standing=StandingSettings(refresh_s=0.1, service_time=ServiceTimeSettings(tau_s=10.0, seed_s=0.0))
    )
    short, full = ScoredPicker(random.Random(seed), settings), Thorough(random.Random(seed), settings)
    usual = pool = tuple(Candidate(name, 4) for name in "abcd")
    now_s = 100.0
    out: list[tuple[str, float, int]] = []
    for step in range(4000):
        rough = step % 1000 < 250
        if step % 1000 == 250:
            pool = usual
            for replica in "abcd":
                short.forget(replica)
                full.forget(replica)
        now_s += chance.choice((0.0, 0.0005, 0.002, 3.0 if chance.random() < 0.02 else 0.001, -0.01))
        in_flight = Counter(replica for replica, _, _ in out)
        event = chance.random()
        if rough and event < 0.01:
            pool = pools(chance)
        elif rough and event < 0.02:
            told = chance.choice("abcd"), chance.randint(0, 6), chance.randint(0, 4), now_s - chance.random()
            short.report(*told)
            full.report(*told)
        elif rough and event < 0.025:
            replica = chance.choice("abcd")
            short.forget(replica)
            full.forget(replica)
        elif event < (0.6 if len(out) < 9 else 0.3) or not out:
            more: dict[str, Any] = {"now_s": now_s, "waiting": chance.randint(0, 9)}
            if rough and event < 0.1:
                more["exclude"] = set(chance.sample("abcd", chance.randint(0, 2)))
                more["admissible"] = set(chance.sample("abcd", 3)).__contains__
                more["hold"] = chance.random() < 0.5
            chosen = short.pick(pool, in_flight, **more)
            assert full.choose(pool, in_flight, **more) == chosen
            if chosen is not None:
                out.append((chosen, now_s, in_flight[chosen] + 1))
        else:
            replica, sent_s, count = out.pop(chance.randrange(len(out)))
            lesson, elapsed_s, work, hint_s = Latency.RECORD, chance.uniform(0.008, 0.013) * (1 + count / 4), 1.0, 0.0
            if rough and event > 0.7:
                lesson = chance.choice(list(Latency))
                elapsed_s = chance.choice((now_s - sent_s, 0.0, -1.0, 0.03, 0.05, 9.0, 1e9, math.nan, math.inf))
                work, hint_s = chance.choice((0.5, 1.0, 1.0, 3.0, math.nan, math.inf)), chance.choice((0.0, 20.0))
            elif event > 0.9:
                work = chance.choice((0.5, 2.0, 3.0))
                elapsed_s *= work
            short.observe(replica, lesson, elapsed_s, now_s, count, work, hint_s)
            full.learn(replica, lesson, elapsed_s, now_s, count, work, hint_s)
        assert state(short) == state(full)
    assert short._least > 700, "the short way is the usual one"
    assert full._least == 0


def test_in_a_pool_at_work_few_calls_go_the_full_way() -> None:
    learnt: list[float] = []
    subject = ScoredPicker(random.Random(1))
    known = subject._known
    chance, now_s = random.Random(2), 0.0
    pool = tuple(Candidate(name, 8) for name in "abcd")
    out: list[tuple[str, int]] = []
    for _ in range(10_000):
        now_s += 0.001
        in_flight = Counter(replica for replica, _ in out)
        chosen = subject.pick(pool, in_flight, now_s)
        assert chosen is not None
        out.append((chosen, in_flight[chosen] + 1))
        if len(out) > 10:
            replica, count = out.pop(0)
            before = known.rows[pool.index(Candidate(replica, 8))].served.stamp_s
            subject.observe(replica, Latency.RECORD, chance.uniform(0.009, 0.011), now_s, count)
            if now_s - before >= 0.1:
                learnt.append(now_s)
    assert known.seen is pool, "the same candidates are not looked at again"
    assert subject._least > 9_900
    assert len(learnt) < 10


def test_what_differs_is_seen_at_once_by_the_next_pick() -> None:
    """A lesson, a report and a change of the fleet may each make replicas unequal between two refreshes."""
    pool = tuple(Candidate(name, 8) for name in "ab")

    def level() -> ScoredPicker:
        subject = ScoredPicker(random.Random(1))
        subject.pick(pool, {}, 1.0)
        for replica in "ab":
            for _ in range(2):
                subject.observe(replica, Latency.RECORD, 0.01, 1.0)
        subject.pick(pool, {}, 1.2)
        assert subject._known.level == 8
        return subject

    subject = level()
    subject.observe("b", Latency.RECORD, 0.02, 1.2)
    assert {subject.pick(pool, {"a": 0, "b": 0}, 1.2) for _ in range(20)} == {"a"}
    subject = level()
    subject.observe("b", Latency.RECORD, 0.02, 1.01)
    assert {subject.pick(pool, {}, 1.2) for _ in range(20)} == {"a"}, "the short way of a lesson"
    subject = level()
    subject.observe("b", Latency.PENALTY, 0.02, 1.25)
    assert {subject.pick(pool, {"a": 1}, 1.25) for _ in range(20)} == {"a"}, "2 against 3"
    subject = level()
    subject.report("b", 2, 0, 1.2)
    assert {subject.pick(pool, {"a": 1}, 1.2) for _ in range(20)} == {"a"}
    subject = level()
    assert subject.pick((pool[0], Candidate("b", 1)), {"a": 2, "b": 1}, 1.2) == "a"
    subject = level()
    assert subject.pick(pool, {"a": 8, "b": 8}, 1.2) is None
    assert subject.why == "full"


# --- the breaker's ----------------------------------------------------------------------------------------------------


class ThoroughEjection(Ejection):
    """Never goes the short way."""

    __slots__ = ()

    def plain(self, replica: str, duration_s: float, now_s: float) -> bool:
        return False


@pytest.mark.parametrize("seed", range(8))
def test_good_calls_are_counted_the_same_by_the_short_way(seed: int) -> None:
    chance = random.Random(seed)
    settings = EjectionSettings(breaker=BreakerSettings(requests_min=6, buckets=4))
    short, full = Ejection(settings, random.Random(seed)), ThoroughEjection(settings, random.Random(seed))
    both = (short, full)
    names, now_s, counted = ["a", "b", "c"], 50.0, 0
    out: list[tuple[str, Probe | None, Probe | None]] = []
    for subject in both:
        subject.update(names, (), now_s)
    for step in range(3000):
        bad = step % 500 < 120
        now_s += chance.choice((0.0, 0.01, 0.1, 5.0 if chance.random() < 0.05 else 0.02, -0.005))
        event = chance.random()
        if event < 0.02:
            median_s = chance.choice((None, 0.1, 0.02))
            for subject in both:
                subject.expect(median_s)
        elif event < 0.03:
            down = set(chance.sample(names, chance.choice((0, 0, 1))))
            for subject in both:
                subject.update([name for name in names if name not in down], sorted(down), now_s)
        elif event < 0.5 or not out:
            replica = chance.choice(names)
            assert short.admissible(replica, now_s) == full.admissible(replica, now_s)
            assert short.wants_probe(now_s) == full.wants_probe(now_s)
            out.append((replica, short.begin(replica, now_s), full.begin(replica, now_s)))
        else:
            replica, probe, other = out.pop(chance.randrange(len(out)))
            verdict = chance.choice((S, S, F, N)) if bad else chance.choices((S, F, N), (40, 1, 2))[0]
            duration_s = chance.choice((0.0, 0.05, 0.11, 0.6, 3.0, math.nan, math.inf, -1.0) if bad else (0.0, 0.05))
            ratio_only, work = chance.random() < 0.1, chance.choice((1.0, 1.0, 8.0, math.nan))
            breaker = full._breakers.get(replica)
            expected = None
            if breaker is not None:
                expected = full.note(replica, verdict, duration_s, now_s, other, ratio_only, work)
                good = short._breakers[replica].ring.good
            assert short.note(replica, verdict, duration_s, now_s, probe, ratio_only, work) == expected
            if breaker is not None:
                counted += short._breakers[replica].ring.good == good + 1
        if step % 3 == 0:  # reading takes in what was counted
            assert short.statistics(now_s) == full.statistics(now_s)
        assert (short.calm, short.panic, short.ejected, short.news) == (full.calm, full.panic, full.ejected, full.news)
    assert short.statistics(now_s) == full.statistics(now_s)
    assert counted > 400, "the short way is the usual one"
    assert sum(full.statistics(now_s)["moves"].values()) > 10, "and not the only one"


# --- the pacer's ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_values_that_are_counted_together_fall_into_the_same_buckets(seed: int) -> None:
    chance = random.Random(seed)
    together, each = QuantileWindow(QuantileSettings()), QuantileWindow(QuantileSettings())
    now_s = 100.0
    for window in (together, each):
        window.record(0.01, now_s, at_least=True)
    for _ in range(5000):
        now_s += chance.choice((0.001, 0.01, 0.1))
        together.count(now_s)  # turns the window when that is due
        value_s = chance.choice((chance.lognormvariate(-4.0, 2.0), 0.0, -1.0, 20e-6, 3600.0, 1e9))
        together.fresh.append(value_s)
        each.record(value_s, now_s)
        if len(together.fresh) == FRESH_MAX:
            together.fold()
        if chance.random() < 0.01:
            assert together.total_s == pytest.approx(each.total_s)
            assert together.statistics(now_s) == each.statistics(now_s)
    together.fold()
    assert together._ring == each._ring


def test_the_mean_of_a_round_follows_the_last_calls_whether_they_come_alone_or_together() -> None:
    """To within a hundredth once a level has lasted for some times `memory` calls; and on the way it lies between."""
    chance = random.Random(5)
    for size in (1, 16, 64, 500):
        pacer, seen = Pacer(), 0
        for level_s in (0.02, 0.05, 0.01):
            for _ in range(640 // size + 1):
                for _ in range(size):
                    pacer.answered(level_s * chance.uniform(0.99, 1.01), 1, 8, 1.0)
                pacer.fold()
                seen += size
                assert 0.0099 <= pacer._any.value <= 0.051
            assert pacer._any.value == pytest.approx(level_s, rel=0.01)
        assert not pacer.rounds
        assert not pacer.window.fresh


def test_the_first_rounds_are_a_plain_mean() -> None:
    together, alone = Pacer(), Pacer()
    values = [0.01 * number for number in range(1, 61)]
    for value_s in values:
        together.answered(value_s, 1, 8, 1.0)
        alone.answered(value_s, 1, 8, 1.0)
        alone.fold()
    together.fold()
    assert together._any.value == pytest.approx(sum(values) / len(values))
    assert alone._any.value == pytest.approx(together._any.value, rel=0.15)


# --- admission's ------------------------------------------------------------------------------------------------------


def thorough_admission(seed: int) -> Admission:
    """Never goes the short way."""
    subject = Admission(random.Random(seed))
    subject._answered = lambda replica, elapsed_s, now_s, in_flight: 0.0
    subject._counted = lambda replica, duration_s, now_s: False
    subject.balance.picker.__class__ = ThoroughPicker
    return subject


class ThoroughPicker(ScoredPicker):
    __slots__ = ()

    def plain(self, candidates: Sequence[Candidate], in_flight: Mapping[str, int], now_s: float) -> str | None:
        self._catch_up(candidates, now_s)
        return None


@pytest.mark.parametrize("seed", range(6))
def test_slots_are_granted_and_lessons_learnt_the_same_by_the_short_way(seed: int) -> None:
    chance = random.Random(seed)
    short, full = Admission(random.Random(seed)), thorough_admission(seed)
    fleet = tuple(Candidate(name, 4) for name in "abc"[: 1 + seed % 3])
    now_s, granted = 10.0, 0
    for subject in (short, full):
        subject.update(fleet, now_s)
    out: list[tuple[Permit, Permit]] = []
    for step in range(4000):
        rough = step % 1000 < 200
        now_s += chance.choice((0.0, 0.0005, 0.002, 0.3 if chance.random() < 0.02 else 0.001))
        if chance.random() < 0.5 or not out:
            deadline_s = now_s + (chance.uniform(0.0, 0.03) if chance.random() < 0.1 else 5.0)
            one, other = short.take(deadline_s, now_s), full.take(deadline_s, now_s)
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert (one.replica, one.in_flight, one.special is None) == (
                    other.replica,
                    other.in_flight,
                    other.special is None,
                )
                out.append((one, other))
                granted += 1
        else:
            pair = out.pop(chance.randrange(len(out)))
            outcome = chance.choice(list(Outcome)) if rough and chance.random() < 0.3 else Outcome.OK
            duration_s = chance.uniform(0.008, 0.013) * (20.0 if rough and chance.random() < 0.1 else 1.0)
            for subject, permit in zip((short, full), pair, strict=True):
                permit.attempt = attempt = Attempt(permit.replica, now_s - duration_s)
                attempt.ended_s, attempt.outcome = now_s, outcome
                subject.give_back(permit, now_s)
        if step % 50 == 0:
            seen, wanted = dict(short.statistics(now_s)), dict(full.statistics(now_s))
            seen.pop("hedging"), wanted.pop("hedging")
            assert seen == wanted
            assert short.hedging.delay_s(1.0, now_s, random.Random(1)) == full.hedging.delay_s(
                1.0, now_s, random.Random(1)
            )
            assert short.hedging.mean_in_flight == pytest.approx(full.hedging.mean_in_flight)
    assert granted > 1000
    assert short._picker._least > full._picker._least == 0
