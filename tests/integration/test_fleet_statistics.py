"""Statistics and the repository index through the gateway: as from one Triton, and over two the sum of both. All four
unmodified clients.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException

from deploy.local import LocalFleet
from tests.conftest import replicas_of
from tests.integration.test_differential import FLAVOURS, Client
from tests.support.gateway_process import MODEL_POLICIES, GatewayProcess, write_policies

MODELS = frozenset(MODEL_POLICIES)
FEATURES = np.random.default_rng(7).random((3, 12), dtype=np.float32)
REFUSED_EXTENSIONS = {
    "system_shared_memory",
    "cuda_shared_memory",
    "trace",
    "logging",
    "model_repository(unload_dependents)",
}


@pytest.fixture(scope="module")
def single(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in front of triton-0 alone."""
    directory = tmp_path_factory.mktemp("single")
    listen = write_policies(directory, replicas_of(fleet)[:1])
    with GatewayProcess(directory, listen) as process:
        yield process.wait_ready().wait_warmed(*MODELS)
        assert process.stop() == 0, process.log_text()


@pytest.fixture(params=FLAVOURS)
async def clients(
    request: pytest.FixtureRequest, fleet: LocalFleet, gateway: GatewayProcess, single: GatewayProcess
) -> AsyncIterator[dict[str, Client]]:
    """One flavour of tritonclient to each server, to both gateways; nobody calls the servers any more."""
    gateway.wait_warmed(*MODELS)  # a test before may have broken a server of the shared fleet
    flavour = request.param
    port = "http_address" if "http" in flavour else "grpc_address"
    addresses = {name: getattr(fleet[name].spec, port) for name in ("triton-0", "triton-1")}
    for name, process in (("gateway", gateway), ("single", single)):
        addresses[name] = process.http if "http" in flavour else process.grpc
    opened = {name: Client(flavour, address) for name, address in addresses.items()}
    await nothing_is_counted_any_more(opened["triton-0"], opened["triton-1"])
    yield opened
    for client in opened.values():
        await client.close()


async def nothing_is_counted_any_more(*servers: Client) -> None:
    """An answer may come before it is counted: wait until the counts stand still."""
    before: list[Any] = []
    async with asyncio.timeout(60):
        while before != (now := [rows(await each.call("get_inference_statistics")) for each in servers]):
            before = now
            await asyncio.sleep(0.1)


def everything(answer: Any) -> list[Any]:
    """The rows of statistics, or the lines of an index."""
    if isinstance(answer, dict):
        return list(answer["model_stats"])
    if isinstance(answer, list):
        return answer
    return list(answer.model_stats if hasattr(answer, "model_stats") else answer.models)


def opened(answer: Any) -> list[Any]:
    """Those of models that policies name; Triton shows all others too."""
    return [each for each in everything(answer) if (each["name"] if isinstance(each, dict) else each.name) in MODELS]


