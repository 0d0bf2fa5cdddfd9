"""Two classes of calls on a real Triton that is asked for three times what it can do: the top class is never shed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from deploy.local import LocalFleet
from tests.conftest import replicas_of
from tests.support.gateway_process import MODEL_POLICIES, GatewayProcess, write_policies
from tests.support.waiting import wait_until

INFER = "/inference.GRPCInferenceService/ModelInfer"
WORK = 10.0
"""Of each call: a batch of eight takes 84 ms, so that it is 95 calls a second."""
TOP, REST, SECONDS = 25, 260, 4
"""Calls a second of either class."""
DEADLINE_S = 2.0
SHED = {"shed", "queue_full"}

Told = tuple[str, Mapping[str, str]]
"""The reason, "" for an answer, and what came as headers or metadata."""


@pytest.fixture
def crowded(bounded_fleet: LocalFleet, tmp_path: Path) -> Iterator[GatewayProcess]:
    fleet = {"identity": {"highest_class": "critical_plus"}}
    listen = write_policies(
        tmp_path, replicas_of(bounded_fleet), models={"accel": MODEL_POLICIES["accel"]}, fleet=fleet
    )
    with GatewayProcess(tmp_path, listen) as gateway:
        yield gateway.wait_ready().wait_models("accel")
        assert gateway.stop() == 0, gateway.log_text()


async def by_grpc(gateway: GatewayProcess, channel: grpc.aio.Channel, word: str) -> Told:
    request = service_pb2.ModelInferRequest(model_name="accel")
    request.inputs.add(name="work", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.float32(WORK).tobytes())
    call = channel.unary_unary(INFER)
    rpc = call(request.SerializeToString(), timeout=DEADLINE_S, metadata=(("x-sluice-priority", word),))
    code = await rpc.code()
    trailing = {key: str(value) for key, value in await rpc.trailing_metadata()}
    return "" if code is grpc.StatusCode.OK else trailing.get("x-sluice-reason", code.name), trailing


async def by_http(gateway: GatewayProcess, session: aiohttp.ClientSession, word: str) -> Told:
    body = {"inputs": [{"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [WORK]}]}
    headers = {"x-sluice-priority": word, "x-request-timeout-ms": str(int(DEADLINE_S * 1000))}
    url = f"http://{gateway.http}/v2/models/accel/infer"
    async with session.post(url, data=json.dumps(body), headers=headers) as answer:
        await answer.read()
        said = {name.lower(): value for name, value in answer.headers.items()}
        return "" if answer.status == 200 else said["x-sluice-reason"], said


async def paced(rate: int, make: Any) -> list[Told]:
    """`rate` calls a second for `SECONDS`, however long each takes."""
    loop = asyncio.get_running_loop()
    begin_s, tasks = loop.time(), []
    for number in range(rate * SECONDS):
        await asyncio.sleep(max(0.0, begin_s + number / rate - loop.time()))
        work: Coroutine[Any, Any, Told] = make()
        tasks.append(loop.create_task(work))
    return list(await asyncio.gather(*tasks))


@pytest.mark.parametrize("top_by", ["http", "grpc"])
async def test_the_top_class_is_never_shed(crowded: GatewayProcess, top_by: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with grpc.aio.insecure_channel(crowded.grpc) as channel, aiohttp.ClientSession(connector=connector) as http:
        over = {
            "http": lambda word: lambda: by_http(crowded, http, word),
            "grpc": lambda word: lambda: by_grpc(crowded, channel, word),
        }
        rest_by = "grpc" if top_by == "http" else "http"
        top, rest = await asyncio.gather(
            paced(TOP, over[top_by]("critical_plus")), paced(REST, over[rest_by]("sheddable"))
        )
    tops, rests = Counter(reason for reason, _ in top), Counter(reason for reason, _ in rest)
    assert not SHED & set(tops), (tops, rests)
    assert sum(rests[reason] for reason in SHED), (tops, rests)
    assert tops[""] / len(top) > rests[""] / len(rest) > 0, "what is free is theirs"

    hints = [said for reason, said in rest if reason in SHED]
    if rest_by == "http":
        assert all(int(said["retry-after"]) >= 1 for said in hints)
    else:
        waits_ms = {int(said["grpc-retry-pushback-ms"]) for said in hints}
        assert min(waits_ms) >= 1000
        assert len(waits_ms) > 1, "jittered"

    wait_until(lambda: len(crowded.records()) == len(top) + len(rest))
    by_class: dict[str, Counter[str]] = {"critical_plus": Counter(), "sheddable": Counter()}
    for each in crowded.records():
        by_class[each["class"]][each["reason"]] += 1
    assert by_class == {"critical_plus": tops, "sheddable": rests}
    page = crowded.get("metrics", "/metrics")[1].decode()
    shed = [line for line in page.splitlines() if line.startswith("sluice_calls_shed_total{")]
    assert any('class="sheddable"' in line for line in shed)
    assert not [line for line in shed if 'class="critical_plus"' in line and "infeasible" not in line]
