"""The metrics page: what it counts, that callers cannot grow it (field case FH-22), and that it always parses."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.call import Attempt, Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.snapshot import FleetSnapshot, GpuView, ModelState, ModelView, ReplicaState, ReplicaView
from gateway.decide.attempt_budget import BudgetWord
from gateway.decide.hedge import HedgeWord
from gateway.decide.quota import QuotaSettings
from gateway.decide.quota_table import Quotas
from gateway.decide.retry import RetryWord
from gateway.decide.stage_budget import StageOverruns
from gateway.observe import labels
from gateway.observe.attempt_readings import attempt_readings, cancel_readings
from gateway.observe.document import page
from gateway.observe.frozen import SERIES_MAX
from gateway.observe.metrics import BOUNDS_S, FADE_S, Metrics
from gateway.observe.readings import (
    admission_readings,
    balance_readings,
    file_readings,
    fleet_readings,
    job_readings,
    lane_readings,
    quota_readings,
    sequence_readings,
    shared_readings,
    stage_readings,
    store_readings,
    upstream_readings,
)
from gateway.observe.stages import STAGES, stage_seconds
from gateway.observe.table import ROWS, TABLE, Reading
from gateway.stores.memory import MemoryQuotaStore
from gateway.wire.http_path import Route
from tests.unit.records_support import ANSWER, served_call

DOCS = Path(__file__).resolve().parents[2] / "docs"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

LIMIT = {"floor": 2, "cap": 16, "drops": 3, "why": "drops"}
"""What an adaptive limit says of itself, as far as it is shown."""


def metrics() -> Metrics:
    return Metrics(
        {"fraud": 0.04, "identity": 0.1}, ["default"], version="0.1.0", revision="0123456789ab", replica_key=b"key"
    )


def text(of: Metrics, now_s: float = 200.0, registry: CollectorRegistry | None = None) -> str:
    return of.freeze(now_s).render(registry).decode()


def samples(of: Metrics, now_s: float = 200.0) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text(of, now_s)):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} stands twice on the page"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **wanted: str) -> float:
    return found[name, tuple(sorted(wanted.items()))]


def snapshot(
    *replicas: str, models: Iterable[tuple[str, str]] = (("fraud", "1"), ("fraud", "2")), number: int = 1
) -> FleetSnapshot:
    views = {
        key: ModelView(*key, ModelState.WARMED, slots=4, pending=2, queue_us=100.0, compute_us=2000.0, batch_fill=3.5)
        for key in models
    }
    return FleetSnapshot(
        number,
        tuple(
            ReplicaView(
                id=f"default/{address}",
                pool="default",
                address=address,
                state=ReplicaState.LIVE,
                models=MappingProxyType(views),
                gpus=(GpuView("GPU-1", 0.5, 1e9, 2e9),),
                scraped_s=190.0,
            )
            for address in replicas
        ),
    )


def test_an_answered_call_is_counted_everywhere_it_belongs() -> None:
    of = metrics()
    of.fleet_changed(snapshot("10.0.0.1:8001"), 100.0)
    of.call_ended(served_call(), Outcome.OK, None, ANSWER, 100.011)
    found = samples(of)
    assert value(found, "sluice_calls_total", protocol="grpc", model="fraud", code="OK", reason="") == 1
    assert value(found, "sluice_answers_total", model="fraud", version="2", rung="full") == 1
    assert value(found, "sluice_call_bytes_total", model="fraud", direction="out") == len(ANSWER)
    assert value(found, "sluice_attempts_total", pool="default", model="fraud", kind="primary", outcome="ok") == 1
    label = of.replica_label("default/10.0.0.1:8001")
    assert value(found, "sluice_replica_attempts_total", pool="default", replica=label, outcome="ok") == 1
    assert value(found, "sluice_call_duration_seconds_count", model="fraud") == 1
    assert value(found, "sluice_call_duration_seconds_sum", model="fraud") == pytest.approx(0.011)
    assert value(found, "sluice_call_duration_seconds_bucket", model="fraud", le="0.01") == 0
    assert value(found, "sluice_call_duration_seconds_bucket", model="fraud", le="0.015") == 1
    assert value(found, "sluice_queue_wait_seconds_count", model="fraud") == 1
    total = sum(value(found, "sluice_call_stage_seconds_sum", model="fraud", stage=stage) for stage in STAGES)
    assert total == pytest.approx(0.011)


def random_call(chance: random.Random) -> tuple[Call, Outcome, GatewayError | None, bytes | None, float]:
    """Mostly as calls should go; each thing that can be otherwise sometimes is."""

    def seldom() -> bool:
        return chance.random() < 0.1

    call = served_call(message=None if seldom() else bytes(chance.randrange(100)))
    call.arrived_s = 100.0
    call.model = chance.choice(["fraud", "fraud", "identity", "made-up"])
    call.protocol = chance.choice(["grpc", "http", "carrier pigeon"])
    times = sorted(100.0 + chance.expovariate(1 / chance.choice([0.0001, 0.01])) for _ in range(5))
    if seldom():
        chance.shuffle(times)
    trail = call.trail
    trail.received_s, trail.routed_s, trail.admitted_s, trail.answered_s, now_s = times
    if seldom():
        trail.answered_s = 0.0
    trail.version_served = chance.choice(["1", "2", "2", "9"])
    trail.rung, trail.pool = chance.choice(["full", "", "odd"]), chance.choice(["default", "default", "gone"])
    replica = chance.choice(["default/10.0.0.1:8001", "default/10.0.0.2:8001", "default/made-up"])
    trail.attempts = [
        Attempt(replica, times[2], chance.choice(["primary", "primary", "odd"]))
        for _ in range(chance.choice([0, 2, 1, 1, 1, 1, 1]))
    ]
    for attempt in trail.attempts:
        attempt.outcome = chance.choice([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.TRANSPORT, None])
    error = GatewayError(Reason.DEADLINE, "late") if seldom() else None
    outcome = Outcome.EXPIRED if error is not None else Outcome.ABANDONED if seldom() else Outcome.OK
    return call, outcome, error, None if seldom() else ANSWER, now_s


@pytest.mark.parametrize("seed", range(20))
def test_the_short_way_counts_what_the_long_one_does(seed: int) -> None:
    chance, short, long = random.Random(seed), metrics(), metrics()
    now_s = 100.0
    for number in range(600):
        call, outcome, error, answer, ended_s = random_call(chance)
        short.call_ended(call, outcome, error, answer, ended_s)
        long.observe_call(call, outcome, error, ended_s, answer_bytes=0 if answer is None else len(answer))
        if number % 100 == 50:
            # What is known changes what labels are: calls that ended before must be counted under the old ones.
            now_s += FADE_S / 2
            fleet = snapshot(*chance.sample(["10.0.0.1:8001", "10.0.0.2:8001"], chance.randrange(3)), number=number)
            pools = chance.choice([["default"], ["gone"]])
            for of in (short, long):
                of.fleet_changed(fleet, now_s)
                of.set_policy({"fraud": 0.04, "identity": 0.1}, pools, f"r{number}")
        if number % 150 == 0:
            short.freeze(now_s)
    found, expected = samples(short, now_s), samples(long, now_s)
    assert found.keys() == expected.keys()
    for key, count in expected.items():
        assert found[key] == pytest.approx(count), key


def test_calls_unlike_one_another_without_end_do_not_fill_the_memory() -> None:
    of = metrics()
    for number in range(3000):
        call = served_call()
        call.trail.version_served = str(number)
        of.call_ended(call, Outcome.OK, None, ANSWER, 100.011)
    assert len(of._models["fraud"].plain) <= 256
    assert value(samples(of), "sluice_answers_total", model="fraud", version="other", rung="full") == 3000


def test_a_failed_call_is_counted_by_code_and_reason() -> None:
    of = metrics()
    error = GatewayError(Reason.QUEUE_FULL, "full")
    of.call_ended(served_call(), Outcome.OVERLOAD, error, None, 100.011)
    found = samples(of)
    key = {"protocol": "grpc", "model": "fraud", "code": "RESOURCE_EXHAUSTED", "reason": "queue_full"}
    assert value(found, "sluice_calls_total", **key) == 1
    assert not [name for name, _ in found if name == "sluice_answers_total"]


def test_a_bound_stands_exactly_at_the_objective_and_counts_it_as_kept() -> None:
    of = metrics()
    call = served_call()
    call.arrived_s = 0.0
    of.call_ended(call, Outcome.OK, None, ANSWER, 0.04)
    found = samples(of)
    assert value(found, "sluice_call_duration_seconds_bucket", model="fraud", le="0.04") == 1
    assert value(found, "sluice_call_duration_seconds_bucket", model="fraud", le="0.025") == 0


def test_bounds_cover_half_a_millisecond_to_a_minute_in_steps_of_at_most_two() -> None:
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (0.0005, 60.0)
    assert all(1 < high / low <= 2 for low, high in itertools.pairwise(BOUNDS_S))


def test_the_page_shows_nothing_that_is_not_in_the_table_and_the_table_nothing_that_is_never_shown() -> None:
    of = metrics()
    shown = fill(of)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    names = set()
    for family in text_string_to_metric_families(text(of, registry=registry)):
        name = family.name + "_total" if family.type == "counter" else family.name
        row = ROWS[name]
        names.add(name)
        assert row.kind == family.type
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(row.labels)
            assert not sample.name.endswith("_created")
    process = {row.name for row in TABLE if row.name.startswith("process_")}
    assert {row.name for row in TABLE} - names <= process, "a row that nothing fills"
    assert shown


ATTEMPTS = {
    "sent": {"hedge": 5, "resend": 2},
    "won": {"hedge": 3},
    "refused": {"hedge": {"queue": 4, "made up": 1}, "retry": {}},
    "budget": {"hedge_tokens": 1.5, "retry_tokens": 2.0},
    "quarantine": {"quarantined": 1, "refused": 7},
}
CANCELS = {"rate_per_s": 2.5, "let_run": 9}


def test_second_attempts_and_cancels_are_shown_by_closed_labels() -> None:
    of = metrics()
    fill(of)
    found = samples(of)
    assert value(found, "sluice_second_attempts_total", model="fraud", kind="hedge") == 5
    assert value(found, "sluice_second_attempts_won_total", model="fraud", kind="hedge") == 3
    assert value(found, "sluice_second_attempts_won_total", model="fraud", kind="resend") == 0
    assert value(found, "sluice_second_attempts_refused_total", model="fraud", kind="hedge", reason="queue") == 4
    assert value(found, "sluice_second_attempts_refused_total", model="fraud", kind="hedge", reason="other") == 1
    assert value(found, "sluice_attempt_budget_tokens", model="fraud", kind="retry") == 3.5
    assert value(found, "sluice_quarantine_refusals_total", model="fraud") == 7
    replica = of.replica_label("default/10.0.0.1:8001")
    assert value(found, "sluice_upstream_cancels_capped_total", pool="default", replica=replica) == 9


def test_the_words_of_deciders_about_second_attempts_are_the_closed_set() -> None:
    words = {*get_args(HedgeWord), *get_args(RetryWord), *get_args(BudgetWord)} - {"hedge", "retry", "granted"}
    assert words == labels.REFUSALS


def fill(of: Metrics) -> bool:
    """Have every metric show something."""
    fleet = snapshot("10.0.0.1:8001", models=(("fraud", "2"), ("unconfigured", "9")))
    of.fleet_changed(fleet, 100.0)
    of.call_ended(served_call(), Outcome.OK, None, ANSWER, 100.011)
    of.call_ended(served_call(), Outcome.OVERLOAD, GatewayError(Reason.SHED, "no"), None, 100.011)
    of.request_without_call("http", Route.HEALTH_LIVE.template, "200")
    of.connection_refused("http")
    of.protocol_fault("http", "malformed")
    of.internal_fault("grpc")
    of.probe_failed("default/10.0.0.1:8001", "liveness")
    of.warmup_call("fraud", ok=True)
    of.loop_lag(0.003)
    of.add_source("fleet", lambda now_s: fleet_readings(fleet, of, now_s))
    of.add_source("attempts", lambda _: attempt_readings([("fraud", ATTEMPTS)], of))
    of.add_source("cancels", lambda _: cancel_readings(fleet, {"default/10.0.0.1:8001": CANCELS}, of))
    quotas = Quotas(lambda tenant, model: QuotaSettings(rate_per_s=1))
    of.add_source("quotas", lambda now_s: quota_readings(quotas.statistics(now_s)))
    of.add_source("stores", lambda now_s: store_readings(MemoryQuotaStore(lambda: now_s).statistics(now_s)))
    judged = {
        "panic": True,
        "panics": 1,
        "standings": {"ejected": 1, "healthy": 2},
        "moves": {"failures_in_row": 3},
        "affinity": {"home": 4},
    }
    of.add_source("balance", lambda _: balance_readings([("default", "fraud", "2", judged)], of))
    of.add_source("admission", lambda _: admission_readings([("default", "fraud", "2", 3, 1, 4, LIMIT)], of))
    of.add_source("files", lambda _: file_readings([("keys", 1, False, 0.0), ("listen_tls", 2, True, 1.8e9)]))
    counts = dict.fromkeys(("started", "adopted", "ended", "lost", "expired", "evicted", "live", "waiting"), 1)
    of.add_source("sequences", lambda _: sequence_readings([("fraud", counts)], of))
    of.add_source("stages", lambda _: stage_readings([("fraud", StageOverruns().statistics(0.0))], of))
    names = [
        "connections",
        "connects",
        "connect_failures",
        "goaways",
        "moved",
        "cancelled",
        "left",
        "left_now",
        "ping_complaints",
        "keepalive_s",
    ]
    upstream = dict.fromkeys(names, 1.0)
    of.add_source("upstream", lambda _: upstream_readings([("default", "default/10.0.0.1:8001", upstream)], of))
    lanes = {"small": {"in_flight": 2, "waiting": 0}, "large": {"in_flight": 1, "waiting": 3}}
    of.add_source("lanes", lambda _: lane_readings([("fraud", lanes), ("fraud", lanes)], of))
    memory = {"default/10.0.0.1:8001": {"limit_bytes": 100, "fixed_bytes": 10, "in_flight_bytes": 5}}
    shared = {"in_flight": {"default/10.0.0.1:8001": 2}, "memory": memory}
    of.add_source("shared", lambda _: shared_readings([("default", shared)], of))
    of.add_source("jobs", lambda _: job_readings({"scrape:10.0.0.1:8002": 2, "records-flush": 1}))

    def rest(_: float) -> Iterable[Reading]:
        for name, values in (
            ("sluice_ready", ()),
            ("sluice_draining", ()),
            ("sluice_event_loop_tasks", ()),
            ("sluice_token_verifications_total", ()),
            ("sluice_body_memory_bytes", ()),
            ("sluice_body_memory_limit_bytes", ()),
            ("sluice_records_written_total", ()),
            ("sluice_records_dropped_total", ("queue_records",)),
            ("sluice_records_thinned_total", ("no_room",)),
            ("sluice_record_write_failures_total", ("no_space",)),
            ("sluice_records_queued", ()),
            ("sluice_records_queued_bytes", ()),
            ("sluice_records_reserved", ()),
            ("sluice_records_oldest_age_seconds", ()),
        ):
            yield name, values, 1.0

    def broken(_: float) -> Iterable[Reading]:
        raise ZeroDivisionError

    of.add_source("rest", rest)
    of.add_source("broken", broken)
    return True


def hostile(random_: random.Random, number: int) -> str:
    kind = number % 6
    if kind == 0:
        return "".join(random_.choices(string.printable, k=20))
    if kind == 1:
        return 'a"b\\c\nd' + str(number)
    if kind == 2:
        return f"model\udcff{number}"
    if kind == 3:
        return "x" * 10_000 + str(number)
    if kind == 4:
        return str(number)
    return f"Fraud-{number}"


def test_twenty_thousand_made_up_names_grow_the_page_by_at_most_fifty_lines() -> None:
    of = metrics()
    of.fleet_changed(snapshot("10.0.0.1:8001"), 100.0)
    of.call_ended(served_call(), Outcome.OK, None, ANSWER, 100.011)
    identity = served_call()
    identity.model = "identity"
    of.call_ended(identity, Outcome.OK, None, ANSWER, 100.011)
    before = text(of).count("\n")
    chance = random.Random(22)
    for number in range(20_000):
        name = hostile(chance, number)
        call = Call(
            request_id=name,
            model=name if number % 3 else "fraud",
            version=name,
            arrived_s=100.0,
            arrived_wall_s=0.0,
            protocol=name if number % 7 == 0 else "http",
        )
        call.trail.version_served = name
        call.trail.rung = name if number % 5 == 0 else ""
        call.trail.pool = name
        attempt = Attempt(name, 100.0, kind=name)
        attempt.outcome = Outcome.CALLER_FAULT
        call.trail.attempts.append(attempt)
        if number % 2:
            of.call_ended(call, Outcome.OK, None, b"x", 100.5)
        else:
            of.call_ended(call, Outcome.CALLER_FAULT, GatewayError(Reason.UNKNOWN_MODEL, name), None, 100.5)
        of.request_without_call(name if number % 2 else "http", name, name)
        of.protocol_fault("http", name)
        of.probe_failed(name, name)
        of.warmup_call(name, ok=False)
        of.connection_opened(name)
        of.connection_refused(name)
        of.internal_fault(name)
    grown = text(of)
    histograms = 2 * (len(BOUNDS_S) + 3)  # of `other`, which exists once
    assert grown.count("\n") - before <= 50 + histograms
    found = samples(of)
    assert value(found, "sluice_answers_total", model="fraud", version="2", rung="full") == 1
    assert value(found, "sluice_answers_total", model="identity", version="other", rung="full") == 1
    assert value(found, "sluice_call_duration_seconds_count", model="other") > 10_000


def test_configured_names_with_quotes_backslashes_and_odd_text_do_not_break_the_page() -> None:
    names = ['a"b', "a\\b", "a\\nb", "ünï", "\ud800", "x" * 300]
    of = Metrics(dict.fromkeys(names, 0.1), ["default"], version='1"', revision="\\", replica_key=b"")
    for name in names:
        call = served_call()
        call.model = name
        of.call_ended(call, Outcome.OK, None, ANSWER, 100.011)
    found = samples(of)
    shown = {dict(key)["model"] for name, key in found if name == "sluice_call_duration_seconds_count"}
    assert shown == {'a"b', "a\\b", "a\\nb", "ünï", "?", "x" * 255}


def test_replicas_that_come_and_go_two_hundred_times_fade() -> None:
    of = metrics()
    now_s = 100.0
    for number in range(200):
        address = f"10.0.0.1:{9000 + number}"
        of.fleet_changed(snapshot(address, number=number), now_s)
        call = served_call()
        call.trail.attempts[0].replica = f"default/{address}"
        of.call_ended(call, Outcome.OK, None, ANSWER, 100.011)
        of.probe_failed(f"default/{address}", "liveness")
        now_s += 1.0
    kept = text(of, now_s).count("sluice_replica_attempts_total{")
    assert kept == 200
    later = text(of, now_s + FADE_S + 1.0)
    assert later.count("sluice_replica_attempts_total{") == 1
    assert later.count("sluice_probe_failures_total{") == 1


def test_versions_that_are_gone_fade_and_many_at_once_fade_sooner() -> None:
    of = metrics()
    for version in range(1, 301):
        of.fleet_changed(snapshot("10.0.0.1:8001", models=(("fraud", str(version)),)), 100.0)
        call = served_call()
        call.trail.version_served = str(version)
        of.call_ended(call, Outcome.OK, None, ANSWER, 100.011)
    assert text(of, 100.0).count("sluice_answers_total{") <= 66
    assert text(of, 100.0 + FADE_S + 1).count("sluice_answers_total{") == 1


def test_no_address_and_no_tenant_is_on_the_page() -> None:
    of = metrics()
    fill(of)
    call = served_call()
    of.call_ended(call, Outcome.OK, None, ANSWER, 100.011)
    assert "10.0.0.1" not in text(of)
    assert "anonymous" not in text(of)


def test_a_replica_s_label_needs_the_key() -> None:
    assert labels.replica("default/10.0.0.1:8001", b"a") != labels.replica("default/10.0.0.1:8001", b"b")
    assert len(labels.replica("default/10.0.0.1:8001", b"a" * 200)) == 8


def test_the_fleet_s_readings_sum_up_models_without_a_policy() -> None:
    of = metrics()
    models = [("fraud", "2"), ("stranger", "1"), ("stranger", "2")]
    fleet = snapshot("10.0.0.1:8001", "10.0.0.2:8001", models=models)
    of.fleet_changed(fleet, 100.0)
    of.add_source("fleet", lambda now_s: fleet_readings(fleet, of, now_s))
    found = samples(of)
    assert value(found, "sluice_model_replicas", pool="default", model="fraud", version="2", state="warmed") == 2
    assert value(found, "sluice_model_replicas", pool="default", model="other", version="other", state="warmed") == 4
    here = {"pool": "default", "replica": of.replica_label("default/10.0.0.1:8001")}
    assert value(found, "sluice_triton_pending_requests", **here, model="other", version="other") == 4
    assert value(found, "sluice_triton_queue_seconds", **here, model="fraud", version="2") == pytest.approx(1e-4)
    assert value(found, "sluice_triton_scrape_age_seconds", **here) == 10
    assert value(found, "sluice_replica_state", **here, state="live") == 1


def test_a_source_that_fails_or_makes_names_up_takes_only_its_own_part_of_the_page() -> None:
    of = metrics()
    of.add_source("good", lambda _: [("sluice_ready", (), 1.0)])
    of.add_source("stranger", lambda _: [("sluice_draining", (), 1.0), ("sluice_made_up", (), 1.0)])
    of.add_source("labels", lambda _: [("sluice_draining", ("one",), 1.0)])
    found = samples(of)
    assert value(found, "sluice_ready") == 1
    assert ("sluice_draining", ()) not in found
    assert value(found, "sluice_metrics_source_failures_total", source="stranger") == 1
    assert value(found, "sluice_metrics_source_failures_total", source="labels") == 1


def test_a_source_with_too_many_series_is_cut_and_the_cut_is_shown() -> None:
    of = metrics()
    of.add_source("many", lambda _: [("sluice_slots", ("p", "m", str(number)), 1.0) for number in range(6000)])
    found = samples(of)
    assert sum(name == "sluice_slots" for name, _ in found) == SERIES_MAX
    assert value(found, "sluice_metrics_series_cut") == 1000


def test_a_job_s_label_has_no_address() -> None:
    assert labels.job("scrape:10.0.0.1:8002") == "scrape"
    assert labels.job("records-flush") == "records-flush"
    assert labels.job("probe default/10.0.0.1:8001") == "probe"
    assert labels.job("10.0.0.1") == "other"
    assert labels.job("x1") == "other"


def test_a_new_policy_keeps_the_counts_of_models_that_stay() -> None:
    of = metrics()
    of.fleet_changed(snapshot("10.0.0.1:8001"), 100.0)
    of.call_ended(served_call(), Outcome.OK, None, ANSWER, 100.011)
    of.set_policy({"fraud": 0.04, "fresh": 0.2}, ["default"], "next")
    of.call_ended(served_call(), Outcome.OK, None, ANSWER, 100.011)
    found = samples(of)
    assert value(found, "sluice_answers_total", model="fraud", version="2", rung="full") == 2
    of.set_policy({"fraud": 0.033}, ["default"], "third")
    of.call_ended(served_call(), Outcome.OK, None, ANSWER, 100.011)
    found = samples(of)
    assert value(found, "sluice_answers_total", model="fraud", version="2", rung="full") == 1
    assert value(found, "sluice_build_info", version="0.1.0", policy_revision="third") == 1


def test_open_connections_go_up_and_down() -> None:
    of = metrics()
    of.connection_opened("http")
    of.connection_opened("http")
    of.connection_closed("http")
    found = samples(of)
    assert value(found, "sluice_connections_open", protocol="http") == 1
    assert value(found, "sluice_connections_open", protocol="grpc") == 0


def test_the_closed_sets_are_those_of_the_edge() -> None:
    templates = {route.template for route in Route}
    assert {label for label in labels.ROUTES if label.startswith("/")} == templates
    assert {code.name for code in Code} <= labels.STATUSES


def test_stages_add_up_to_the_duration_wherever_the_call_ended() -> None:
    call = served_call()
    for stamps in ((), ("answered_s",), ("admitted_s",), ("routed_s",), ("received_s",)):
        for stamp in stamps:
            setattr(call.trail, stamp, 0.0)
        reached = [seconds for seconds in stage_seconds(call.trail, 100.0, 100.02) if seconds >= 0]
        assert sum(reached) == pytest.approx(0.02)
    assert len(reached) == 1


def test_a_call_routed_before_its_body_came_spends_no_time_on_routing() -> None:
    call = served_call()
    call.trail.routed_s = 100.0005
    stages = stage_seconds(call.trail, 100.0, 100.011)
    assert stages[1] == 0.0
    assert sum(stages) == pytest.approx(0.011)


def test_the_manual_is_the_table() -> None:
    assert (DOCS / "metrics.md").read_text() == page()


def test_lanes_and_shared_bounds_are_added_up() -> None:
    of = metrics()
    lanes = {"small": {"in_flight": 2, "waiting": 0}, "large": {"in_flight": 1, "waiting": 3}}
    shown = {name + "/" + values[-1]: value for name, values, value in lane_readings([("fraud", lanes)] * 2, of)}
    assert shown == {
        "sluice_lane_calls_in_flight/small": 4,
        "sluice_lane_calls_queued/small": 0,
        "sluice_lane_calls_in_flight/large": 2,
        "sluice_lane_calls_queued/large": 6,
    }
    account = {"limit_bytes": 100, "fixed_bytes": 10, "in_flight_bytes": 5}
    told = {"in_flight": {"default/a": 2}, "memory": {"default/a": account}}
    assert [value for _, _, value in shared_readings([("default", told)], of)] == [2, 15, 100]
    assert list(shared_readings([("default", {"in_flight": {}, "memory": {}})], of)) == []
