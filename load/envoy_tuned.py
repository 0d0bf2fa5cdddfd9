"""Envoy configured as well as it can be for one scenario: all of its protections against slow, failing and overloaded
replicas that help there, and none that harm there. docs/load.md says what is set and why; `WHY` is that text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from deploy.local import Ports, ServerSpec
from load.envoy import HTTP_OPTIONS, MANAGER, ROUTER, address
from load.errors import UsageError
from load.scenario import LoadedScenario

Overload = Literal["breakers", "adaptive", "admission"]
_OVERLOAD: tuple[Overload, ...] = ("breakers", "adaptive", "admission")
OVERLOAD: tuple[str, ...] = _OVERLOAD
"""What refuses calls when there are too many: circuit breakers sized to slots; or besides the adaptive concurrency
filter, or the admission control filter.
"""
CLASSES = ("critical_plus", "critical", "sheddable_plus", "sheddable")
"""From the highest down."""
CLASS_UNNAMED = "critical"
PRIORITY_HEADER = "x-sluice-priority"
SLOTS: Mapping[str, int] = {"accel": 16, "identity": 2, "streamer": 64}
"""Calls that one replica runs and fills its next batch with: twice its largest batch, as Sluice has it by default."""
QUEUES_PER_SLOT = 4
"""Sluice lets four times the slots wait by default. Envoy has no waiting place, so where a call is not to be refused
its breaker lets so many through to wait at the replicas.
"""

WHY = f"""\
What Envoy 1.40 is given with `--scenario`, and why:

- *Least request* over all replicas (`selection_method: FULL_SCAN`, the one variant that never takes the busier of two;
  with equal weights `choice_count` and `active_request_bias` then mean nothing), with the panic threshold of 50 % that
  is its default.
- *Health checks* of `/v2/health/ready`, every 250 ms with a time-out of 250 ms; two misses take a replica out, one
  answer brings it back. That is when Sluice calls a replica down. (`no_traffic_interval` as well: by default a cluster
  that had no traffic when it was checked last is checked a minute later.)
- *Outlier detection*, swept every second: 20 consecutive failures (5xx, gateway errors, and errors of Envoy's own as
  resets and time-outs of a try, each counted apart), a success rate 1.9 standard deviations below the others', or 85 %
  failures in a second eject a replica for five seconds, longer each time, at most half of them. 20 and not the default
  of 5, for one straggling batch makes up to 16 time-outs in a row, and with stragglers everywhere ejecting costs more
  than it saves. A good health check must not bring an ejected replica back
  (`successful_active_health_check_uneject_host: false`): a slow one passes them all.
- *Retries*, two at most, on connect failures, refused streams, resets and UNAVAILABLE (over HTTP 502 to 504), at once
  (back-off 5 ms), never to a host that was tried (`previous_hosts`), within a *retry budget*: 20 % of what is in flight
  and at least three at a time, as is its default, or less, see below.
- *Hedging* where the scenario's policy says `read_only` (`hedge_on_per_try_timeout`): a try that takes longer than the
  healthy p97 starts another and stays alive. That p97 is measured beforehand, through this Envoy without hedging, with
  the scenario's traffic and no faults. Where nothing is read-only no try has a time-out of its own.
- *Circuit breakers*: where nothing should be refused, slots and a queue as Sluice has by default
  (5 x {SLOTS["accel"]} calls a replica, as Envoy cannot let calls wait but at the replicas). Where more comes than can
  be served (a scenario with a `capacity` and without `read_only`), {SLOTS["accel"]} calls a replica and no more: at the
  capacity that is a latency of two batches, and a longer queue in Triton would only make all calls late. The highest
  class of the traffic goes by a route of priority HIGH, whose breaker has all slots; the other classes have the slots
  that the highest leaves over, by its share of the capacity.
- *Against overload* besides: nothing, or the adaptive concurrency filter (gradient controller, p90, 100 ms intervals, a
  minimum from 50 calls at a concurrency of a batch a replica, every 30 s), or the admission control filter (success
  rate under 95 % in 10 s). Neither filter knows classes, and both come before the route.
- *Deadlines* as callers send them: `grpc-timeout`, and the route's time-out for the longest.
- *What is best is tried*, for no setting is best everywhere: hedging at p97 sends more to a pool that is short already,
  and may eject replicas for being late; without hedging stragglers stay. So before the rounds the
  scenario runs for 20 s through each of a few Envoys, and the best one is compared: where calls may be sent twice,
  hedging after the healthy p97 with a budget of 20 %, the same with 5 % (and at least one at a time), hedging after
  three times that p97 with 20 %, and no hedging, of which the one with the fewest failed calls wins, to a thousandth,
  then that with the lowest p99; where calls have to be refused, breakers alone and either filter, of which the one that
  fails the fewest calls of the highest class wins, to a hundredth, then that with the most good answers. The JSON has
  them all under `setting`. `--no-trials`, `--per-try-timeout-ms` and `--envoy-overload` take the choice away.
