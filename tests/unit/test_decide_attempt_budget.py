"""The budget of second attempts: never more than its share of real traffic, whatever the order of events."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.decide.attempt_budget import (
    AttemptBudget,
    AttemptBudgetSettings,
    DownAllowance,
    DownAllowanceSettings,
)

NO_RESERVE = AttemptBudgetSettings(retry_reserve=0.0)


def fed(primaries: int, settings: AttemptBudgetSettings = NO_RESERVE, cap: int = 20) -> AttemptBudget:
    budget = AttemptBudget(cap, settings)
    for _ in range(primaries):
        budget.primary()
    return budget


def drawn(budget: AttemptBudget, kind: str, most: int = 1000) -> int:
    """How many are granted in a row."""
    for count in range(most):
        if (budget.hedge() if kind == "hedge" else budget.retry()) != "granted":
            return count
    return most


def test_twenty_primaries_pay_for_one_hedge_to_the_call() -> None:
    assert fed(19).hedge() == "empty"
    budget = fed(20)
    assert budget.hedge() == "granted", "twenty times 0.05 is one, exactly"
    assert budget.hedge() == "empty"


def test_primaries_pay_in_under_the_cap_that_they_came_under() -> None:
    budget = fed(10_000, cap=20)
    budget.set_cap(200)
    assert budget.statistics(0.0)["hedge_tokens"] == 10.0


def test_a_hedge_never_draws_from_the_retries_half() -> None:
    budget = fed(40)
    assert drawn(budget, "hedge") == 2
    assert budget.statistics(0.0)["retry_tokens"] == 2.0
    assert drawn(budget, "retry") == 2


def test_a_retry_draws_from_its_own_half_first_and_then_from_the_hedges() -> None:
    budget = fed(40)
    assert budget.retry() == "granted"
    assert (budget.statistics(0.0)["retry_tokens"], budget.statistics(0.0)["hedge_tokens"]) == (1.0, 2.0)
    assert drawn(budget, "retry") == 3
    assert budget.hedge() == "empty", "the retries have taken all there was"


def test_a_retry_is_made_up_of_both_halves_where_neither_is_enough() -> None:
    assert fed(9).retry() == "empty"
    budget = fed(10)
    assert budget.retry() == "granted"
    assert (budget.statistics(0.0)["retry_tokens"], budget.statistics(0.0)["hedge_tokens"]) == (0.0, 0.0)


def test_a_new_model_may_retry_but_not_hedge_before_traffic_has_paid() -> None:
    budget = AttemptBudget(20)
    assert budget.hedge() == "empty"
    assert drawn(budget, "retry") == 3
    assert drawn(AttemptBudget(4), "retry") == 2, "the half of a small cap holds no more"


def test_each_half_stops_at_half_of_the_cap() -> None:
    budget = fed(10_000, cap=30)
    assert (budget.statistics(0.0)["retry_tokens"], budget.statistics(0.0)["hedge_tokens"]) == (15.0, 15.0)
    assert drawn(budget, "hedge") == 15


def test_a_quiet_model_keeps_what_it_has() -> None:
    budget = fed(20)
    assert budget.statistics(0.0)["retry_tokens"] == budget.statistics(86_400.0)["retry_tokens"] == 1.0


def test_a_smaller_cap_takes_what_is_over_it_and_a_larger_one_gives_nothing() -> None:
    budget = fed(10_000, cap=200)
    budget.set_cap(20)
    assert (budget.statistics(0.0)["retry_tokens"], budget.statistics(0.0)["hedge_tokens"]) == (10.0, 10.0)
    budget.set_cap(200)
    assert budget.statistics(0.0)["hedge_tokens"] == 10.0
    assert budget.statistics(0.0)["cap"] == 200.0


def test_a_full_bucket_of_a_large_model_is_not_spent_on_top_of_the_share() -> None:
    budget = fed(100_000, cap=4000)
    assert drawn(budget, "retry") == 100
    assert budget.retry() == "window"
    assert budget.hedge() == "window"
    for _ in range(999):
        budget.primary()
    assert budget.retry() == "window"
    budget.primary()
    assert budget.retry() == "granted", "the extra sends were a thousand primaries ago"
    assert budget.statistics(0.0)["refused"] == {"empty": 0, "window": 4}


@pytest.mark.parametrize(("batch_max", "cap"), [(0, 20), (1, 20), (5, 20), (6, 24), (8, 32), (64, 256)])
def test_the_cap_follows_the_largest_batch(batch_max: int, cap: int) -> None:
    assert AttemptBudgetSettings().cap(batch_max) == cap


@pytest.mark.parametrize("cap", [-1, 0, 1])
def test_a_cap_without_room_for_a_send_in_each_half_is_refused(cap: int) -> None:
    with pytest.raises(ValueError, match="cap"):
        AttemptBudget(cap)
    budget = AttemptBudget(20)
    with pytest.raises(ValueError, match="cap"):
        budget.set_cap(cap)
    assert budget.statistics(0.0)["cap"] == 20.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"hedge_deposit": -0.1},
        {"retry_deposit": 1.1},
        {"hedge_deposit": float("nan")},
        {"retry_reserve": -1.0},
        {"retry_reserve": float("inf")},
        {"cap_min": 1},
        {"cap_per_batch": -1},
        {"window_primaries": 0},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AttemptBudgetSettings(**wrong)  # type: ignore[arg-type]


class AnyTraffic(RuleBasedStateMachine):
    """Primaries, draws and changes of the cap in any order; a ledger beside the budget judges it."""

    WINDOW = 40

    @initialize(cap=st.integers(2, 60), reserve=st.integers(0, 5))
    def begin(self, cap: int, reserve: int) -> None:
        self.settings = AttemptBudgetSettings(retry_reserve=float(reserve), window_primaries=self.WINDOW)
        self.budget = AttemptBudget(cap, self.settings)
        self.cap, self.reserve = cap, reserve
        self.primaries = self.hedges = self.retries = 0
        self.in_window: deque[list[int]] = deque([[0]], maxlen=self.WINDOW)
        """Extra sends since each of the last primaries."""

    @rule(count=st.integers(1, 60))
    def primary(self, count: int) -> None:
        for _ in range(count):
            self.budget.primary()
            self.in_window.append([0])
        self.primaries += count

    @rule(count=st.integers(1, 12))
    def hedge(self, count: int) -> None:
        for _ in range(count):
            before = self.budget.statistics(0.0)
            granted = self.budget.hedge() == "granted"
            self.hedges += granted
            self.in_window[-1][0] += granted
            assert self.budget.statistics(0.0)["retry_tokens"] == before["retry_tokens"]
            assert granted or before["hedge_tokens"] < 1 or self._window_is_full()

    @rule(count=st.integers(1, 12))
    def retry(self, count: int) -> None:
        for _ in range(count):
            before = self.budget.statistics(0.0)
            granted = self.budget.retry() == "granted"
            self.retries += granted
            self.in_window[-1][0] += granted
            assert granted or before["hedge_tokens"] + before["retry_tokens"] < 1 or self._window_is_full()

    def _window_is_full(self) -> bool:
        return sum(each for (each,) in self.in_window) >= self.WINDOW // 10

    @rule(cap=st.integers(2, 60))
    def set_cap(self, cap: int) -> None:
        self.budget.set_cap(cap)
        self.cap = cap

    @invariant()
    def extra_sends_are_a_share_of_the_primaries(self) -> None:
        assert self.hedges * 20 <= self.primaries, "a hedge is a twentieth, from the first call on"
        assert (self.hedges + self.retries) * 10 <= self.primaries + 10 * self.reserve

    @invariant()
    def over_any_window_sends_are_at_most_a_tenth_above_what_is_offered(self) -> None:
        assert sum(each for (each,) in self.in_window) <= self.WINDOW // 10

    @invariant()
    def halves_are_within_their_bounds(self) -> None:
        statistics = self.budget.statistics(0.0)
        assert 0 <= statistics["hedge_tokens"] <= self.cap / 2
        assert 0 <= statistics["retry_tokens"] <= self.cap / 2
        assert statistics["extra_in_window"] <= statistics["extra_in_window_max"] == self.WINDOW // 10
        assert (statistics["hedges"], statistics["retries"]) == (self.hedges, self.retries)


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("cap", [20, 256])
def test_with_everything_down_sends_stay_at_a_tenth_above_any_thousand_calls_offered(cap: int) -> None:
    """The stress table's `all-down`, with a bucket that a healthy hour has filled."""
    budget = AttemptBudget(cap)
    sends: list[int] = []
    for number in range(20_000):
        budget.primary()
        down = 5000 <= number < 12_000 or number >= 15_000
        sends.append(1 + (down and budget.retry() == "granted"))
    worst = max(sum(sends[start : start + 1000]) for start in range(0, len(sends) - 999, 7))
    assert 1095 <= worst <= 1100, "the share is used, and not passed"


