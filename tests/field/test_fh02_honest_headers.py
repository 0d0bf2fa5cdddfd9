"""FH-02: headers describe the bytes that are sent, for every kind of answer and every wish about compression.

Inference goes upstream over gRPC, so there is no upstream body over HTTP to be copied or packed twice; the one thing
that is read from a model server over HTTP and passed on is a model's configuration, and that comes last here. The
case's part about an error on `generate_stream` belongs to the tests of that route.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faults import UpstreamFault
from gateway.core.header_names import HOP_BY_HOP
from gateway.core.reply import Reply, Response, StreamReply
from gateway.fleet.http_get import HttpGetter
from tests.support.field_http import ask
from tests.support.http_answer import Answer
from tests.unit.edge_clients import WAIT_S, Client, get, infer_body, infer_response, post
from tests.unit.edge_driving import Edge, ReceivingService, running

WISHES = {
    "gzip": "gzip",
    "deflate": "deflate",
    "gzip;q=0, identity": "",
    "gzip;q=0": "",
    "identity": "",
    "identity;q=0.5, gzip;q=0.4": "",
    "gzip;q=0.4, identity;q=0.3": "gzip",
    "br, zstd": "",
    "*": "",
    "": "",
}
"""What a client asks for, and the coding it gets where answers are compressed at all. Absent: see the tests."""
UNPACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}
BINARY = infer_body(parameters={"binary_data_output": True})
ELEMENTS = 500
"""Some 2 kB of JSON, as in the case."""


def answered(call: Call) -> Reply:
    """One response, to `infer` and to `generate` alike."""
    message = infer_response(elements=ELEMENTS)
    if call.session is None:
        return Reply(message)

    async def end() -> None:
        return None

    return StreamReply(Response(message), end, ordered=False)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    edge = Edge(ReceivingService(answered))
    async with running(edge) as (host, port):
        yield f"{host}:{port}"


async def asked(
    address: str, path: str, body: bytes | None = None, wish: str | None = None, method: str = "", **headers: str
) -> Answer:
    if wish is not None:
        headers["Accept-Encoding"] = wish
    return await asyncio.to_thread(ask, address, path, body, headers, method)


def honest(answer: Answer, coding: str) -> bytes:
    """The body unpacked, after its headers were held to the bytes. Length and chunks are checked where it is read."""
    assert answer.headers.get("content-encoding", "") == coding
    hop = {name for name in answer.headers if name in HOP_BY_HOP} - {"connection"}
    assert hop == set()
    if not coding:
        assert not answer.body.startswith(b"\x1f\x8b")
    body = UNPACK[coding](answer.body)
    if (length := answer.headers.get("inference-header-content-length")) is not None:
        json.loads(body[: int(length)])
        assert answer.headers["content-type"] == "application/octet-stream"
    elif answer.headers["content-type"] == "application/json":
        json.loads(body)
    return body


@pytest.mark.parametrize("wish", [None, *WISHES])
async def test_answers_to_inference_are_what_their_headers_say(address: str, wish: str | None) -> None:
    coding = "" if wish is None else WISHES[wish]
    answer = await asked(address, "/v2/models/fraud/infer", infer_body(), wish)
    document = json.loads(honest(answer, coding))
    assert document["outputs"][0]["data"] == [0.0] * ELEMENTS
    assert "inference-header-content-length" not in answer.headers

    answer = await asked(address, "/v2/models/fraud/infer", BINARY, wish)
    body = honest(answer, coding)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 4 * ELEMENTS}
    assert body[length:] == bytes(4 * ELEMENTS), "the length counts unpacked JSON"


@pytest.mark.parametrize("wish", [None, *WISHES])
@pytest.mark.parametrize(
    ("path", "body", "method", "status"),
    [
        ("/v2", None, "GET", 200),
        ("/v2/health/live", None, "GET", 200),
        ("/v2/health/ready", None, "GET", 200),
        ("/v2/models/fraud", None, "GET", 200),
        ("/v2/models/fraud/ready", None, "GET", 200),
        ("/v2/models/fraud/config", None, "GET", 200),
        ("/v2/models/fraud/generate", b'{"x":1}', "POST", 200),
        ("/v2/models/fraud/generate", b"not JSON", "POST", 400),
        ("/v2/models/fraud/stats", None, "GET", 200),
        ("/v2/models/stats", None, "GET", 200),
        ("/v2/models/absent/stats", None, "GET", 404),
        ("/v2/repository/index", b"", "POST", 200),
        ("/v2/repository/index", b"{}", "POST", 200),
        ("/v2/repository/index", b"not JSON", "POST", 400),
        ("/v2/models/absent", None, "GET", 404),
        ("/v2/nowhere", None, "GET", 404),
        ("/v2/models/fraud/infer", None, "GET", 405),
        ("/v2/models/fraud/infer", b"{}", "POST", 400),
        ("/v2/models/fraud/infer", b"not JSON", "POST", 400),
    ],
)
async def test_everything_else_is_never_compressed(
    address: str, wish: str | None, path: str, body: bytes | None, method: str, status: int
) -> None:
    answer = await asked(address, path, body, wish, method)
    assert answer.status == status
    plain = honest(answer, "")
    if "/health/" in path or path.endswith("/ready"):
        assert plain == b""
        assert answer.headers["content-length"] == "0"
    if status >= 400:
        assert list(json.loads(plain)) == ["error"]


@pytest.mark.parametrize("wish", [None, "gzip"])
@pytest.mark.parametrize(
    "path", ["/v2/health/live", "/v2/models/fraud/infer", "/v2/models/fraud/config", "/v2/nowhere"]
)
async def test_an_answer_to_head_has_no_body_whatever_length_it_names(
    address: str, path: str, wish: str | None
) -> None:
    answer = await asked(address, path, None, wish, "HEAD")
    assert answer.status in (404, 405)
    assert answer.body == b""


async def test_what_follows_an_answer_to_head_on_one_connection_is_the_next_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    client = await Client.connect((host, int(port)))
    head = get("/v2/health/live").replace(b"GET", b"HEAD", 1)
    client.send(head + post(Accept_Encoding="gzip") + get("/v2/health/live"))
    assert (await client.answer(bodiless=True)).status == 405
    packed = await client.answer()
    assert json.loads(gzip.decompress(packed.body))["model_name"] == "fraud"
    assert (await client.answer()).status == 200
    await client.close()


async def test_an_error_is_whole_and_plain_whatever_its_length() -> None:
    """The case's 36 bytes, as the error of a model; and one that is larger than what an edge writes at once."""
    for text in ("temperature out of range", "ü" * 70_000):

        def fail(call: object, text: str = text) -> Reply:
            raise GatewayError(Reason.UPSTREAM_INVALID, text)

        edge = Edge(ReceivingService(fail))
        async with running(edge) as (host, port):
            for wish in (None, "gzip"):
                answer = await asked(f"{host}:{port}", "/v2/models/fraud/infer", infer_body(), wish)
                assert (answer.status, answer.error) == (400, text)
                honest(answer, "")


