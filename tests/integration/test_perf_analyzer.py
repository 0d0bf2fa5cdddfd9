"""NVIDIA's unmodified perf_analyzer through Sluice: another client that must notice no difference.

Its set-up is part of the test: without the wheel that carries it, the tests fail and say what is missing.
"""

from __future__ import annotations

from typing import Literal

import pytest

from deploy.local import LocalFleet
from load.perf_analyzer import options
from load.perf_inputs import model_words
from load.perf_tool import PerfAnalyzer, ensure_perf_analyzer, run_perf_analyzer
from tests.support.gateway_process import GatewayProcess
from tests.support.load_tools import counted_so_far

TIMEOUT_S = 60.0
INTERVAL_MS = 400
ANY_STABILITY = 999


@pytest.fixture(scope="module")
def perf_analyzer() -> PerfAnalyzer:
    return ensure_perf_analyzer()


def _options(
    address: str,
    protocol: Literal["http", "grpc"],
    *more: str,
    streaming: bool = False,
    model: str = "fraud-lite",
    concurrency: int = 4,
) -> list[str]:
    return options(
        model=model,
        address=address,
        protocol=protocol,
        streaming=streaming,
        concurrency=concurrency,
        interval_ms=INTERVAL_MS,
        stability_percent=ANY_STABILITY,
        trials=3,
        more=more,
    )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_runs_against_triton_itself(
    perf_analyzer: PerfAnalyzer, fleet: LocalFleet, protocol: Literal["http", "grpc"]
) -> None:
    spec = fleet["triton-0"].spec
    address = spec.http_address if protocol == "http" else spec.grpc_address
    found = run_perf_analyzer(perf_analyzer, _options(address, protocol), timeout_s=TIMEOUT_S)
    assert found.requests
    assert found.server_inferences


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_runs_through_sluice_and_reads_the_servers_statistics(
    perf_analyzer: PerfAnalyzer, gateway: GatewayProcess, protocol: Literal["http", "grpc"]
) -> None:
    address = gateway.http if protocol == "http" else gateway.grpc
    found = run_perf_analyzer(perf_analyzer, _options(address, protocol), timeout_s=TIMEOUT_S)
    assert found.requests
    assert found.p99_us is not None
    # By Triton's counts over the whole fleet: what it sent, give or take what was out when a window began or ended, and
    # what was done while the counts were asked for. Half of it would be one replica's, twice as much counted twice.
    assert found.server_inferences is not None
    assert abs(found.server_inferences - found.requests) <= max(4 * 3 * 2, found.requests * 0.3)


@pytest.mark.parametrize("concurrency", [16, 64])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_call_fails_however_many_are_out(
    perf_analyzer: PerfAnalyzer, gateway: GatewayProcess, protocol: Literal["http", "grpc"], concurrency: int
) -> None:
    """The tool itself gives up at the first failed call; the gateway's own counts must say the same."""
    before = counted_so_far(gateway, protocol, "fraud-lite")
    address = gateway.http if protocol == "http" else gateway.grpc
    words = _options(address, protocol, concurrency=concurrency)
    found = run_perf_analyzer(perf_analyzer, words, timeout_s=TIMEOUT_S)
    assert found.requests
    assert found.requests > concurrency
    counted = counted_so_far(gateway, protocol, "fraud-lite") - before
    # Calls between its windows, and those that it leaves behind at its end, are in no report of it.
    assert set(counted) <= {"OK", "CANCELLED"}
    assert counted["CANCELLED"] <= concurrency
    assert counted["OK"] >= found.requests


@pytest.mark.parametrize("form", ["json", "binary"])
def test_it_runs_through_sluice_with_tensors_in_either_form(
    perf_analyzer: PerfAnalyzer, gateway: GatewayProcess, form: str
) -> None:
    forms = ["--input-tensor-format", form, "--output-tensor-format", form]
    found = run_perf_analyzer(perf_analyzer, _options(gateway.http, "http", *forms), timeout_s=TIMEOUT_S)
    assert found.requests
    assert found.p99_us is not None


@pytest.mark.parametrize("target", ["triton", "sluice"])
def test_it_runs_over_streams(
    perf_analyzer: PerfAnalyzer, fleet: LocalFleet, gateway: GatewayProcess, target: str
) -> None:
    address = fleet["triton-0"].spec.grpc_address if target == "triton" else gateway.grpc
    found = run_perf_analyzer(perf_analyzer, _options(address, "grpc", streaming=True), timeout_s=TIMEOUT_S)
    assert found.requests
    assert found.p99_us is not None


@pytest.mark.parametrize(
    ("model", "protocol", "streaming"),
    [("identity", "http", False), ("accumulator", "grpc", False), ("accel", "http", False), ("streamer", "grpc", True)],
)
def test_it_runs_with_the_inputs_that_a_model_wants(
    perf_analyzer: PerfAnalyzer,
    streaming_gateway: GatewayProcess,
    model: str,
    protocol: Literal["http", "grpc"],
    streaming: bool,
) -> None:
    """Where random ones of the declared shape will not do."""
    address = streaming_gateway.http if protocol == "http" else streaming_gateway.grpc
    with model_words(model, ()) as words:
        told = _options(address, protocol, *words, streaming=streaming, model=model)
        found = run_perf_analyzer(perf_analyzer, told, timeout_s=TIMEOUT_S)
    assert found.requests
