"""The two servers of the differential suite: one Triton, and a gateway before it. Both are left as they are found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local import LocalFleet, free_ports
from tests.conftest import replicas_of
from tests.support.differential import Differential
from tests.support.differential_rows import MODELS
from tests.support.gateway_process import GatewayProcess, write_policies

OPEN = MODELS
HIDDEN = "fraud-lite"
"""Served by Triton, and named by no policy."""
ABSENT = "absent"
"""Named by a policy, and unknown to Triton."""


@pytest.fixture(scope="session")
def differential(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    logs = tmp_path_factory.mktemp("differential-triton-logs")
    directory = tmp_path_factory.mktemp("differential-gateway")
    with LocalFleet(1, (*OPEN, HIDDEN), ports=free_ports(1), log_dir=logs) as fleet:
        models = {name: {"objective": {"p99_ms": 5000}} for name in (*OPEN, ABSENT)}
        listen = write_policies(directory, replicas_of(fleet), models=models)
        with GatewayProcess(directory, listen) as gateway:
            gateway.wait_ready().wait_models(*OPEN)
            spec = fleet["triton-0"].spec
            pair = Differential((spec.http_address, spec.grpc_address), (gateway.http, gateway.grpc))
            yield pair
            pair.close()
            print(
                f"\ndifferential suite: {pair.comparisons} comparisons, rows met {dict(sorted(pair.exercised.items()))}"
            )
            assert gateway.stop() == 0, gateway.log_text()
