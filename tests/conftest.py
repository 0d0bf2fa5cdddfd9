"""Real Triton servers that integration tests share. They start once per test run, on free ports."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from deploy.local import LocalFleet, free_ports
from tests.support.gateway_process import GatewayProcess, write_policies

# A change must not fail for what another run's dice found: CI draws the same examples each time, people draw new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Two real servers, triton-0 and triton-1, each with all four models. Leave them running; see `breakable_fleet`."""
    with LocalFleet(2, ports=free_ports(2), log_dir=tmp_path_factory.mktemp("triton-logs")) as servers:
        yield servers


@pytest.fixture(scope="session")
def bounded_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """One real server, triton-0: `accel` alone, with a queue policy (64 waiting calls, timeouts, full cancellation)."""
    bounded = ["--model-config-name=bounded"]
    logs = tmp_path_factory.mktemp("bounded-triton-logs")
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=logs, arguments=bounded) as servers:
        yield servers


@pytest.fixture
def breakable_fleet(fleet: LocalFleet) -> Iterator[LocalFleet]:
    """The shared fleet, for a test that stops, kills or freezes servers: whatever it broke is mended afterwards."""
    yield fleet
    for server in fleet:
        if server.state() == "frozen":
            server.thaw()
        elif server.state() == "stopped":
            server.start()
    for server in fleet:
        server.wait_ready()


def replicas_of(fleet: LocalFleet) -> list[dict[str, str]]:
    """The servers of a local fleet as a policy's static replicas."""
    return [
        {
            "grpc": server.spec.grpc_address,
            "http": server.spec.http_address,
            "metrics": server.spec.metrics_url.removeprefix("http://").partition("/")[0],
        }
        for server in fleet
    ]


@pytest.fixture(scope="session")
def gateway(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in front of the shared fleet, for tests that leave it as it is."""
    directory = tmp_path_factory.mktemp("gateway")
    listen = write_policies(directory, replicas_of(fleet))
    with GatewayProcess(directory, listen) as process:
        yield process.wait_ready()
        assert process.stop() == 0, process.log_text()
