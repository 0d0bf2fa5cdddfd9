"""The two servers of the differential suite: one Triton, and a gateway before it. Both are left as they are found."""

from __future__ import annotations

import time
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
            server = fleet["triton-0"]

            def revive(patience_s: float) -> bool:
                until_s = time.monotonic() + patience_s
                while server.alive():
                    if time.monotonic() >= until_s:
                        return False
                    time.sleep(0.02)
                server.start(wait=True)
                gateway.wait_models(*OPEN)
                return True

            addresses = (server.spec.http_address, server.spec.grpc_address)
            pair = Differential(addresses, (gateway.http, gateway.grpc), revive)
            yield pair
            pair.close()
            met = dict(sorted(pair.exercised.items()))
            crashes = f"{pair.crashes} crashes of Triton"
            print(f"\ndifferential suite: {pair.comparisons} comparisons, {crashes}, rows met {met}")
            assert gateway.stop() == 0, gateway.log_text()
