"""`load compare --scenario`: what Envoy is given, who runs when and with which arrivals, and what comes of the runs."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.local import Ports, ServerSpec
from load import chaos, compare_scenario
from load.__main__ import main
from load.chaos import Done
from load.compare_pictures import distribution, goodput, latency_over_time
from load.compare_scenario import score
from load.compare_scenario_figures import ScenarioRound, document, table, without_records
from load.document_commands import SCENARIO_MEMBERS
from load.environment import ensure_envoy
from load.envoy_tuned import OVERLOAD, Overload, Tuning, candidates, configuration, hedges, tuning_of
from load.errors import UsageError
from load.peer_stand import counters_of
from load.scenario import LoadedScenario, find_scenario, load_scenario
from load.stand import Stand
from tests.unit.test_load_chaos import figures_of, result

PORTS = Ports(21000, 21001, 21002)
REPLICAS = [
    ServerSpec(f"triton-{number}", Ports(*range(23000 + 10 * number, 23003 + 10 * number))) for number in (0, 1)
]
COMPARED = ("stragglers", "slow-replica", "overload", "kill")


def scenario(name: str) -> LoadedScenario:
    return load_scenario(find_scenario(name))


def with_classes(name: str, *classes: str) -> LoadedScenario:
    """A scenario whose kinds of traffic have these classes."""
    loaded = scenario(name)
    traffic = tuple(
        msgspec.structs.replace(each, priority=which) for each, which in zip(loaded.spec.traffic, classes, strict=True)
    )
    return replace(loaded, spec=msgspec.structs.replace(loaded.spec, traffic=traffic))


# --- what Envoy is given ----------------------------------------------------------------------------------------------


def parts(tuning: Tuning) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Of gRPC: the cluster, the routes and the filters."""
    resources = json.loads(json.dumps(configuration(PORTS, REPLICAS, tuning)))["static_resources"]
    (cluster,) = [each for each in resources["clusters"] if each["name"] == "grpc"]
    (listener,) = [each for each in resources["listeners"] if each["name"] == "grpc"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return cluster, manager["route_config"]["virtual_hosts"][0]["routes"], manager["http_filters"]


@pytest.mark.parametrize("name", COMPARED)
def test_every_replica_is_an_endpoint_with_its_own_health_address(name: str) -> None:
    cluster, _, _ = parts(tuning_of(scenario(name)))
    found = [each["endpoint"] for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
    assert [each["address"]["socket_address"]["port_value"] for each in found] == [23001, 23011]
    health = [each["health_check_config"]["address"]["socket_address"]["port_value"] for each in found]
    assert health == [23000, 23010], "Triton's health is asked over HTTP"
    (check,) = cluster["health_checks"]
    assert check["no_traffic_interval"] == check["interval"], "or an idle cluster is checked once a minute"


def test_it_hedges_where_the_policy_says_read_only_and_only_once_the_time_out_is_known() -> None:
    assert [hedges(scenario(name)) for name in COMPARED] == [True, True, False, True]
    tuning = tuning_of(scenario("stragglers"))
    _, (route,), _ = parts(tuning)
    assert "hedge_policy" not in route["route"]
    _, (route,), _ = parts(replace(tuning, per_try_timeout_ms=30))
    assert route["route"]["hedge_policy"] == {"hedge_on_per_try_timeout": True}
    assert route["route"]["retry_policy"]["per_try_timeout"] == "0.03s"
    assert route["route"]["timeout"] == "2s", "the longest deadline"


def test_breakers_let_a_queue_through_where_nothing_should_be_refused_and_slots_where_too_much_comes() -> None:
    assert tuning_of(scenario("stragglers")).calls_max == 3 * 16 * 5
    assert tuning_of(with_classes("overload", "critical", "critical")).calls_max == 2 * 16
    limits = {
        each["priority"]: each for each in parts(tuning_of(scenario("stragglers")))[0]["circuit_breakers"]["thresholds"]
    }
    assert limits["DEFAULT"]["max_requests"] == 240
    assert limits["DEFAULT"]["retry_budget"]["budget_percent"] == {"value": 20}


def test_the_highest_class_has_a_route_and_all_slots_and_the_others_what_it_leaves() -> None:
    tuning = tuning_of(with_classes("overload", "critical_plus", "sheddable"))
    assert (tuning.top_class, tuning.top_calls_max) == ("critical_plus", 32)
    assert tuning.calls_max == round(32 * (1 - 80 / 266))
    _, (top, rest), _ = parts(tuning)
    assert top["match"]["headers"] == [{"name": "x-sluice-priority", "string_match": {"exact": "critical_plus"}}]
    assert (top["route"]["priority"], rest["route"].get("priority")) == ("HIGH", None)


@pytest.mark.parametrize(("overload", "filters"), [("breakers", 1), ("adaptive", 2), ("admission", 2)])
def test_a_filter_against_overload_comes_before_the_router_if_it_is_asked_for(overload: Overload, filters: int) -> None:
    _, _, found = parts(tuning_of(scenario("overload"), overload))
    assert len(found) == filters
    assert found[-1]["name"] == "envoy.filters.http.router"


def test_streams_are_not_compared() -> None:
    with pytest.raises(UsageError, match="streams are not compared"):
        tuning_of(scenario("stream"))


@pytest.mark.field
@pytest.mark.parametrize("overload", OVERLOAD)
def test_envoy_takes_the_configuration(overload: Overload, tmp_path: Path) -> None:
    tuning = tuning_of(with_classes("overload", "critical_plus", "sheddable"), overload)
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(configuration(PORTS, REPLICAS, replace(tuning, per_try_timeout_ms=30))))
    argv = [str(ensure_envoy()), "--mode", "validate", "-c", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_its_counters_are_told_in_words_and_those_of_nothing_are_not() -> None:
    page: dict[str, Any] = {
        "stats": [
            {"name": "cluster.grpc.upstream_rq_retry", "value": 7},
            {"name": "cluster.http.upstream_rq_retry", "value": 1},
            {"name": "cluster.grpc.outlier_detection.ejections_enforced_total", "value": 0},
            {"name": "http.grpc.adaptive_concurrency.gradient_controller.rq_blocked", "value": 3},
            {"name": "cluster.grpc.version", "value": 9},
            {"histograms": {}},
        ]
    }
    assert counters_of(page) == {"retries and hedges": 8, "refused by adaptive concurrency": 3}


# --- who runs when ----------------------------------------------------------------------------------------------------


def done(p99_factor: int = 1, *, disturbed: bool = False, wrong: int = 0, capacity_rps: float | None = None) -> Done:
    """Ten calls of one to ten milliseconds, times the factor."""
    made = result()
    latency = made.traffic[0].latency
    for _ in range(10 * (p99_factor - 1)):
        latency.record(10_000_000 * p99_factor)
    made.late_sends = 5 * disturbed
    made.traffic[0].wrong = wrong
    return Done(made, figures_of(made, capacity_rps), [], [])


Start = Callable[[], AbstractContextManager[Stand]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, float, float | None]]:
    """Nothing is started. Of each run: its side, seed, length and capacity."""
    seen: list[tuple[str, int, float, float | None]] = []

    def attempts(which: LoadedScenario, start: Start, capacity_rps: float | None, counters: Any = None) -> Done:
        side = "sluice" if counters is None else "envoy"
        seen.append((side, which.spec.seed, which.spec.duration_s, capacity_rps))
        known = which.spec.capacity is not None
        made = done(capacity_rps=(capacity_rps or 250.0) if known else None)
        (figures,) = made.figures["traffic"].values()
        made.figures["traffic"].update((each.name, figures) for each in which.spec.traffic)
        return made

    monkeypatch.setattr(chaos, "attempts", attempts)
    monkeypatch.setattr(compare_scenario, "ensure_envoy", lambda: Path("/envoy"))
    monkeypatch.setattr(compare_scenario, "document", lambda scenario, rounds, setting, limits: setting | RESULT)
    monkeypatch.setattr(compare_scenario, "table", lambda result: "")
    return seen


RESULT = {"verdict": "none"}


def test_both_sides_get_the_same_arrivals_each_round_others_and_the_first_changes(
    ran: list[tuple[str, int, float, float | None]], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = ["compare", "--peer", "envoy", "--scenario", "overload", "--rounds", "2", "--json", str(out)]
    assert main(words) == 0
    assert ran == [
        ("envoy", 1, 10.0, None),  # the capacity
        *[("envoy", 1, 20.0, 250.0)] * 3,  # which Envoy is best
        ("sluice", 1, 42.0, 250.0),
        ("envoy", 1, 42.0, 250.0),
        ("envoy", 2, 42.0, 250.0),
        ("sluice", 2, 42.0, 250.0),
    ]
    setting = json.loads(out.read_text())
    assert (setting["capacity_rps"], setting["envoy_per_try_timeout_ms"]) == (250.0, None)


def test_the_time_out_of_a_try_is_the_healthy_p97_unless_it_is_given(
    ran: list[tuple[str, int, float, float | None]], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = ["compare", "--peer", "envoy", "--scenario", "kill", "--rounds", "1", "--json", str(out)]
    assert main(words) == 0
    assert len(ran) == 1 + 4 + 2
    setting = json.loads(out.read_text())
    assert setting["envoy_per_try_timeout_ms"] == 10, "all are alike here, so the first one is taken"
    assert setting["envoy_chosen"] == setting["envoy_trials"][0]["tuning"]
    ran.clear()
    assert main([*words, "--no-trials"]) == 0
    assert len(ran) == 1 + 2
    ran.clear()
    assert main([*words, "--per-try-timeout-ms", "44"]) == 0
    assert len(ran) == 2, "nothing has to be measured before"
    assert json.loads(out.read_text())["envoy_per_try_timeout_ms"] == 44


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peer", "direct", "--scenario", "kill"], "--scenario goes with --peer envoy"),
        (["--peer", "envoy", "--scenario", "kill", "--rps", "5"], "--rps does not go with --scenario"),
        (["--peer", "envoy", "--scenario", "kil"], "did you mean kill?"),
        (["--peer", "envoy", "--protocol", "http", "--limit", "p999=1"], "--limit p999: without --scenario"),
        (["--peer", "envoy", "--protocol", "http", "--seed", "1"], "--seed goes with --scenario alone"),
        (["--peer", "envoy"], "--protocol http or --protocol grpc is needed"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


def figures(error_share: float, p99_ms: float | None, goodput_rps: float, top: float = 0.0) -> dict[str, Any]:
    traffic = {"top": {"error_share": top}, "rest": {"error_share": 1.0}}
    return {"error_share": error_share, "p99_ms": p99_ms, "goodput_rps": goodput_rps, "traffic": traffic}


def test_the_best_envoy_fails_the_fewest_calls_and_then_has_the_lowest_tail_or_gets_most_done() -> None:
    kill, overload = scenario("kill"), with_classes("overload", "critical_plus", "sheddable")
    assert (
        score(kill, figures(0.0, 90.0, 1)) < score(kill, figures(0.002, 20.0, 1)) < score(kill, figures(1.0, None, 0))
    )
    assert score(kill, figures(0.0001, 20.0, 1)) < score(kill, figures(0.0, 90.0, 1)), "that is chance"
    assert score(overload, figures(0.7, 90.0, 200)) < score(overload, figures(0.6, 20.0, 250, top=0.02))
    assert score(overload, figures(0.7, 90.0, 250)) < score(overload, figures(0.6, 20.0, 200))


def test_where_calls_may_go_twice_hedging_is_tried_and_under_overload_filters_are() -> None:
    tuning = tuning_of(scenario("kill"))
    found = [each for _, each in candidates(scenario("kill"), tuning, 20)]
    assert [each.per_try_timeout_ms for each in found] == [20, 20, 60, None]
    assert [each.retry_percent for each in found] == [20.0, 5.0, 20.0, 20.0]
    tuning = tuning_of(scenario("overload"))
    assert [each.overload for _, each in candidates(scenario("overload"), tuning, None)] == list(OVERLOAD)
    assert len(candidates(scenario("steady"), tuning_of(scenario("steady")), None)) == 1


# --- what comes of it -------------------------------------------------------------------------------------------------


def pair(ours: Done | None = None, theirs: Done | None = None) -> ScenarioRound:
    envoy = done(2) if theirs is None else theirs
    without_records(envoy.figures)
    return ScenarioRound(done() if ours is None else ours, replace(envoy, counters={"ejections": 2.0}))


SETTING: dict[str, Any] = {
    "duration_s": 10.0,
    "replicas": 1,
    "started": "",
    "machine": "",
    "envoy_per_try_timeout_ms": 12,
    "envoy_calls_max": 32,
    "envoy_top_calls_max": 32,
    "envoy_top_class": None,
    "traffic": {"reads": {"model": "accel", "protocol": "grpc", "deadline_ms": 1000}},
}


def made(*rounds: ScenarioRound, limits: dict[str, float] | None = None, **more: Any) -> dict[str, Any]:
    return document(scenario("steady"), rounds or (pair(), pair(), pair()), {**SETTING, **more}, limits)


def test_the_members_of_the_json_are_those_that_the_manual_names() -> None:
    found = made()
    assert set(found) == set(SCENARIO_MEMBERS)
    assert set(found["sides"]["sluice"]) == set(found["sides"]["envoy"])
    for name in found["sides"]["sluice"]:
        assert f"`{name}`" in SCENARIO_MEMBERS["sides"]
    json.dumps(found)


def test_figures_are_medians_ratios_are_sluice_over_envoy_and_what_envoy_cannot_tell_is_unknown() -> None:
    found = made()
    sluice, envoy = found["sides"]["sluice"], found["sides"]["envoy"]
    assert sluice["calls"] == 30
    assert (sluice["p99_ms"], envoy["p99_ms"]) == (pytest.approx(10, rel=0.01), pytest.approx(20, rel=0.01))
    assert found["ratios"]["p99"] == pytest.approx(0.5, rel=0.02)
    assert (sluice["attempts_per_call"], envoy["attempts_per_call"]) == (1.0, None)
    assert envoy["counters"] == {"ejections": 6.0}
    (errors, p99) = found["scenario_checks"]
    assert (errors["sluice"], errors["envoy"], p99["at_most"]) == (0.0, 0.0, True)


def test_nothing_is_judged_without_a_limit_and_a_wrong_answer_always_fails() -> None:
    assert made()["verdict"] == "none"
    assert made(limits={"p99": 1.0})["verdict"] == "pass"
    assert made(limits={"p99": 0.3})["verdict"] == "fail"
    assert made(limits={"rps": 2.0})["verdict"] == "fail"
    assert made(pair(theirs=done(wrong=1)))["verdict"] == "fail"


def test_too_few_rounds_or_spoiled_ones_leave_a_limit_open() -> None:
    assert made(pair(), pair(), limits={"p99": 1.0})["verdict"] == "inconclusive"
    spoiled = [pair(done(disturbed=True)), pair(theirs=done(2, disturbed=True)), pair()]
    found = made(*spoiled, limits={"p99": 1.0})
    assert (found["verdict"], found["disturbed_rounds"]) == ("inconclusive", 2)
    found = made(limits={"p99": 1.0}, calibration_disturbed="timers")
    assert found["verdict"] == "inconclusive"
    assert "tuned by a run that says nothing: timers" in table(found)


def test_the_table_shows_both_sides_what_envoy_counted_and_what_the_scenario_checks() -> None:
    shown = table(made())
    for words in ("Envoy hedges after 12 ms", "p99.9 ms", "envoy counted: 6 ejections", "p99 within 50 ms (<= 50)"):
        assert words in shown


def test_the_pictures_have_a_line_of_each_side() -> None:
    found = made()
    for picture in (latency_over_time(found), distribution(found), goodput(found)):
        ElementTree.fromstring(picture)
        assert "sluice" in picture
        assert "envoy" in picture


@pytest.mark.field
def test_a_killed_replica_beside_a_real_envoy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(
        "description: For the test.\n"
        "target: {replicas: 2, models: {accel: {policy: {read_only: true}}}}\n"
        "traffic: [{name: reads, model: accel, protocol: grpc, arrivals: {constant: {rps: 40}}}]\n"
        "faults: [{kill: {replica: 1, at_s: 2}}]\n"
        "warm_up_s: 1\n"
        "duration_s: 5\n"
        "checks: [{figure: error_share, max: 0}]\n"
    )
    words = ["compare", "--peer", "envoy", "--scenario", str(path), "--rounds", "1", "--no-trials", "--json", "-"]
    assert main([*words, "--pictures", str(tmp_path / "pictures")]) == 0
    found = json.loads(capsys.readouterr().out)
    for side in found["sides"].values():
        assert side["calls"] == 200
        assert side["p99_ms"] is not None
    assert found["sides"]["envoy"]["counters"]["health checks failed"] > 0
    assert len(list((tmp_path / "pictures").iterdir())) == 3
