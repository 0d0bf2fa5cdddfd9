"""`x-sluice-priority` at the gRPC port, over either server: unary calls, streams, and what is said when a call is
turned away.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.criticality import CLASS_NAMES
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply, Response, StreamReply
from tests.support.grpc_edge import ANSWER, SERVICE, MakeEdge
from tests.unit.edge_clients import WAIT_S
from tests.unit.test_edge_grpc import status

REQUEST = pb.ModelInferRequest(model_name="mine").SerializeToString()
WORDS = "x-sluice-priority must be critical_plus, critical, sheddable_plus or sheddable"


class Taker:
    """Keeps the calls, and answers them with one response."""

    def __init__(self, error: GatewayError | None = None) -> None:
        self.seen: list[Call] = []
        self._error = error

    async def send(self, call: Call) -> Reply:
        self.seen.append(call)
        if call.receive is not None:
            await call.receive()
        if self._error is not None:
            raise self._error
        if call.session is None:
            return Reply(ANSWER)

        async def nothing() -> Response | None:
            return None

        return StreamReply(Response(ANSWER), nothing, ordered=True)


async def stream(edge: Any, metadata: tuple[tuple[str, str], ...], messages: int = 1) -> list[bytes]:
    rpc = edge.channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([REQUEST] * messages), metadata=metadata)
    return [message async for message in rpc]


async def test_unary_calls_and_those_of_streams_have_the_class_that_they_name(grpc_edge: MakeEdge) -> None:
    service = Taker()
    async with asyncio.timeout(WAIT_S), grpc_edge(service) as edge:
        for _ in range(3):  # the second and third time as heads that are known
            for word in (*CLASS_NAMES, None):
                metadata = () if word is None else (("x-sluice-priority", word),)
                await edge.infer(metadata=metadata)
                await stream(edge, metadata, messages=2)
    assert [call.priority for call in service.seen] == [rank for rank in (0, 1, 2, 3, None) for _ in range(3)] * 3
    assert not any(name == "x-sluice-priority" for call in service.seen for name, _ in call.metadata)


@pytest.mark.parametrize("word", ["urgent", "", "0", "Critical"])
async def test_another_word_is_an_invalid_argument_that_names_the_four(grpc_edge: MakeEdge, word: str) -> None:
    service = Taker()
    async with asyncio.timeout(WAIT_S), grpc_edge(service) as edge:
        for _ in range(2):
            code, details, trailing = await status(edge.infer(metadata=(("x-sluice-priority", word),)))
            assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, WORDS)
            assert trailing["x-sluice-reason"] == "bad_request"
            rpc = edge.channel.stream_stream(SERVICE + "ModelStreamInfer")(metadata=(("x-sluice-priority", word),))
            assert (await rpc.code(), await rpc.details()) == (grpc.StatusCode.INVALID_ARGUMENT, WORDS)


@pytest.mark.parametrize("reason", [Reason.SHED, Reason.QUEUE_FULL])
async def test_a_shed_call_is_told_when_to_try_again_by_the_time_that_the_queue_takes(
    grpc_edge: MakeEdge, reason: Reason
) -> None:
    service = Taker(GatewayError(reason, "too much to do", retry_after_s=20.0))
    async with asyncio.timeout(WAIT_S), grpc_edge(service) as edge:
        told = [int((await status(edge.infer()))[2]["grpc-retry-pushback-ms"]) for _ in range(20)]
    assert min(told) >= 20_000
    assert max(told) <= 30_000
    assert len(set(told)) > 5, "not all at the same time"


async def test_a_stream_that_ends_with_the_status_of_a_shed_call_tells_it_too(grpc_edge: MakeEdge) -> None:
    service = Taker(GatewayError(Reason.SHED, "too much to do", retry_after_s=20.0))
    async with asyncio.timeout(WAIT_S), grpc_edge(service) as edge:
        rpc = edge.channel.stream_stream(SERVICE + "ModelStreamInfer")(metadata=(("triton_grpc_error", "true"),))
        await rpc.write(REQUEST)
        assert await rpc.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(await rpc.trailing_metadata())
    assert trailing["x-sluice-reason"] == "shed"
    assert 20_000 <= int(trailing["grpc-retry-pushback-ms"]) <= 30_000
