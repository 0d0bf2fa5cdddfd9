"""`load protections`: every one that there is can be switched on and off, and its cost is the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.load import load_policies
from load.__main__ import main
from load.protections import EVERYTHING, NOTHING, PROTECTIONS, Variant, document, table, variants
from load.stage_house import model_names, stage_house, write_house_policies
from load.stages import Caller, whole

KNOWN = [each for each in PROTECTIONS if each.known]
FOUND = variants(KNOWN, KNOWN)


def test_there_are_some_and_what_there_is_not_is_known_to_be_missing() -> None:
    assert {"hedging", "retries", "all second attempts"} <= {each.name for each in KNOWN}
    assert [each.name for each in FOUND] == [EVERYTHING, *(each.name for each in KNOWN), NOTHING]


@pytest.mark.parametrize("variant", FOUND, ids=lambda each: each.name)
def test_a_gateway_takes_the_policies_of_each_variant(variant: Variant, tmp_path: Path) -> None:
    write_house_policies(tmp_path / "house", model_names(1), 2, 16, variant.policy, variant.fleet)
    load_policies(str(tmp_path / "house"))


def test_each_is_off_in_its_own_variant_alone() -> None:
    by_name = {each.name: each for each in FOUND}
    on = by_name[EVERYTHING]
    assert (on.policy["hedging"], on.policy["retries"], on.policy["read_only"]) == ({"enabled": True}, {"max": 1}, True)
    assert by_name["hedging"].policy == {**on.policy, "hedging": {"enabled": False}}
    assert by_name["all second attempts"].policy["read_only"] is False
    assert len({str((each.policy, each.fleet)) for each in FOUND[:-1]}) == len(FOUND) - 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("variant", [FOUND[0], FOUND[-1]], ids=lambda each: each.name)
async def test_calls_are_answered_with_everything_on_and_with_everything_off(variant: Variant, tmp_path: Path) -> None:
    async with stage_house(
        tmp_path / "house", replicas=2, slots=4, policy=variant.policy, fleet=variant.fleet
    ) as house:
        caller = Caller(house, rps=1_000_000, burst=4)
        assert (await caller.measure(whole(house), 8)).process > 0
        assert house.assembly.record_log.statistics(0.0)["written"] == 8


def test_a_cost_is_what_a_call_costs_more_with_it() -> None:
    found = [Variant(EVERYTHING, {}, {}), Variant("hedging", {}, {}), Variant(NOTHING, {}, {})]
    rounds = [{EVERYTHING: 80.0 + noise, "hedging": 77.0 + noise, NOTHING: 60.0 + noise} for noise in (0.0, 9.0, 1.0)]
    counts = {EVERYTHING: 400_000.0, "hedging": 390_000.0, NOTHING: 300_000.0}
    result = document(found, rounds, counts, {"missing": ["lanes"]})
    hedging, everything = result["protections"]
    assert (hedging["us"], hedging["low"], hedging["high"], hedging["instructions"]) == (3.0, 3.0, 3.0, 10_000)
    assert (everything["name"], everything["us"]) == ("all of them", 20.0)
    assert result["everything_on"] == {"us": 81.0, "instructions": 400_000}
    shown = table(result)
    assert "not there yet: lanes" in shown
    assert "10,000" in shown
    assert document(found, rounds, {}, {"missing": []})["protections"][0]["instructions"] is None


def test_one_that_is_not_there_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("load.protections.FleetPolicy", int)
    assert main(["protections", "--only", "quotas"]) == 2
    assert "this gateway has no quotas yet" in capsys.readouterr().err
