"""What tests share: real Triton servers, started once per test run on free ports, and the gRPC edge on both of its
servers.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from deploy.local import LocalFleet, free_ports
from tests.support import grpc_edge as grpc_edges
from tests.support.gateway_process import MODEL_POLICIES, PATIENCE, GatewayProcess, write_policies

# An example has no time limit: on a busy machine a test is stopped for longer than any limit that would show something.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change must not fail for what another run's dice found: CI draws the same examples each time, people draw new ones.
settings.register_profile("ci", settings.get_profile("busy"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "busy")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that are no text are named after their argument: compressed ones have the time in them, and processes that
    share a run must agree on what its tests are called."""
    return argname if isinstance(val, bytes) and not val.decode("latin-1").isprintable() else None


def pytest_collection_finish() -> None:
    """What the imports and the collection left is never garbage. Simulations collect garbage after each run, and would
    walk over thousands of tests each time."""
    gc.collect()
    gc.freeze()


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
    yield from mended(fleet)


STATEFUL = ("accumulator", "accumulator-text")


@pytest.fixture(scope="session")
def stateful_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Three real servers with the two stateful models; whoever kills one starts it again."""
    logs = tmp_path_factory.mktemp("stateful-triton-logs")
    with LocalFleet(3, STATEFUL, ports=free_ports(3), log_dir=logs) as servers:
        yield servers


STREAMING = ("streamer", "accumulator", "accel", "identity")
STREAMING_POLICIES = {
    "streamer": {"objective": {"p99_ms": 1000}, "admission": {"slots_per_replica": 32}, "deadline": PATIENCE},
    "accumulator": {"objective": {"p99_ms": 1000}, "deadline": PATIENCE},
    "accel": {"objective": {"p99_ms": 1000}, "deadline": PATIENCE},
    "identity": {"objective": {"p99_ms": 200}, "deadline": PATIENCE},
}


@pytest.fixture(scope="session")
def streaming_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Two real servers with models that stream, keep state, take their time, and give back."""
    logs = tmp_path_factory.mktemp("streaming-triton-logs")
    with LocalFleet(2, STREAMING, ports=free_ports(2), log_dir=logs) as servers:
        yield servers


@pytest.fixture
def breakable_streaming_fleet(streaming_fleet: LocalFleet) -> Iterator[LocalFleet]:
    """The shared one, for a test that kills or freezes servers."""
    yield from mended(streaming_fleet)


@pytest.fixture(scope="session")
def streaming_gateway(
    streaming_fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway in front of `streaming_fleet`, for tests that leave it as it is."""
    directory = tmp_path_factory.mktemp("streaming-gateway")
    listen = write_policies(directory, replicas_of(streaming_fleet), models=STREAMING_POLICIES)
    with GatewayProcess(directory, listen) as process:
        yield process.wait_ready().wait_warmed(*STREAMING_POLICIES)
        assert process.stop() == 0, process.log_text()


def mended(fleet: LocalFleet) -> Iterator[LocalFleet]:
    """The fleet, and afterwards everything that was broken in it repaired."""
    yield fleet
    mend(fleet)


def mend(fleet: LocalFleet) -> None:
    """Repair what is broken, and wait until it is."""
    broken = [server for server in fleet if server.state() != "running"]
    for server in broken:
        if server.state() == "frozen":
            server.thaw()
        else:
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
        yield process.wait_ready().wait_warmed(*MODEL_POLICIES)
        assert process.stop() == 0, process.log_text()


@pytest.fixture(params=grpc_edges.SERVERS)
def grpc_edge(request: pytest.FixtureRequest) -> grpc_edges.MakeEdge:
    """Makes gRPC edges; a test that asks for it runs with our own server, and with gRPC's library."""
    return functools.partial(grpc_edges.running_edge, server=request.param)
