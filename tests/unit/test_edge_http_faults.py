"""Field case FH-14 over HTTP: whatever is raised inside, the caller gets exactly one outcome, and soon."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.http_call import HttpCall
from tests.unit.edge_clients import Client, get, infer_response, post, read_answers
from tests.unit.edge_driving import Edge, FixedCatalogue, ReceivingService, running, turns

FAULTS = [
    asyncio.CancelledError("inner"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    MemoryError(),
    TimeoutError(),
    RecursionError(),
    StopAsyncIteration(),
    ExceptionGroup("several", [ValueError("secret detail")]),
    ValueError("secret detail /etc/passwd 10.0.0.1"),
]


def name(fault: BaseException) -> str:
    return type(fault).__name__


@pytest.mark.parametrize("fault", FAULTS, ids=name)
async def test_whatever_a_layer_raises_is_one_500_logged_and_counted(
    fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def respond(call: Call) -> Reply:
        raise fault

    edge = Edge(ReceivingService(respond))
    async with running(edge) as address:
        client = await Client.connect(address)
        client.send(post(x_request_id="who-asked") + get("/v2/health/live"))
        answer = await client.answer()
        assert answer.status == 500
        assert answer.headers["x-sluice-reason"] == "internal"
        assert "secret" not in answer.error
        assert "etc" not in answer.error
        assert (await client.answer()).status == 200
        await client.close()
    assert edge.notes.internal == 1
    assert any("who-asked" in record.getMessage() and record.exc_info for record in caplog.records)


@pytest.mark.parametrize("fault", FAULTS, ids=name)
async def test_the_same_where_the_body_is_received(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def model_config(self: FixedCatalogue, model: str, version: str) -> None:
        raise fault

    edge = Edge(ReceivingService())
    monkeypatch.setattr(FixedCatalogue, "model_config", model_config)
    client = edge.connect()
    client.feed(post(body=b"\0\0\0\0", Inference_Header_Content_Length="0"))
    await turns()
    assert client.statuses == [500]
    assert edge.notes.internal == 1
    client.feed(post())
    await turns()
    assert client.statuses == [500, 200]
    edge.nothing_is_left()


@pytest.mark.parametrize("fault", FAULTS, ids=name)
async def test_a_fault_in_the_writer_ends_the_connection(fault: BaseException) -> None:
    service = ReceivingService()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post())
    client.fail_next_write = fault
    await turns()
    assert client.aborted
    assert not client.sent
    assert service.outcomes == [Outcome.GATEWAY_FAULT]
    assert edge.notes.internal == 1
    edge.nothing_is_left()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if isinstance(fault, Exception)], ids=name)
async def test_a_fault_where_the_reply_is_closed_takes_nothing_from_the_answer(fault: Exception) -> None:
    def closer(outcome: Outcome) -> None:
        raise fault

    def respond(call: Call) -> Reply:
        reply = Reply(infer_response())
        reply.on_close(closer)
        return reply

    service = ReceivingService(respond)
    edge = Edge(service)
    client = edge.connect()
    client.feed(post())
    await turns()
    assert client.statuses == [200]
    assert service.outcomes == [Outcome.OK]
    assert edge.notes.internal == 1
    edge.nothing_is_left()


async def test_a_cancellation_from_inside_is_not_taken_for_a_client_that_left() -> None:
    calls: list[Call] = []

    class Inside:
        async def send(self, call: Call) -> Reply:
            calls.append(call)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)
            raise AssertionError("cancelled before")

    edge = Edge(Inside())
    client = edge.connect()
    client.feed(post())
    await turns()
    assert client.statuses == [500]
    assert not calls[0].abandoned
    assert edge.notes.internal == 1
    edge.nothing_is_left()


async def test_a_call_that_fails_inside_leaves_its_neighbours_alone() -> None:
    def respond(call: Call) -> Reply:
        if call.request_id == "bad":
            raise asyncio.CancelledError
        return Reply(infer_response())

    edge = Edge(ReceivingService(respond))
    client = edge.connect()
    client.feed(post(x_request_id="1") + post(x_request_id="bad") + post(x_request_id="2"))
    await turns()
    assert [answer.status for answer in read_answers(bytes(client.sent))] == [200, 500, 200]


async def test_a_defect_in_the_connection_itself_ends_that_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge(ReceivingService())
    broken, good = edge.connect(), edge.connect()

    def match(head: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(edge.server.desk, "match", match)
        broken.feed(post())
    assert broken.aborted
    good.feed(post())
    await turns()
    assert good.statuses == [200]
    assert edge.notes.internal == 1
    edge.nothing_is_left()


async def test_a_call_cancelled_from_inside_at_any_moment_ends_in_one_answer() -> None:
    """The call's own task is cancelled after each possible number of turns, by nobody who should."""
    moments = 0
    statuses: set[int] = set()
    while statuses != {200} or moments < 3:
        edge = Edge(ReceivingService())
        client = edge.connect()
        whole = post()
        client.feed(whole[:-5])
        (task,) = edge.server.kit.tasks
        for turn in range(moments):
            await turns(1)
            if turn == 1:
                client.feed(whole[-5:])
        task.cancel()
        if moments < 2:
            client.feed(whole[-5:])
        await turns()
        answers = read_answers(bytes(client.sent))
        statuses = {answer.status for answer in answers}
        assert len(answers) == 1
        assert statuses <= {200, 500}
        await turns()
        edge.nothing_is_left()
        moments += 1
        assert moments < 30


async def test_calls_that_end_well_or_badly_are_freed_without_the_garbage_collector() -> None:
    def respond(call: Call) -> Reply:
        if call.request_id == "fail":
            raise GatewayError(Reason.QUEUE_FULL, "full")
        return Reply(infer_response())

    edge = Edge(ReceivingService(respond))
    edge_calls = edge.server.kit.service.calls  # type: ignore[attr-defined]
    client = edge.connect()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            requests = [post(), post(x_request_id="fail"), post(body=b"{"), post(x_request_timeout_ms="x")]
            client.feed(b"".join(requests))
            await turns()
            for request in requests:
                client.feed(request)
                await turns()
        client.feed(post()[:-3])
        await turns()
        client.reset()
        await turns()
        edge_calls.clear()
        kit = edge.server.kit
        assert [each for each in gc.get_objects() if isinstance(each, HttpCall) and each._kit is kit] == []
    finally:
        gc.enable()
