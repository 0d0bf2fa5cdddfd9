"""A scenario's stand with Envoy where Sluice would be: the same Tritons, the same forwarders, a tuned configuration."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from load import envoy, envoy_tuned
from load.errors import LoadError
from load.faults import blackholed
from load.scenario import LoadedScenario
from load.stand import Stand, footing

COUNTERS: Mapping[str, str] = {
    "upstream_rq_total": "sends",
    "upstream_rq_retry": "retries and hedges",
    "upstream_rq_retry_overflow": "not sent again for want of budget",
    "upstream_rq_active_overflow": "refused by the breaker",
    "upstream_rq_pending_overflow": "refused by the breaker of waiting calls",
    "upstream_cx_none_healthy": "refused for want of a healthy replica",
    "outlier_detection.ejections_enforced_total": "ejections",
    "health_check.failure": "health checks failed",
}
"""Counters of Envoy's clusters that tell which protections were at work, in words."""
FILTER_COUNTERS: Mapping[str, str] = {
    "adaptive_concurrency.gradient_controller.rq_blocked": "refused by adaptive concurrency",
    "admission_control.rq_rejected": "refused by admission control",
}
"""The same of its filters, by how their names end."""


@contextmanager
def start_envoy(
    scenario: LoadedScenario, tuning: envoy_tuned.Tuning, binary: Path, *, workers: int, keep: bool
) -> Iterator[Stand]:
    """Start what a scenario wants, with Envoy in front; every way out stops it. `Stand.metrics` is its admin port."""
    wanted = scenario.spec.target
    blackholes = blackholed(scenario.spec.faults, wanted.replicas)
    with ExitStack() as stack:
        base = stack.enter_context(
            footing(
                wanted.replicas,
                scenario.models,
                environment=wanted.server_environment,
                blackholes=blackholes,
                keep=keep,
            )
        )
        ports = base.ports
        settings = envoy_tuned.configuration(ports, base.specs, tuning)
        child = stack.enter_context(envoy.start_with(binary, base.directory, settings, workers))
        admin = f"127.0.0.1:{ports.metrics}"
        child.wait_ready(f"http://{admin}/ready")
        yield Stand(
            f"127.0.0.1:{ports.http}",
            f"127.0.0.1:{ports.grpc}",
            admin,
            child,
            base.fleet,
            base.directory,
            [spec.grpc_address for spec in base.specs],
            base.blackholes,
            "envoy",
        )


def counted(up: Stand) -> dict[str, float]:
    """What Envoy counted since its start, the warm-up included. Raises LoadError if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{up.metrics}/stats?format=json", timeout=10) as response:
            return counters_of(json.load(response))
    except OSError as error:
        raise LoadError(f"Envoy does not tell its statistics: {error}; see its log with --keep") from error


def counters_of(page: Mapping[str, list[Mapping[str, object]]]) -> dict[str, float]:
    """The counters in words, both clusters together, from Envoy's `/stats?format=json`; those of 0 are left out."""
    found: dict[str, float] = {}
    for each in page["stats"]:
        name, value = str(each.get("name", "")), each.get("value")
        if not isinstance(value, int | float) or not value:
            continue
        words = FILTER_COUNTERS.get(next((end for end in FILTER_COUNTERS if name.endswith(end)), ""))
        if words is None and name.startswith("cluster."):
            words = COUNTERS.get(name.split(".", 2)[2])
        if words is not None:
            found[words] = found.get(words, 0) + value
    return found
