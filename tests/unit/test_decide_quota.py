"""A tenant's quota: the rate over any stretch of time, the count of calls under way, and settings that change."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.quota import (
    COST_MAX,
    OK,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Bucket,
    QuotaSettings,
    QuotaVerdict,
    TenantQuota,
)


def taken(quota: TenantQuota, count: int, now_s: float, cost: float = 1.0) -> int:
    """How many of so many calls were granted; all end at once."""
    granted = 0
    for _ in range(count):
        if quota.take(cost, now_s) is OK:
            quota.give_back()
            granted += 1
    return granted


def test_a_burst_is_served_at_once_and_then_the_rate() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=10, burst=5))
    assert taken(quota, 20, 100.0) == 5
    assert taken(quota, 20, 100.0) == 0, "time stands still"
    assert taken(quota, 20, 100.3) == 3
    assert taken(quota, 20, 200.0) == 5, "never more than the burst, however long the pause"


def test_who_waits_as_long_as_told_is_served() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=3, burst=2))
    now_s = 1000.0
    for _ in range(200):
        verdict = quota.take(1, now_s)
        if verdict is OK:
            quota.give_back()
            continue
        assert verdict.why == "rate"
        assert RETRY_MIN_S <= verdict.retry_after_s <= 1 / 3 + 1e-6
        now_s += verdict.retry_after_s
        assert quota.take(1, now_s) is OK
        quota.give_back()
    assert now_s - 1000.0 > 30, "it did wait"


@pytest.mark.parametrize(
    ("rate", "burst", "tokens"), [(0.5, None, 1.0), (10.0, None, 10.0), (10.0, 25.0, 25.0), (10.0, 1.0, 1.0)]
)
def test_the_default_burst_is_one_second_of_the_rate_and_one_call_at_least(
    rate: float, burst: float | None, tokens: float
) -> None:
    assert QuotaSettings(rate_per_s=rate, burst=burst).burst_tokens() == tokens


def test_a_call_dearer_than_the_burst_needs_a_full_bucket_and_leaves_a_debt() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=1, burst=4))
    assert taken(quota, 1, 0.0, cost=10) == 1
    assert quota.take(1, 0.0) == QuotaVerdict("rate", 7.0)
    assert taken(quota, 1, 6.9) == 0
    assert taken(quota, 1, 7.1) == 1
    assert taken(quota, 1, 10.0, cost=10) == 0, "not full"


def test_concurrency_counts_calls_under_way_and_costs_no_tokens() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=100, burst=3, concurrency_max=2, busy_retry_s=2.5))
    assert quota.take(1, 0.0) is OK
    assert quota.take(1, 0.0) is OK
    assert quota.take(1, 0.0) == QuotaVerdict("concurrency", 2.5)
    quota.give_back()
    assert quota.take(1, 0.0) is OK, "the refused one took no token"
    assert quota.take(1, 0.0).why == "concurrency"
    quota.give_back()
    assert quota.take(1, 0.0).why == "rate"
    assert quota.statistics(0.0)["refused"] == {"rate": 1, "concurrency": 2}
    assert quota.statistics(0.0)["granted"] == 3


def test_nothing_is_given_back_that_was_not_taken() -> None:
    quota = TenantQuota(QuotaSettings(concurrency_max=1))
    with pytest.raises(ValueError, match="none under way"):
        quota.give_back()
    quota.take(1, 0.0)
    quota.give_back()
    with pytest.raises(ValueError, match="none under way"):
        quota.give_back()


def test_asking_whether_takes_nothing() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=1, burst=1, concurrency_max=1))
    assert quota.would(1, 0.0) is OK
    assert quota.would(1, 0.0) is OK
    assert quota.take(1, 0.0) is OK
    assert quota.would(1, 0.0).why == "concurrency"
    assert quota.statistics(0.0)["refused"] == {"rate": 0, "concurrency": 0}


@pytest.mark.parametrize(
    ("limit", "gateways", "slots"),
    [(10, 3, 3), (10, 10, 1), (49, 49, 1), (98, 49, 2), (2, 5, 1), (7, 1, 7), (100, 7, 14)],
)
def test_slots_are_shared_rounded_down_and_one_at_least(limit: int, gateways: int, slots: int) -> None:
    quota = TenantQuota(QuotaSettings(concurrency_max=limit), 1 / gateways)
    assert sum(quota.take(1, 0.0) is OK for _ in range(limit + 1)) == slots
    assert slots * gateways <= max(limit, gateways)


def test_rate_and_burst_are_shared_and_one_call_always_fits() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=12, burst=6), 0.25)
    assert taken(quota, 9, 0.0) == 1, "a quarter of 6 holds one whole call"
    assert taken(quota, 9, 10.0) == 1
    assert taken(TenantQuota(QuotaSettings(rate_per_s=0.1), 0.25), 9, 0.0, cost=0.5) == 2, "one whole call"
    seconds = [taken(quota, 9, 100 + n * 0.25) for n in range(41)]
    assert sum(seconds) == pytest.approx(30, abs=2), "3 a second"


def test_other_settings_keep_what_was_counted() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=1, burst=10, concurrency_max=5))
    for _ in range(4):
        assert quota.take(1, 0.0) is OK
    quota.replace(QuotaSettings(rate_per_s=1, burst=20, concurrency_max=4), 1.0, 0.0)
    assert quota.take(1, 0.0).why == "concurrency"
    for _ in range(4):
        quota.give_back()
    assert taken(quota, 20, 0.0) == 6, "a higher burst fills with time"


def test_settings_changed_to_and_fro_give_nobody_anything() -> None:
    low, high = QuotaSettings(rate_per_s=1, burst=2), QuotaSettings(rate_per_s=1, burst=50)
    quota = TenantQuota(low)
    granted = 0
    for _ in range(20):
        granted += taken(quota, 60, 5.0)
        quota.replace(high, 1.0, 5.0)
        granted += taken(quota, 60, 5.0)
        quota.replace(low, 1.0, 5.0)
    assert granted == 2


def test_a_limit_below_what_runs_cuts_nobody_off_and_lets_nobody_in() -> None:
    quota = TenantQuota(QuotaSettings(concurrency_max=5))
    for _ in range(5):
        quota.take(1, 0.0)
    quota.replace(QuotaSettings(concurrency_max=2), 1.0, 0.0)
    for _ in range(3):
        assert quota.take(1, 0.0).why == "concurrency"
        quota.give_back()
    assert quota.take(1, 0.0).why == "concurrency"
    quota.give_back()
    assert quota.take(1, 0.0) is OK


def test_a_rate_that_is_lifted_and_set_again_counts_calls_on() -> None:
    quota = TenantQuota(QuotaSettings(concurrency_max=2))
    quota.take(1, 0.0)
    quota.replace(QuotaSettings(), 1.0, 0.0)
    quota.take(1, 0.0)
    quota.replace(QuotaSettings(rate_per_s=1, concurrency_max=2), 0.5, 0.0)
    assert quota.in_flight == 2
    assert quota.take(1, 0.0).why == "concurrency"


def test_it_is_full_only_when_nothing_would_be_lost() -> None:
    quota = TenantQuota(QuotaSettings(rate_per_s=2, burst=4, concurrency_max=9))
    assert quota.full(0.0)
    quota.take(1, 0.0)
    assert not quota.full(10.0)
    quota.give_back()
    assert not quota.full(0.4)
    assert quota.full(0.6)


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, COST_MAX * 2])
def test_an_impossible_cost_is_a_mistake(cost: float) -> None:
    with pytest.raises(ValueError, match="a call costs between"):
        TenantQuota(QuotaSettings(rate_per_s=1)).take(cost, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": 0},
        {"rate_per_s": math.nan},
        {"rate_per_s": math.inf},
        {"burst": 0.5},
        {"burst": math.inf},
        {"concurrency_max": 0},
        {"busy_retry_s": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        QuotaSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, math.nan])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        TenantQuota(QuotaSettings(), share)


def test_reading_a_bucket_changes_nothing() -> None:
    bucket = Bucket(2.0, 10.0)
    bucket.fill(1.0)
    bucket.tokens -= 6
    assert (bucket.level(2.0), bucket.level(3.5), bucket.level(0.5)) == (6.0, 9.0, 4.0)
    assert bucket.tokens == 4.0
    bucket.fill(0.5)
    assert bucket.level(2.0) == 6.0, "nor does a clock that stands still or went back"


RATES = st.floats(0.01, 1000)


@given(
    RATES,
    st.floats(1, 50),
    st.integers(1, 5),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), max_size=40),
)
@settings(max_examples=100, deadline=None)
def test_over_any_time_no_more_than_burst_and_rate_allow(
    rate: float, burst: float, gateways: int, waves: list[tuple[float, int]]
) -> None:
    quotas = [TenantQuota(QuotaSettings(rate_per_s=rate, burst=burst), 1 / gateways) for _ in range(gateways)]
    now_s = 50.0
    grants: list[tuple[float, int]] = []
    for pause_s, calls in waves:
        now_s += pause_s
        grants.append((now_s, sum(taken(quota, calls, now_s) for quota in quotas)))
    for first, (start_s, _) in enumerate(grants):
        total = 0
        for end_s, granted in grants[first:]:
            total += granted
            assert total <= burst + gateways - 1 + rate * (end_s - start_s) + 1e-6


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.floats(0, 5)),
            st.tuples(st.just("end"), st.just(0.0)),
            st.tuples(st.just("later"), st.floats(0, 2)),
            st.tuples(st.just("slots"), st.integers(1, 6).map(float)),
        ),
        max_size=80,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_order_of_events_keeps_the_count(events: list[tuple[str, float]]) -> None:
    limit, now_s, running = 3, 0.0, 0
    quota = TenantQuota(QuotaSettings(rate_per_s=2, burst=6, concurrency_max=limit))
    for kind, number in events:
        if kind == "take":
            verdict = quota.take(number, now_s)
            if running >= limit:
                assert verdict.why == "concurrency"
            running += verdict is OK
            assert 0.0 <= verdict.retry_after_s <= RETRY_MAX_S
            assert (verdict.retry_after_s == 0.0) == (verdict is OK)
        elif kind == "end" and running:
            quota.give_back()
            running -= 1
        elif kind == "later":
            now_s += number
        elif kind == "slots":
            limit = int(number)
            quota.replace(QuotaSettings(rate_per_s=2, burst=6, concurrency_max=limit), 1.0, now_s)
        assert quota.in_flight == running
        figures = quota.statistics(now_s)
        assert figures["in_flight"] == running
        assert math.isfinite(figures["tokens"])
        assert figures["tokens"] <= 6
