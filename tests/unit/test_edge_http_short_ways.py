"""The HTTP edge with all its short ways against the same edge without any: whatever clients send, in whatever pieces,
calls, answers, connections and what is counted are the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.edge.headers import HeaderReader
from gateway.policy.schema import HttpLimits
from gateway.wire.http1 import server as codec
from gateway.wire.http1.forms import HeadForm, HeadForms
from gateway.wire.kserve import http_request, http_response
from gateway.wire.kserve.json_forms import JsonForms
from tests.support.clock import ManualClock
from tests.unit.edge_clients import infer_response
from tests.unit.edge_driving import Edge, MemoryTransport, turns

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IDS = ["r-1", "r-1", "r-2", "r-3", "r 3", "\xe9-1"]
TIMEOUTS = ["2000", "2000", "3000", "3000", "+100"]
PARENTS = [
    PARENT,
    PARENT,
    PARENT.replace("a", "b"),
    PARENT.replace("a", "b"),
    PARENT.upper(),
    "ff" + PARENT[2:],
    "0" * 55,
]
KEYS = ["Bearer t", "Bearer u"]
DOCUMENTS = [
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":%s}],"outputs":[{"name":"y"}]}',
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":%s}]}',
    '{"inputs":[{"name":"x","datatype":"UINT8","shape":[2],"data":%s}],"outputs":[{"name":"y"}]}',
]
ELEMENTS = [
    "[1,2]",
    "[3,4]",
    "[3,4.5]",
    "[1,300]",
    "[[1],[2]]",
    "[1]",
    "[1,NaN]",
    "[1,2",
    '[1,"2"]',
    '[1,2],"data":[3,4]',
]


class Answering:
    """A service that keeps what it was asked, and gives models answers of their own; some it refuses unread."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    async def send(self, call: Call) -> Reply:
        seen = (
            call.request_id,
            call.model,
            call.version,
            call.credentials,
            call.metadata,
            call.timeout_s,
            call.explain,
        )
        self.made.append((*seen, call.body_bytes))
        if call.request_id == "r-2" and call.model == "fraud":
            raise GatewayError(Reason.QUEUE_FULL, "no room")
        assert call.receive is not None
        await call.receive()
        self.made.append((call.message, call.body_id, call.sequence, call.classified))
        return Reply(infer_response(call.model, elements=len(call.model) % 3))


@contextmanager
def nothing_remembered() -> Iterator[None]:
    """Inside, every head and every document is read, and every answer is written, by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadForm, "values", lambda self, data: None)
        patch.setattr(JsonForms, "read", lambda self, document: None)
        patch.setattr(http_response, "single_of", lambda message: None)
        yield


class Script:
    """Two clients' requests. Mostly they are two heads and two documents with other values; now and then a byte is
    another, or they come in two pieces."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.known = [
            (chance.choice(["fraud", "fraud", "other"]), chance.random() < 0.7, chance.random() < 0.7, document)
            for document in chance.sample(DOCUMENTS, 2)
        ]

    def request(self) -> bytes:
        choose = self.chance.choice
        model, named, timed, document = choose(self.known)
        body = (document % choose([*ELEMENTS[:2] * 5, *ELEMENTS])).encode()
        lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: h"]
        lines.append(f"Content-Length: {len(body) + choose([0] * 20 + [1, -1])}")
        if named:
            lines += [f"x-request-id: {choose(IDS)}", f"traceparent: {choose(PARENTS)}", "x-other: 1"]
        if timed:
            lines += [f"x-request-timeout-ms: {choose(TIMEOUTS)}", f"Authorization: {choose(KEYS)}"]
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        if self.chance.random() < 0.1:
            at = self.chance.randrange(len(data))
            data = data[:at] + choose([b"", b"\0", b" ", b"\r\n", b"1"]) + data[at + self.chance.randrange(3) :]
        return data

    def steps(self) -> list[tuple[Any, ...]]:
        steps: list[tuple[Any, ...]] = []
        for _ in range(12):
            kind = self.chance.random()
            if kind < 0.1:
                steps.append(("leave", self.chance.randrange(2)))
            elif kind < 0.2:
                steps.append(("read anew", self.chance.choice([("*",), (), ("x-other",)])))
            else:
                cut = self.chance.choice([0, 0, 0, 0, self.chance.randrange(300)])
                steps.append(("send", self.chance.randrange(2), self.request(), cut))
                steps.append(("wait", self.chance.choice([0, 1, 2, 20, 20, 20, 20])))
        return steps


async def lived(steps: list[tuple[Any, ...]]) -> object:
    """All that can be seen of an edge that has gone through `steps`."""
    service = Answering()
    edge = Edge(service, clock=ManualClock())
    clients: list[MemoryTransport] = [edge.connect(), edge.connect()]
    sent: list[bytes] = []

    async def left(number: int) -> None:
        if not clients[number].lost:
            clients[number].leave()
        await turns(20)
        sent.append(bytes(clients[number].sent))
        clients[number] = edge.connect()

    for kind, *what in steps:
        if kind == "send":
            number, data, cut = what
            for piece in (data[:cut], data[cut:]):
                if piece and not clients[number].lost and clients[number].reads():
                    clients[number].feed(piece)
        elif kind == "leave":
            await left(what[0])
        elif kind == "read anew":
            edge.server.use(HttpLimits(), HeaderReader(what[0], random.Random(3)))
        else:
            await turns(what[0])
    for number in (0, 1):
        await left(number)
    edge.nothing_is_left()
    return service.made, sent, edge.notes.requests, edge.notes.faults, edge.notes.internal


@pytest.mark.parametrize("seed", range(80))
async def test_what_is_remembered_is_not_seen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_forms", HeadForms())
    monkeypatch.setattr(http_request, "_json_forms", JsonForms())
    steps = Script(seed).steps()
    shortly = await lived(steps)
    with nothing_remembered():
        assert await lived(steps) == shortly
    # And what was remembered of a whole life is good for the next one.
    assert await lived(steps) == shortly
