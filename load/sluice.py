"""Sluice as it is run: `sluice serve` in a process of its own, over policies that the lab writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.local import ServerSpec
from deploy.local.layout import ROOT
from load.child import Child

POOL = "cpu"


def model_policy(
    model: str, *, deadline_ms: int, slots: int | None = None, override: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The policy of one model, as plain data. What `override` says holds instead, mappings key by key.

    `slots` is how many calls one replica may have in flight. The default follows from Triton's configuration and lets
    the rest wait in the gateway; a comparison wants both sides to put the same load on Triton.
    """
    policy: dict[str, Any] = {
        "model": model,
        "pool": POOL,
        "objective": {"p99_ms": min(100, deadline_ms)},
        "deadline": {"default_ms": deadline_ms, "max_ms": deadline_ms},
        "ladder": "none",
        "impact": "The load lab counts an error.",
    }
    if slots is not None:
        policy["admission"] = {"slots_per_replica": slots, "queue_max": 4 * slots}
    return policy if override is None else merged(policy, override)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `over` says instead, mappings key by key."""
    whole = dict(base)
    for key, value in over.items():
        below = whole.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            whole[key] = merged(below, value)
        else:
            whole[key] = value
    return whole


def write_policies(
    directory: Path,
    model: str,
    replicas: list[ServerSpec],
    listen: Mapping[str, str],
    *,
    slots: int | None,
    deadline_ms: int,
    gateway: Mapping[str, Any] | None = None,
    override: Mapping[str, Any] | None = None,
    bytes_max: int | None = None,
) -> None:
    """Write `fleet.yaml` and the model's file (JSON is YAML). Records go to `directory`/records. Callers may have every
    class.

    `gateway` has more keys for the fleet's `gateway`; slots and override are `model_policy`'s. `bytes_max`: the
    largest message on every leg, instead of the gateway's own default. For several models it is called for each.
    """
    static = [
        {
            "grpc": spec.grpc_address,
            "http": spec.http_address,
            "metrics": spec.metrics_url.removeprefix("http://").partition("/")[0],
        }
        for spec in replicas
    ]
    pool: dict[str, Any] = {"replicas": {"static": static}}
    if bytes_max is not None:
        pool["message_bytes_max"] = bytes_max
        gateway = merged(gateway or {}, {"grpc": {"message_bytes_max": bytes_max}})
        override = merged({"limits": {"body_bytes_max": bytes_max}}, override or {})
    fleet: dict[str, Any] = {
        "pools": {POOL: pool},
        "gateway": {
            "listen": dict(listen),
            "state_dir": "state",
            "drain": {"announce_s": 0, "finish_s": 5},
            **(gateway or {}),
        },
        "identity": {"highest_class": "critical_plus"},
        "records": {"dir": "records"},
    }
    policy = model_policy(model, deadline_ms=deadline_ms, slots=slots, override=override)
    (directory / "models").mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(json.dumps(fleet, indent=1), encoding="utf-8")
    (directory / "models" / f"{model}.yaml").write_text(json.dumps(policy, indent=1), encoding="utf-8")


def start(policies: Path, log: Path) -> Child:
    """Start the gateway. It is not waited for."""
    argv = [sys.executable, "-m", "gateway", "serve", str(policies), "--log-level", "warning"]
    return Child("sluice", argv, log=log, cwd=ROOT)
