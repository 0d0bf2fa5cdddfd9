"""Statistics and the repository index at both edges: identity first, one answer in its turn, and no question left over
when the caller is gone.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Identity
from gateway.core.errors import GatewayError, Reason
from gateway.edge import patience
from gateway.edge.http_question import BODY_BYTES_MAX
from gateway.wire.kserve.repository import NAMED_REPOSITORY
from tests.support.grpc_edge import EdgeUnderTest, MakeEdge, OneKey
from tests.support.http_answer import Answer
from tests.support.waiting import until
from tests.unit.edge_clients import LIVE, WAIT_S, get, post, read_answers
from tests.unit.edge_driving import Doors, Edge, GatedService, MemoryTransport, ReceivingService, turns

INDEX = "/v2/repository/index"
STATS = "/v2/models/fraud/stats"


@pytest.fixture
def edge() -> Edge:
    return Edge(ReceivingService())


def answers(client: MemoryTransport) -> list[Answer]:
    return read_answers(bytes(client.sent))


async def ask(edge: Edge, request: bytes) -> Answer:
    client = edge.connect()
    client.feed(request)
    await turns()
    (answer,) = answers(client)
    client.reset()
    await turns()
    edge.nothing_is_left()
    return answer


async def test_statistics_are_answered_in_tritons_json(edge: Edge) -> None:
    for path in (STATS, "/v2/models/fraud/versions/1/stats", "/v2/models/stats"):
        answer = await ask(edge, get(path))
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.body) == {"model_stats": [{"name": "fraud"}]}
    assert (await ask(edge, get(STATS))).headers["x-sluice-model"] == "fraud"
    assert edge.notes.requests[0] == ("/v2/models/{model}[/versions/{version}]/stats", "200")


async def test_the_index_is_asked_for_with_and_without_a_body(edge: Edge) -> None:
    for body, ready in ((b"", False), (b"{}", False), (b'{"ready":true}', True), (b'{"ready": false}', False)):
        answer = await ask(edge, post(INDEX, body))
        assert (answer.status, json.loads(answer.body)) == (
            200,
            [{"name": "fraud", "version": "1", "state": "READY"}],
        )
        assert edge.catalogue.questions.pop() == f"index ready={ready} anonymous"
    assert edge.notes.requests[-1] == ("/v2/repository[/{repository}]/index", "200")


async def test_a_body_may_come_in_pieces_chunked_and_after_a_100() -> None:
    edge = Edge(ReceivingService())
    client = edge.connect()
    head, _, body = post(INDEX, b'{"ready":true}', Expect="100-continue").partition(b"\r\n\r\n")
    client.feed(head + b"\r\n\r\n")
    await turns()
    assert bytes(client.sent) == b"HTTP/1.1 100 Continue\r\n\r\n"
    for byte in body:
        client.feed(bytes((byte,)))
    await turns()
    client.feed(post(INDEX, b'e\r\n{"ready":true}\r\n0\r\n\r\n', Transfer_Encoding="chunked"))
    await turns()
    assert [answer.status for answer in answers(client)] == [200, 200]
    assert edge.catalogue.questions == ["index ready=True anonymous"] * 2


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (post(INDEX, b"{"), 400, "bad_request"),
        (post(INDEX, b'{"ready":1}'), 400, "bad_request"),
        (post(INDEX, b" " * (BODY_BYTES_MAX + 1)), 413, "too_large"),
        (post("/v2/repository/theirs/index", b""), 501, "unsupported"),
        (get("/v2/models/nope/stats"), 404, "unknown_model"),
        (get("/v2/models/fraud/versions/x/stats"), 400, "bad_request"),
        (get(STATS, x_request_timeout_ms="soon"), 400, "bad_request"),
    ],
)
async def test_faults_of_the_caller_have_their_status(edge: Edge, request_: bytes, status: int, reason: str) -> None:
    answer = await ask(edge, request_)
    assert (answer.status, answer.headers["x-sluice-reason"]) == (status, reason)
    assert answer.error
    if status == 501:
        assert answer.error == NAMED_REPOSITORY


async def test_who_may_not_ask_costs_the_model_servers_nothing() -> None:
    keys = {"all": Identity("a"), "other": Identity("b", frozenset({"else"}))}
    edge = Edge(ReceivingService(), authenticator=Doors(keys))
    for request_ in (get(STATS), get("/v2/models/stats"), post(INDEX, b"{}"), get(STATS, x_api_key="wrong")):
        assert (await ask(edge, request_)).status == 401
    assert (await ask(edge, get(STATS, x_api_key="other"))).status == 403
    assert not edge.catalogue.questions
    assert (await ask(edge, get(STATS, x_api_key="all"))).status == 200
    assert (await ask(edge, post(INDEX, b"", x_api_key="other"))).status == 200
    assert edge.catalogue.questions == ["statistics", "index ready=False b"]


async def test_a_refusal_does_not_wait_for_the_body() -> None:
    edge = Edge(ReceivingService(), authenticator=Doors({"k": Identity("a")}))
    client = edge.connect()
    client.feed(post(INDEX, b'{"ready":true}')[:-3])
    await turns()
    assert [answer.status for answer in answers(client)] == [401]


async def test_answers_keep_the_order_of_requests_and_nothing_waits_for_a_question_but_what_came_after_it() -> None:
    service = GatedService()
    edge = Edge(service)
    edge.catalogue.heard.clear()
    client, neighbour = edge.connect(), edge.connect()
    client.feed(LIVE + get(STATS, x_request_id="q") + post(x_request_id="c") + LIVE)
    gated = await service.next()
    gated.answer()
    await turns()
    assert [answer.status for answer in answers(client)] == [200], "the question waits, and what came after it too"
    neighbour.feed(LIVE)
    await turns()
    assert [answer.status for answer in answers(neighbour)] == [200]
    edge.catalogue.heard.set()
    await turns()
    assert [answer.headers["x-request-id"] for answer in answers(client)][1:3] == ["q", "c"]
    assert [answer.status for answer in answers(client)] == [200] * 4
    client.reset()
    neighbour.reset()
    await turns()
    edge.nothing_is_left()


async def test_an_answer_waits_for_a_client_that_does_not_read() -> None:
    edge = Edge(ReceivingService())
    client = edge.connect()
    edge.catalogue.heard.clear()
    client.feed(get(STATS))
    await turns()
    client.protocol.pause_writing()
    edge.catalogue.heard.set()
    await turns()
    assert not client.sent
    client.protocol.resume_writing()
    await turns()
    assert [answer.status for answer in answers(client)] == [200]


@pytest.mark.parametrize("leave", ["reset", "half-close"])
async def test_a_client_that_leaves_takes_its_question_back(leave: str) -> None:
    edge = Edge(ReceivingService())
    edge.catalogue.heard.clear()
    client = edge.connect()
    client.feed(get(STATS) + post(INDEX, b""))
    await turns()
    assert edge.catalogue.out == 2
    if leave == "reset":
        client.reset()
    else:
        client.leave()
    await turns()
    assert edge.catalogue.out == 0
    edge.nothing_is_left()
    assert [status for _, status in edge.notes.requests] == ["499", "499"]
    assert edge.notes.internal == 0


async def test_a_client_that_leaves_before_its_question_has_begun_is_counted_too() -> None:
    edge = Edge(ReceivingService())
    client = edge.connect()
    client.feed(get(STATS))
    client.reset()
    await turns()
    assert edge.notes.requests == [("/v2/models/{model}[/versions/{version}]/stats", "499")]
    edge.nothing_is_left()


async def test_a_question_ends_at_the_callers_own_time_limit_and_at_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge(ReceivingService())
    edge.catalogue.heard.clear()
    monkeypatch.setattr(patience, "PATIENCE_S", 0.02)
    for request_ in (get(STATS, x_request_timeout_ms="1"), get(STATS), post(INDEX, b"{}")[:-1]):
        client = edge.connect()
        client.feed(request_)
        async with asyncio.timeout(WAIT_S):
            while not client.sent:
                await asyncio.sleep(0.001)
        (answer,) = answers(client)
        assert (answer.status, answer.headers["x-sluice-reason"]) == (504, "deadline")
        client.reset()
        await turns()
        assert edge.catalogue.out == 0
        edge.nothing_is_left()


async def test_at_the_end_of_draining_a_question_is_told_so() -> None:
    edge = Edge(ReceivingService())
    edge.catalogue.heard.clear()
    client = edge.connect()
    client.feed(get(STATS))
    await turns()
    edge.server.begin_drain()
    assert not await edge.server.wait_closed(0.0)
    (answer,) = answers(client)
    assert (answer.status, answer.headers["x-sluice-reason"]) == (503, "draining")
    assert edge.catalogue.out == 0
    edge.nothing_is_left()


async def test_a_fault_of_the_catalogue_is_500_and_ends_one_request() -> None:
    edge = Edge(ReceivingService())
    for fault in (ValueError("secret path /etc"), KeyboardInterrupt(), asyncio.CancelledError(), TimeoutError("inner")):
        edge.catalogue.fault = fault
        answer = await ask(edge, get(STATS))
        assert (answer.status, answer.headers["x-sluice-reason"]) == (500, "internal")
        assert "secret" not in answer.error
    assert edge.notes.internal == 4
    edge.catalogue.fault = GatewayError(Reason.NO_REPLICA, "nobody answered")
    answer = await ask(edge, get(STATS))
    assert (answer.status, answer.error) == (503, "nobody answered")


# --- gRPC -----------------------------------------------------------------------------------------------------------

STATISTICS_REQUEST = pb.ModelStatisticsRequest(name="mine", version="1").SerializeToString()


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(WAIT_S):
        return await call.code(), await call.details()


async def test_both_questions_are_answered_over_grpc(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ReceivingService()) as edge:
        answer = pb.ModelStatisticsResponse.FromString(await edge.call("ModelStatistics", STATISTICS_REQUEST))
        assert answer.model_stats[0].name == "mine"
        everything = pb.ModelStatisticsRequest(version="x").SerializeToString()
        await edge.call("ModelStatistics", everything)
        for ready in (True, False):
            message = pb.RepositoryIndexRequest(ready=ready).SerializeToString()
            line = pb.RepositoryIndexResponse.FromString(await edge.call("RepositoryIndex", message)).models[0]
            assert line.reason == f"ready={ready} anonymous"
        assert edge.events.requests[-1] == ("grpc", "RepositoryIndex", "OK")


async def test_faults_of_a_grpc_caller_have_their_code(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ReceivingService()) as edge:
        for method, message, code in (
            ("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="r"), grpc.StatusCode.UNIMPLEMENTED),
            ("ModelStatistics", pb.ModelStatisticsRequest(name="mine", version="x"), grpc.StatusCode.INVALID_ARGUMENT),
            ("ModelStatistics", pb.ModelStatisticsRequest(name="nope"), grpc.StatusCode.NOT_FOUND),
        ):
            assert (await code_of(edge.call(method, message.SerializeToString())))[0] is code
        assert (await code_of(edge.call("ModelStatistics", b"\x0a\x05a")))[0] is grpc.StatusCode.INTERNAL
        assert edge.catalogue.questions == 1


async def test_identity_comes_first_over_grpc_too(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ReceivingService(), OneKey()) as edge:
        for method in ("ModelStatistics", "RepositoryIndex"):
            assert (await code_of(edge.call(method)))[0] is grpc.StatusCode.UNAUTHENTICATED
        key = (("x-api-key", "good"),)
        theirs = pb.ModelStatisticsRequest(name="theirs").SerializeToString()
        code, _ = await code_of(edge.call("ModelStatistics", theirs, metadata=key))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert edge.catalogue.questions == 0
        line = pb.RepositoryIndexResponse.FromString(await edge.call("RepositoryIndex", metadata=key)).models[0]
        assert line.reason == "ready=False shop"


async def test_a_grpc_caller_that_leaves_or_runs_out_of_time_takes_its_question_back(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(ReceivingService()) as edge:
        edge.catalogue.heard.clear()
        call = edge.call("ModelStatistics", STATISTICS_REQUEST)
        await until(lambda: edge.catalogue.out == 1)
        call.cancel()
        await until(lambda: edge.catalogue.out == 0)
        await until(lambda: ("grpc", "ModelStatistics", "CANCELLED") in edge.events.requests)
        late = edge.call("RepositoryIndex", timeout=0.05)
        assert (await code_of(late))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: edge.catalogue.out == 0)
        assert edge.events.faults == 0


async def test_our_own_patience_ends_a_question_over_grpc(monkeypatch: pytest.MonkeyPatch, grpc_edge: MakeEdge) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.02)
    async with grpc_edge(ReceivingService()) as edge:
        edge.catalogue.heard.clear()
        code, text = await code_of(edge.call("RepositoryIndex"))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "within 0.02 s" in text


async def test_closing_waits_for_questions_that_are_out(grpc_edge: MakeEdge) -> None:
    held: EdgeUnderTest
    async with grpc_edge(ReceivingService()) as edge:
        held = edge
        edge.catalogue.heard.clear()
        call = edge.call("RepositoryIndex")
        await until(lambda: edge.catalogue.out == 1)
    assert held.catalogue.out == 0
    assert (await code_of(call))[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
