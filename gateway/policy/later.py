"""Keys and values of the design that need layers which do not exist yet.

A policy that asks for hedging and silently gets none is worse than one that is refused, so each of these is refused by
name, with what will bring it. When a layer arrives its row leaves this table and its key enters `schema.py`.
"""

from __future__ import annotations

from typing import Literal

FileKind = Literal["fleet", "model", "keys"]

_STREAMS = "decoupled models stream without it; the limits of streams stand under `deadline`"
_RETRY = "sending a call again comes with the layer `attempts`"
_BREAKER = "what takes a failing replica out stands under `ejection` in the file of each model"
_ROLLOUT = "rollouts come with the version gate; until then move the weights of `split` by hand"
_COHORT = "sticky choices between versions come with the full layer `route`"
_REDIS = (
    "the address of a Redis is given as SLUICE_REDIS_URL in the environment; only quotas are shared through it so far"
)
_QUOTAS = "quotas on a model stand in fleet.yaml, under `quotas.tenants.<name>.models` or `quotas.default.models`"

MODEL_KEYS: dict[str, str] = {
    "alias": "other names for a model come with the full layer `route`",
    "aliases": "other names for a model come with the full layer `route`",
    "batch": "the batch regime comes with the jobs set",
    "breaker": _BREAKER,
    "cache": "answers are stored once the layer `cache` is there",
    "canary": _ROLLOUT,
    "coalesce": "sharing one execution between equal calls comes with the layer `coalesce`",
    "cohort": _COHORT,
    "cohorts": _COHORT,
    "fairness": "fair shares between tenants come with the full layer `admit`",
    "features": "fetching features comes with the layer `features`; send complete inputs until then",
    "freshness_s": "the age limit of stored answers comes with the layer `cache`",
    "manifest": _ROLLOUT,
    "objective.cost_per_1k": "cost as the objective comes with the batch regime; give `p99_ms`",
    "override": "`x-sluice-version` comes with the full layer `route`; name the version in the path until then",
    "overrides": "`x-sluice-version` comes with the full layer `route`; name the version in the path until then",
    "placement": "placing models on replicas comes with the scaling set",
    "quota": _QUOTAS,
    "quotas": _QUOTAS,
    "rollout": _ROLLOUT,
    "scale": "scaling signals come with the scaling set",
    "shadow": "copies of calls to another version come with the layer `shadow`",
    "stream": _STREAMS,
    "version_override": "`x-sluice-version` comes with the full layer `route`; name the version in the path until then",
    "x-sluice-version": "the override comes with the full layer `route`; name the version in the path until then",
    "records.redact": "redaction comes with the record sinks; `records.tensors: none` keeps values out already",
    "records.sample": "sampling of tensors comes with the record sinks; choose `records.tensors` until then",
}
"""Dotted key of a model's file to the sentence that explains it."""

FLEET_KEYS: dict[str, str] = {
    "pools.*.breaker": _BREAKER,
    "pools.*.cost": "choosing between pools by cost comes with the ladder",
    "pools.*.ejection": _BREAKER,
    "pools.*.scale": "scaling signals come with the scaling set",
    "records.sample": "sampling comes with the record sinks",
    "records.sinks": "other sinks come with the record sinks; JSON lines in `records.dir` are written already",
    "redis": _REDIS,
    "retry_budget": _RETRY,
    "scale": "scaling signals come with the scaling set",
    "stores": _REDIS,
    "tracing": "spans come with the trace exporter; `traceparent` is passed on and recorded already",
}

MODEL_VALUES: dict[tuple[str, str], str] = {
    (
        "ladder",
        "*",
    ): "lower answers come with the layer `ladder`; write `ladder: none`, and in `impact` what users feel",
    ("regime", "async"): "the asynchronous regime comes with the jobs set",
    ("regime", "batch"): "the batch regime comes with the jobs set",
    ("regime", "stream"): _STREAMS,
    ("regime", "streaming"): _STREAMS,
}
"""Dotted key and value (`*`: any other) to the sentence that explains it."""

FLEET_VALUES: dict[tuple[str, str], str] = {}


def later_key(kind: FileKind, path: tuple[str | int, ...]) -> str:
    """Why this key cannot be used yet, or "" if nothing is known of it.

    A name that stands in the table is recognised at another depth too: whoever writes `retries` under `deadline` wants
    to know that there are none.
    """
    table = MODEL_KEYS if kind == "model" else FLEET_KEYS if kind == "fleet" else {}
    names = [str(step) for step in path]
    if kind == "fleet" and len(names) > 2 and names[0] == "pools":
        names[1] = "*"
    exact = table.get(".".join(names))
    if exact is not None:
        return exact
    return next((reason for key, reason in table.items() if key.rpartition(".")[2] == names[-1]), "")


def later_value(kind: FileKind, path: tuple[str | int, ...], value: str) -> str:
    """Why this value of a known key cannot be used yet, or ""."""
    table = MODEL_VALUES if kind == "model" else FLEET_VALUES if kind == "fleet" else {}
    key = ".".join(str(step) for step in path)
    return table.get((key, value)) or table.get((key, "*"), "")