def test_with_stragglers_every_slow_call_is_hedged_and_hedges_stay_a_twentieth() -> None:
    """The stress table's `stragglers`: of one slow call in fifty all are hedged, of one in eight a twentieth."""
    for share, hedged_at_least in ((0.02, 1.0), (0.125, 0.39)):
        chance, budget, slow, hedged = random.Random(5), AttemptBudget(32), 0, 0
        for _ in range(50_000):
            budget.primary()
            if chance.random() < share:
                slow += 1
                hedged += budget.hedge() == "granted"
        assert hedged / slow >= hedged_at_least - 0.005
        assert hedged <= 0.05 * 50_000


def test_what_was_lost_with_a_replica_is_sent_again_as_often_as_it_had_slots() -> None:
    allowance = DownAllowance()
    assert not allowance.take("a", 10.0), "nobody has said that it is down"
    allowance.open("a", 3, 10.0)
    allowance.open("b", 1, 10.0)
    assert [allowance.take("a", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert allowance.take("b", 10.5)
    assert allowance.statistics(10.5) == {
        "open": 2,
        "left": 0,
        "opened": 2,
        "taken": 4,
        "refused": 3,
        "no_room": 0,
    }


def test_an_allowance_is_over_after_its_time() -> None:
    allowance = DownAllowance(DownAllowanceSettings(life_s=1.0))
    allowance.open("a", 3, 10.0)
    assert allowance.take("a", 10.999)
    assert not allowance.take("a", 11.0)
    assert allowance.statistics(11.0)["open"] == 0


def test_a_replica_that_flaps_gets_its_slots_once_in_that_time() -> None:
    allowance, taken = DownAllowance(DownAllowanceSettings(life_s=1.0)), 0
    for tick in range(100):
        now_s = 10.0 + tick / 16
        allowance.open("a", 4, now_s)
        taken += sum(allowance.take("a", now_s) for _ in range(10))
    assert taken == 4 * 7, "opened at 10, 11, .. 16"


def test_at_the_bound_a_further_replica_gets_none_until_there_is_room() -> None:
    allowance = DownAllowance(DownAllowanceSettings(life_s=1.0, replicas_max=2))
    for number in range(5):
        allowance.open(f"r{number}", 4, 10.0)
    assert [allowance.take(f"r{number}", 10.0) for number in range(5)] == [True, True, False, False, False]
    assert allowance.statistics(10.0)["no_room"] == 3
    allowance.open("r4", 4, 11.0)
    assert allowance.take("r4", 11.0)


def test_a_replica_without_slots_opens_nothing() -> None:
    allowance = DownAllowance()
    allowance.open("a", 0, 10.0)
    assert allowance.statistics(10.0)["open"] == 0
    assert not allowance.take("a", 10.0)


@pytest.mark.parametrize("wrong", [{"life_s": 0.0}, {"life_s": float("inf")}, {"replicas_max": 0}], ids=str)
def test_allowances_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DownAllowanceSettings(**wrong)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "take"]), st.sampled_from("abcd"), st.integers(0, 6), st.integers(0, 12)),
        max_size=120,
    )
)
def test_no_order_of_events_gives_a_replica_more_than_its_slots_in_one_life(
    events: list[tuple[str, str, int, int]],
) -> None:
    life, most = 16, 3
    allowance = DownAllowance(DownAllowanceSettings(life_s=float(life), replicas_max=most))
    now, granted, slots_most = 0, dict[str, list[int]](), dict[str, int]()
    for verb, replica, slots, later in events:
        now += later
        if verb == "open":
            allowance.open(replica, slots, float(now))
            slots_most[replica] = max(slots, slots_most.get(replica, 0))
        elif allowance.take(replica, float(now)):
            granted.setdefault(replica, []).append(now)
        assert allowance.statistics(float(now))["open"] <= most
    for replica, times in granted.items():
        for index, first in enumerate(times):
            # A life that began before `first` may have ended, and one more begun: two lives at most touch one length.
            assert sum(1 for time in times[index:] if time < first + life) <= 2 * slots_most[replica]