"""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What depends on the scenario. `per_try_timeout_ms` None: no hedging."""

    deadline_ms: int
    calls_max: int
    """The breaker of calls that are not of the highest class, or of all if there is but one."""
    top_calls_max: int
    top_class: str | None = None
    """Which class goes by the route of priority HIGH; None without classes."""
    per_try_timeout_ms: int | None = None
    overload: Overload = "breakers"
    batches: int = 1
    """Calls of one batch on every replica."""
    retry_percent: float = 20.0
    retries_min: int = 3
    """The retry budget: so many of a hundred calls in flight, and so many at any time."""


def hedges(scenario: LoadedScenario) -> bool:
    """Whether calls of every model may be sent twice."""
    return all(scenario.overrides.get(model, {}).get("read_only") is True for model in scenario.models)


def tuning_of(scenario: LoadedScenario, overload: Overload = "breakers") -> Tuning:
    """What suits a scenario, without hedging, whose time-out is measured first."""
    spec = scenario.spec
    if any(each.model == "streamer" for each in spec.traffic):
        raise UsageError(f"{scenario.name}: streams are not compared; take a scenario of single calls")
    per_replica = max(_slots(scenario, model) for model in scenario.models)
    slots = per_replica * spec.target.replicas
    batches = max(1, slots // 2)
    deadline_ms = max(each.deadline_ms for each in spec.traffic)
    ranks = [_rank(each.priority) for each in spec.traffic]
    top = CLASSES[min(ranks)] if len(set(ranks)) > 1 else None
    if not sheds(scenario) or spec.capacity is None:
        whole = slots * (1 + QUEUES_PER_SLOT)
        return Tuning(deadline_ms, whole, whole, top, overload=overload, batches=batches)
    rest = slots
    if top is not None:
        of_top = sum(
            process.initial_rps()
            for rank, process in zip(ranks, scenario.arrivals, strict=True)
            if CLASSES[rank] == top
        )
        rest = max(1, round(slots * (1 - min(0.9, of_top / spec.capacity.rps))))
    return Tuning(deadline_ms, rest, slots, top, overload=overload, batches=batches)


def sheds(scenario: LoadedScenario) -> bool:
    """Whether more comes than can be served, so that calls have to be refused."""
    return scenario.spec.capacity is not None and not hedges(scenario)


def candidates(scenario: LoadedScenario, tuning: Tuning, healthy_ms: int | None) -> list[tuple[str, Tuning]]:
    """What is tried, in words, before one is taken: the ways in which Envoy can be set up for such a scenario."""
    if healthy_ms is not None:
        return [
            (
                "hedging after the healthy p97, budget of 20 %",
                replace(tuning, per_try_timeout_ms=healthy_ms),
            ),
            (
                "hedging after the healthy p97, budget of 5 %",
                replace(tuning, per_try_timeout_ms=healthy_ms, retry_percent=5.0, retries_min=1),
            ),
            (
                "hedging after three times the healthy p97, budget of 20 %",
                replace(tuning, per_try_timeout_ms=3 * healthy_ms),
            ),
            ("no hedging", tuning),
        ]
    if sheds(scenario):
        words = ("breakers alone", "breakers and adaptive concurrency", "breakers and admission control")
        return [(each, replace(tuning, overload=overload)) for each, overload in zip(words, _OVERLOAD, strict=True)]
    return [("as it is", tuning)]


def top_traffic(scenario: LoadedScenario) -> list[str]:
    """The names of the traffic of the highest class; none without classes."""
    ranks = {each.name: _rank(each.priority) for each in scenario.spec.traffic}
    return [name for name, rank in ranks.items() if rank == min(ranks.values())] if len(set(ranks.values())) > 1 else []


def _rank(priority: str | None) -> int:
    """0 is the highest. What is no class counts as if none were named."""
    return CLASSES.index(priority if priority in CLASSES else CLASS_UNNAMED)


def _slots(scenario: LoadedScenario, model: str) -> int:
    given = scenario.overrides.get(model, {}).get("admission", {})
    return int(given.get("slots_per_replica") or SLOTS.get(model, 2))


def configuration(ports: Ports, replicas: Sequence[ServerSpec], tuning: Tuning) -> dict[str, Any]:
    """Envoy's configuration; `ports.metrics` is its admin port."""
    return {
        "admin": {"address": address("127.0.0.1", ports.metrics)},
        "static_resources": {
            "listeners": [
                _listener("http", ports.http, "HTTP1", tuning),
                _listener("grpc", ports.grpc, "HTTP2", tuning),
            ],
            "clusters": [
                _cluster("http", [spec.http_address for spec in replicas], replicas, tuning),
                _cluster("grpc", [spec.grpc_address for spec in replicas], replicas, tuning),
            ],
        },
    }


def _listener(name: str, port: int, codec: str, tuning: Tuning) -> dict[str, Any]:
    routes: list[dict[str, Any]] = []
    if tuning.top_class is not None:
        header = {"name": PRIORITY_HEADER, "string_match": {"exact": tuning.top_class}}
        match = {"prefix": "/", "headers": [header]}
        routes.append({"match": match, "route": {**_route(name, tuning), "priority": "HIGH"}})
    routes.append({"match": {"prefix": "/"}, "route": _route(name, tuning)})
    manager = {
        "@type": MANAGER,
        "stat_prefix": name,
        "codec_type": codec,
        "preserve_external_request_id": True,
        "http_filters": [
            *_overload_filters(tuning),
            {"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER, "suppress_envoy_headers": True}},
        ],
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": name, "address": address("127.0.0.1", port), "filter_chains": [chain]}


def _route(name: str, tuning: Tuning) -> dict[str, Any]:
    deadline = f"{tuning.deadline_ms / 1000:g}s"
    retry_on = "connect-failure,refused-stream,reset," + ("unavailable" if name == "grpc" else "gateway-error")
    policy: dict[str, Any] = {
        "retry_on": retry_on,
        "num_retries": 2,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
    }
    route: dict[str, Any] = {"cluster": name, "timeout": deadline, "retry_policy": policy}
    if name == "grpc":
        route["max_stream_duration"] = {"grpc_timeout_header_max": deadline}
    if tuning.per_try_timeout_ms is not None:
        policy["per_try_timeout"] = f"{tuning.per_try_timeout_ms / 1000:g}s"
        route["hedge_policy"] = {"hedge_on_per_try_timeout": True}
    return route


def _overload_filters(tuning: Tuning) -> list[dict[str, Any]]:
    enabled = {"default_value": True, "runtime_key": "overload.enabled"}
    if tuning.overload == "adaptive":
        kind = "type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency"
        gradient = {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {
                "max_concurrency_limit": tuning.top_calls_max,
                "concurrency_update_interval": "0.1s",
            },
            "min_rtt_calc_params": {
                "interval": "30s",
                "request_count": 50,
                "jitter": {"value": 10},
                "min_concurrency": tuning.batches,
                "buffer": {"value": 25},
            },
        }
        config = {"@type": kind, "gradient_controller_config": gradient, "enabled": enabled}
        return [{"name": "envoy.filters.http.adaptive_concurrency", "typed_config": config}]
    if tuning.overload == "admission":
        kind = "type.googleapis.com/envoy.extensions.filters.http.admission_control.v3.AdmissionControl"
        config = {
            "@type": kind,
            "enabled": enabled,
            "sampling_window": "10s",
            "sr_threshold": {"default_value": {"value": 95}, "runtime_key": "overload.sr_threshold"},
            "success_criteria": {
                "http_criteria": {"http_success_status": [{"start": 100, "end": 500}]},
                "grpc_criteria": {"grpc_success_status": [0]},
            },
        }
        return [{"name": "envoy.filters.http.admission_control", "typed_config": config}]
    return []


def _cluster(name: str, addresses: Sequence[str], replicas: Sequence[ServerSpec], tuning: Tuning) -> dict[str, Any]:
    protocol: dict[str, Any] = {"http_protocol_options": {}} if name == "http" else {"http2_protocol_options": {}}
    options = {"@type": HTTP_OPTIONS, "explicit_http_config": protocol}
    endpoints = [
        # Triton's health is asked over HTTP for both, as Envoy's gRPC check needs a service that Triton lacks.
        {
            "endpoint": {
                "address": _of(each),
                "health_check_config": {"address": _of(spec.http_address)},
            }
        }
        for each, spec in zip(addresses, replicas, strict=True)
    ]
    least_request = {
        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
        "selection_method": "FULL_SCAN",
    }
    named = {"name": "envoy.load_balancing_policies.least_request", "typed_config": least_request}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": named}]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        "health_checks": [
            {
                "timeout": "0.25s",
                "interval": "0.25s",
                "no_traffic_interval": "0.25s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/health/ready", "codec_client_type": "HTTP1"},
            }
        ],
        "outlier_detection": {
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_time": "60s",
            "max_ejection_percent": 50,
            "successful_active_health_check_uneject_host": False,
            "split_external_local_origin_errors": True,
            "consecutive_5xx": 20,
            "consecutive_gateway_failure": 20,
            "enforcing_consecutive_gateway_failure": 100,
            "consecutive_local_origin_failure": 20,
            "success_rate_minimum_hosts": 3,
            "success_rate_request_volume": 20,
            "success_rate_stdev_factor": 1900,
            "failure_percentage_threshold": 85,
            "failure_percentage_minimum_hosts": 2,
            "failure_percentage_request_volume": 20,
            "enforcing_failure_percentage": 100,
            "enforcing_failure_percentage_local_origin": 100,
        },
        "circuit_breakers": {
            "thresholds": [
                _threshold("DEFAULT", tuning.calls_max, tuning),
                _threshold("HIGH", tuning.top_calls_max, tuning),
            ]
        },
    }


def _threshold(priority: str, calls_max: int, tuning: Tuning) -> dict[str, Any]:
    return {
        "priority": priority,
        "max_connections": 1024,
        "max_pending_requests": calls_max,
        "max_requests": calls_max,
        "retry_budget": {
            "budget_percent": {"value": tuning.retry_percent},
            "min_retry_concurrency": tuning.retries_min,
        },
    }


def _of(host_and_port: str) -> dict[str, Any]:
    host, _, port = host_and_port.rpartition(":")
    return address(host, int(port))
