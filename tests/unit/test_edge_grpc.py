"""The gRPC edge: what comes in as a call, what goes out as status and metadata, and that nothing stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.grpc_methods import REFUSED
from tests.support.grpc_edge import ANSWER, SERVICE, MakeEdge, OneKey
from tests.support.service import ScriptedService


def answer(call: Call) -> Reply:
    call.trail.version_served, call.trail.rung = "1", "full"
    return Reply(ANSWER)


class Receiving:
    """Asks for the body before it goes on, as the deadline layer does."""

    def __init__(self, inner: ScriptedService) -> None:
        self.inner = inner
        self.seen: list[Call] = []

    async def send(self, call: Call) -> Reply:
        self.seen.append(call)
        if call.message is None:
            assert call.receive is not None
            await call.receive()
        return await self.inner.send(call)


async def status(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    async with asyncio.timeout(10):
        code = await call.code()
        return code, await call.details(), dict(await call.trailing_metadata())


async def test_an_answer_carries_its_metadata_in_two_places(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ScriptedService(answer)) as edge:
        call = edge.infer(metadata=(("x-request-id", "abc"),), timeout=10)
        assert await call == ANSWER
        initial = dict(await call.initial_metadata())
        _, _, trailing = await status(call)
    for key, value in (
        ("x-request-id", "abc"), ("x-sluice-model", "mine"), ("x-sluice-model-version", "1"),
        ("x-sluice-rung", "full"), ("x-sluice-cache", "bypass"),
    ):  # fmt: skip
        assert initial[key] == value
    assert trailing["x-sluice-attempts"] == "0"
    assert not set(initial) & {"x-sluice-attempts", "x-sluice-reason"}


async def test_the_call_is_what_the_message_and_the_metadata_say(grpc_edge: MakeEdge) -> None:
    service = ScriptedService(answer)
    async with grpc_edge(service) as edge:
        request = service_pb2.ModelInferRequest(model_name="übung/x", model_version="3", id="body-id")
        metadata = (("x-request-id", "rid"), ("x-custom", "v"), ("x-api-key", "k"), ("x-request-timeout-ms", "700"))
        await edge.call("ModelInfer", request.SerializeToString(), metadata=metadata, timeout=60)
    (call,) = service.seen
    assert (call.model, call.version, call.body_id, call.request_id) == ("übung/x", "3", "body-id", "rid")
    assert call.timeout_s == pytest.approx(0.7), "the shorter of the header and the gRPC deadline"
    assert ("x-custom", "v") in call.metadata
    assert "x-api-key" not in dict(call.metadata)
    assert call.message == request.SerializeToString()


@pytest.mark.parametrize("reason", list(Reason))
async def test_each_reason_ends_as_its_code_with_all_metadata_trailing(reason: Reason, grpc_edge: MakeEdge) -> None:
    def refuse(call: Call) -> Reply:
        raise GatewayError(reason, f"because {reason.label}")

    async with grpc_edge(ScriptedService(refuse)) as edge:
        code, details, trailing = await status(edge.infer(metadata=(("x-request-id", "abc"),)))
    assert code.value[0] == reason.code.value
    assert details == f"because {reason.label}"
    assert trailing["x-sluice-reason"] == reason.label
    assert trailing["x-request-id"] == "abc"
    assert trailing["x-sluice-model"] == "mine"
    assert ("grpc-retry-pushback-ms" in trailing) == (
        reason
        in {
            *(Reason.QUEUE_FULL, Reason.SHED, Reason.QUOTA),
            *(Reason.BODY_MEMORY, Reason.UPSTREAM_QUEUE_FULL, Reason.RECORD_FULL),
        }
    )


async def test_a_caller_who_leaves_cancels_the_call_and_everything_is_freed(grpc_edge: MakeEdge) -> None:
    service = ScriptedService()
    async with grpc_edge(service) as edge:
        rpc = edge.infer()
        ended = asyncio.ensure_future(rpc.wait_for_connection())
        arrival = await service.arrivals.get()
        assert not edge.nothing_is_left()
        rpc.cancel()
        await asyncio.wait((ended,))
        async with asyncio.timeout(10):
            while not edge.nothing_is_left():
                await asyncio.sleep(0.005)
    assert arrival.cancelled
    assert arrival.call.abandoned


async def test_a_client_deadline_ends_the_call_as_expired_not_as_abandoned(grpc_edge: MakeEdge) -> None:
    """The edge's own deadline layer is not there: the call must still end when the RPC does."""
    service = ScriptedService()
    async with grpc_edge(service) as edge:
        for timeout_s in (0.2, 1.0, 5.0):
            code, _, _ = await status(edge.infer(timeout=timeout_s))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            if not service.arrivals.empty():  # else its client gave it up before it was sent, which shows nothing
                break
        arrival = service.arrivals.get_nowait()
        async with asyncio.timeout(10):
            while not edge.nothing_is_left():
                await asyncio.sleep(0.005)
    assert arrival.cancelled


