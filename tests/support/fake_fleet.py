"""A gateway process in front of fakes that run in the test's own loop: start it, call it, read what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb

from tests.support.fake_triton import FakeTriton, static
from tests.support.field_http import ask
from tests.support.gateway_process import GatewayProcess, write_policies
from tests.support.http_answer import Answer
from tests.support.pace import SteadyCalls

WAIT_S = 30.0
PATIENT = {"interval_ms": 300, "timeout_ms": 3000, "failures_to_down": 4}
"""Fakes share their loop with the test, which may stand still for a moment on a busy machine; that is no fault of
theirs. A closed port needs no patience.
"""
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller was told, over either protocol. `code` is the HTTP status, or the name of the gRPC status; `after`
    is `retry-after` in seconds, or `grpc-retry-pushback-ms` in milliseconds, None without.
    """

    code: int | str
    text: str
    headers: Mapping[str, str]
    after: float | None

    @property
    def ok(self) -> bool:
        return self.code in (200, "OK")

    @property
    def reason(self) -> str:
        return self.headers.get("x-sluice-reason", "")

    @property
    def attempts(self) -> int:
        return int(self.headers.get("x-sluice-attempts", "0"))


class FakeFleet:
    """The fakes, and the gateway before them."""

    def __init__(self, fakes: Sequence[FakeTriton], gateway: GatewayProcess) -> None:
        self.fakes = fakes
        self.gateway = gateway
        self.channel = grpc.aio.insecure_channel(gateway.grpc)
        self._number = 0

    # -- calls --------------------------------------------------------------------------------------------------------

    def next_id(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}-{self._number}"

    async def http(self, model: str, request_id: str, *, version: str = "", path: str = "infer") -> Told:
        """One call over a connection of its own."""
        where = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}
        body: dict[str, Any] = {"id": request_id, "inputs": [tensor]} if path == "infer" else {"text_input": "x"}
        if path != "infer":
            body["id"] = request_id
        answer = await asyncio.to_thread(
            ask, self.gateway.http, f"{where}/{path}", json.dumps(body).encode(), {"x-request-id": request_id}
        )
        return _told(answer)

    async def grpc(self, model: str, request_id: str, *, version: str = "") -> Told:
        call = self.channel.unary_unary(UNARY)(
            request(model, request_id, version=version), metadata=(("x-request-id", request_id),), timeout=WAIT_S
        )
        try:
            answer = pb.ModelInferResponse.FromString(await call)
            return Told("OK", answer.raw_output_contents[0][4:].decode(), dict(await call.trailing_metadata()), None)
        except grpc.aio.AioRpcError as error:
            trailing = {str(key): str(value) for key, value in error.trailing_metadata() or ()}
            pushback = trailing.get("grpc-retry-pushback-ms")
            return Told(
                error.code().name, error.details() or "", trailing, None if pushback is None else float(pushback)
            )

    async def call(self, protocol: str, model: str, request_id: str, *, version: str = "") -> Told:
        if protocol == "http":
            return await self.http(model, request_id, version=version)
        return await self.grpc(model, request_id, version=version)

    def stream(self, request_id: str = "", **metadata: str) -> Any:
        """A ModelStreamInfer of raw requests (`write`, `done_writing`, `read`, as grpcio has them)."""
        pairs = (("x-request-id", request_id), *metadata.items()) if request_id else tuple(metadata.items())
        return self.channel.stream_stream(STREAM, None, pb.ModelStreamInferResponse.FromString)(
            metadata=pairs, timeout=WAIT_S
        )

    async def ready(self, model: str = "") -> bool:
        """Whether the model (the server) is ready. Both protocols must agree; they are asked again if they do not,
        since it may just have changed.
        """
        path = f"/v2/models/{model}/ready" if model else "/v2/health/ready"
        said: set[bool] = set()
        for _ in range(3):
            status, _ = await self.get("http", path)
            assert status in (200, 400)
            if model:
                answer = await self._control("ModelReady", pb.ModelReadyRequest(name=model), pb.ModelReadyResponse)
            else:
                answer = await self._control("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
            said = {status == 200, bool(answer.ready)}
            if len(said) == 1:
                break
        assert len(said) == 1, f"HTTP and gRPC disagree about {model or 'the server'}"
        return said.pop()

    async def live(self) -> bool:
        status, _ = await self.get("http", "/v2/health/live")
        answer = await self._control("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        assert (status == 200) == answer.live
        return status == 200

    async def _control(self, method: str, message: Any, kind: Any) -> Any:
        ask_for = self.channel.unary_unary(f"/inference.GRPCInferenceService/{method}", None, kind.FromString)
        return await ask_for(message.SerializeToString(), timeout=WAIT_S)

    # -- what the gateway says of itself ------------------------------------------------------------------------------

    async def get(self, port: str, path: str) -> tuple[int, bytes]:
        headers = {}
        if port == "admin":
            token = (self.gateway.directory / "state" / "admin-token").read_text().strip()
            headers["authorization"] = f"Bearer {token}"
        return await asyncio.to_thread(self.gateway.get, port, path, headers)

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """The pool's replicas by gRPC address."""
        status, body = await self.get("admin", "/v1/fleet")
        assert status == 200
        return {each["address"]: each for each in json.loads(body)["pools"]["cpu"]["replicas"]}

    async def takers(self, model: str, version: str = "1") -> set[str]:
        """gRPC addresses of the live replicas that take calls of it."""
        wanted = {"model": model, "version": version, "state": "warmed"}
        return {
            address
            for address, replica in (await self.replicas()).items()
            if replica["state"] == "live" and any(wanted.items() <= each.items() for each in replica["models"])
        }

    async def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of that name with these labels. The page is at most half a second old."""
        found = [each for each in await self.samples() if each.name == name and labels.items() <= each.labels.items()]
        return float(sum(each.value for each in found))

    async def samples(self) -> list[Any]:
        status, body = await self.get("metrics", "/metrics")
        assert status == 200
        return [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]

    async def records(self, prefix: str, count: int) -> list[dict[str, Any]]:
        """The records of calls whose request id begins with `prefix`, as soon as there are `count`."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [each for each in self.gateway.records() if each["request_id"].startswith(prefix)]
            return len(found) >= count

        await until(there, f"{count} records of {prefix}")
        assert len(found) == count, f"one record per call, not {len(found)} for {count}"
        return found

    async def serving(self, *models: str, fakes: Iterable[FakeTriton] | None = None) -> None:
        """Wait until these fakes (all) take calls of each model."""
        wanted = {fake.addresses["grpc"] for fake in (self.fakes if fakes is None else fakes)}

        async def there() -> bool:
            return all([await self.takers(model) == wanted for model in models])

        await until_async(there, f"{models} served by {sorted(wanted)}")


class Traffic(SteadyCalls):
    """Calls of one model, every tenth over HTTP."""

    def __init__(self, fleet: FakeFleet, model: str, every_s: float = 0.01) -> None:
        super().__init__(every_s)
        self.good = 0
        self.failed: list[Told] = []
        self.begun = 0
        """Calls begun so far."""
        self.failed_numbers: list[int] = []
        """Of the calls that failed, which they were: 1 is the first that was begun."""
        self._fleet = fleet
        self._model = model

    async def _one(self) -> None:
        self.begun += 1
        number = self.begun
        protocol = "grpc" if number % 10 else "http"
        told = await self._fleet.call(protocol, self._model, self._fleet.next_id(f"load-{self._model}"))
        if told.ok:
            self.good += 1
        else:
            self.failed.append(told)
            self.failed_numbers.append(number)


@asynccontextmanager
async def fleet_of(
    directory: Path,
    fakes: Sequence[FakeTriton],
    models: Mapping[str, Mapping[str, Any]],
    *,
    pool: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    module: str = "gateway",
    wait_for: Sequence[str] | None = None,
) -> AsyncIterator[FakeFleet]:
    """Start a gateway before the running fakes, and wait until all of them take calls of each model of `wait_for` (all
    models). `more` goes into fleet.yaml as it stands. At the end it must stop in order.
    """
    policies = {name: {"objective": {"p99_ms": 1000}, **policy} for name, policy in models.items()}
    listen = write_policies(
        directory, static(fakes), models=policies, pool={"health": PATIENT, **(pool or {})}, fleet=more
    )
    with GatewayProcess(directory, listen, module=module) as gateway:
        fleet = FakeFleet(fakes, gateway)
        try:
            wanted = tuple(models) if wait_for is None else wait_for
            if wanted:
                await asyncio.to_thread(gateway.wait_ready)
                await fleet.serving(*wanted)
            yield fleet
            await fleet.channel.close()
            assert await asyncio.to_thread(gateway.stop) == 0, gateway.log_text()
        finally:
            await fleet.channel.close()


def request(model: str, request_id: str, text: bytes = b"x", *, version: str = "") -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    return bytes(message.SerializeToString())


def _told(answer: Answer) -> Told:
    after = answer.headers.get("retry-after")
    text = answer.error if answer.status != 200 else answer.body.decode()
    return Told(answer.status, text, answer.headers, None if after is None else float(after))


async def until(check: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    async def asked() -> bool:
        return check()

    await until_async(asked, what, limit_s)


async def until_async(check: Callable[[], Any], what: str, limit_s: float = WAIT_S) -> None:
    """Wait until `check` says so."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not await check():
        assert loop.time() < end_s, f"not within {limit_s:g} s: {what}"
        await asyncio.sleep(0.05)
