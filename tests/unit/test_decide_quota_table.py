"""The table of quotas: both quotas of a call or none, and never more entries than the bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.quota import QuotaSettings, QuotaVerdict
from gateway.decide.quota_lease import LeasedQuota
from gateway.decide.quota_table import UNLIMITED, Held, Quotas

WHOLE = QuotaSettings(rate_per_s=1, burst=4, concurrency_max=10)
MODEL = QuotaSettings(rate_per_s=1, burst=2, concurrency_max=10)


def both(tenant: str, model: str) -> QuotaSettings:
    """Every tenant is limited, and again on model `m`."""
    return WHOLE if not model else MODEL if model == "m" else UNLIMITED


def take(quotas: Quotas, tenant: str = "a", model: str = "m", now_s: float = 0.0) -> Held:
    held = quotas.take(tenant, model, 1, now_s)
    assert isinstance(held, Held)
    return held


def why(quotas: Quotas, tenant: str = "a", model: str = "m", now_s: float = 0.0) -> str:
    verdict = quotas.take(tenant, model, 1, now_s)
    assert isinstance(verdict, QuotaVerdict)
    return verdict.why


def tokens(quotas: Quotas, tenant: str, model: str, now_s: float = 0.0) -> list[float]:
    return [quota.statistics(now_s)["tokens"] for _, quota in quotas.of(tenant, model)]


def test_a_call_is_counted_with_its_tenant_and_with_its_model() -> None:
    quotas = Quotas(both)
    held = [take(quotas), take(quotas)]
    assert tokens(quotas, "a", "m") == [2.0, 0.0]
    assert why(quotas) == "rate", "the model's is used up"
    held += [take(quotas, model="other"), take(quotas, model="other")]
    assert why(quotas, model="other") == "rate", "the tenant's is used up"
    take(quotas, tenant="b")
    for each in held:
        quotas.give_back(each)
    assert [quota.in_flight for _, quota in quotas.of("a", "m")] == [0, 0]


def test_what_one_quota_refuses_the_other_is_not_charged_for() -> None:
    quotas = Quotas(both)
    for _ in range(2):
        take(quotas)
    for _ in range(5):
        assert why(quotas) == "rate"
    assert tokens(quotas, "a", "m") == [2.0, 0.0]
    for _ in range(2):
        take(quotas, model="other")
    for _ in range(5):
        assert why(quotas, now_s=1.0 - 1e-3) == "rate"
    assert tokens(quotas, "a", "m", 1.0 - 1e-3) == pytest.approx([0.999, 0.999])


def test_where_nothing_is_limited_nothing_is_remembered() -> None:
    quotas = Quotas(lambda tenant, model: UNLIMITED)
    held = [quotas.take(f"t{n}", f"m{n}", 1, 0.0) for n in range(100)]
    assert len(quotas) == 0
    for each in held:
        assert isinstance(each, Held)
        quotas.give_back(each)


def test_what_is_held_goes_back_once() -> None:
    quotas = Quotas(both)
    held, other = take(quotas), take(quotas)
    quotas.give_back(held)
    with pytest.raises(ValueError, match="twice"):
        quotas.give_back(held)
    assert [quota.in_flight for _, quota in quotas.of("a", "m")] == [1, 1]
    quotas.give_back(other)


def test_at_the_bound_the_one_idle_for_longest_is_forgotten() -> None:
    quotas = Quotas(lambda tenant, model: UNLIMITED if model else WHOLE, entries_max=3)
    for tenant in ("a", "b", "c"):
        quotas.give_back(take(quotas, tenant))
    quotas.give_back(take(quotas, "a", now_s=1.0))
    take(quotas, "d", now_s=1.0)
    assert not list(quotas.of("b", ""))
    assert all(list(quotas.of(tenant, "")) for tenant in "acd")
    assert quotas.statistics(1.0)["forgotten"] == 1
    assert quotas.statistics(1.0)["forgotten_early"] == 0, "b's bucket was full again after a second"
    take(quotas, "e", now_s=1.0)
    take(quotas, "f", now_s=1.0)
    assert quotas.statistics(1.0)["forgotten_early"] == 1, "a had just called"


def test_one_that_was_refused_is_not_the_first_to_be_forgotten() -> None:
    one = QuotaSettings(rate_per_s=0.01, burst=1)
    quotas = Quotas(lambda tenant, model: UNLIMITED if model else one, entries_max=2)
    quotas.give_back(take(quotas, "greedy"))
    quotas.give_back(take(quotas, "quiet"))
    assert why(quotas, "greedy") == "rate"
    take(quotas, "new")
    assert why(quotas, "greedy") == "rate", "it did not win a new bucket"


def test_when_all_have_calls_under_way_a_stranger_is_refused() -> None:
    quotas = Quotas(lambda tenant, model: UNLIMITED if model else WHOLE, entries_max=2)
    first, _ = take(quotas, "a"), take(quotas, "b")
    assert why(quotas, "c") == "table_full"
    take(quotas, "a")
    quotas.give_back(first)
    assert why(quotas, "c") == "table_full", "a still has one"
    assert quotas.statistics(0.0)["refused"]["table_full"] == 2


def test_a_call_never_forgets_its_own_other_quota() -> None:
    quotas = Quotas(both, entries_max=2)
    held = take(quotas, "a", "other")
    assert why(quotas, "b") == "table_full", "b's own first entry is the only one that is idle"
    quotas.give_back(held)
    take(quotas, "b")
    assert len(quotas) == 2


def test_other_settings_reach_every_entry_and_lose_no_count() -> None:
    quotas = Quotas(both)
    held = [take(quotas), take(quotas)]
    quotas.give_back(take(quotas, "b", "other"))
    quotas.replace(lambda tenant, model: QuotaSettings(concurrency_max=2) if not model else UNLIMITED, 1.0, 0.0)
    assert why(quotas) == "concurrency"
    assert len(quotas) == 3, "the model's entry is in use until its calls end"
    for each in held:
        quotas.give_back(each)
    quotas.replace(lambda tenant, model: UNLIMITED, 1.0, 0.0)
    assert len(quotas) == 0


def test_another_number_of_gateways_is_another_share() -> None:
    quotas = Quotas(lambda tenant, model: QuotaSettings(concurrency_max=8))
    for _ in range(4):
        take(quotas, model="")
    quotas.replace(lambda tenant, model: QuotaSettings(concurrency_max=8), 0.5, 0.0)
    assert why(quotas, model="") == "concurrency"
    take(quotas, "b", model="")
    assert next(iter(quotas.of("b", "")))[1].statistics(0.0)["slots"] == 4


def test_leased_quotas_fit_the_table_and_the_busy_ones_can_be_renewed() -> None:
    quotas = Quotas(both, 0.5, make=LeasedQuota)
    held = take(quotas)
    assert [key for key, _ in quotas.busy()] == [("a", ""), ("a", "m")]
    assert all(isinstance(quota, LeasedQuota) and quota.ask(0.0) for _, quota in quotas.of("a", "m"))
    quotas.give_back(held)
    assert quotas.busy() == ()


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 7), st.sampled_from(["", "m", "other"])),
        st.tuples(st.just("end"), st.integers(0, 50), st.just("")),
        st.tuples(st.just("later"), st.integers(1, 20), st.just("")),
        st.tuples(st.just("replace"), st.integers(1, 4), st.just("")),
    ),
    max_size=120,
)


@given(EVENTS, st.integers(2, 6))
@settings(max_examples=100, deadline=None)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int, str]], entries_max: int) -> None:
    quotas = Quotas(both, entries_max=entries_max)
    running: list[tuple[Held, str, str]] = []
    now_s = 0.0
    for kind, number, model in events:
        if kind == "take":
            answer = quotas.take(f"t{number}", model, 1, now_s)
            if isinstance(answer, Held):
                running.append((answer, f"t{number}", model))
            elif answer.why == "table_full":
                assert len(running) > 0
        elif kind == "end" and running:
            quotas.give_back(running.pop(number % len(running))[0])
        elif kind == "later":
            now_s += number / 10
        elif kind == "replace":
            quotas.replace(both, 1 / number, now_s)
        assert len(quotas) <= entries_max
        for key, quota in quotas.busy():
            assert quota.in_flight == sum(t == key[0] and key[1] in ("", m) for _, t, m in running)
        assert sum(quota.in_flight for key, quota in quotas.busy() if not key[1]) == len(running)
    for held, _, _ in running:
        quotas.give_back(held)
    assert quotas.busy() == ()


def test_it_says_whose_quota_refused() -> None:
    of = {"": QuotaSettings(rate_per_s=1, burst=2), "m": QuotaSettings(concurrency_max=1)}
    quotas = Quotas(lambda tenant, model: of[model])
    assert isinstance(quotas.take("a", "m", 1.0, 0.0), Held)
    refused = quotas.take("a", "m", 1.0, 0.0)
    assert isinstance(refused, QuotaVerdict)
    assert (refused.why, quotas.blamed) == ("concurrency", ("a", "m"))
    assert isinstance(quotas.take("a", "", 1.0, 0.0), Held)
    refused = quotas.take("a", "", 1.0, 0.0)
    assert isinstance(refused, QuotaVerdict)
    assert (refused.why, quotas.blamed) == ("rate", ("a", ""))