async def test_an_answer_after_the_deadline_is_not_written(grpc_edge: MakeEdge) -> None:
    replies: list[Reply] = []
    outcomes: list[Outcome] = []

    def late(call: Call) -> Reply:
        call.deadline_s = call.arrived_s - 1.0
        reply = Reply(ANSWER)
        reply.on_close(outcomes.append)
        replies.append(reply)
        return reply

    async with grpc_edge(ScriptedService(late)) as edge:
        code, _, trailing = await status(edge.infer())
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert trailing["x-sluice-reason"] == "deadline"
    assert outcomes == [Outcome.EXPIRED]


async def test_every_reply_is_closed_once_with_ok(grpc_edge: MakeEdge) -> None:
    outcomes: list[Outcome] = []

    def respond(call: Call) -> Reply:
        reply = answer(call)
        reply.on_close(outcomes.append)
        return reply

    async with grpc_edge(ScriptedService(respond)) as edge:
        await asyncio.gather(*(edge.infer() for _ in range(50)))
    assert outcomes == [Outcome.OK] * 50


async def test_too_many_bodies_at_once_are_refused_with_a_pushback(grpc_edge: MakeEdge) -> None:
    service = Receiving(ScriptedService())
    async with grpc_edge(service) as edge:
        big = service_pb2.ModelInferRequest(model_name="mine", raw_input_contents=[bytes(700_000)]).SerializeToString()
        first = edge.call("ModelInfer", big)
        arrival = await service.inner.arrivals.get()
        code, _, trailing = await status(edge.call("ModelInfer", big))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing["x-sluice-reason"] == "body_memory"
        assert int(trailing["grpc-retry-pushback-ms"]) > 0
        assert [call.model for call in service.seen] == ["mine", "mine"], "a shed call is a call, with its record"
        arrival.answer(ANSWER)
        await first


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff\xff\xff", Code.INTERNAL),
        (b"\x0a\xff", Code.INTERNAL),
        (b"\x0a\x02\xc3\x28", Code.INTERNAL),
        (b"", None),
    ],
    ids=["garbage", "truncated", "no text", "empty"],
)
async def test_bytes_that_are_no_message_end_as_on_triton(
    message: bytes, code: Code | None, grpc_edge: MakeEdge
) -> None:
    service = ScriptedService(answer)
    async with grpc_edge(service) as edge:
        got, details, _ = await status(edge.call("ModelInfer", message))
    if code is None:
        assert got is grpc.StatusCode.OK, "an empty message is a call of a model without a name: the gate refuses it"
    else:
        assert got.value[0] == code.value
        assert details
        assert service.seen == []


@pytest.mark.parametrize("version", ["latest", "01", "-1", "1.0", "+1", " 1", "1e0", "١", "99999999999999999999"])
async def test_a_version_that_is_none_is_named_and_never_served_as_another(version: str, grpc_edge: MakeEdge) -> None:
    """Field case FH-05 over gRPC. The call still passes identity and record, and ends where it asks for its body."""
    seen: list[str] = []

    class Receiving:
        async def send(self, call: Call) -> Reply:
            seen.append(call.version)
            assert call.receive is not None
            await call.receive()
            raise AssertionError("receive must refuse")

    async with grpc_edge(Receiving()) as edge:
        code, details, _ = await status(edge.infer(version=version))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert version in details
    assert seen == [version]


