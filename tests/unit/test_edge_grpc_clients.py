"""Real, unmodified clients on the gRPC edge: gRPC's library and tritonclient, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import queue
import random
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply, Response, StreamReply
from gateway.runtime.loop import LOOPS, run
from gateway.runtime.workers import ThreadWorkers
from tests.support.grpc_edge import SERVICE, MakeEdge, running_edge
from tests.support.waiting import until, wait_until

T = TypeVar("T")
WAIT_S = 60.0
MIB = 1 << 20


def echo(message: bytes, model: str) -> bytes:
    """The answer of an identity model."""
    request = pb.ModelInferRequest.FromString(message)
    answer = pb.ModelInferResponse(model_name=model, model_version="1", id=request.id)
    for given, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        answer.outputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        answer.raw_output_contents.append(raw)
    return bytes(answer.SerializeToString())


class Identity:
    """Gives back what it gets: once, or on a stream as often as `id` says. Model `slow` never answers."""

    def __init__(self) -> None:
        self.seen: list[Call] = []
        self.cancelled = 0

    async def send(self, call: Call) -> Reply:
        self.seen.append(call)
        if call.message is None:
            assert call.receive is not None
            await call.receive()
        assert call.message is not None
        call.trail.version_served, call.trail.rung = "1", "full"
        if call.model == "slow":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        answer = echo(call.message, call.model)
        if call.session is None:
            return Reply(answer)
        left = int(call.body_id or 1)

        async def following() -> Response | None:
            nonlocal left
            left -= 1
            await asyncio.sleep(0)
            return Response(answer) if left > 0 else None

        return StreamReply(Response(answer), following, ordered=True)


async def aside(work: Callable[[], T]) -> T:
    """Run what blocks in a thread, while the edge is served here."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def tensor(values: Any, module: Any = triton) -> Any:
    array: np.ndarray[Any, Any] = np.asarray(values, dtype=np.float32)
    made = module.InferInput("x", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return made


async def test_tritonclient_asks_everything(grpc_edge: MakeEdge) -> None:
    async with asyncio.timeout(WAIT_S), grpc_edge(Identity()) as edge:

        def ask() -> None:
            with triton.InferenceServerClient(edge.address) as client:
                assert client.is_server_live()
                assert client.is_server_ready()
                assert client.is_model_ready("mine")
                assert not client.is_model_ready("nosuch")
                assert client.get_server_metadata().name == "triton"
                assert list(client.get_model_metadata("mine").versions) == ["1"]
                assert client.get_model_config("mine") is not None
                assert client.get_inference_statistics("mine").model_stats[0].name == "mine"
                assert client.get_model_repository_index().models[0].name == "mine"
                with pytest.raises(InferenceServerException) as refused:
                    client.get_model_metadata("nosuch")
                assert refused.value.status() == "StatusCode.NOT_FOUND"
                with pytest.raises(InferenceServerException) as refused:
                    client.load_model("mine")
                assert refused.value.status() == "StatusCode.UNIMPLEMENTED"

        await aside(ask)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("count", [0, 1, 5000, 300_000])
async def test_tensors_come_back_as_they_went(grpc_edge: MakeEdge, compression: str | None, count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count, dtype=np.float32)
    workers = ThreadWorkers(2, "test")
    async with asyncio.timeout(WAIT_S), grpc_edge(Identity(), memory_bytes=64 * MIB, workers=workers) as edge:

        def infer() -> Any:
            with triton.InferenceServerClient(edge.address) as client:
                inputs = [tensor(values)]
                options = {"compression_algorithm": compression, "headers": {"x-user": "u", "x-raw-bin": b"\0\xff"}}
                return client.infer("mine", inputs, request_id="rid", client_timeout=30, **options)

        result = await aside(infer)
        assert (result.get_response().id, result.get_response().model_version) == ("rid", "1")
        assert np.array_equal(result.as_numpy("x"), values)
        async with triton_aio.InferenceServerClient(edge.address) as client:
            again = await client.infer("mine", [tensor(values, triton_aio)], compression_algorithm=compression)
            assert np.array_equal(again.as_numpy("x"), values)
    await workers.aclose(10)


async def test_a_tensor_of_many_mebibytes_goes_both_ways_while_small_calls_go_on(grpc_edge: MakeEdge) -> None:
    values = np.arange(8 * MIB, dtype=np.float32)
    async with (
        asyncio.timeout(WAIT_S),
        grpc_edge(Identity(), memory_bytes=256 * MIB) as edge,
        triton_aio.InferenceServerClient(edge.address) as client,
    ):
        large = asyncio.ensure_future(client.infer("mine", [tensor(values, triton_aio)]))
        small = 0
        while not large.done():
            result = await client.infer("mine", [tensor([1.0], triton_aio)])
            assert result.as_numpy("x").tolist() == [1.0]
            small += 1
        assert np.array_equal((await large).as_numpy("x"), values)
        assert small > 1


@pytest.mark.parametrize("loop", LOOPS)
def test_on_either_event_loop_large_tensors_go_both_ways(loop: str) -> None:
    values = np.arange(4 * MIB, dtype=np.float32)

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running_edge(Identity(), memory_bytes=128 * MIB) as edge:

            def infer() -> None:
                with triton.InferenceServerClient(edge.address) as client:
                    for _ in range(2):
                        for sent in (values[:3], values):
                            result = client.infer("mine", [tensor(sent)])
                            assert np.array_equal(result.as_numpy("x"), sent)

            await aside(infer)
            await until(edge.nothing_is_left)

    run(main(), loop)


async def test_a_message_over_the_limit_is_refused_by_its_length(grpc_edge: MakeEdge) -> None:
    async with asyncio.timeout(WAIT_S), grpc_edge(Identity(), receive_bytes_max=100_000) as edge:
        call = edge.call("ModelInfer", bytes(100_001))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call.details() == "SERVER: Received message larger than max (100001 vs. 100000)"
        assert await edge.infer()


async def test_a_blocking_client_cancels_and_keeps_deadlines(grpc_edge: MakeEdge) -> None:
    service = Identity()

    def seen(request_id: str) -> bool:
        return any(call.body_id == request_id for call in service.seen)

    async with asyncio.timeout(WAIT_S), grpc_edge(service) as edge:

        def leave() -> grpc.StatusCode:
            with grpc.insecure_channel(edge.address) as channel:
                method = channel.unary_unary(SERVICE + "ModelInfer")
                for timeout_s in (0.2, 1.0, 5.0):
                    with pytest.raises(grpc.RpcError) as late:
                        method(
                            pb.ModelInferRequest(model_name="slow", id="late").SerializeToString(), timeout=timeout_s
                        )
                    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    if seen("late"):  # else it was given up before it was sent, which shows nothing
                        break
                assert seen("late")
                running = method.future(pb.ModelInferRequest(model_name="slow", id="leaves").SerializeToString())
                wait_until(lambda: seen("leaves"))
                running.cancel()
                code: grpc.StatusCode = running.code()
                return code

        assert await aside(leave) is grpc.StatusCode.CANCELLED
        await until(lambda: service.cancelled == len(service.seen) and edge.nothing_is_left())
        assert edge.events.faults == 0


async def test_streams_of_tritonclient_come_in_order_and_end(grpc_edge: MakeEdge) -> None:
    async with asyncio.timeout(WAIT_S), grpc_edge(Identity(), memory_bytes=64 * MIB) as edge:

        def stream() -> list[tuple[str, float]]:
            got: queue.Queue[tuple[Any, Any]] = queue.Queue()
            found = []
            with triton.InferenceServerClient(edge.address) as client:
                client.start_stream(lambda result, error: got.put((result, error)), compression_algorithm="gzip")
                for n in range(50):
                    client.async_stream_infer("mine", [tensor([float(n)] * (n * 100 + 1))], request_id=str(n % 3 + 1))
                for _ in range(sum(n % 3 + 1 for n in range(50))):
                    result, error = got.get(timeout=WAIT_S)
                    assert error is None
                    found.append((result.get_response().id, float(result.as_numpy("x")[0])))
                client.stop_stream()
            return found

        assert await aside(stream) == [(str(n % 3 + 1), float(n)) for n in range(50) for _ in range(n % 3 + 1)]


async def test_an_asynchronous_stream_carries_large_messages_and_is_cancelled(grpc_edge: MakeEdge) -> None:
    service = Identity()
    values = np.arange(MIB // 2, dtype=np.float32)
    async with (
        asyncio.timeout(WAIT_S),
        grpc_edge(service, memory_bytes=64 * MIB) as edge,
        triton_aio.InferenceServerClient(edge.address) as client,
    ):

        async def requests() -> Any:
            for _ in range(6):
                yield {"model_name": "mine", "inputs": [tensor(values, triton_aio)], "request_id": "2"}
            yield {"model_name": "slow", "inputs": [tensor([1.0], triton_aio)]}
            await asyncio.Event().wait()

        stream = client.stream_infer(requests())
        for _ in range(12):
            result, error = await anext(stream)
            assert error is None
            assert np.array_equal(result.as_numpy("x"), values)
        await until(lambda: len(service.seen) == 7)
        stream.cancel()
        await until(lambda: service.cancelled == 1 and edge.nothing_is_left())
        assert edge.events.faults == 0


async def test_many_calls_on_many_connections_are_each_answered_with_their_own(grpc_edge: MakeEdge) -> None:
    chance = random.Random(3)
    options = (("grpc.use_local_subchannel_pool", 1),)
    service = Identity()

    async def one(method: Any, n: int) -> None:
        request = pb.ModelInferRequest(model_name="slow" if n % 10 == 9 else "mine", id=str(n))
        request.inputs.add(name="x", datatype="UINT8", shape=[n])
        request.raw_input_contents.append(n.to_bytes(4, "big") * chance.choice([1, 100, 10_000]))
        call = method(request.SerializeToString(), metadata=(("x-request-id", f"id-{n}"),), timeout=WAIT_S)
        if n % 10 == 9:
            await asyncio.sleep(0.01)
            call.cancel()
            assert await call.code() is grpc.StatusCode.CANCELLED
            return
        answer = pb.ModelInferResponse.FromString(await call)
        assert (answer.id, answer.raw_output_contents[0]) == (str(n), request.raw_input_contents[0])
        assert dict(await call.initial_metadata())["x-request-id"] == f"id-{n}"

    async with asyncio.timeout(WAIT_S), grpc_edge(service, memory_bytes=256 * MIB) as edge:
        channels = [grpc.aio.insecure_channel(edge.address, options=options) for _ in range(4)]
        methods = [channel.unary_unary(SERVICE + "ModelInfer") for channel in channels]
        await asyncio.gather(*(one(methods[n % 4], n) for n in range(400)))
        for channel in channels:
            await channel.close()
        await until(edge.nothing_is_left)
        assert edge.events.faults == 0


async def test_an_error_of_the_model_reaches_tritonclient_with_its_words(grpc_edge: MakeEdge) -> None:
    class Failing:
        async def send(self, call: Call) -> Reply:
            raise GatewayError(Reason.UPSTREAM_BROKEN, "größer als 100 % erlaubt\nsind nicht")

    async with asyncio.timeout(WAIT_S), grpc_edge(Failing()) as edge:
        async with triton_aio.InferenceServerClient(edge.address) as client:
            with pytest.raises(InferenceServerException) as failed:
                await client.infer("mine", [tensor([1.0], triton_aio)])
        assert failed.value.status() == "StatusCode.INTERNAL"
        assert "größer als 100 % erlaubt\nsind nicht" in failed.value.message()
