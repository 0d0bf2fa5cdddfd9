"""FH-22 · Anyone can grow the metrics page by making names up.

Hostile names over both protocols against a real gateway process in front of real Tritons: the page may grow by a few
dozen lines once, still parses, is made quickly, and the process does not grow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2

from tests.support.gateway_process import GatewayProcess

HTTP_REQUESTS = 14_000
GRPC_REQUESTS = 6_000
CONNECTIONS = 8
LINES_MAX = 50
RSS_MAX_BYTES = 20 * 1024 * 1024


def page(gateway: GatewayProcess) -> str:
    status, body = gateway.get("metrics", "/metrics")
    assert status == 200
    return body.decode("utf-8")


def rss_bytes(gateway: GatewayProcess) -> int:
    for line in Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def hostile_name(chance: random.Random) -> str:
    kind = chance.randrange(7)
    if kind == 0:
        return "x" * chance.choice((100, 1000, 6000))
    return "".join(chance.choices('ab"\\\né\x7f{}=,🙂', k=chance.randrange(1, 40))) + str(chance.random())


def quoted(text: str) -> bytes:
    return b"".join(b"%%%02X" % byte for byte in text.encode("utf-8", "surrogatepass"))


def http_request(chance: random.Random) -> bytes:
    name = quoted(hostile_name(chance))[:7000]
    kind = chance.randrange(8)
    method, body = b"POST", b'{"inputs":[]}'
    path = b"/v2/models/" + name + b"/infer"
    headers = b""
    if kind == 1:
        path = b"/v2/models/fraud/versions/%d/infer" % chance.randrange(3, 10**12)
    elif kind == 2:
        path, method, body = b"/" + name, b"GET", b""
    elif kind == 3:
        path = b"/v2/models/" + name
        method, body = chance.choice((b"PROPFIND", b"PUT", b"DELETE", b"PATCH")), b""
    elif kind == 4:
        path = b"/v2/models/fraud/infer"
        body = b'{"inputs":[],"outputs":[{"name":"%d"}],"parameters":{"sequence_id":%d}}' % (
            chance.randrange(10**9),
            chance.randrange(1, 10**9),
        )
    elif kind == 5:
        headers = b"x-request-id: r-%d\r\nx-tenant: t-%d\r\nx-user: u-%d\r\n" % tuple(
            chance.randrange(10**9) for _ in range(3)
        )
    elif kind == 6:
        path, method, body = b"/v2/models/" + name + b"/ready", b"GET", b""
    host = b"h%d.example" % chance.randrange(10**9)
    return b"%s %s HTTP/1.1\r\nhost: %s\r\n%scontent-length: %d\r\n\r\n%s" % (
        method, path, host, headers, len(body), body,
    )  # fmt: skip


async def hostile_http(gateway: GatewayProcess, chance: random.Random, count: int) -> None:
    host, _, port = gateway.http.rpartition(":")
    reader = writer = None
    for _ in range(count):
        if writer is None or writer.is_closing():
            reader, writer = await asyncio.open_connection(host, int(port))
        assert reader is not None
        writer.write(http_request(chance))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lowered = head.lower()
            start = lowered.find(b"content-length:")
            if start >= 0:
                await reader.readexactly(int(lowered[start + 15 : lowered.find(b"\r\n", start)]))
            if b"connection: close" in lowered:
                writer.close()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()
    if writer is not None:
        writer.close()


async def hostile_grpc(gateway: GatewayProcess, chance: random.Random, count: int) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:

        async def one() -> None:
            message = service_pb2.ModelInferRequest(
                model_name=hostile_name(chance), model_version=str(chance.randrange(10**9)), id=str(chance.random())
            ).SerializeToString()
            kind = chance.randrange(4)
            path = "/inference.GRPCInferenceService/ModelInfer"
            if kind == 1:
                path = f"/service{chance.randrange(10**9)}.Random/Method{chance.randrange(10**9)}"
            elif kind == 2:
                message = chance.randbytes(chance.randrange(1, 60))
            elif kind == 3:
                path = "/inference.GRPCInferenceService/ModelMetadata"
            metadata = (("x-request-id", str(chance.random())), ("x-tenant", str(chance.random())))
            call: Callable[..., Awaitable[bytes]] = channel.unary_unary(path)
            try:
                await call(message, metadata=metadata)
            except grpc.aio.AioRpcError:
                return

        for _ in range(count // 20):
            await asyncio.gather(*(one() for _ in range(20)))


async def test_invented_names_do_not_grow_the_page(gateway: GatewayProcess) -> None:
    async with asyncio.timeout(240):
        await hostile_http(gateway, random.Random(0), 50)
        await hostile_grpc(gateway, random.Random(0), 40)
        await asyncio.sleep(0.6)  # the page is kept for half a second
        before, rss_before = page(gateway), rss_bytes(gateway)
        share = HTTP_REQUESTS // CONNECTIONS
        await asyncio.gather(
            *(hostile_http(gateway, random.Random(seed), share) for seed in range(1, CONNECTIONS + 1)),
            hostile_grpc(gateway, random.Random(99), GRPC_REQUESTS),
        )
        took_s = []
        for _ in range(3):  # the machine may be busy with something else at one of the three
            await asyncio.sleep(0.6)
            started_s = time.monotonic()
            after = page(gateway)
            took_s.append(time.monotonic() - started_s)
    grown = len(after.splitlines()) - len(before.splitlines())
    assert grown <= LINES_MAX, f"the page grew by {grown} lines"
    families = list(text_string_to_metric_families(after))
    labels = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert not any("🙂" in value or "\x7f" in value or len(value) > 255 for value in labels)
    assert min(took_s) < 2.0
    assert rss_bytes(gateway) - rss_before < RSS_MAX_BYTES
    calls = [sample for family in families for sample in family.samples if sample.name == "sluice_calls_total"]
    assert sum(sample.value for sample in calls if sample.labels["model"] == "other") > 1000, (
        "they were counted, as one"
    )


async def test_two_known_models_have_separate_series(gateway: GatewayProcess) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for name in ("fraud", "fraud-lite"):
            request = service_pb2.ModelInferRequest(model_name=name)
            request.inputs.add(name="features", datatype="FP32", shape=[1, 12])
            request.raw_input_contents.append(bytes(48))
            await infer(request.SerializeToString())
    await asyncio.sleep(0.6)
    models = {
        sample.labels["model"]
        for family in text_string_to_metric_families(page(gateway))
        for sample in family.samples
        if sample.name == "sluice_answers_total"
    }
    assert {"fraud", "fraud-lite"} <= models