async def test_shared_memory_is_refused_with_what_to_do_instead(grpc_edge: MakeEdge) -> None:
    class Receiving:
        async def send(self, call: Call) -> Reply:
            assert call.receive is not None
            await call.receive()
            raise AssertionError("receive must refuse")

    request = service_pb2.ModelInferRequest(model_name="mine")
    request.inputs.add(name="x", datatype="FP32", shape=[1]).parameters["shared_memory_region"].string_param = "r"
    async with grpc_edge(Receiving()) as edge:
        code, details, _ = await status(edge.call("ModelInfer", request.SerializeToString()))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert details.startswith("input 'x' refers to shared memory")
        for method in ("SystemSharedMemoryRegister", "CudaSharedMemoryStatus"):
            code, details, _ = await status(edge.call(method))
            assert (code, "shared memory" in details) == (grpc.StatusCode.UNIMPLEMENTED, True)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((("x-request-timeout-ms", "0"),), grpc.StatusCode.INVALID_ARGUMENT),
        ((("x-request-timeout-ms", "-5"),), grpc.StatusCode.INVALID_ARGUMENT),
        ((("x-request-timeout-ms", "abc"),), grpc.StatusCode.INVALID_ARGUMENT),
        ((("x-sluice-version", "2"),), grpc.StatusCode.UNIMPLEMENTED),
        ((("x-sluice-explain", "maybe"),), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_bad_metadata_is_refused_by_name(
    metadata: tuple[tuple[str, str], ...], code: grpc.StatusCode, grpc_edge: MakeEdge
) -> None:
    class Receiving:
        async def send(self, call: Call) -> Reply:
            assert call.receive is not None
            await call.receive()
            raise AssertionError("receive must refuse")

    async with grpc_edge(Receiving()) as edge:
        got, details, _ = await status(edge.infer(metadata=metadata))
    assert got is code
    assert metadata[0][0] in details


async def test_health_needs_no_key_and_metadata_does(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ScriptedService(), OneKey()) as edge:
        about = service_pb2.ModelMetadataRequest(name="mine").SerializeToString()
        for method in ("ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"):
            await edge.call(method)
        await edge.call("ModelReady", about)
        for method in ("ServerMetadata", "ModelMetadata", "ModelConfig"):
            code, _, _ = await status(edge.call(method, about))
            assert code is grpc.StatusCode.UNAUTHENTICATED, method
            await edge.call(method, about, metadata=(("authorization", "Bearer good"),))
        other = service_pb2.ModelMetadataRequest(name="other").SerializeToString()
        code, _, _ = await status(edge.call("ModelMetadata", other, metadata=(("x-api-key", "good"),)))
        assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_what_is_unknown_is_not_ready_and_has_no_metadata(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ScriptedService()) as edge:
        unknown = service_pb2.ModelReadyRequest(name="nosuch").SerializeToString()
        assert not service_pb2.ModelReadyResponse.FromString(await edge.call("ModelReady", unknown)).ready
        code, _, _ = await status(edge.call("ModelMetadata", unknown))
        assert code is grpc.StatusCode.NOT_FOUND


async def test_unknown_methods_and_refused_ones_are_unimplemented(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ScriptedService()) as edge:
        for method in ("Nonsense", "/some.other.Service/Method", "/grpc.health.v1.Health/Watch"):
            code, details, _ = await status(edge.call(method))
            assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, ""), "with an empty text, as on Triton"
        for method, text in REFUSED.items():
            code, details, _ = await status(edge.call(method))
            assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, text)


async def test_an_explanation_comes_when_asked_for(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ScriptedService(answer)) as edge:
        call = edge.infer(metadata=(("x-sluice-explain", "1"),))
        await call
        assert '"model": "mine"' in dict(await call.trailing_metadata())["x-sluice-explain"]


async def test_draining_lets_calls_end_and_takes_no_new_ones(grpc_edge: MakeEdge) -> None:
    service = ScriptedService()
    async with grpc_edge(service) as edge:
        running = edge.infer()
        arrival = await service.arrivals.get()
        edge.server.begin_drain()
        closing = asyncio.ensure_future(edge.server.wait_closed(30))
        # What the client sends before it has read the GOAWAY is served by our server, and not by the library's.
        async with asyncio.timeout(10):
            while edge.channel.get_state() is grpc.ChannelConnectivity.READY:
                await asyncio.sleep(0.005)
        code, _, _ = await status(edge.infer(timeout=5))
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert len(service.seen) == 1
        arrival.answer(ANSWER)
        assert await running == ANSWER
        async with asyncio.timeout(10):
            assert await closing


def test_paths_are_the_protocols() -> None:
    assert SERVICE == "/inference.GRPCInferenceService/"