def rows(answer: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Statistics by model and version, in one form for both protocols: numbers as numbers, what is zero left out."""
    if not isinstance(answer, dict):
        answer = json_format.MessageToDict(answer, preserving_proto_field_name=True)
    return {
        (row["name"], row["version"]): _numbers(row) for row in answer.get("model_stats", []) if row["name"] in MODELS
    }


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items() if _numbers(each) not in (0, {}, [])}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def sums(value: Any, other: Any) -> Any:
    """Two rows of statistics as one, as the manual has it."""
    total = dict(value)
    for key, each in other.items():
        if key in ("name", "version"):
            continue
        if key == "last_inference":
            total[key] = max(total.get(key, 0), each)
        elif key == "batch_stats":
            sizes = {row["batch_size"]: row for row in total.get(key, [])}
            for row in each:
                size = row["batch_size"]
                sizes[size] = {**sums(sizes[size], row), "batch_size": size} if size in sizes else row
            total[key] = [sizes[size] for size in sorted(sizes)]
        elif isinstance(each, dict):
            total[key] = sums(total.get(key, {}), each)
        else:
            total[key] = total.get(key, 0) + each
    return total


async def test_with_one_replica_statistics_and_index_are_tritons_own(clients: dict[str, Client]) -> None:
    direct, through = clients["triton-0"], clients["single"]
    for arguments in ((), ("fraud",), ("fraud", "1"), ("accel", "1"), ("", "1")):
        expected = await direct.call("get_inference_statistics", *arguments)
        actual = await through.call("get_inference_statistics", *arguments)
        assert opened(actual) == opened(expected), arguments
        assert len(opened(actual)) == len(everything(actual)), "and nothing else is shown"
    expected, actual = [await each.call("get_model_repository_index") for each in (direct, through)]
    assert opened(actual) == opened(expected)
    assert len(opened(actual)) == len(everything(actual))


async def test_over_two_replicas_they_are_the_sum(clients: dict[str, Client]) -> None:
    parts = [rows(await clients[name].call("get_inference_statistics")) for name in ("triton-0", "triton-1")]
    merged = rows(await clients["gateway"].call("get_inference_statistics"))
    assert list(merged) == list(parts[0])
    for key, row in merged.items():
        assert row == sums(parts[0][key], parts[1][key])
    index = await clients["gateway"].call("get_model_repository_index")
    assert everything(index) == opened(await clients["triton-1"].call("get_model_repository_index"))


async def test_calls_through_the_gateway_are_counted_once(clients: dict[str, Client]) -> None:
    through = clients["gateway"]
    before = rows(await through.call("get_inference_statistics", "fraud", "2"))["fraud", "2"]
    for _ in range(12):
        await through.call("infer", "fraud", [through.tensor("features", FEATURES, "FP32")], model_version="2")
    await nothing_is_counted_any_more(clients["triton-0"], clients["triton-1"])
    after = rows(await through.call("get_inference_statistics", "fraud", "2"))["fraud", "2"]
    assert after["inference_count"] - before["inference_count"] == 12 * len(FEATURES)
    success = [row["inference_stats"]["success"]["count"] for row in (before, after)]
    assert success[1] - success[0] == 12
    assert after["last_inference"] > before["last_inference"]


async def test_many_who_ask_at_once_get_the_same_as_one(clients: dict[str, Client], gateway: GatewayProcess) -> None:
    one = clients["gateway"]
    expected = rows(await one.call("get_inference_statistics"))
    others = [Client(one.flavour, gateway.http if "http" in one.flavour else gateway.grpc) for _ in range(4)]
    try:
        if one.flavour.endswith("aio"):
            found = await asyncio.gather(*(each.call("get_inference_statistics") for each in others for _ in range(10)))
        else:
            found = [await each.call("get_inference_statistics") for each in others]
    finally:
        for each in others:
            await each.close()
    assert all(rows(each) == expected for each in found)


async def status_of(client: Client, name: str, *arguments: Any) -> tuple[str | None, str]:
    with pytest.raises(InferenceServerException) as caught:
        await client.call(name, *arguments)
    return caught.value.status(), caught.value.message()


@pytest.mark.parametrize("arguments", [("nosuch",), ("nosuch", "1"), ("fraud", "77"), ("fraud", "0")])
async def test_statistics_of_what_is_not_there_fail_as_on_triton(
    clients: dict[str, Client], arguments: tuple[str, ...]
) -> None:
    expected = await status_of(clients["triton-0"], "get_inference_statistics", *arguments)
    assert await status_of(clients["gateway"], "get_inference_statistics", *arguments) == expected


async def test_what_belongs_to_one_server_is_refused_with_where_to_do_it(clients: dict[str, Client]) -> None:
    through = clients["gateway"]
    over_http = "http" in through.flavour
    refused: list[tuple[str, tuple[Any, ...]]] = [
        ("get_trace_settings", ()),
        ("get_trace_settings", ("fraud",)),
        ("update_trace_settings", ("fraud", {"trace_rate": "1"})),
        ("get_log_settings", ()),
        ("update_log_settings", ({"log_verbose_level": 0},)),
        ("load_model", ("fraud",)),
        ("unload_model", ("fraud",)),
        ("get_system_shared_memory_status", ()),
        ("register_system_shared_memory", ("r", "/r", 64)),
        ("unregister_system_shared_memory", ("r",)),
        ("get_cuda_shared_memory_status", ()),
        ("unregister_cuda_shared_memory", ()),
    ]
    for name, arguments in refused:
        status, text = await status_of(through, name, *arguments)
        assert status == ("501" if over_http else "StatusCode.UNIMPLEMENTED"), name
        assert "model server" in text, name
    metadata = await through.call("get_server_metadata")
    shown = set(metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions)
    theirs = await clients["triton-0"].call("get_server_metadata")
    all_of_them = set(theirs["extensions"] if isinstance(theirs, dict) else theirs.extensions)
    assert all_of_them - shown == REFUSED_EXTENSIONS
    assert shown < all_of_them


def post(address: str, path: str, body: bytes) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{address}{path}", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_index_over_http_takes_the_same_bodies(fleet: LocalFleet, single: GatewayProcess) -> None:
    direct = fleet["triton-0"].spec.http_address
    for body in (b"", b"{}", b'{"ready":true}', b'{"ready":false}', b"[]", b"null", b'{"other":1}'):
        expected = post(direct, "/v2/repository/index", body)
        status, answer = post(single.http, "/v2/repository/index", body)
        assert (status, json.loads(answer)) == (expected[0], opened(json.loads(expected[1])))
    for body in (b"{", b'{"ready":1}', b'{"ready":null}', b" "):
        assert post(direct, "/v2/repository/index", body)[0] == 500
        status, answer = post(single.http, "/v2/repository/index", body)
        assert (status, list(json.loads(answer))) == (400, ["error"])
    for path in ("/v2/repository/theirs/index", "/v2/repository/theirs/models/fraud/load"):
        assert post(single.http, path, b"")[0] == 501


async def test_a_frozen_replica_counts_with_its_last_word(
    breakable_fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("frozen")
    listen = write_policies(directory, replicas_of(breakable_fleet))
    with GatewayProcess(directory, listen) as process:
        process.wait_ready().wait_warmed(*MODELS)
        client = Client("grpc.aio", process.grpc)
        try:
            key = ("fraud", "2")
            for _ in range(10):
                await client.call("infer", "fraud", [client.tensor("features", FEATURES, "FP32")], model_version="2")
            await nothing_is_counted_any_more(client)
            before = rows(await client.call("get_inference_statistics"))
            breakable_fleet["triton-1"].freeze()
            for _ in range(3):
                assert rows(await client.call("get_inference_statistics"))[key] == before[key]
            index = await client.call("get_model_repository_index")
            assert all(line.state == "READY" for line in index.models)
            assert all("no answer from 1" in line.reason for line in index.models)
            breakable_fleet["triton-0"].freeze()
            status, text = await status_of(client, "get_inference_statistics")
            assert status == "StatusCode.UNAVAILABLE"
            assert "none of 2 model servers answered" in text
        finally:
            await client.close()
        assert process.stop() == 0, process.log_text()
