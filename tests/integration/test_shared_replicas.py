"""Which of two real Tritons gets a call: one that others use too is avoided by its own count of waiting calls, and
calls of one key go to one of them, whatever protocol they come by.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.request
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

from deploy.local import LocalFleet, TritonServer, free_ports
from tests.conftest import replicas_of
from tests.support.gateway_process import GatewayProcess, write_policies

INFER = "/inference.GRPCInferenceService/ModelInfer"
CALLS = 30
FOREIGN = 40
"""Calls of the other client at one time: five batches, of which one runs."""


def executed(server: TritonServer) -> int:
    """How many calls of accel the server has answered."""
    with urllib.request.urlopen(server.spec.metrics_url, timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = [line for line in lines if line.startswith("nv_inference_request_success{") and 'model="accel"' in line]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in found))


async def since(servers: list[TritonServer], before: list[int], calls: int) -> list[int]:
    """What each has answered since, when all are counted: Triton answers first and counts then."""
    async with asyncio.timeout(30):
        while True:
            went = [executed(server) - count for server, count in zip(servers, before, strict=True)]
            if sum(went) >= calls:
                return went
            await asyncio.sleep(0.05)


def work(milliseconds: float) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="accel")
    request.inputs.add(name="work", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.array([[milliseconds]], dtype=np.float32).tobytes())
    return bytes(request.SerializeToString())


def call_through(gateway: GatewayProcess, user: str = "") -> None:
    """Calls that take no time, one after the other, so that none waits for another of them."""
    headers = {"x-user": user} if user else {}
    host, _, port = gateway.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = json.dumps({"inputs": [{"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [0]}]})
    for _ in range(CALLS):
        connection.request("POST", "/v2/models/accel/infer", body=body, headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()


async def call_over_grpc(gateway: GatewayProcess, user: str) -> None:
    """The same over gRPC, with the key as metadata."""
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        for _ in range(CALLS):
            await channel.unary_unary(INFER)(work(0), metadata=(("x-user", user),))


def foreign_calls(gateway: GatewayProcess) -> list[int]:
    """What the gateway believes of either replica, by its id."""
    token = (gateway.directory / "state" / "admin-token").read_text().strip()
    _, body = gateway.get("admin", "/v1/fleet", {"authorization": f"Bearer {token}"})
    known: dict[str, Any] = json.loads(body)["statistics"]["admission"]["accel"]["1"]["picker"]["replicas"]
    return [known[replica]["foreign"] for replica in sorted(known)]


class Neighbour:
    """Another client of one Triton, with `FOREIGN` calls out there at any time."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._infer = self._channel.unary_unary(INFER)
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(FOREIGN)]

    async def _work(self) -> None:
        while True:
            await self._infer(work(25))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._channel.close()


async def test_keys_stay_at_home_and_a_replica_that_a_foreign_client_loads_is_avoided(tmp_path: Path) -> None:
    policies = tmp_path / "gateway"
    with LocalFleet(2, ("accel",), ports=free_ports(2), log_dir=tmp_path / "logs") as fleet:
        listen = write_policies(
            policies,
            replicas_of(fleet),
            models={
                "accel": {
                    "objective": {"p99_ms": 1000},
                    "deadline": {"default_ms": 20_000},
                    "affinity": {"by": "header", "name": "x-user"},
                }
            },
            pool={"scrape": {"interval_ms": 300, "shared_interval_ms": 100}},
        )
        servers = [fleet["triton-0"], fleet["triton-1"]]
        with GatewayProcess(policies, listen) as gateway:
            gateway.wait_ready().wait_warmed("accel")
            before = [executed(server) for server in servers]
            await asyncio.to_thread(call_through, gateway)
            alone = await since(servers, before, CALLS)
            assert min(alone) > 0, "either is used while nobody else is there"
            assert foreign_calls(gateway) == [0, 0]
            homes = set()
            for user in ("ann", "bob", "cid", "dan", "eve", "fay"):
                before = [executed(server) for server in servers]
                await asyncio.to_thread(call_through, gateway, user)
                await call_over_grpc(gateway, user)
                went = await since(servers, before, 2 * CALLS)
                assert sorted(went) == [0, 2 * CALLS], f"{user} has one home over both protocols"
                homes.add(went.index(2 * CALLS))
            assert homes == {0, 1}
            neighbour = Neighbour(servers[0].spec.grpc_address)
            try:
                async with asyncio.timeout(60):
                    while not any(foreign_calls(gateway)):
                        await asyncio.sleep(0.05)
                before = [executed(server) for server in servers]
                await asyncio.to_thread(call_through, gateway)
                mine = executed(servers[1]) - before[1]
            finally:
                await neighbour.stop()
            assert mine >= CALLS - 2, "a count may be late once; and then the load is seen by how long that call took"
            async with asyncio.timeout(60):
                while any(foreign_calls(gateway)):
                    await asyncio.sleep(0.05)
            assert gateway.stop() == 0, gateway.log_text()
