"""Ejection (field case FH-17): the cap holds after the ejection, never all, panic, a staggered return."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.outcome import Verdict
from gateway.decide.breaker import BreakerSettings, Probe
from gateway.decide.ejection import NEWS_MAX, Ejection, EjectionSettings, News

S, F, N = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL


def names(count: int) -> list[str]:
    return [f"gpu/{number:02}" for number in range(count)]


def ejection(count: int = 0, seed: int = 1, **changes: Any) -> Ejection:
    """A set of `count` replicas, known since 0."""
    subject = Ejection(EjectionSettings(**changes), random.Random(seed))
    subject.update(names(count), (), 0.0)
    return subject


def in_panic(subject: Ejection) -> bool:
    """Asked anew each time, as is the next: a type checker would believe the last answer for ever."""
    return subject.panic


def calm(subject: Ejection) -> bool:
    return subject.calm


def fail(subject: Ejection, replicas: list[str], now_s: float = 0.0) -> None:
    """Five failures each, all in the same instant, taken in turns."""
    for _ in range(5):
        for replica in replicas:
            subject.note(replica, F, 0.0, now_s)


def in_use(subject: Ejection, replicas: list[str], now_s: float = 0.0) -> list[str]:
    return [replica for replica in replicas if subject.admissible(replica, now_s)]


def prove(subject: Ejection, now_s: float, count: int = 3) -> list[str]:
    """Give every replica that wants one a probe, up to `count` each, all good. Returns who had one, sorted."""
    had: Counter[str] = Counter()
    while (replica := subject.wants_probe(now_s)) is not None and had[replica] < count:
        permit = subject.begin(replica, now_s)
        assert permit is not None
        subject.note(replica, S, 0.0, now_s, permit)
        had[replica] += 1
    return sorted(had)


def state_of(subject: Ejection, replica: str, now_s: float) -> dict[str, Any]:
    found: dict[str, Any] = subject.statistics(now_s)["by_replica"][replica]
    return found


# --- the cap ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panic_below", [0.0, 0.5])
@pytest.mark.parametrize("cap", [0, 10, 34, 50, 67, 99, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 10])
def test_however_many_fail_together_the_cap_holds_and_never_all_go(size: int, cap: int, panic_below: float) -> None:
    replicas = names(size)
    for bad in range(1, size + 1):
        subject = ejection(size, ejected_max=cap / 100, panic_below=panic_below)
        for number in range(5 * bad):
            subject.note(replicas[number % bad], F, 0.0, number * 0.1 / (5 * bad))
        figures = subject.statistics(0.1)
        assert figures["ejected"] == min(bad, size * cap // 100, size - 1)
        assert figures["ejected"] + figures["kept"] == bad
        assert figures["panic"] == (size - bad < panic_below * size)
        used = size if figures["panic"] else size - figures["ejected"]
        assert len(in_use(subject, replicas, 0.1)) == used > 0


def test_shares_that_a_float_cannot_hold_round_as_they_read() -> None:
    subject = ejection(100, ejected_max=0.29)
    fail(subject, names(40))
    assert subject.statistics(0.0)["ejected"] == 29


def test_the_cap_counts_for_each_set_alone() -> None:
    model, other = ejection(2), ejection(2)
    fail(model, names(1))
    fail(other, names(1))
    assert model.ejected == other.ejected == {"gpu/00"}


def test_who_has_been_bad_for_longest_goes_first_when_there_is_room() -> None:
    subject = ejection(4, ejected_max=0.25, panic_below=0.0)
    for number, replica in enumerate(("gpu/02", "gpu/03", "gpu/01")):
        fail(subject, [replica], 0.01 * number)
    assert subject.ejected == {"gpu/02"}
    assert subject.standing("gpu/01", 0.1) == subject.standing("gpu/03", 0.1) == "kept"
    subject.update([each for each in names(4) if each != "gpu/02"] + ["gpu/04"], (), 0.1)
    assert subject.ejected == {"gpu/03"}


def test_a_kept_replica_that_works_again_is_never_ejected() -> None:
    subject = ejection(3, panic_below=0.0)
    fail(subject, names(2))
    assert (subject.standing("gpu/00", 0.0), subject.standing("gpu/01", 0.0)) == ("ejected", "kept")
    assert (subject.weight("gpu/00", 0.0), subject.weight("gpu/01", 0.0)) == (0.1, 1.0)
    for _ in range(10):
        subject.note("gpu/01", S, 0.0, 0.1)
    assert subject.standing("gpu/01", 0.1) == "slow_start"
    subject.update(names(9), (), 0.2)
    assert subject.ejected == {"gpu/00"}


def test_replicas_that_join_make_room_for_wishes_that_wait() -> None:
    subject = ejection(2, panic_below=0.0)
    fail(subject, names(2))
    assert len(subject.ejected) == 1
    subject.update(names(4), (), 0.1)
    assert subject.ejected == {"gpu/00", "gpu/01"}
    assert in_use(subject, names(4), 0.1) == ["gpu/02", "gpu/03"]


@pytest.mark.parametrize("panic_below", [0.0, 0.5])
def test_scaling_the_healthy_ones_away_brings_ejected_ones_back_at_once(panic_below: float) -> None:
    subject = ejection(10, panic_below=panic_below)
    fail(subject, names(5))
    assert in_use(subject, names(10)) == names(10)[5:]
    subject.update(names(5), (), 0.1)
    used = in_use(subject, names(5), 0.1)
    assert len(used) == (5 if panic_below else 3)
    retries_s = {replica: state_of(subject, replica, 0.1)["retry_in_s"] for replica in names(5)}
    assert subject.ejected == set(sorted(names(5), key=lambda replica: -retries_s[replica])[:2]), (
        "those come back whose pause would have ended first"
    )


def test_the_last_two_of_a_set_are_re_evaluated_when_one_leaves() -> None:
    subject = ejection(2)
    fail(subject, names(1))
    assert in_use(subject, names(2)) == ["gpu/01"]
    subject.update(names(1), (), 0.1)
    assert in_use(subject, names(1), 0.1) == ["gpu/00"]
    assert subject.statistics(0.1)["ejected"] == 0


# --- panic ------------------------------------------------------------------------------------------------------------


def test_if_all_are_bad_calls_go_to_all_of_them_and_it_shows() -> None:
    subject = ejection(4)
    fail(subject, names(4))
    assert in_use(subject, names(4)) == names(4)
    figures = subject.statistics(0.0)
    assert (figures["panic"], figures["panics"], figures["healthy"]) == (True, 1, 0)
    assert (figures["ejected"], figures["kept"]) == (2, 2)
    assert News(0.0, "", "panic", "few_healthy", 0.0) in subject.news
    assert all(subject.standing(replica, 0.0) == "panic" for replica in names(4))
    assert all(subject.weight(replica, 0.0) == 1.0 for replica in names(4))
    assert subject.wants_probe(5.0) is None, "all calls go there anyway"


def test_panic_ends_when_half_is_healthy_and_ejection_holds_again() -> None:
    subject = ejection(4)
    fail(subject, names(3))
    assert in_panic(subject)
    for _ in range(10):
        subject.note("gpu/02", S, 0.0, 0.3)
    assert not in_panic(subject)
    assert subject.news[-1] == News(0.3, "", "panic_over", "enough_healthy", 0.0)
    assert in_use(subject, names(4), 0.3) == ["gpu/02", "gpu/03"]


def test_when_panic_ends_those_still_out_are_asked_soon() -> None:
    subject = ejection(4)
    fail(subject, names(4))
    now_s = 0.0
    while min(state_of(subject, replica, now_s)["retry_in_s"] for replica in names(2)) < 8.0:
        now_s += 0.5
        assert now_s < 600.0
        for replica in names(4):
            assert subject.admissible(replica, now_s)
            subject.note(replica, F, 0.0, now_s, subject.begin(replica, now_s))
    for replica in ("gpu/02", "gpu/03"):
        assert in_panic(subject)
        for _ in range(10):
            subject.note(replica, S, 0.0, now_s)
    assert not in_panic(subject)
    assert all(0 < state_of(subject, replica, now_s)["retry_in_s"] <= 1.0 for replica in names(2))


def test_in_panic_a_half_open_replica_is_proved_by_ordinary_calls() -> None:
    subject = ejection(1)
    fail(subject, names(1))
    for _ in range(3):
        assert subject.admissible("gpu/00", 5.0)
        permit = subject.begin("gpu/00", 5.0)
        assert subject.admissible("gpu/00", 5.0), "the permit is out, but nobody is kept away"
        subject.note("gpu/00", S, 0.0, 5.0, permit)
    assert subject.healthy == 1
    assert not in_panic(subject)


# --- down -------------------------------------------------------------------------------------------------------------


def test_down_replicas_use_up_nothing_of_the_cap_but_count_as_not_healthy() -> None:
    subject = ejection(10)
    subject.update(names(10)[4:], names(4), 0.0)
    assert not in_panic(subject)
    fail(subject, ["gpu/04"])
    assert subject.ejected == {"gpu/04"}, "four of ten are down, and one of the six others is ejected all the same"
    assert not in_panic(subject)
    assert in_use(subject, names(10)) == names(10)[5:]
    fail(subject, ["gpu/05"])
    assert in_panic(subject), "four of ten are healthy"
    assert in_use(subject, names(10)) == names(10)[4:], "panic sends nothing to those that are down"


def test_without_any_replica_up_there_is_nothing_to_judge() -> None:
    subject = ejection(0)
    assert (subject.panic, subject.calm, subject.allowed) == (False, True, 0)
    subject.update((), names(2), 1.0)
    assert in_panic(subject)
    assert in_use(subject, names(2), 1.0) == []
    assert subject.standing("gpu/00", 1.0) == "down"
    assert subject.standing("gpu/77", 1.0) == "unknown"


def test_who_comes_back_from_down_starts_slowly_and_keeps_its_record() -> None:
    subject = ejection(3)
    fail(subject, names(1))
    subject.update(names(3)[1:], names(1), 1.0)
    subject.note("gpu/00", S, 0.0, 1.0)
    subject.update(names(3)[1:], names(1), 1.5)  # the fleet changed again meanwhile
    subject.update(names(3), (), 2.0)
    assert subject.weight("gpu/00", 2.0) == 0.1
    assert subject.weight("gpu/00", 7.0) == pytest.approx(0.5)
    fail(subject, names(1), 3.0)
    assert 1.0 <= state_of(subject, "gpu/00", 3.0)["pause_s"] <= 2.0, "the second offence"


# --- return -----------------------------------------------------------------------------------------------------------


def test_a_replica_that_fails_each_time_it_returns_is_asked_more_and_more_rarely() -> None:
    subject, now_s, begun_s = ejection(3), 0.0, [0.0]
    fail(subject, names(1))
    while len(begun_s) < 11:
        now_s += 0.05
        if subject.admissible("gpu/00", now_s):
            permit = subject.begin("gpu/00", now_s)
            assert permit is not None
            assert not subject.admissible("gpu/00", now_s), "one call at a time"
            subject.note("gpu/00", F, 0.0, now_s, permit)
            begun_s.append(now_s)
    pauses_s = [after - before for before, after in pairwise(begun_s)]
    for pause_s, base_s in zip(pauses_s, (1, 2, 4, 8, 16, 32, 60, 60, 60, 60), strict=True):
        assert base_s / 2 <= pause_s <= base_s + 0.1
    assert len(set(pauses_s[6:])) > 1, "jittered"


def test_after_good_behaviour_the_pause_is_short_again() -> None:
    subject = ejection(3)
    for now_s in (0.0, 10.0, 20.0):
        fail(subject, names(1), now_s)
        assert prove(subject, now_s + 9.0) == ["gpu/00"]
    fail(subject, names(1), 30.0)
    assert 4.0 <= state_of(subject, "gpu/00", 30.0)["pause_s"] <= 8.0
    prove(subject, 40.0)
    fail(subject, names(1), 100.0)
    assert 0.5 <= state_of(subject, "gpu/00", 100.0)["pause_s"] <= 1.0


def test_fifty_ejected_ones_do_not_all_return_in_the_same_second() -> None:
    subject = ejection(100)
    fail(subject, names(50))
    assert len(subject.ejected) == 50
    assert not in_panic(subject)
    for tick in range(1000):
        prove(subject, tick * 0.01)
    returned_s = [news.at_s for news in subject.news if news.what == "closed"]
    assert len(returned_s) == 50, "but all of them do"
    for start_s in returned_s:
        assert sum(start_s <= at_s < start_s + 1 for at_s in returned_s) <= 11
    assert max(returned_s) < 7.0


def test_in_a_small_set_one_returns_in_a_second() -> None:
    subject = ejection(4)
    fail(subject, names(2))
    assert len(prove(subject, 20.0)) == 1
    assert prove(subject, 20.5) == []
    assert subject._due_s == 21.0, "until then no question looks at them all"
    assert len(prove(subject, 21.0)) == 1
    assert subject.ejected == frozenset()


def test_a_probe_that_is_out_keeps_nobody_else_from_his_turn() -> None:
    subject = ejection(4)
    fail(subject, names(2))
    first = subject.wants_probe(20.0)
    assert first is not None
    assert subject.begin(first, 20.0) is not None
    assert subject.wants_probe(20.9) is None
    assert subject.wants_probe(21.0) == ({"gpu/00", "gpu/01"} - {first}).pop()


def test_the_first_to_return_is_the_one_whose_pause_ended_first() -> None:
    first = Counter[str]()
    for seed in range(10):
        subject = ejection(4, seed)
        fail(subject, names(2))
        retries_s = {replica: state_of(subject, replica, 0.0)["retry_in_s"] for replica in names(2)}
        returns = subject.wants_probe(20.0)
        assert returns == min(names(2), key=lambda replica: retries_s[replica])
        first[returns] += 1
    assert len(first) == 2


def test_kept_ones_neither_wait_for_their_turn_to_return_nor_take_it() -> None:
    for seed in range(10):
        subject = ejection(4, seed, ejected_max=0.25, panic_below=0.0)
        fail(subject, names(2))
        assert subject.wants_probe(20.0) == "gpu/00"
        assert {state_of(subject, replica, 20.0)["state"] for replica in names(2)} == {"half_open"}


def test_the_return_is_gentle() -> None:
    subject = ejection(3)
    fail(subject, names(1))
    assert prove(subject, 1.0, count=2) == ["gpu/00"]
    assert subject.standing("gpu/00", 1.0) == "probing"
    assert subject.weight("gpu/00", 1.0) == 0.1
    prove(subject, 1.0, count=1)
    assert [subject.weight("gpu/00", 1.0 + after_s) for after_s in (0, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])
    assert subject.weight("gpu/01", 1.0) == 1.0


def test_a_probe_that_never_reports_back_is_noticed_by_the_next_question() -> None:
    subject = ejection(3)
    fail(subject, names(1))
    assert subject.wants_probe(1.0) == "gpu/00"
    permit = subject.begin("gpu/00", 1.0)
    assert subject.wants_probe(1.0) is None
    assert not subject.admissible("gpu/00", 10.9)
    subject.update(names(3), (), 10.9)  # whatever else happens meanwhile
    assert state_of(subject, "gpu/00", 10.9)["state"] == "half_open"
    assert not subject.admissible("gpu/00", 11.0)
    assert state_of(subject, "gpu/00", 11.0)["why"] == "probe_expired"
    assert subject.note("gpu/00", S, 10.0, 11.0, permit) is None


# --- who comes and goes -----------------------------------------------------------------------------------------------


def test_an_address_that_comes_back_has_no_history() -> None:
    subject = ejection(3)
    fail(subject, names(1))
    subject.wants_probe(1.0)
    former = subject.begin("gpu/00", 1.0)
    assert former is not None
    subject.update(names(3)[1:], (), 1.0)
    subject.update(names(3), (), 2.0)
    assert calm(subject)
    for _ in range(20):
        subject.note("gpu/00", F, 0.5, 2.2)
        subject.note("gpu/00", F, 0.5, 2.2, former)
    assert calm(subject), "reports of calls that went to its former life"
    fail(subject, names(1), 2.3)
    assert 0.5 <= state_of(subject, "gpu/00", 2.3)["pause_s"] <= 1.0, "a first offence"


def test_what_is_noted_of_strangers_is_ignored_and_not_remembered() -> None:
    subject = ejection(2)
    for number in range(1000):
        subject.note(f"stranger/{number}", F, 0.0, 0.0)
    assert calm(subject)
    assert set(subject.statistics(0.0)["by_replica"]) == set(names(2))
    assert subject.admissible("stranger/1", 0.0)
    assert subject.begin("stranger/1", 0.0) is None
    assert subject.weight("stranger/1", 0.0) == 1.0


def test_neutral_endings_of_any_number_eject_nobody() -> None:
    subject = ejection(3)
    for _ in range(1000):
        assert subject.note("gpu/00", N, 0.0, 0.0) is None
    assert calm(subject)


def test_slow_ones_are_told_by_the_median_of_the_pool_also_those_that_join_later() -> None:
    subject = ejection(3)
    subject.expect(0.1)
    subject.update(names(4), (), 0.0)
    for replica in ("gpu/00", "gpu/03"):
        for _ in range(10):
            subject.note(replica, S, 0.6, 1.0)
    assert subject.ejected == {"gpu/00", "gpu/03"}
    assert subject.statistics(1.0)["moves"]["slow_rate"] == 2


def test_where_all_become_slow_at_once_the_median_is_out_of_date_and_nobody_is_ejected() -> None:
    """The first second of a burst: batches are full now, and `expect` has not been told yet."""
    subject = ejection(4)
    subject.expect(0.1)
    chance = random.Random(5)
    for number in range(400):
        subject.note(chance.choice(names(4)), S, 0.6, 10.0 + number / 400)
    assert calm(subject)
    subject.expect(0.6)
    for replica in names(4):
        subject.note(replica, F, 0.6, 11.5)
    assert calm(subject), "what was slow by the old median is still in the rings"


@pytest.mark.parametrize(("slow", "ejected"), [(0, True), (6, True), (7, False), (10, False)])
def test_an_outlier_has_twice_the_share_of_slow_calls_that_the_others_have(slow: int, ejected: bool) -> None:
    subject = ejection(3)
    subject.expect(0.1)
    for replica in names(3)[1:]:
        for number in range(20):
            subject.note(replica, S, 0.6 if number >= 20 - slow else 0.1, 10.0)
    for number in range(20):
        subject.note("gpu/00", S, 0.6 if number >= 8 else 0.1, 10.0)
    assert subject.ejected == ({"gpu/00"} if ejected else set()), "12 of 20"


def test_others_are_compared_by_what_they_do_now_and_only_while_they_are_in_order_themselves() -> None:
    subject = ejection(4)
    subject.expect(0.1)
    for replica in names(4)[1:]:
        for _ in range(9):
            subject.note(replica, S, 0.6, 10.0)
    for _ in range(10):
        subject.note("gpu/00", S, 0.6, 20.0)
    assert subject.ejected == {"gpu/00"}, "that was ten seconds ago"
    for _ in range(10):
        subject.note("gpu/01", S, 0.6, 20.0)
    assert subject.ejected == {"gpu/00", "gpu/01"}, "one that is out is no measure"


def test_a_call_of_much_work_is_not_slow_for_it_nor_is_a_probe() -> None:
    subject = ejection(3)
    subject.expect(2.0)
    for _ in range(20):
        subject.note("gpu/00", S, 70.0, 100.0, work=8.0)
    assert calm(subject)
    fail(subject, names(1), 100.0)
    assert subject.wants_probe(101.0) == "gpu/00"
    permit = subject.begin("gpu/00", 101.0, 8.0)
    assert permit is not None
    assert permit.until_s == 181.0
    assert subject.note("gpu/00", S, 70.0, 171.0, permit, work=8.0) is None
    assert state_of(subject, "gpu/00", 171.0)["state"] == "half_open"


@pytest.mark.parametrize(("last", "ejected"), [(4, {"gpu/00"}), (5, set())])
def test_a_few_slow_calls_of_the_others_are_no_measure(last: int, ejected: set[str]) -> None:
    """Together they must have as many calls as a breaker needs to judge by shares: ten."""
    subject = ejection(3)
    subject.expect(0.1)
    for replica in ["gpu/01"] * 5 + ["gpu/02"] * last + ["gpu/00"] * 10:
        subject.note(replica, S, 0.6, 10.0)
    assert subject.ejected == ejected


def test_it_is_calm_until_something_is_wrong_and_again_when_all_is_well() -> None:
    subject = ejection(3)
    assert calm(subject)
    fail(subject, names(1))
    assert not calm(subject)
    prove(subject, 1.0)
    assert not calm(subject), "slow start"
    subject.admissible("gpu/00", 10.99)
    assert not calm(subject)
    subject.admissible("gpu/00", 11.0)
    assert calm(subject)


def test_news_that_nobody_takes_have_a_bound_and_the_counts_go_on() -> None:
    subject = ejection(3)
    for number in range(500):
        fail(subject, names(1), 100.0 * number)
        prove(subject, 100.0 * number + 90.0)
    assert len(subject.news) == NEWS_MAX
    assert subject.statistics(0.0)["moves"]["failures_in_row"] == 500


@pytest.mark.parametrize(
    "changes",
    [
        {"ejected_max": -0.1},
        {"ejected_max": 50},
        {"panic_below": math.nan},
        {"return_share_per_s": 0.0},
        {"return_share_per_s": math.inf},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        EjectionSettings(**changes)


# --- a closed model ---------------------------------------------------------------------------------------------------

Service = Callable[[str, float, random.Random], tuple[float, Verdict]]
"""Replica and instant to how long the call takes and how it ends."""


class Pool:
    """`clients` that each have one call out at any time; the replica with the fewest in flight by weight gets it."""

    def __init__(self, service: Service, *, size: int = 3, clients: int = 6, seed: int = 1, **changes: Any) -> None:
        self.names = names(size)
        self.subject = ejection(size, seed, **changes)
        self.chance = random.Random(seed)
        self.service = service
        self.now_s = 0.0
        self.in_flight: Counter[str] = Counter()
        self.sent: list[tuple[float, str, bool]] = []
        """Instant, replica, whether as a probe."""
        self.ended: list[tuple[float, str, Verdict]] = []
        self.opened: dict[str, tuple[float, int]] = {}
        """When a replica was first ejected, and how many calls were in flight there."""
        self._heap: list[tuple[float, int, str, float, Verdict, Probe | None]] = []
        for _ in range(clients):
            self._send()

    def _pick(self) -> str:
        wanted = self.subject.wants_probe(self.now_s)
        if wanted is not None:
            return wanted
        loads = {
            replica: (self.in_flight[replica] + 1) / self.subject.weight(replica, self.now_s)
            for replica in self.names
            if self.subject.admissible(replica, self.now_s)
        }
        least = min(loads.values())
        return self.chance.choice([replica for replica, load in loads.items() if load == least])

    def _send(self) -> None:
        replica = self._pick()
        permit = self.subject.begin(replica, self.now_s)
        self.in_flight[replica] += 1
        self.sent.append((self.now_s, replica, permit is not None))
        duration_s, verdict = self.service(replica, self.now_s, self.chance)
        entry = (self.now_s + duration_s, len(self.sent), replica, duration_s, verdict, permit)
        heapq.heappush(self._heap, entry)

    def run(self, until_s: float) -> None:
        while self._heap[0][0] <= until_s:
            self.now_s, _, replica, duration_s, verdict, permit = heapq.heappop(self._heap)
            self.in_flight[replica] -= 1
            self.subject.note(replica, verdict, duration_s, self.now_s, permit)
            self.ended.append((self.now_s, replica, verdict))
            if replica in self.subject.ejected:
                self.opened.setdefault(replica, (self.now_s, self.in_flight[replica]))
            self._send()

    def goodput(self, from_s: float, to_s: float) -> float:
        """Good answers a second."""
        return sum(verdict is S and from_s <= at_s < to_s for at_s, _, verdict in self.ended) / (to_s - from_s)


def test_a_replica_that_answers_errors_in_a_millisecond_loses_its_traffic() -> None:
    for seed in range(3):
        pool = Pool(
            lambda replica, now_s, chance: (0.001, F) if replica == "gpu/00" else (chance.uniform(0.008, 0.012), S),
            clients=12,
            seed=seed,
        )
        pool.run(10.0)
        opened_s, in_flight = pool.opened["gpu/00"]
        assert opened_s < 0.1
        got = [(at_s, probing) for at_s, replica, probing in pool.sent if replica == "gpu/00"]
        assert sum(not probing for _, probing in got) == 5 + in_flight, "and not one ordinary call more"
        assert all(at_s >= opened_s + 0.5 for at_s, probing in got if probing)
        assert sum(probing for _, probing in got) <= 4, "pauses of at least 0.5, 1, 2, 4 and 8 s"
        assert pool.goodput(1.0, 10.0) > 0.99 * 12 / 0.01, "the others carry all clients"


def test_a_replica_that_fails_every_second_call_is_ejected_within_two_seconds() -> None:
    for seed in range(10):
        pool = Pool(
            lambda replica, now_s, chance: (0.05, F if replica == "gpu/00" and chance.random() < 0.5 else S),
            clients=3,
            seed=seed,
        )
        pool.run(60.0)
        assert pool.opened["gpu/00"][0] <= 2.0
        share = sum(replica == "gpu/00" for _, replica, _ in pool.sent) / len(pool.sent)
        assert share < 0.05


def test_a_replica_ten_times_slower_gets_under_three_percent() -> None:
    pool = Pool(lambda replica, now_s, chance: (0.1 if replica == "gpu/00" else 0.01, S), size=4, clients=8)
    pool.subject.expect(0.01)
    pool.run(30.0)
    assert sum(replica == "gpu/00" for _, replica, _ in pool.sent) / len(pool.sent) < 0.03
    assert pool.subject.statistics(30.0)["moves"]["slow_rate"] >= 1


def test_with_all_replicas_bad_traffic_flows_and_is_spread_over_all() -> None:
    pool = Pool(lambda replica, now_s, chance: (chance.uniform(0.008, 0.012), F))
    pool.run(30.0)
    for second in range(30):
        assert sum(second <= at_s < second + 1 for at_s, _, _ in pool.ended) > 500
    shares = Counter(replica for _, replica, _ in pool.sent)
    assert all(count / len(pool.sent) > 0.3 for count in shares.values()), shares
    assert len(shares) == 3
    assert pool.subject.statistics(30.0)["panic"]


def test_all_bad_for_half_a_minute_and_one_heals_goodput_returns_within_five_seconds() -> None:
    def service(replica: str, now_s: float, chance: random.Random) -> tuple[float, Verdict]:
        heals_s = 30.0 if replica == "gpu/01" else 60.0
        return (0.01, S) if now_s >= heals_s else (0.008, F)

    pool = Pool(service)
    pool.run(65.0)
    assert pool.goodput(0, 30) == 0
    assert pool.goodput(31, 35) > 0.9 * 2 / 0.01, "it serves the two clients that are its share"
    assert pool.goodput(30, 60) > 0.9 * 2 / 0.01, "and goes on to"
    assert pool.goodput(62, 65) > 0.9 * 6 / 0.01, "and when the others heal, all clients are served"
    figures = pool.subject.statistics(65.0)
    assert (figures["healthy"], figures["panic"]) == (3, False), "nobody sits out a pause of the bad times"


# --- any sequence of events -------------------------------------------------------------------------------------------

NAMES = names(6)
NEXT = {
    "closed": {"open"},
    "open": {"half_open", "closed"},
    "half_open": {"open", "closed"},
}


class Events(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.up: set[str] = set()
        self.down: set[str] = set()
        self.states: dict[str, str] = {}
        """As the news tell them."""
        self.out: dict[str, Probe] = {}
        """The permit that is out, by replica."""
        self.calls: list[tuple[str, float, Probe | None]] = []
        self.panic = False

    @initialize(
        cap=st.sampled_from([0.0, 0.1, 0.34, 0.5, 0.67, 1.0]),
        panic_below=st.sampled_from([0.0, 0.5, 1.0]),
        seed=st.integers(0, 99),
    )
    def start(self, cap: float, panic_below: float, seed: int) -> None:
        self.cap, self.panic_below = cap, panic_below
        settings = EjectionSettings(cap, panic_below, breaker=BreakerSettings(requests_min=4))
        self.subject = Ejection(settings, random.Random(seed))
        self.change(set(NAMES[:4]), set())

    @rule(up=st.sets(st.sampled_from(NAMES)), down=st.sets(st.sampled_from(NAMES), max_size=2))
    def change(self, up: set[str], down: set[str]) -> None:
        self.subject.update(sorted(up), sorted(down), self.now_s)
        self.up, self.down = up - down, down
        self.states = {replica: self.states.get(replica, "closed") for replica in up | down}
        self.out = {replica: permit for replica, permit in self.out.items() if replica in self.up}

    @rule(seconds=st.sampled_from([0.0, 0.2, 0.7, 2.0, 11.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(replica=st.sampled_from(NAMES), verdict=st.sampled_from([S, F, F, N]), times=st.integers(1, 6))
    def note(self, replica: str, verdict: Verdict, times: int) -> None:
        for _ in range(times):
            self.subject.note(replica, verdict, 0.0, self.now_s)

    @rule(replicas=st.sets(st.sampled_from(NAMES), min_size=3))
    def fail_together(self, replicas: set[str]) -> None:
        fail(self.subject, sorted(replicas), self.now_s)

    @rule(replica=st.sampled_from(NAMES))
    def begin(self, replica: str) -> None:
        if replica not in self.up or not self.subject.admissible(replica, self.now_s):
            return
        self.hear()
        permit = self.subject.begin(replica, self.now_s)
        assert (permit is not None) == (self.states[replica] == "half_open" and replica not in self.out)
        if permit is not None:
            self.out[replica] = permit
        elif replica in self.subject.ejected:
            assert self.panic, "an ordinary call to one that is ejected"
        self.calls.append((replica, self.now_s, permit))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), verdict=st.sampled_from([S, S, F, N]))
    def end(self, data: st.DataObject, verdict: Verdict) -> None:
        replica, begun_s, permit = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        self.subject.note(replica, verdict, self.now_s - begun_s, self.now_s, permit)
        if permit is not None and self.out.get(replica) is permit:
            del self.out[replica]

    def hear(self) -> None:
        while self.subject.news:
            news = self.subject.news.popleft()
            if not news.replica:
                assert news.what == ("panic_over" if self.panic else "panic")
                self.panic = not self.panic
                continue
            assert news.what in NEXT[self.states[news.replica]]
            self.states[news.replica] = news.what
            self.out.pop(news.replica, None)

    @invariant()
    def holds(self) -> None:
        subject, now_s = self.subject, self.now_s
        used = {replica for replica in NAMES if subject.admissible(replica, now_s)}
        wanted = subject.wants_probe(now_s)
        self.hear()
        figures = subject.statistics(now_s)
        bad = {replica for replica in self.up if self.states[replica] != "closed"}
        assert {replica: each["state"] for replica, each in figures["by_replica"].items()} == {
            replica: self.states[replica] for replica in self.up
        }
        size = len(self.up)
        assert len(subject.ejected) <= self.cap * size + 1e-9
        assert len(subject.ejected) < size or not size
        assert subject.ejected <= bad
        if figures["kept"]:
            assert len(subject.ejected) == figures["ejected_max"], "a wish waits although there is room"
        assert (figures["healthy"], figures["kept"]) == (size - len(bad), len(bad) - len(subject.ejected))
        known = len(self.up | self.down)
        assert subject.panic == self.panic == (figures["healthy"] < self.panic_below * known)
        probing = {each for each in subject.ejected if self.states[each] == "half_open" and each not in self.out}
        expected = self.up if self.panic else (self.up - subject.ejected) | probing
        assert used - (set(NAMES) - self.up - self.down) == expected
        assert bool(expected) == bool(size)
        assert subject._due_s > now_s, "a timer that stays due would make every question a sweep"
        assert wanted is None if self.panic or not probing else wanted in probing
        assert all(0 < subject.weight(replica, now_s) <= 1 for replica in NAMES)
        if subject.calm:
            assert not bad
            assert self.up <= used, "those that are down are no candidates: they slow nobody down"
            assert all(subject.weight(replica, now_s) == 1 for replica in NAMES)


TestEvents = Events.TestCase
TestEvents.settings = hypothesis_settings(max_examples=35, stateful_step_count=40, deadline=None)
