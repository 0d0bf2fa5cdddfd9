"""The simulation finds faults planted in quotas, by seeds whose policies have some."""

from __future__ import annotations

import pytest

from gateway.decide.quota import OK, QuotaVerdict
from gateway.decide.quota_cell import QuotaCell
from gateway.decide.quota_lease import LeasedQuota
from gateway.decide.quota_table import Held, Quotas
from tests.simulation.scenario import scenario
from tests.unit.simulation_findings import finds, verdict

LIMITED = range(8, 190, 11)
SHARED = [seed for seed in LIMITED if seed % 33 != 8]
ALONE = [seed for seed in LIMITED if seed % 33 == 8]


def test_only_these_seeds_have_quotas() -> None:
    assert [seed for seed in range(190) if "quotas" in scenario(seed).tags] == list(LIMITED)


def test_houses_with_a_shared_store_well_and_ill_and_without_one_pass_every_check() -> None:
    assert verdict([SHARED[1], SHARED[2], ALONE[0]]) == ""


@pytest.mark.parametrize("seeds", [SHARED, ALONE])
def test_a_call_whose_place_is_never_given_back_is_found(monkeypatch: pytest.MonkeyPatch, seeds: list[int]) -> None:
    sound = Quotas.give_back
    count = 0

    def leaky(self: Quotas, held: Held) -> None:
        nonlocal count
        count += 1
        if count % 10:
            sound(self, held)

    monkeypatch.setattr(Quotas, "give_back", leaky)
    assert finds("quotas have calls under way", seeds)


def test_a_store_that_pays_out_more_than_there_is_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuotaCell, "_tokens", lambda self, ask, now_s: ask.tokens)
    assert finds("were let in by both at once", SHARED)


def test_a_gateway_that_does_not_count_what_it_leased_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedQuota, "_spend", lambda self, bucket, cost, now_s: None)
    assert finds("were let in by both at once", SHARED)


def test_a_limit_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(self: Quotas, tenant: str, model: str, cost: float, now_s: float) -> Held | QuotaVerdict:
        return Held(())

    monkeypatch.setattr(Quotas, "take", kind)
    assert finds("were let in here at once", ALONE)


def test_more_calls_at_a_time_than_the_limit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedQuota, "would", lambda self, cost, now_s: OK)
    assert finds("calls were inside at", SHARED)


def test_a_slot_more_than_was_asked_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives too much does no harm: a gateway holds it to what was asked, and so to the limit."""
    monkeypatch.setattr(QuotaCell, "_slots", lambda self, gateway, ask, now_s: ask.slots + 99)
    assert not finds("calls were inside at", SHARED[:4])
