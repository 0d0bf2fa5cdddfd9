"""The gRPC edge where calls meet its end, their caller's end, or what is not served."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.explain import Explainer
from gateway.edge.grpcio_server import GrpcioServer
from gateway.layers.record import RecordLayer
from gateway.runtime.clock import SystemClock
from tests.support.grpc_edge import ANSWER, MakeEdge, running_edge
from tests.support.service import ScriptedService


class Sink:
    def __init__(self) -> None:
        self.ended: list[tuple[Outcome, Reason | None]] = []

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        self.ended.append((outcome, None if error is None else error.reason))


class Context:
    """What a handler needs of grpcio, in a test's hand."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.remaining_s: float | None = None

    def time_remaining(self) -> float | None:
        return self.remaining_s

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def send_initial_metadata(self, metadata: object) -> None:
        self.reached.set()
        await self.may_go_on.wait()

    def set_trailing_metadata(self, metadata: object) -> None:
        return None


REQUEST: bytes = service_pb2.ModelInferRequest(model_name="mine").SerializeToString()


async def test_calls_left_at_the_drain_limit_end_as_draining_with_a_record_that_says_so(grpc_edge: MakeEdge) -> None:
    sink, inner = Sink(), ScriptedService()
    async with asyncio.timeout(20), grpc_edge(RecordLayer(inner, SystemClock(), (sink,))) as edge:
        running = edge.infer()
        code = asyncio.ensure_future(running.code())
        arrival = await inner.arrivals.get()
        assert not await edge.server.wait_closed(0.05)
        assert await code is grpc.StatusCode.UNAVAILABLE
        assert dict(await running.trailing_metadata())["x-sluice-reason"] == "draining"
    assert arrival.cancelled
    assert not arrival.call.abandoned, "the caller waited to the end"
    assert sink.ended == [(Outcome.OVERLOAD, Reason.DRAINING)]


async def test_the_end_of_the_server_waits_for_the_record_of_an_answer_that_the_library_writes() -> None:
    sink = Sink()
    service = RecordLayer(ScriptedService(lambda call: Reply(ANSWER)), SystemClock(), (sink,))
    async with asyncio.timeout(20), running_edge(service, server="grpcio") as edge:
        assert isinstance(edge.server, GrpcioServer)
        context = Context()
        handler = asyncio.ensure_future(edge.server.infer(REQUEST, context))
        await context.reached.wait()
        closing = asyncio.ensure_future(edge.server.aclose())
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not closing.done(), "the call has no record yet"
        context.may_go_on.set()
        await closing
        assert sink.ended == [(Outcome.OK, None)]
        assert await handler == ANSWER


async def test_a_caller_without_a_deadline_who_leaves_left_however_short_the_policys_deadline_is(
    grpc_edge: MakeEdge,
) -> None:
    class Short(ScriptedService):
        async def send(self, call: Call) -> Reply:
            call.deadline_s = call.arrived_s + 0.001
            return await super().send(call)

    service = Short()
    async with asyncio.timeout(20), grpc_edge(service) as edge:
        running = edge.infer()
        ended = asyncio.ensure_future(running.code())
        arrival = await service.arrivals.get()
        running.cancel()
        await ended
        while not edge.nothing_is_left():
            await asyncio.sleep(0.005)
    assert arrival.cancelled
    assert arrival.call.abandoned


async def test_an_explanation_that_fails_still_closes_the_reply(
    monkeypatch: pytest.MonkeyPatch, grpc_edge: MakeEdge
) -> None:
    outcomes: list[Outcome] = []

    def respond(call: Call) -> Reply:
        reply = Reply(ANSWER)
        reply.on_close(outcomes.append)
        return reply

    def explode(*arguments: Any) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(Explainer, "explain", explode)
    async with asyncio.timeout(20), grpc_edge(ScriptedService(respond)) as edge:
        await edge.infer(metadata=(("x-sluice-explain", "1"),)).code()
    assert len(outcomes) == 1
    assert outcomes != [Outcome.OK]


async def test_a_model_name_as_long_as_a_message_is_refused_in_a_way_that_the_client_can_read(
    grpc_edge: MakeEdge,
) -> None:
    def refuse(call: Call) -> Reply:
        raise GatewayError(Reason.UNKNOWN_MODEL, "not found")

    async with asyncio.timeout(20), grpc_edge(ScriptedService(refuse)) as edge:
        call = edge.infer("x" * 100_000, metadata=(("x-sluice-explain", "1"),))
        assert await call.code() is grpc.StatusCode.NOT_FOUND
        assert dict(await call.trailing_metadata())["x-sluice-reason"] == "unknown_model"


@pytest.mark.parametrize("method", ["TraceSetting", "RepositoryModelLoad", "SystemSharedMemoryRegister"])
async def test_a_refused_method_is_counted_and_carries_the_request_id(method: str, grpc_edge: MakeEdge) -> None:
    async with asyncio.timeout(20), grpc_edge(ScriptedService()) as edge:
        call = edge.call(method, metadata=(("x-request-id", "abc"),))
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert dict(await call.trailing_metadata())["x-request-id"] == "abc"
        assert edge.events.requests == [("grpc", method, "UNIMPLEMENTED")]


async def test_control_answers_and_errors_carry_the_request_id(grpc_edge: MakeEdge) -> None:
    async with asyncio.timeout(20), grpc_edge(ScriptedService()) as edge:
        good = edge.call("ServerLive", metadata=(("x-request-id", "abc"),))
        await good
        assert dict(await good.initial_metadata())["x-request-id"] == "abc"
        about = service_pb2.ModelMetadataRequest(name="nosuch").SerializeToString()
        bad = edge.call("ModelMetadata", about, metadata=(("x-request-id", "abc"),))
        assert await bad.code() is grpc.StatusCode.NOT_FOUND
        assert dict(await bad.trailing_metadata())["x-request-id"] == "abc"
