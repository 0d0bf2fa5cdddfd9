"""One connection on a transport in memory: order, bodies, flow control, early answers, and the client that leaves."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.http_pacing import UNWANTED_BODY_BYTES
from gateway.policy.schema import HttpLimits
from tests.support.clock import ManualClock
from tests.unit.edge_clients import LIVE, get, infer_body, infer_response, post, read_answers
from tests.unit.edge_driving import Edge, GatedService, ReceivingService, turns


async def test_an_inference_is_answered_and_the_connection_kept() -> None:
    service = ReceivingService()
    edge = Edge(service)
    client = edge.connect()
    for _ in range(3):
        client.feed(post(x_request_id="mine"))
        await turns()
    answers = read_answers(bytes(client.sent))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert answers[0].headers["x-request-id"] == "mine"
    assert answers[0].headers["x-sluice-model"] == "fraud"
    assert answers[0].headers["x-sluice-rung"] == "full"
    assert "connection" not in answers[0].headers
    assert service.outcomes == [Outcome.OK] * 3
    assert not client.ended
    edge.nothing_is_left()


async def test_a_call_is_made_from_its_headers_before_its_body_is_there() -> None:
    service = GatedService(receive=False)
    client = Edge(service).connect()
    whole = post(x_request_timeout_ms="250", x_api_key="k", x_tenant="t")
    client.feed(whole[:-5])
    gated = await service.next()
    call = gated.call
    assert (call.model, call.version, call.message) == ("fraud", "", None)
    assert call.timeout_s == 0.25
    assert call.credentials.api_key == "k"
    assert call.metadata == (("x-tenant", "t"),)
    assert call.body_bytes == len(infer_body())
    gated.answer()
    await turns()
    assert not client.sent
    client.feed(whole[-5:])
    await turns()
    assert call.message is not None
    assert client.statuses == [200]


async def test_the_body_may_come_byte_by_byte() -> None:
    service = ReceivingService()
    client = Edge(service).connect()
    for byte in post():
        client.feed(bytes((byte,)))
    await turns()
    assert client.statuses == [200]


async def test_answers_leave_in_the_order_of_requests_though_calls_end_in_another() -> None:
    service = GatedService()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post(x_request_id="1") + LIVE + post(x_request_id="2") + post(x_request_id="3"))
    first, second, third = [await service.next() for _ in range(3)]
    third.fail(GatewayError(Reason.QUEUE_FULL, "full"))
    second.answer()
    await turns()
    assert not client.sent
    first.answer()
    await turns()
    answers = read_answers(bytes(client.sent))
    assert [answer.status for answer in answers] == [200, 200, 200, 503]
    assert [answer.headers["x-request-id"] for answer in answers if "x-sluice-model" in answer.headers] == [
        "1",
        "2",
        "3",
    ]
    assert service.outcomes == [Outcome.OK, Outcome.OK]
    edge.nothing_is_left()


async def test_at_most_so_many_requests_of_one_connection_run_at_once() -> None:
    service = GatedService()
    edge = Edge(service, limits=HttpLimits(pipeline_max=3))
    client = edge.connect()
    client.feed(b"".join(post(x_request_id=str(number)) for number in range(10)))
    await turns()
    assert service.arrived.qsize() == 3
    for _ in range(10):
        (await service.next()).answer()
        await turns()
    assert client.statuses == [200] * 10


async def test_reading_pauses_while_a_pipeline_is_full_and_goes_on_after() -> None:
    service = GatedService()
    client = Edge(service, limits=HttpLimits(pipeline_max=1)).connect()
    flood = b"".join(post(x_request_id=str(number)) for number in range(2000))
    fed = 0
    answered = 0
    while fed < len(flood) or answered < 2000:
        while fed < len(flood) and not client.paused:
            client.feed(flood[fed : fed + 4096])
            fed += 4096
        assert client.paused or fed >= len(flood)
        (await service.next()).answer()
        answered += 1
        await turns(4)
    assert client.statuses == [200] * 2000


async def test_a_flood_of_control_queries_is_answered_in_few_writes() -> None:
    client = Edge(ReceivingService()).connect()
    client.feed(LIVE * 500)
    assert len(client.statuses) < 100, "others get their turn in between"
    await turns(20)
    assert client.statuses == [200] * 500


async def test_a_body_that_nobody_wants_yet_is_held_within_a_bound() -> None:
    service = GatedService(receive=False)
    edge = Edge(service)
    client = edge.connect()
    body = infer_body([1.0] * 400_000)
    whole = post(body=body)
    fed = 0
    while client.reads():
        client.feed(whole[fed : fed + 16_384])
        fed += 16_384
    assert fed < UNWANTED_BODY_BYTES + 32_768
    assert UNWANTED_BODY_BYTES <= edge.budget.used_bytes < UNWANTED_BODY_BYTES + 32_768
    (await service.next()).answer()
    await turns()
    assert client.reads()
    client.feed(whole[fed:])
    await turns(50)  # so large a body is decoded in steps
    assert client.statuses == [200]
    edge.nothing_is_left()


async def test_a_declared_body_over_the_models_limit_is_refused_before_it_comes() -> None:
    edge = Edge(ReceivingService(), body_bytes_max=100)
    client = edge.connect()
    client.feed(post(body=b"", Content_Length="1000000"))
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-sluice-reason"] == "too_large"
    assert client.ended


@pytest.mark.parametrize("length", [101, 2**31, 99_999_999_999, 2**63 - 1])
async def test_however_large_a_declared_body_it_is_the_models_limit_that_is_named(length: int) -> None:
    edge = Edge(ReceivingService(), body_bytes_max=100)
    client = edge.connect()
    client.feed(post(body=b"", Content_Length=str(length), Inference_Header_Content_Length="10"))
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status == 413
    assert answer.error == f"the body has {length} bytes; this model takes at most 100"
    assert answer.headers["x-sluice-model"] == "fraud"
    edge.nothing_is_left()


async def test_a_chunked_body_is_refused_at_the_byte_that_goes_over() -> None:
    edge = Edge(ReceivingService(), body_bytes_max=100)
    client = edge.connect()
    client.feed(post(body=b"32\r\n" + b" " * 50 + b"\r\n", Transfer_Encoding="chunked"))
    await turns()
    assert not client.sent
    client.feed(b"33\r\n" + b" " * 51)
    await turns()
    assert client.statuses == [413]
    assert client.ended
    await turns()
    edge.nothing_is_left()


async def test_bodies_beyond_the_memory_for_them_are_refused_and_it_is_given_back() -> None:
    service = GatedService()
    edge = Edge(service, memory_bytes=1000)
    one, other = edge.connect(), edge.connect()
    one.feed(post(body=infer_body() + b" " * 700))
    gated = await service.next()
    other.feed(post(body=b"", Content_Length="600"))
    await turns()
    (answer,) = read_answers(bytes(other.sent))
    assert answer.status == 503
    assert answer.headers["x-sluice-reason"] == "body_memory"
    assert int(answer.headers["retry-after"]) >= 1
    gated.answer()
    await turns()
    assert edge.budget.used_bytes == 0
    third = edge.connect()
    third.feed(post(body=infer_body() + b" " * 500))
    (await service.next()).answer()
    await turns()
    assert third.statuses == [200]
    edge.nothing_is_left()


async def test_100_continue_is_sent_when_the_body_is_wanted_and_not_before() -> None:
    service = GatedService(receive=False)
    client = Edge(service).connect()
    whole = post(Expect="100-continue")
    head, body = whole.split(b"\r\n\r\n")
    client.feed(head + b"\r\n\r\n")
    gated = await service.next()
    await turns()
    assert not client.sent
    gated.answer()
    await turns()
    assert bytes(client.sent) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.feed(body)
    await turns()
    assert client.statuses == [200]


async def test_no_100_comes_before_the_answers_to_earlier_requests() -> None:
    service = GatedService()
    client = Edge(service).connect()
    head, _, body = post(Expect="100-continue").partition(b"\r\n\r\n")
    client.feed(post() + head + b"\r\n\r\n")
    first = await service.next()
    await turns()
    assert not client.sent
    first.answer()
    await turns()
    assert bytes(client.sent).endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    client.feed(body)
    (await service.next()).answer()
    await turns()
    assert client.statuses == [200, 200]


async def test_a_body_that_comes_unasked_needs_no_100() -> None:
    client = Edge(ReceivingService()).connect()
    client.feed(post(Expect="100-continue"))
    await turns()
    assert client.sent.startswith(b"HTTP/1.1 200")


async def test_a_client_that_leaves_cancels_its_calls_and_gets_nothing() -> None:
    for leave in ("leave", "reset"):
        service = GatedService()
        edge = Edge(service)
        client = edge.connect()
        client.feed(post() + post())
        calls = [await service.next(), await service.next()]
        getattr(client, leave)()
        await turns()
        for gated in calls:
            assert gated.cancelled.is_set()
            assert gated.call.abandoned
        assert not client.sent
        assert edge.notes.internal == 0
        edge.nothing_is_left()


async def test_a_client_that_leaves_inside_a_body_frees_what_it_had_sent() -> None:
    service = ReceivingService()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post(body=infer_body() + b" " * 5000)[:-1000])
    await turns()
    assert edge.budget.used_bytes > 0
    client.reset()
    await turns()
    assert service.calls[0].abandoned
    edge.nothing_is_left()


async def test_a_client_that_leaves_before_its_call_has_begun_leaves_nothing() -> None:
    service = ReceivingService()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post())
    client.reset()
    await turns()
    assert service.calls == []
    assert edge.notes.internal == 0
    infer = "/v2/models/{model}[/versions/{version}]/infer"
    assert edge.notes.requests == [(infer, "499")], "no record, so it is counted"
    edge.nothing_is_left()


async def test_a_service_that_swallows_the_cancellation_still_leaves_nothing() -> None:
    class Stubborn(GatedService):
        async def send(self, call: Call) -> Reply:
            try:
                return await super().send(call)
            except asyncio.CancelledError:
                reply = Reply(infer_response())
                reply.on_close(self.outcomes.append)
                return reply

    service = Stubborn()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post())
    await service.next()
    client.reset()
    await turns()
    assert service.outcomes == [Outcome.ABANDONED]
    edge.nothing_is_left()


async def test_control_queries_before_a_half_close_are_answered() -> None:
    client = Edge(ReceivingService()).connect()
    client.feed(LIVE + get("/v2"))
    client.leave()
    assert client.statuses == [200, 200]
    assert client.closing


async def test_an_answer_that_is_ready_after_its_deadline_is_not_sent() -> None:
    clock = ManualClock()
    service = GatedService()
    edge = Edge(service, clock=clock)
    client = edge.connect()
    client.feed(post())
    gated = await service.next()
    gated.call.deadline_s = clock.now_s() + 1.0
    clock.advance(1.5)
    gated.answer()
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status == 504
    assert answer.headers["x-sluice-reason"] == "deadline"
    assert service.outcomes == [Outcome.EXPIRED]


async def test_the_deadline_counts_from_the_first_byte_of_the_head() -> None:
    clock = ManualClock()
    service = GatedService(receive=False)
    client = Edge(service, clock=clock).connect()
    began_s = clock.now_s()
    whole = post()
    client.feed(whole[:10])
    clock.advance(3.0)
    client.feed(whole[10:30])
    clock.advance(3.0)
    client.feed(whole[30:])
    gated = await service.next()
    assert gated.call.arrived_s == began_s
    assert gated.call.arrived_wall_s == pytest.approx(clock.wall_s() - 6.0)
    gated.answer()
    await turns()
    clock.advance(5.0)
    client.feed(post())
    assert (await service.next()).call.arrived_s == began_s + 11.0


async def test_the_next_answer_waits_while_the_client_takes_nothing() -> None:
    service = GatedService()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post() + LIVE + post())
    first, second = await service.next(), await service.next()
    client.stuck_bytes = 100_000
    client.protocol.pause_writing()
    first.answer()
    second.fail(GatewayError(Reason.NO_REPLICA, "none"))
    await turns()
    assert not client.sent
    assert service.outcomes == []
    client.stuck_bytes = 0
    client.protocol.resume_writing()
    await turns()
    assert client.statuses == [200, 200, 503]
    edge.nothing_is_left()


async def test_a_large_answer_is_written_without_joining_it() -> None:
    service = GatedService()
    client = Edge(service).connect()
    client.feed(post(body=infer_body(parameters={"binary_data_output": True})))
    (await service.next()).answer(infer_response(elements=500_000))
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    length = int(answer.headers["inference-header-content-length"])
    assert len(answer.body) == length + 2_000_000


async def test_http_1_0_is_answered_and_closed_unless_it_asks_to_be_kept() -> None:
    client = Edge(ReceivingService()).connect()
    client.feed(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert not client.ended
    client.feed(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
    await turns()
    answers = read_answers(bytes(client.sent))
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].headers["connection"] == "keep-alive"
    assert answers[1].headers["connection"] == "close"
    assert client.closing


async def test_what_a_client_asks_to_close_is_closed_after_its_answer() -> None:
    client = Edge(ReceivingService()).connect()
    client.feed(post(Connection="close") + post())
    await turns()
    assert client.statuses == [200]
    assert client.ended


async def test_a_short_rest_of_a_refused_body_is_dropped_and_the_connection_kept() -> None:
    class Refusing:
        async def send(self, call: Call) -> Reply:
            raise GatewayError(Reason.UNKNOWN_MODEL, "no such model")

    client = Edge(Refusing()).connect()
    whole = post(body=LIVE)
    client.feed(whole[: -len(LIVE)])
    await turns()
    assert client.statuses == [404]
    client.feed(LIVE + get("/v2"))
    assert client.statuses == [404, 200]
    assert read_answers(bytes(client.sent))[1].body.startswith(b'{"name"')


async def test_draining_closes_idle_connections_now_and_busy_ones_after_their_answers() -> None:
    service = GatedService()
    edge = Edge(service)
    idle, busy = edge.connect(), edge.connect()
    busy.feed(post() + post())
    calls = [await service.next(), await service.next()]
    edge.server.begin_drain()
    assert idle.closing
    assert not busy.ended
    for gated in calls:
        gated.answer()
        await turns()
    answers = read_answers(bytes(busy.sent))
    assert [answer.headers.get("connection") for answer in answers] == [None, "close"]
    assert busy.closing
    assert await edge.server.wait_closed(1.0)
    edge.nothing_is_left()


@pytest.mark.parametrize(
    "said", [b"GET /v2 HTTP/1.1\r\nHo", b"no HTTP\r\n\r\nand more"], ids=["half a head", "lingering"]
)
async def test_a_client_without_a_call_at_the_drain_limit_is_no_call_cut_off(said: bytes) -> None:
    edge = Edge(ReceivingService())
    client = edge.connect()
    client.feed(said)
    await turns()
    edge.server.begin_drain()
    async with asyncio.timeout(10):
        assert await edge.server.wait_closed(0.01)
    assert client.ended
    edge.nothing_is_left()


async def test_calls_that_outlive_the_drain_limit_end_with_503() -> None:
    service = GatedService()
    edge = Edge(service)
    client = edge.connect()
    client.feed(post())
    gated = await service.next()
    edge.server.begin_drain()
    async with asyncio.timeout(10):
        assert not await edge.server.wait_closed(0.01)
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status == 503
    assert answer.headers["x-sluice-reason"] == "draining"
    assert answer.headers["connection"] == "close"
    assert gated.cancelled.is_set()
    assert not gated.call.abandoned
    edge.nothing_is_left()


async def test_more_connections_than_allowed_are_closed_at_once_and_counted() -> None:
    edge = Edge(ReceivingService(), limits=HttpLimits(connections_max=2))
    kept = [edge.connect(), edge.connect()]
    refused = edge.connect()
    assert refused.closing
    refused.feed(LIVE)
    await turns()
    assert not refused.sent
    assert edge.notes.refused == 1
    kept[0].reset()
    again = edge.connect()
    again.feed(LIVE)
    assert again.statuses == [200]
    assert edge.server.statistics(0.0)["connections"] == 2
    assert (edge.notes.opened, edge.notes.closed) == (3, 1)


async def test_a_cancellation_at_any_moment_leaves_nothing() -> None:
    """The client leaves after each possible number of turns of the loop, with the body split in two."""
    whole = post(body=infer_body() + b" " * 3000)
    for moment in range(12):
        service = GatedService()
        edge = Edge(service)
        client = edge.connect()
        client.feed(whole[:-100])
        for turn in range(moment):
            await turns(1)
            if turn == 2:
                client.feed(whole[-100:])
            if not service.arrived.empty():
                service.arrived.get_nowait().answer()
        client.reset()
        await turns()
        assert client.statuses in ([], [200])
        assert edge.notes.internal == 0
        edge.nothing_is_left()