async def test_hop_by_hop_headers_of_the_caller_do_not_come_back(address: str) -> None:
    answer = await asked(
        address,
        "/v2/models/fraud/infer",
        infer_body(),
        **{"Keep-Alive": "timeout=5", "TE": "trailers", "Upgrade": "h2c", "Proxy-Connection": "keep-alive"},
    )
    assert answer.status == 200
    honest(answer, "")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Encoding: gzip\r\n", gzip.compress(b'{"name": "m"}')),
        (b"Content-Encoding: deflate\r\n", zlib.compress(b'{"name": "m"}')),
        (b"Content-Encoding: gzip\r\n", b'{"name": "m"}'),
        (b"", gzip.compress(b'{"name": "m"}')),
    ],
    ids=["labelled", "labelled deflate", "labelled, but plain", "packed without a label"],
)
async def test_a_packed_answer_of_a_model_server_is_never_passed_on_as_json(headers: bytes, body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    getter = HttpGetter()
    try:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UpstreamFault, match="compressed") as caught:
            async with asyncio.timeout(WAIT_S):
                await getter.get(f"127.0.0.1:{port}", "/v2/models/m/config", WAIT_S, 10_000)
    finally:
        await getter.aclose()
        server.close()
    assert caught.value.code is Code.INTERNAL
