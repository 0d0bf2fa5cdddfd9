"""Leased quotas: no call waits for the store, and whatever it does, all gateways together stay within the bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.quota import OK, QuotaSettings
from gateway.decide.quota_cell import Ask, Grant, QuotaCell
from gateway.decide.quota_lease import LEASES_MAX, LeasedQuota, LeaseSettings

LEASE = LeaseSettings()
RATE = QuotaSettings(rate_per_s=100, burst=100)


def calls(quota: LeasedQuota, count: int, now_s: float) -> int:
    """How many of so many calls were granted; all end at once."""
    granted = 0
    for _ in range(count):
        if quota.take(1, now_s) is OK:
            quota.give_back()
            granted += 1
    return granted


def asked(quota: LeasedQuota, now_s: float) -> Ask:
    ask = quota.ask(now_s)
    assert ask is not None
    return ask


def leased() -> LeasedQuota:
    """A quota that the store has just given the one token it asked for."""
    quota = LeasedQuota(RATE, 0.5)
    quota.take(0.5, 0.0)
    quota.give_back()
    question = asked(quota, 0.0)
    assert question.tokens == 1
    assert quota.answered(question.number, Grant(1, 0), 0.0)
    return quota


# --- the cell ---------------------------------------------------------------------------------------------------------


def ask(tokens: int = 0, owed: float = 0.0, slots: int = 0, in_flight: int = 0) -> Ask:
    return Ask(1, tokens, owed, slots, in_flight)


def test_the_cell_gives_the_burst_and_then_the_rate_in_whole_tokens() -> None:
    cell = QuotaCell(QuotaSettings(rate_per_s=10, burst=5), 0.5, 1.0)
    assert cell.answer("a", ask(8), 0.0).tokens == 5
    assert cell.answer("b", ask(8), 0.05).tokens == 0
    assert cell.answer("b", ask(8), 0.29).tokens == 2
    assert cell.answer("a", ask(8), 0.31).tokens == 1
    assert cell.answer("a", ask(8), 9.0).tokens == 5


def test_what_is_owed_is_taken_off_first_and_leaves_a_debt_of_one_burst_at_most() -> None:
    cell = QuotaCell(QuotaSettings(rate_per_s=10, burst=5), 0.5, 1.0)
    assert cell.answer("a", ask(3, owed=4), 0.0).tokens == 1
    assert cell.answer("b", ask(3, owed=3), 0.0).tokens == 0
    assert cell.answer("b", ask(3), 0.3).tokens == 0, "3 came, 3 were owed"
    assert cell.answer("b", ask(3), 0.41).tokens == 1
    cell.answer("b", ask(0, owed=1e6), 0.41)
    assert cell.answer("b", ask(9), 0.41 + 0.75).tokens == 2


def test_slots_are_never_held_beyond_the_limit() -> None:
    cell = QuotaCell(QuotaSettings(concurrency_max=10), 0.5, 1.0)
    assert cell.answer("a", ask(slots=8), 0.0).slots == 8
    assert cell.answer("b", ask(slots=8), 0.0).slots == 2
    assert cell.statistics(0.5) == {"held": 10, "gateways": 2}
    assert cell.answer("b", ask(slots=8, in_flight=2), 1.5).slots == 8, "a did not renew"


def test_who_holds_more_than_its_share_gives_way_as_its_calls_end() -> None:
    cell = QuotaCell(QuotaSettings(concurrency_max=10), 0.5, 1.0)
    assert cell.answer("a", ask(slots=10), 0.0).slots == 10
    assert cell.answer("b", ask(slots=10), 0.1).slots == 0
    assert cell.answer("a", ask(slots=10, in_flight=10), 0.2).slots == 5
    assert cell.answer("b", ask(slots=10), 0.3).slots == 0, "a's ten are still under way"
    assert cell.answer("a", ask(slots=10, in_flight=6), 0.4).slots == 5
    assert cell.answer("b", ask(slots=10), 0.5).slots == 4
    assert cell.answer("a", ask(slots=10, in_flight=5), 0.6).slots == 5
    assert cell.answer("b", ask(slots=10, in_flight=4), 0.7).slots == 5


def test_a_gateway_too_many_holds_nothing() -> None:
    cell = QuotaCell(QuotaSettings(concurrency_max=100), 0.5, 1.0, gateways_max=2)
    assert [cell.answer(name, ask(slots=1), 0.0).slots for name in "abc"] == [1, 1, 0]
    assert cell.answer("c", ask(slots=1), 2.0).slots == 1, "the others' have lapsed"


# --- rate -------------------------------------------------------------------------------------------------------------


def test_before_the_store_has_answered_the_fixed_share_serves() -> None:
    quota = LeasedQuota(RATE, 0.25)
    assert calls(quota, 60, 0.0) == 25
    assert quota.take(1, 0.0).why == "rate"
    assert calls(quota, 60, 0.2) == 5


def test_it_asks_for_what_it_will_use_in_a_lease_and_tells_what_it_took() -> None:
    quota = LeasedQuota(RATE, 0.25)
    calls(quota, 10, 0.0)
    question = asked(quota, 0.0)
    assert question == Ask(1, 13, 10.0, 0, 0), "a quarter more than the demand"
    assert quota.ask(0.01) is None, "one question at a time"
    assert quota.answered(1, Grant(13, 0), 0.01)
    assert quota.ask(0.06) is None, "13 last for longer than 0.2 s"
    assert calls(quota, 11, 0.06) == 11
    assert asked(quota, 0.06).owed == 0.0, "leased tokens are not owed"


def test_leased_tokens_lapse_a_lease_after_they_were_asked_for() -> None:
    quota = LeasedQuota(RATE, 0.5)
    calls(quota, 50, 0.0)
    quota.answered(asked(quota, 0.0).number, Grant(60, 0), 0.04)
    assert quota.statistics(0.99)["leased"] == 60
    assert quota.statistics(1.0)["leased"] == 0, "a lease from the question, not from the answer"
    assert calls(quota, 60, 1.0) == 50, "what the share has"


def test_a_slow_rate_leases_for_as_long_as_a_token_takes() -> None:
    quota = LeasedQuota(QuotaSettings(rate_per_s=0.1), 0.5)
    assert quota.take(1, 0.0) is OK
    quota.answered(asked(quota, 0.0).number, Grant(1, 0), 0.01)
    assert quota.take(1, 9.0) is OK
    assert quota.take(1, 9.0).why == "rate"


def test_where_the_store_says_there_is_no_more_the_share_is_not_used() -> None:
    quota = LeasedQuota(RATE, 0.5)
    assert calls(quota, 1, 0.0) == 1
    quota.answered(asked(quota, 0.0).number, Grant(1, 0), 0.001)
    assert calls(quota, 9, 0.001) == 1, "asked for 2, got 1"
    verdict = quota.take(1, 0.1)
    assert verdict.why == "rate"
    assert verdict.retry_after_s == LEASE.gap_s
    quota.answered(asked(quota, 0.1).number, Grant(0, 0), 0.101)
    assert quota.take(1, 0.25).why == "rate"
    assert quota.take(1, 0.35) is OK, "its word holds for a fifth of a second, then the share serves"


def test_questions_keep_their_distance_however_many_calls_are_refused() -> None:
    quota = LeasedQuota(RATE, 0.5)
    questions = 0
    for step in range(1000):
        now_s = step * 0.001
        calls(quota, 3, now_s)
        question = quota.ask(now_s)
        if question:
            questions += 1
            quota.answered(question.number, Grant(0, 0), now_s)
    assert 18 <= questions <= 20


def test_a_store_that_does_not_answer_leaves_leased_tokens_and_then_the_share() -> None:
    quota = leased()
    calls(quota, 40, 0.3)
    for number, at_s in enumerate((0.4, 1.5)):
        quota.take(1, at_s)
        quota.give_back()
        assert quota.ask(at_s) is not None
        assert quota.statistics(at_s)["store"] == ("ill" if number else "leased")
        quota.take(1, at_s + 0.06)
        quota.give_back()
        assert quota.statistics(at_s)["store"] == "ill", "50 ms are over"
        assert quota.ask(at_s + 0.9) is None, "a probe a second"
    assert calls(quota, 1000, 10.0) == 50
    assert calls(quota, 1000, 10.1) == 5, "half of the rate"
    probe = asked(quota, 11.5)
    assert probe.tokens == 1, "if it is lost, so is the token"
    quota.answered(probe.number, Grant(1, 0), 11.501)
    assert asked(quota, 11.56).tokens > 1
    assert quota.statistics(0.0)["losses"] == 2


def test_an_answer_that_comes_late_grants_nothing() -> None:
    quota = LeasedQuota(RATE, 0.5)
    calls(quota, 10, 0.0)
    question = asked(quota, 0.0)
    assert not quota.answered(question.number, Grant(13, 0), 0.051)
    assert not quota.answered(99, Grant(13, 0), 0.051)
    assert quota.statistics(0.1)["leased"] == 0
    assert quota.statistics(0.1)["late"] == 2
    calls(quota, 1, 1.1)
    assert asked(quota, 1.1).owed == 1.0, "the share has filled up again since: only the last call is owed"


def test_a_store_that_talks_nonsense_is_held_to_what_was_asked() -> None:
    for grant, tokens, slots in ((Grant(10**9, 10**9), 13, 3), (Grant(-5, -5), 0, 0)):
        quota = LeasedQuota(QuotaSettings(rate_per_s=100, concurrency_max=50), 0.02)
        quota.take(1, 0.0)
        quota.give_back()
        calls(quota, 9, 0.0)
        question = asked(quota, 0.0)
        assert (question.tokens, question.slots) == (13, 3)
        quota.answered(question.number, grant, 0.001)
        figures = quota.statistics(0.001)
        assert (figures["leased"], figures["slots"]) == (tokens, slots)


def test_what_was_spent_by_lease_is_not_had_again_from_the_share() -> None:
    quota = LeasedQuota(RATE, 0.5)
    calls(quota, 50, 0.0)
    quota.answered(asked(quota, 0.0).number, Grant(63, 0), 0.0)
    assert calls(quota, 200, 0.9) == 63, "the share's bucket paid for these too"
    assert quota.statistics(0.9)["share_tokens"] == 0.0


def test_a_call_dearer_than_what_is_leased_owes_the_rest() -> None:
    quota = LeasedQuota(QuotaSettings(rate_per_s=10, burst=4), 0.5)
    quota.take(4, 0.0)
    question = asked(quota, 0.0)
    assert (question.tokens, question.owed) == (4, 4.0)
    quota.answered(question.number, Grant(4, 0), 0.0)
    assert quota.take(6, 0.1) is OK
    assert quota.statistics(0.1)["owed"] == 2.0
    assert quota.statistics(0.1)["leased"] == 0.0


def test_other_settings_drop_leases_and_keep_counts() -> None:
    quota = leased()
    quota.take(0.25, 0.0)
    late = asked(quota, 0.06)
    quota.replace(QuotaSettings(rate_per_s=10, burst=4, concurrency_max=1), 0.5, 0.06)
    assert quota.in_flight == 1
    assert quota.take(1, 0.06).why == "concurrency"
    assert not quota.answered(late.number, Grant(50, 0), 0.07)
    assert quota.statistics(0.07)["leased"] == 0
    quota.give_back()
    assert calls(quota, 9, 0.07) == 2


def test_leases_are_few_however_they_are_split() -> None:
    quota = LeasedQuota(QuotaSettings(rate_per_s=1000, burst=1000), 0.001, LeaseSettings(lease_s=10, gap_s=0.001))
    for step in range(200):
        now_s = step * 0.002
        if quota.take(30, now_s) is OK:
            quota.give_back()
        question = quota.ask(now_s)
        if question:
            quota.answered(question.number, Grant(1, 0), now_s)
    assert len(quota._leases) == LEASES_MAX


# --- concurrency ------------------------------------------------------------------------------------------------------


def test_slots_come_from_the_share_until_the_store_knows_better() -> None:
    quota = LeasedQuota(QuotaSettings(concurrency_max=12), 0.25)
    assert [quota.take(1, 0.0).why for _ in range(4)] == ["ok", "ok", "ok", "concurrency"]
    question = asked(quota, 0.0)
    assert (question.tokens, question.slots, question.in_flight) == (0, 6, 3)
    quota.answered(question.number, Grant(0, 6), 0.001)
    assert [quota.take(1, 0.001).why for _ in range(4)] == ["ok", "ok", "ok", "concurrency"]
    question = asked(quota, 0.06)
    assert (question.slots, question.in_flight) == (10, 6)
    quota.answered(question.number, Grant(0, 2), 0.061)
    for _ in range(4):
        assert quota.take(1, 0.061).why == "concurrency"
        quota.give_back()
    assert quota.in_flight == 2
    assert quota.take(1, 0.061).why == "concurrency", "the store says two, which is less than the share"
    assert quota.take(1, 1.2) is OK, "the lease is over: the share"


def test_slots_lapse_a_lease_after_they_were_asked_for() -> None:
    quota = LeasedQuota(QuotaSettings(concurrency_max=12), 0.25)
    for _ in range(4):
        quota.take(1, 0.0)
    quota.answered(asked(quota, 0.0).number, Grant(0, 6), 0.04)
    assert quota.would(1, 0.99) is OK
    assert quota.would(1, 1.0).why == "concurrency", "three are under way, and that is the share"


def test_slots_in_use_are_renewed_before_they_lapse() -> None:
    quota = LeasedQuota(QuotaSettings(concurrency_max=12), 0.25)
    quota.take(1, 0.0)
    quota.answered(asked(quota, 0.0).number, Grant(0, 3), 0.001)
    assert quota.ask(0.7) is None
    assert asked(quota, 0.85).slots == 3
    quota.answered(2, Grant(0, 3), 0.851)
    quota.give_back()
    assert asked(quota, 1.7).slots == 3, "one was under way since"
    quota.answered(3, Grant(0, 3), 1.701)
    assert quota.ask(2.6) is None, "and none since then"


@pytest.mark.parametrize("wrong", [{"lease_s": 0}, {"gap_s": math.inf}, {"probe_s": math.nan}, {"ahead_s": 1.0}])
def test_settings_that_mean_nothing_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LeaseSettings(**wrong)


# --- several gateways, and a store that fails -------------------------------------------------------------------------


class Rig:
    """Gateways that share one cell; questions and answers take time, or get lost. Time moves in steps."""

    def __init__(self, limits: QuotaSettings, gateways: int) -> None:
        self.limits = limits
        self.share = 1 / gateways
        self.quotas = [LeasedQuota(limits, self.share) for _ in range(gateways)]
        self.now_s = 10.0
        self.delay_s = 0.002
        self.state = "up"
        """up; stalled: nothing moves, but is answered when it is up again; lost: questions vanish; deaf: the store acts
        on questions, but its answers vanish."""
        self.losses = 0
        self.out: list[tuple[float, int, Ask]] = []
        self.back: list[tuple[float, int, int, Grant]] = []
        self.grants: list[tuple[float, int]] = []
        self._cell = self._new()

    def _new(self) -> QuotaCell:
        return QuotaCell(self.limits, self.share, LEASE.lease_s)

    def flush(self) -> None:
        self._cell = self._new()
        self.losses += 1

    def step(self, dt_s: float, arrivals: Callable[[int], int]) -> None:
        self.now_s += dt_s
        self._deliver()
        granted = 0
        for number, quota in enumerate(self.quotas):
            for _ in range(arrivals(number)):
                if quota.take(1, self.now_s) is OK:
                    quota.give_back()
                    granted += 1
                question = quota.ask(self.now_s)
                if question is not None and self.state != "lost":
                    self.out.append((self.now_s + self.delay_s / 2, number, question))
        self.grants.append((self.now_s, granted))

    def _deliver(self) -> None:
        if self.state == "stalled":
            return
        due = [each for each in self.out if each[0] <= self.now_s]
        self.out = [each for each in self.out if each[0] > self.now_s]
        for at_s, number, question in due:
            grant = self._cell.answer(str(number), question, self.now_s)
            if self.state == "up":
                self.back.append((at_s + self.delay_s / 2, number, question.number, grant))
        here = [each for each in self.back if each[0] <= self.now_s]
        self.back = [each for each in self.back if each[0] > self.now_s]
        for _, number, question_number, grant in here:
            self.quotas[number].answered(question_number, grant, self.now_s)

    def worst(self, allowed: Callable[[float], float]) -> float:
        """The most by which any stretch of time exceeded what is allowed in it; negative if none did."""
        worst = -math.inf
        for first, (start_s, _) in enumerate(self.grants):
            total = 0
            for end_s, granted in self.grants[first:]:
                total += granted
                worst = max(worst, total - allowed(end_s - start_s))
        return worst

    def bursts_of_shares(self) -> float:
        return len(self.quotas) * max(1.0, self.limits.burst_tokens() * self.share)

    def life_s(self) -> float:
        return max(LEASE.lease_s, 1 / ((self.limits.rate_per_s or 1.0) * self.share))


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["up", "stalled", "lost", "deaf", "up", "flush"]),
        st.integers(1, 12),
        st.sampled_from([0.01, 0.04, 0.15]),
        st.lists(st.integers(0, 15), min_size=4, max_size=4),
    ),
    max_size=10,
)


@given(FAULTS, st.integers(1, 4), st.sampled_from([0.5, 3.0, 20.0, 150.0]), st.sampled_from([1.0, 10.0, 100.0]))
@settings(max_examples=40, deadline=None)
def test_whatever_the_store_does_all_gateways_stay_within_the_bound(
    phases: list[tuple[str, int, float, list[int]]], gateways: int, rate: float, burst: float
) -> None:
    rig = Rig(QuotaSettings(rate_per_s=rate, burst=burst), gateways)
    for state, steps, dt_s, loads in phases:
        if state == "flush":
            rig.flush()
        else:
            rig.state = state
        for _ in range(steps):
            rig.step(dt_s, loads.__getitem__)
    own = rig.bursts_of_shares()
    worst = rig.worst(lambda span_s: (1 + rig.losses) * burst + rate * (span_s + rig.life_s()) + own + rate * span_s)
    assert worst <= 1e-6


@given(
    st.lists(st.tuples(st.integers(1, 25), st.lists(st.integers(0, 15), min_size=4, max_size=4)), max_size=8),
    st.integers(1, 4),
    st.sampled_from([0.5, 3.0, 20.0, 150.0]),
    st.sampled_from([1.0, 10.0, 100.0]),
)
@settings(max_examples=40, deadline=None)
def test_while_the_store_answers_what_was_taken_unasked_is_paid_back(
    phases: list[tuple[int, list[int]]], gateways: int, rate: float, burst: float
) -> None:
    rig = Rig(QuotaSettings(rate_per_s=rate, burst=burst), gateways)
    for steps, loads in phases:
        for _ in range(steps):
            rig.step(0.02, loads.__getitem__)
    own = rig.bursts_of_shares()
    assert rig.worst(lambda span_s: burst + rate * (span_s + rig.life_s()) + own) <= 1e-6


def run(rig: Rig, seconds: float, loads: list[float], chance: random.Random) -> int:
    """Calls per second for each gateway, at random instants. Returns how many were granted."""
    before = sum(granted for _, granted in rig.grants)
    dt_s = 0.005
    for _ in range(round(seconds / dt_s)):
        rig.step(dt_s, lambda number: sum(chance.random() < loads[number] * dt_s / 4 for _ in range(4)))
    return sum(granted for _, granted in rig.grants) - before


def test_one_gateway_with_all_the_traffic_gets_all_of_the_limit() -> None:
    rig = Rig(QuotaSettings(rate_per_s=200, burst=20), 3)
    chance = random.Random(7)
    run(rig, 2.0, [300.0, 0.0, 0.0], chance)
    granted = run(rig, 5.0, [300.0, 0.0, 0.0], chance)
    assert 0.95 * 1000 <= granted <= 1.05 * 1000, "a fixed share would have been a third"


def test_below_the_limit_nobody_is_refused() -> None:
    rig = Rig(QuotaSettings(rate_per_s=200, burst=100), 3)
    run(rig, 10.0, [100.0, 30.0, 10.0], random.Random(3))
    refused = sum(quota.statistics(rig.now_s)["refused"]["rate"] for quota in rig.quotas)
    granted = sum(granted for _, granted in rig.grants)
    assert granted > 1000
    assert refused <= 0.01 * granted


def test_at_three_times_the_limit_all_together_get_the_limit_and_without_a_store_their_shares() -> None:
    rig = Rig(QuotaSettings(rate_per_s=200, burst=20), 3)
    chance = random.Random(5)
    loads = [200.0, 200.0, 200.0]
    run(rig, 2.0, loads, chance)
    assert 0.95 * 1000 <= run(rig, 5.0, loads, chance) <= 1.05 * 1000
    rig.state = "lost"
    run(rig, 1.0, loads, chance)
    assert 0.95 * 1000 <= run(rig, 5.0, loads, chance) <= 1.05 * 1000
    rig.state = "up"
    run(rig, 2.0, loads, chance)
    assert 0.95 * 1000 <= run(rig, 5.0, loads, chance) <= 1.05 * 1000
    questions = sum(quota.statistics(rig.now_s)["asks"] for quota in rig.quotas)
    assert questions <= 3 * (rig.now_s - 10) * 20 + 3, "each at most one in 50 ms"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["take", "end", "tick"]), st.integers(1, 8)), max_size=150),
    st.integers(3, 12),
)
@settings(max_examples=40, deadline=None)
def test_slots_in_use_are_the_limit_and_one_share_a_gateway_at_most(
    events: list[tuple[int, str, int]], limit: int
) -> None:
    limits = QuotaSettings(concurrency_max=limit)
    cell = QuotaCell(limits, 1 / 3, LEASE.lease_s)
    quotas = [LeasedQuota(limits, 1 / 3) for _ in range(3)]
    now_s = 0.0
    for number, kind, count in events:
        for _ in range(count):
            if kind == "take":
                quotas[number].take(1, now_s)
            elif kind == "end" and quotas[number].in_flight:
                quotas[number].give_back()
        if kind == "tick":
            now_s += 0.06 * min(count, 3)  # soon enough for renewals
            for name, quota in enumerate(quotas):
                question = quota.ask(now_s)
                if question is not None:
                    quota.answered(question.number, cell.answer(str(name), question, now_s), now_s)
        together = sum(quota.in_flight for quota in quotas)
        assert together <= limit + sum(max(1, limit // 3) for _ in quotas)
        assert cell.statistics(now_s)["held"] <= limit
    for quota in quotas:
        while quota.in_flight:
            quota.give_back()
