"""The usual inference request, known by the form of its head: the call that comes of it is the one that comes of
reading every header, and what is not usual is read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Call
from gateway.core.credentials import NO_PEER, Peer
from gateway.core.reply import Reply
from gateway.edge.headers import HeaderReader
from gateway.edge.http_usual import UsualCalls
from gateway.policy.schema import HttpLimits
from gateway.wire.http1.forms import form_of
from gateway.wire.http1.head import parse_head
from gateway.wire.http1.limits import Http1Limits
from tests.unit.edge_clients import infer_response, post, read_answers
from tests.unit.edge_driving import Edge, turns
from tests.unit.test_edge_headers_usual import told

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Calls:
    """A service that keeps what it was asked."""

    def __init__(self) -> None:
        self.made: list[Call] = []

    async def send(self, call: Call) -> Reply:
        self.made.append(call)
        assert call.receive is not None
        await call.receive()
        return Reply(infer_response())


def facts(call: Call) -> dict[str, Any]:
    names = ("request_id", "model", "version", "message", "body_bytes", "metadata", "timeout_s", "explain", "protocol",
             "priority")  # fmt: skip
    return {"peer": call.credentials, "body_id": call.body_id, **{name: getattr(call, name) for name in names}}


HEADERS: list[dict[str, str]] = [
    {},
    {"x_request_id": "r-1", "traceparent": PARENT, "x_request_timeout_ms": "2000"},
    {"x_request_id": "r-1", "accept_encoding": "gzip", "x_other": "1", "x_api_key": "key-a"},
    {"traceparent": PARENT, "tracestate": "a=1", "connection": "keep-alive", "x_sluice_explain": "1"},
    {"inference_header_content_length": "40", "x_request_timeout_ms": "20"},
    {"content_encoding": "identity"},
    {"content_encoding": "gzip"},
    {"x_sluice_priority": "1", "x_request_id": "r-1"},
    {"x_sluice_priority": "critical_plus", "x_request_id": "r-1"},
    {"x_sluice_priority": "sheddable", "x_request_timeout_ms": "2000"},
    {"x_sluice_min_rung": "1", "x_request_id": "r-1"},
]


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("target", ["/v2/models/fraud/infer", "/v2/models/fraud/versions/01/infer", "/v2/models/fraud"])
async def test_the_second_request_of_a_form_comes_to_what_the_first_came_to(
    headers: dict[str, str], target: str
) -> None:
    service = Calls()
    edge = Edge(service)
    answers = []
    for _ in range(3):
        transport = edge.connect()
        transport.feed(post(target, None, **headers))
        await turns()
        answers.append(read_answers(bytes(transport.sent)))
        transport.leave()
    assert answers[0][0].status == answers[1][0].status == answers[2][0].status
    assert answers[0][0].body == answers[1][0].body == answers[2][0].body
    first, *others = map(facts, service.made) if service.made else ({},)
    for other in others:
        if "x_request_id" not in headers:
            assert len(other.pop("request_id")) == 32
        assert other.items() <= first.items()
    edge.nothing_is_left()


async def test_a_form_is_read_anew_when_the_policy_changes() -> None:
    service = Calls()
    edge = Edge(service)
    transport = edge.connect()
    for forward in (("*",), (), ("x-other",)):
        edge.server.use(HttpLimits(), HeaderReader(forward, random.Random(3)))
        for _ in range(2):
            transport.feed(post(x_request_id="r-1", x_other="1"))
            await turns()
    assert [call.metadata for call in service.made] == [
        *[(("x-request-id", "r-1"), ("x-other", "1"))] * 2,
        *[()] * 2,
        *[(("x-other", "1"),)] * 2,
    ]


async def test_who_is_at_the_other_end_is_told_of_known_heads_too() -> None:
    class Named:
        def of(self, transport: object) -> Peer:
            return Peer("10.0.0.1")

    service = Calls()
    edge = Edge(service, peers=Named())  # type: ignore[arg-type]
    transport = edge.connect()
    for _ in range(3):
        transport.feed(post(x_request_id="r-1"))
        await turns()
    assert [call.credentials.peer for call in service.made] == [Peer("10.0.0.1")] * 3


async def test_the_class_of_one_request_is_never_anothers() -> None:
    """On one connection, in any order, known heads and new ones."""
    service, chance = Calls(), random.Random(5)
    edge = Edge(service)
    transport = edge.connect()
    words = ("critical_plus", "critical", "sheddable_plus", "sheddable", None)
    sent = [chance.choice(words) for _ in range(200)]
    for number, word in enumerate(sent):
        named = {} if word is None else {"x_sluice_priority": word}
        transport.feed(post(body=None, x_request_id=f"r-{number:03d}", **named))
        await turns()
    assert [call.request_id for call in service.made] == [f"r-{number:03d}" for number in range(200)]
    assert [call.priority for call in service.made] == [None if word is None else words.index(word) for word in sent]


async def test_a_class_that_there_is_not_is_refused_with_the_four_there_are() -> None:
    service = Calls()
    edge = Edge(service)
    transport = edge.connect()
    for word in ("critical", "urgent!!", "critical"):  # of one length: the head differs in that value alone
        transport.feed(post(x_request_id="r-1", x_sluice_priority=word))
        await turns()
    good, bad, again = read_answers(bytes(transport.sent))
    assert (good.status, bad.status, again.status) == (200, 400, 200)
    text = "x-sluice-priority must be critical_plus, critical, sheddable_plus or sheddable"
    assert json.loads(bad.body) == {"error": text}


VALUES = {
    "x-request-id": st.sampled_from(["r-1", "r-2", "a,b", "x=y"]),
    "traceparent": st.sampled_from([PARENT, PARENT.replace("a", "b"), PARENT.upper(), PARENT.replace("00-", "01-")])
    | st.just("00-" + "0" * 32 + PARENT[35:]),
    "x-sluice-priority": st.sampled_from(["critical", "Critical", "sheddable", "critical_plus"]),
    "x-request-timeout-ms": st.sampled_from(["2000", "3000", "0000", "+100", "0100", "9e03", "1000"]),
}


@given(
    st.lists(st.sampled_from([*VALUES, "x-other", "authorization", "tracestate"]), unique=True),
    st.sampled_from([("*",), (), ("x-request-id", "x-other")]),
    st.data(),
)
def test_a_known_head_says_of_its_caller_what_reading_it_says(
    names: list[str], forward: tuple[str, ...], data: st.DataObject
) -> None:
    fixed = {"x-other": "1", "authorization": "Bearer t", "tracestate": "a=1"}

    def head() -> bytes:
        values = {name: fixed[name] if name in fixed else data.draw(VALUES[name]) for name in names}
        lines = [f"{name}: {value}\r\n" for name, value in values.items()]
        return f"POST /v2/models/fraud/infer HTTP/1.1\r\nHost: x\r\ncontent-length: 2\r\n{''.join(lines)}\r\n".encode()

    first, second = head(), head()
    form = form_of(first, parse_head(first, Http1Limits(), 8192))
    assert form is not None
    server = Edge(Calls(), forward=forward).server
    reader = HeaderReader(forward, random.Random(3))
    usual = UsualCalls(server.desk, reader).of(form)
    values = form.values(second + b"{}") if len(first) == len(second) else None
    if usual is None or values is None:
        return
    known = usual.client(values)
    read = HeaderReader(forward, random.Random(3)).usual(parse_head(second, Http1Limits(), 8192).headers, NO_PEER)
    assert (known is None) is (read is None)
    if known is not None and read is not None:
        assert told(known) == told(read)
