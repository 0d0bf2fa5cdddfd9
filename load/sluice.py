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


def write_policies(
    directory: Path, model: str, replicas: list[ServerSpec], listen: Mapping[str, str], *, slots: int, deadline_ms: int
) -> None:
    """Write `fleet.yaml` and the model's file (JSON is YAML). Records go to `directory`/records.

    `slots` is how many calls one replica may have in flight. The default would follow from Triton's configuration and
    let the rest wait in the gateway; a comparison wants both sides to put the same load on Triton.
    """
    static = [
        {
            "grpc": spec.grpc_address,
            "http": spec.http_address,
            "metrics": spec.metrics_url.removeprefix("http://").partition("/")[0],
        }
        for spec in replicas
    ]
    fleet: dict[str, Any] = {
        "pools": {"cpu": {"replicas": {"static": static}}},
        "gateway": {"listen": dict(listen), "state_dir": "state", "drain": {"announce_s": 0, "finish_s": 5}},
        "records": {"dir": "records"},
    }
    policy: dict[str, Any] = {
        "model": model,
        "pool": "cpu",
        "objective": {"p99_ms": 100},
        "deadline": {"default_ms": deadline_ms, "max_ms": deadline_ms},
        "ladder": "none",
        "impact": "The load lab counts an error.",
        "admission": {"slots_per_replica": slots, "queue_max": 4 * slots},
    }
    (directory / "models").mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(json.dumps(fleet, indent=1), encoding="utf-8")
    (directory / "models" / f"{model}.yaml").write_text(json.dumps(policy, indent=1), encoding="utf-8")


def start(policies: Path, log: Path) -> Child:
    """Start the gateway. It is not waited for."""
    argv = [sys.executable, "-m", "gateway", "serve", str(policies), "--log-level", "warning"]
    return Child("sluice", argv, log=log, cwd=ROOT)
