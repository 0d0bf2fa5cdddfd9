"""The fleet's client, directory and transport on a real Triton: its texts, its queue, its deaths."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from deploy.local import LocalFleet, TritonServer, free_ports
from deploy.local.layout import ROOT
from deploy.local.repository import SOURCES
from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Endpoints, ReplicaClient
from gateway.core.faults import ROWS, Row, UpstreamFault, classify
from gateway.core.outcome import Outcome
from gateway.core.snapshot import ModelState, ReplicaState, ReplicaView
from gateway.fleet.catalogue import FleetCatalogue
from gateway.fleet.directory import Directory
from gateway.fleet.dns import SystemResolver
from gateway.fleet.metrics_text import samples
from gateway.fleet.transport import ReplicaTransport
from gateway.policy.schema import (
    FleetPolicy,
    Health,
    ModelPolicy,
    Objective,
    PolicySet,
    Pool,
    Replicas,
    Scrape,
    StaticReplica,
)
from gateway.runtime.chance import Chance
from gateway.runtime.clock import SystemClock
from gateway.runtime.files import SystemFiles
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import ThreadWorkers
from gateway.wire.kserve.metadata import REFUSED_EXTENSIONS
from gateway.wire.kserve.model_config import summarise_config
from tests.support.calls import call_sent_to
from tests.support.replica_clients import TRANSPORTS, connector_of

LIMIT_S = 90
MODELS = ("accel", "moods")
QUEUE_POLICY = (
    "default_queue_policy { default_timeout_microseconds: 5000000 allow_timeout_override: true max_queue_size: 2 }"
)

MOODS = '''
import json
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with its input; fails as the request's parameters say."""

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        parameters = json.loads(request.parameters() or "{}")
        if "code" in parameters:
            code = getattr(pb_utils.TritonError, parameters["code"])
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(parameters.get("text", "custom text"), code))
        if "fail" in parameters:
            raise ValueError("raised by the model" + chr(10) + "with a second line")
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", x)])
'''

MOODS_CONFIG = """
name: "moods"
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
version_policy { specific { versions: [ VERSIONS ] } }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`accel` with a queue of two requests, `moods` in versions 1 and 2, of which 1 is loaded; 3 cannot be loaded."""
    root = tmp_path_factory.mktemp("fleet-models")
    source = ROOT / "deploy" / "local" / "models" / "accel"
    (root / "accel" / "1").mkdir(parents=True)
    accel = next(each for each in SOURCES if each.name == "accel")
    for file in accel.files():
        shutil.copy(file, root / "accel" / "1" / file.name)
    config = (source / "config.pbtxt").read_text()
    config, count = re.subn(r"(max_queue_delay_microseconds: \d+\n)", rf"\1{QUEUE_POLICY}", config)
    assert count == 1
    (root / "accel" / "config.pbtxt").write_text(config)
    for version in "123":
        (root / "moods" / version).mkdir(parents=True)
        (root / "moods" / version / "model.py").write_text(MOODS if version != "3" else "raise RuntimeError('broken')")
    set_versions(root, "1")
    return root


def set_versions(root: Path, versions: str) -> None:
    (root / "moods" / "config.pbtxt").write_text(MOODS_CONFIG.replace("VERSIONS", versions))


_transport = TRANSPORTS[0]


@pytest.fixture(params=TRANSPORTS)
def either(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a server says and does is the same over either transport; all else here is tried over the default."""
    global _transport
    _transport = request.param
    yield
    _transport = TRANSPORTS[0]


@pytest.fixture(scope="module")
def shared(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    logs = tmp_path_factory.mktemp("fleet-logs")
    with LocalFleet(1, MODELS, repository=repository, ports=free_ports(1), log_dir=logs) as servers:
        yield servers


@pytest.fixture
def server(shared: LocalFleet) -> TritonServer:
    """One server with both models, for tests that leave it as it was."""
    return shared["triton-0"]


@pytest.fixture
def breakable(shared: LocalFleet, repository: Path) -> Iterator[TritonServer]:
    """The same for tests that do not: started anew afterwards (Triton takes far longer to mend a broken model)."""
    one = shared["triton-0"]
    yield one
    one.kill()
    set_versions(repository, "1")
    one.start(wait=True)


def control(server: TritonServer, model: str, what: str) -> int:
    url = f"http://{server.spec.http_address}/v2/repository/models/{model}/{what}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def endpoints(server: TritonServer) -> Endpoints:
    ports = server.spec.ports
    return Endpoints(server.spec.grpc_address, server.spec.http_address, f"127.0.0.1:{ports.metrics}")


@asynccontextmanager
async def client_of(server: TritonServer) -> AsyncIterator[ReplicaClient]:
    client = connector_of(_transport, None).connect(endpoints(server))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield client
    finally:
        await client.aclose()


def request(model: str, version: str = "", shape: tuple[int, ...] | None = None, **parameters: str | int) -> bytes:
    """Zeros for `accel` or `moods`, with request parameters."""
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    shape = shape or ((1, 1) if model == "accel" else (1,))
    message.inputs.add(name="work" if model == "accel" else "x", datatype="FP32", shape=shape)
    count = 1
    for size in shape:
        count *= size
    message.raw_input_contents.append(bytes(4 * count))
    for key, value in parameters.items():
        parameter = message.parameters[key]
        if isinstance(value, int):
            parameter.int64_param = value
        else:
            parameter.string_param = value
    return bytes(message.SerializeToString())


async def fault_of(client: ReplicaClient, message: bytes, timeout_s: float = 20.0) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        await client.infer(message, (), timeout_s)
    return caught.value


def row_for(fault: UpstreamFault, outcome: Outcome, reason: Reason) -> Row:
    """The row that a real fault falls into, which must be the right one, and the peer's word."""
    row = classify(fault)
    assert fault.from_peer, fault
    assert (row.outcome, row.reason) == (outcome, reason), fault
    return row


# --- texts: each row of core.faults that this server can be made to say ---------------------------------------------


@pytest.mark.usefixtures("either")
async def test_what_is_not_loaded_is_told_from_what_is_wrong(breakable: TritonServer, repository: Path) -> None:
    set_versions(repository, "1, 2")
    assert control(breakable, "moods", "load") == 200
    set_versions(repository, "1, 3")
    assert control(breakable, "moods", "load") == 400
    async with client_of(breakable) as client:
        for message, said in (
            (request("nope"), "is not found"),
            (request("moods", "9"), "is not found"),
            (request("moods", "3"), "is not at ready state"),
        ):
            fault = await fault_of(client, message)
            row_for(fault, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED)
            assert said in fault.text
        await asyncio.to_thread(control, breakable, "moods", "unload")
        while "UNLOADING" in str(await client.repository_index(5.0)):
            await asyncio.sleep(0.05)
        fault = await fault_of(client, request("moods"))
        row_for(fault, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED)
        assert "has no available versions" in fault.text
        fault = await fault_of(client, request("moods", "1"))
        row_for(fault, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED)
        assert "is not at ready state" in fault.text
        assert await client.model_ready("moods", "1", 5.0) is False
        assert await client.model_ready("accel", "1", 5.0) is True


@pytest.mark.usefixtures("either")
async def test_requests_that_are_wrong_are_the_callers_fault(server: TritonServer) -> None:
    wrong_type = pb.ModelInferRequest.FromString(request("accel"))
    wrong_type.inputs[0].datatype = "INT32"
    short = pb.ModelInferRequest.FromString(request("accel", shape=(2, 1)))
    short.raw_input_contents[0] = bytes(4)
    other_name = pb.ModelInferRequest.FromString(request("accel"))
    other_name.inputs[0].name = "other"
    async with client_of(server) as client:
        for message in (
            request("accel", "x"),
            request("accel", shape=(9, 1)),
            request("accel", shape=(1, 2)),
            wrong_type.SerializeToString(),
            short.SerializeToString(),
            other_name.SerializeToString(),
            b"\xff\xff\xff",
        ):
            row_for(await fault_of(client, message), Outcome.CALLER_FAULT, Reason.UPSTREAM_INVALID)


@pytest.mark.usefixtures("either")
async def test_what_a_model_says_keeps_its_code_and_a_crash_is_broken(breakable: TritonServer) -> None:
    said = {
        "INTERNAL": (Code.INTERNAL, Outcome.BROKEN),
        "UNKNOWN": (Code.UNKNOWN, Outcome.BROKEN),
        "UNAVAILABLE": (Code.UNAVAILABLE, Outcome.BROKEN),
        "CANCELLED": (Code.CANCELLED, Outcome.BROKEN),
        "NOT_FOUND": (Code.NOT_FOUND, Outcome.CALLER_FAULT),
        "INVALID_ARG": (Code.INVALID_ARGUMENT, Outcome.CALLER_FAULT),
        "UNSUPPORTED": (Code.UNIMPLEMENTED, Outcome.CALLER_FAULT),
        "ALREADY_EXISTS": (Code.ALREADY_EXISTS, Outcome.CALLER_FAULT),
    }
    async with client_of(breakable) as client:
        for name, (code, outcome) in said.items():
            fault = await fault_of(client, request("moods", code=name))
            assert (fault.code, fault.text, fault.from_peer) == (code, "custom text", True)
            assert classify(fault).outcome is outcome
        fault = await fault_of(client, request("moods", fail="raise"))
        row_for(fault, Outcome.BROKEN, Reason.UPSTREAM_BROKEN)
        fault = await fault_of(client, request("accel", fail="crash"))
        row_for(fault, Outcome.BROKEN, Reason.UPSTREAM_BROKEN)


@pytest.mark.usefixtures("either")
async def test_a_full_queue_and_a_wait_that_was_too_long_are_overload(server: TritonServer) -> None:
    async with client_of(server) as client:
        running = asyncio.ensure_future(client.infer(request("accel", straggle_ms=2500), (), 20.0))
        await _until_executing(client)
        calls = [asyncio.ensure_future(client.infer(request("accel"), (), 20.0)) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        full = [each for each in results if isinstance(each, UpstreamFault)]
        assert full
        for fault in full:
            row = row_for(fault, Outcome.OVERLOAD, Reason.UPSTREAM_QUEUE_FULL)
            assert row.as_code is Code.RESOURCE_EXHAUSTED
        await running
        late: list[UpstreamFault] = []
        for _ in range(5):  # on a busy machine they may come when nothing runs any more
            running = asyncio.ensure_future(client.infer(request("accel", straggle_ms=2500), (), 20.0))
            await _until_executing(client)
            # A first call may be taken into the next batch at once; what comes behind it waits in the queue.
            calls = [asyncio.ensure_future(client.infer(request("accel", timeout=100_000), (), 20.0)) for _ in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            await running
            late = [each for each in results if isinstance(each, UpstreamFault) and "timeout" in each.text]
            if late:
                break
        assert late, results
        for fault in late:
            row = row_for(fault, Outcome.OVERLOAD, Reason.UPSTREAM_QUEUE_TIMEOUT)
            assert row.as_code is Code.DEADLINE_EXCEEDED


async def _until_executing(client: ReplicaClient) -> None:
    """Wait until the server has nothing waiting and something running: seen by its own count of waiting requests, once
    it has answered something else that was asked over the same connection behind the call.
    """
    await client.server_live(20.0)
    await asyncio.sleep(0.3)
    while _metric(await client.scrape(5.0), "nv_inference_pending_request_count"):
        await asyncio.sleep(0.05)


def _metric(page: str, name: str, model: str = "accel") -> float:
    return sum(each.value for each in samples(page) if each.name == name and each.labels["model"] == model)


async def _counted(client: ReplicaClient) -> str:
    """The page of metrics once it stands still: an answer may come before it is counted."""
    page, before = await client.scrape(5.0), ""
    while (_metric(page, "nv_inference_count"), _cancelled(page)) != (
        _metric(before, "nv_inference_count"),
        _cancelled(before),
    ):
        await asyncio.sleep(0.1)
        page, before = await client.scrape(5.0), page
    return page


def _cancelled(page: str) -> float:
    wanted = 'nv_inference_request_failure{model="accel",reason="CANCELED"'
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(wanted))


@pytest.mark.usefixtures("either")
async def test_a_server_that_stops_says_so_and_finishes_what_runs(breakable: TritonServer) -> None:
    async with client_of(breakable) as client:
        running = asyncio.ensure_future(client.infer(request("accel", straggle_ms=4500), (), 20.0))
        await _until_executing(client)
        assert breakable.run is not None
        breakable.run.server.signal(signal.SIGTERM, group=False)
        refused: list[UpstreamFault] = []
        while not refused:
            try:
                await client.infer(request("moods"), (), 5.0)
            except UpstreamFault as fault:
                refused.append(fault)
            await asyncio.sleep(0.02)
        row_for(refused[0], Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED)
        with pytest.raises(UpstreamFault, match="Server exiting"):
            await client.server_live(5.0)
        assert pb.ModelInferResponse.FromString(await running).model_name == "accel"


async def test_a_server_that_restricts_its_apis_is_served_without_its_index_and_refuses_in_words(
    repository: Path, tmp_path: Path
) -> None:
    arguments = ("--grpc-restricted-protocol=model-repository,statistics:key=secret",)
    servers = LocalFleet(1, MODELS, repository=repository, ports=free_ports(1), log_dir=tmp_path, arguments=arguments)
    await asyncio.to_thread(servers.start)
    try:
        async with house_before(servers["triton-0"]) as house, client_of(servers["triton-0"]) as client:
            await house.transport.send(house.call("accel"))
            with pytest.raises(UpstreamFault) as caught:
                await client.repository_index(5.0)
            row_for(caught.value, Outcome.REFUSED, Reason.UPSTREAM_REFUSED)
    finally:
        await asyncio.to_thread(servers.stop)


def test_every_text_in_the_table_was_provoked_above_or_is_of_a_newer_server() -> None:
    """A new row for a text needs a test that makes a real server say it."""
    provoked = {
        "Exceeds maximum queue size",
        "Request timeout expired",
        "is not at ready state",
        "Request for unknown model",
        "Server is stopping",
        "Server exiting",
        "Unable to parse request",
        "protocol is restricted",
    }
    newer_servers = {"is not ready"}
    assert {row.text for row in ROWS if row.text} == provoked | newer_servers


# --- cancelling -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either")
async def test_a_cancelled_call_leaves_tritons_queue_and_never_runs(server: TritonServer) -> None:
    async with client_of(server) as client:
        before = await _counted(client)
        running = asyncio.ensure_future(client.infer(request("accel", straggle_ms=4000), (), 20.0))
        await _until_executing(client)
        queued = [asyncio.ensure_future(client.infer(request("accel"), (), 20.0)) for _ in range(2)]
        page = await client.scrape(5.0)
        deadline_s = time.monotonic() + 2.0
        while not _metric(page, "nv_inference_pending_request_count") and time.monotonic() < deadline_s:
            page = await client.scrape(5.0)
        for task in queued:
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*queued, return_exceptions=True)
        )
        await running
        after = await client.scrape(5.0)
        while _metric(after, "nv_inference_pending_request_count"):
            await asyncio.sleep(
                0.05
            )  # The batcher looks for cancelled calls when it wakes: every 500 ms at the latest.
            after = await client.scrape(5.0)
        await client.infer(request("accel"), (), 20.0)
        cancelled = ran = 0.0
        while ran < 2 or not cancelled:  # an answer may come before it is counted
            after = await client.scrape(5.0)
            cancelled = _cancelled(after) - _cancelled(before)
            ran = _metric(after, "nv_inference_count") - _metric(before, "nv_inference_count")
        # On a busy machine one of the two may have been cancelled before it was sent.
        assert cancelled <= 2, "nobody else was cancelled"
        assert ran == 2, "what was cancelled did not run"


# --- the directory --------------------------------------------------------------------------------------------------


@dataclass
class House:
    """The directory and what stands on it, before real servers; calls go to the first."""

    directory: Directory
    catalogue: FleetCatalogue
    transport: ReplicaTransport
    replica_id: str
    logged: list[ReplicaView]

    @property
    def replica(self) -> ReplicaView | None:
        return next(iter(self.directory.snapshot.replicas), None)

    @property
    def state(self) -> ReplicaState | None:
        return None if self.replica is None else self.replica.state

    def model(self, name: str, version: str = "1") -> ModelState | None:
        view = None if self.replica is None else self.replica.models.get((name, version))
        return None if view is None else view.state

    def serves(self, name: str, version: str = "1") -> bool:
        return bool(self.directory.snapshot.candidates("cpu", name, version))

    async def until(self, condition: Callable[[], bool], limit_s: float = 20.0) -> float:
        started_s = time.monotonic()
        while not condition():
            assert time.monotonic() - started_s < limit_s, self.directory.snapshot.replicas
            await asyncio.sleep(0.01)
        return time.monotonic() - started_s

    def call(self, model: str, straggle_ms: int = 0, fail: str = "") -> Call:
        message = request(model, straggle_ms=straggle_ms, fail=fail)
        return call_sent_to(self.replica_id, model, "1", message, time.monotonic(), 20.0)


@asynccontextmanager
async def house_before(
    server: TritonServer, *others: TritonServer, interval_ms: int = 500, timeout_ms: int = 3000
) -> AsyncIterator[House]:
    """`timeout_ms` is that of probes: with so long a one no server that is busy for a moment is taken for down."""
    where = endpoints(server)
    static = tuple(
        StaticReplica(grpc=each.grpc, http=each.http, metrics=each.metrics)
        for each in map(endpoints, (server, *others))
    )
    pool = Pool(
        replicas=Replicas(static=static),
        health=Health(interval_ms=interval_ms, timeout_ms=timeout_ms),
        scrape=Scrape(interval_ms=300),
    )
    models = {
        name: ModelPolicy(model=name, pool="cpu", objective=Objective(p99_ms=100), ladder="none", impact="no answer")
        for name in MODELS
    }
    policies = PolicySet(revision="r", base_dir="/", fleet=FleetPolicy(pools={"cpu": pool}), models=models)
    clock, supervisor, workers = SystemClock(), Supervisor(), ThreadWorkers(2, "test")
    directory = Directory(
        policies,
        lambda pool: connector_of(_transport, None, message_bytes_max=pool.message_bytes_max),
        clock=clock,
        chance=Chance(1),
        supervisor=supervisor,
        workers=workers,
        resolver=SystemResolver(workers),
        files=SystemFiles(workers),
    )
    house = House(
        directory, FleetCatalogue(directory, policies), ReplicaTransport(directory, clock), f"cpu/{where.grpc}", []
    )
    directory.subscribe(lambda snapshot: house.logged.extend(snapshot.replicas))
    directory.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            await house.until(lambda: house.serves("accel") and house.serves("moods"))
            yield house
    finally:
        await directory.stop()
        await workers.aclose(5.0)
    assert not supervisor.statistics(0.0)["running"]


async def test_a_replica_is_warmed_before_traffic_and_its_phases_are_in_order(server: TritonServer) -> None:
    async with house_before(server) as house:
        assert house.replica is not None
        phases = house.replica.phases
        times = [phases.seen_s, phases.connected_s, phases.live_s, phases.ready_s, phases.warmed_s]
        assert None not in times
        assert times == sorted(times)  # type: ignore[type-var]
        states = [view.models["accel", "1"].state for view in house.logged if ("accel", "1") in view.models]
        assert states.index(ModelState.READY) < states.index(ModelState.WARMED)
        await house.transport.send(house.call("accel"))
        await house.until(lambda: house.replica is not None and house.replica.phases.first_answer_s is not None)


async def test_what_the_catalogue_shows_is_what_the_server_shows(server: TritonServer) -> None:
    async with house_before(server) as house, client_of(server) as client:
        for model in MODELS:
            direct = pb.ModelMetadataResponse.FromString(await client.model_metadata(model, "", 5.0))
            assert pb.ModelMetadataResponse.FromString(house.catalogue.model_metadata(model, "")) == direct
            config = await client.model_config(model, "1", 5.0)
            shown_config = house.catalogue.model_config(model, "1")
            assert json.loads(shown_config.json) == json.loads(config.json)
            # Compared as messages: the server writes the entries of a map in any order.
            parsed = pb.ModelConfigResponse.FromString(shown_config.proto)
            assert parsed == pb.ModelConfigResponse.FromString(config.proto)
        shown = pb.ServerMetadataResponse.FromString(house.catalogue.server_metadata())
        own = pb.ServerMetadataResponse.FromString(await client.server_metadata(5.0))
        assert (shown.name, shown.version) == ("triton", own.version)
        assert set(own.extensions) - set(shown.extensions) == REFUSED_EXTENSIONS
        summary = summarise_config(house.catalogue.model_config("accel", "").proto)
        assert (summary.max_batch_size, summary.instances, summary.batches) == (8, 1, True)
        assert house.directory.snapshot.candidates("cpu", "accel", "1")[0].slots == 16


@pytest.mark.usefixtures("either")
async def test_a_killed_server_is_down_and_starts_its_phases_anew(breakable: TritonServer) -> None:
    async with house_before(breakable) as house:
        before = house.replica
        assert before is not None
        out = asyncio.ensure_future(house.transport.send(house.call("accel", straggle_ms=5000)))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(breakable.kill)
        with pytest.raises(GatewayError) as caught:
            await out
        assert caught.value.reason is Reason.UPSTREAM_LOST
        await house.until(lambda: house.state is ReplicaState.DOWN)
        assert not house.serves("accel")
        await asyncio.to_thread(breakable.start)
        await house.until(lambda: house.serves("accel") and house.serves("moods"), 30.0)
        after = house.replica
        assert after is not None
        assert before.phases.warmed_s is not None
        for name in ("seen_s", "connected_s", "live_s", "ready_s", "warmed_s"):
            assert getattr(after.phases, name) > before.phases.warmed_s, name


@pytest.mark.usefixtures("either")
async def test_a_frozen_server_is_down_by_unanswered_liveness_calls_and_comes_back(breakable: TritonServer) -> None:
    async with house_before(breakable, timeout_ms=500) as house:
        await asyncio.to_thread(breakable.freeze)
        await house.until(lambda: house.state is ReplicaState.DOWN)
        assert house.replica is not None
        assert "liveness: DEADLINE_EXCEEDED" in house.replica.last_error
        await asyncio.to_thread(breakable.thaw)
        await house.until(lambda: house.serves("accel"))


async def test_a_stopping_server_gets_no_new_calls_and_keeps_those_it_has(breakable: TritonServer) -> None:
    async with house_before(breakable) as house:
        out = asyncio.ensure_future(house.transport.send(house.call("accel", straggle_ms=6000)))
        await asyncio.sleep(0.3)
        async with client_of(breakable) as client:
            await _until_executing(client)
        assert breakable.run is not None
        breakable.run.server.signal(signal.SIGTERM, group=False)
        await house.until(lambda: house.state is ReplicaState.DOWN)
        assert not out.done()
        await out


async def test_loads_and_unloads_are_seen(breakable: TritonServer, repository: Path) -> None:
    async with house_before(breakable) as house:
        assert house.catalogue.model_ready("moods", "")
        assert await asyncio.to_thread(control, breakable, "moods", "unload") == 200
        await house.until(lambda: not house.serves("moods"))
        assert house.serves("accel")
        assert not house.catalogue.model_ready("moods", "1")
        set_versions(repository, "1, 2")
        assert await asyncio.to_thread(control, breakable, "moods", "load") == 200
        await house.until(lambda: house.serves("moods", "1") and house.serves("moods", "2"))
        metadata = pb.ModelMetadataResponse.FromString(house.catalogue.model_metadata("moods", ""))
        assert list(metadata.versions) == ["1", "2"]


async def test_a_call_that_finds_a_model_unloaded_takes_it_off_that_replica_before_the_next_call(
    server: TritonServer, repository: Path, tmp_path: Path
) -> None:
    servers = LocalFleet(1, MODELS, repository=repository, ports=free_ports(1), log_dir=tmp_path)
    await asyncio.to_thread(servers.start)
    try:
        second = servers["triton-0"]
        async with house_before(second, server, interval_ms=30_000) as house:
            await house.until(lambda: len(house.directory.snapshot.candidates("cpu", "accel", "1")) == 2)
            assert await asyncio.to_thread(control, second, "accel", "unload") == 200
            assert len(house.directory.snapshot.candidates("cpu", "accel", "1")) == 2, "no probe has seen it"
            with pytest.raises(GatewayError) as caught:
                await house.transport.send(house.call("accel"))
            left = [each.replica for each in house.directory.snapshot.candidates("cpu", "accel", "1")]
            assert caught.value.reason is Reason.UPSTREAM_NOT_LOADED
            assert left == [f"cpu/{endpoints(server).grpc}"]
    finally:
        await asyncio.to_thread(servers.stop)


async def test_a_failed_rollout_makes_the_server_unready_and_changes_nothing_else(
    breakable: TritonServer, repository: Path
) -> None:
    async with house_before(breakable) as house, client_of(breakable) as client:
        set_versions(repository, "1, 3")
        assert await asyncio.to_thread(control, breakable, "moods", "load") == 400
        assert await client.server_ready(5.0) is False
        await asyncio.sleep(1.5)
        assert house.state is ReplicaState.LIVE
        assert house.serves("accel")


async def test_a_model_whose_process_died_is_taken_off_although_triton_calls_it_ready(breakable: TritonServer) -> None:
    async with house_before(breakable) as house, client_of(breakable) as client:
        with pytest.raises(GatewayError):
            await house.transport.send(house.call("accel", fail="crash"))
        await house.until(lambda: house.model("accel") is ModelState.READY, 10.0)
        assert await client.model_ready("accel", "1", 5.0) is True
        assert house.serves("moods")
        await asyncio.to_thread(control, breakable, "accel", "unload")
        await asyncio.to_thread(control, breakable, "accel", "load")
        await house.until(lambda: house.serves("accel"), 20.0)


async def test_figures_of_a_busy_model_are_seen(server: TritonServer) -> None:
    async with house_before(server) as house:

        def view() -> Any:
            assert house.replica is not None
            return house.replica.models["accel", "1"]

        async def caller() -> None:
            while True:
                with contextlib.suppress(GatewayError):
                    await house.transport.send(house.call("accel"))

        callers = [asyncio.ensure_future(caller()) for _ in range(4)]
        await house.until(lambda: view().batch_fill is not None and view().batch_fill > 1.0, 10.0)
        await house.until(lambda: view().compute_us is not None and view().compute_us > 3000, 10.0)
        assert view().pending is not None
        assert view().queue_us is not None
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
