"""Our own gRPC server: what a client may send as a request, in which pieces, and what becomes of what is none."""

from __future__ import annotations

import gzip
import zlib

import msgspec
import pytest

from gateway.edge.grpc_greeting import TLS_ANSWER
from gateway.policy.schema import GrpcLimits
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    RST_STREAM,
    Bench,
    frame,
    head_block,
    infer_message,
    prefixed,
)
from tests.unit.grpc_port_kit import MESSAGE, answering, ended, one


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"P", b""),
        (b"\x16\x03\x01\x00\xa5\x01", TLS_ANSWER),
        (b"\x00\x01\x02", b""),
    ],
    ids=["HTTP/1.1", "HTTP/1.1 with the preface's letter", "too little to tell", "TLS", "garbage"],
)
async def test_who_does_not_speak_http2_is_told_and_closed(said: bytes, answer: bytes) -> None:
    bench = Bench(answering())
    client = bench.connect()
    for octet in said:
        client.feed(bytes((octet,)))
        if client.ended():
            break
    await turns()
    assert client.sent.startswith(answer)
    assert bool(client.sent) == bool(answer)
    assert client.ended() == (said != b"P")
    await bench.nothing_is_left()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (head_block(method=b"GET"), "405"),
        (head_block(method=b"PUT"), "405"),
        (head_block(content_type=b"application/json"), "415"),
        (head_block(content_type=b"application/grpc-web+proto"), "415"),
        (head_block(content_type=b""), "415"),
    ],
)
async def test_who_does_not_speak_grpc_is_told_in_plain_http(head: bytes, status: str) -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    client.open(1, head)
    await turns()
    told, text, reset = client.frames(HEADERS, DATA, RST_STREAM)
    assert told.fields[":status"] == status
    assert told.fields.get("allow") == ("POST" if status == "405" else None)
    assert int(told.fields["content-length"]) == len(text.payload)
    assert text.flags & END_STREAM
    assert reset.code == 0, "the rest of the request is not wanted"
    assert bench.events.requests == [("grpc", "", status)]
    await bench.nothing_is_left()


@pytest.mark.parametrize(
    ("head", "payload", "status", "word"),
    [
        (head_block(INFER, (b"grpc-timeout", b"5")), prefixed(MESSAGE), "13", "grpc-timeout"),
        (head_block(INFER, (b"grpc-timeout", b"-5S")), prefixed(MESSAGE), "13", "grpc-timeout"),
        (head_block(INFER, (b"grpc-encoding", b"zstd")), prefixed(MESSAGE), "13", "grpc-encoding"),
        (head_block(), prefixed(MESSAGE, 1), "13", "Compression bit set"),
        (head_block(), prefixed(MESSAGE, 2), "13", "neither 0 nor 1"),
        (head_block(), b"\0\xff\xff\xff\xff", "8", "SERVER: Received message larger than max (4294967295 vs. 1000000)"),
        (head_block(), b"\0\0", "13", "inside a message"),
        (head_block(), b"", "13", "no message"),
        (head_block(INFER, (b"grpc-encoding", b"gzip")), prefixed(b"xxxx", 1), "13", "not one whole gzip"),
        (head_block(INFER, (b"grpc-encoding", b"deflate")), prefixed(gzip.compress(b"x"), 1), "13", "deflate"),
        (head_block(INFER, (b"grpc-encoding", b"gzip")), prefixed(gzip.compress(MESSAGE)[:-3], 1), "13", "cut short"),
        (
            head_block(INFER, (b"grpc-encoding", b"gzip")), prefixed(gzip.compress(bytes(1_000_001)), 1), "8",
            "larger than max",
        ),
        (head_block(b"/inference.GRPCInferenceService/Nope"), prefixed(b""), "12", ""),
        (head_block(b"/other.Service/Method"), prefixed(b""), "12", ""),
        (head_block(b"/a/\xff"), prefixed(b""), "12", ""),
    ],
)  # fmt: skip
async def test_a_request_that_breaks_grpc_ends_with_a_status_and_a_word(
    head: bytes, payload: bytes, status: str, word: str
) -> None:
    service = answering()
    bench = Bench(service, receive_bytes_max=1_000_000, memory_bytes=1 << 22)
    client = bench.connect()
    client.greet(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, END_STREAM, 1, payload))
    told = await one(client)
    assert (told.fields["grpc-status"], word in told.fields["grpc-message"]) == (status, True), told
    assert told.fields["x-request-id"]
    assert told.fields["x-sluice-reason"]
    assert service.seen == []
    assert [(protocol, code) for protocol, _, code in bench.events.requests] == [
        ("grpc", {"13": "INTERNAL", "8": "RESOURCE_EXHAUSTED", "12": "UNIMPLEMENTED"}[status])
    ]
    assert bench.events.faults == 0
    client.call(3, MESSAGE)
    assert await ended(client) == [(3, "0")], "the connection lives on"
    await bench.nothing_is_left()


async def test_more_metadata_than_is_allowed_is_refused_and_the_connection_lives_on() -> None:
    bench = Bench(answering(), limits=msgspec.convert({"header_list_bytes_max": 2048}, GrpcLimits))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, (b"x-large", bytes(2000).replace(b"\0", b"a"))))
    told = await one(client)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("8", "too_large")
    assert "2048" in told.fields["grpc-message"]
    assert bench.events.requests == [("grpc", "", "RESOURCE_EXHAUSTED")]
    client.call(3, MESSAGE, head_block(INFER, (b"x-large", b"a" * 1000)))
    assert await ended(client) == [(3, "0")]
    await bench.nothing_is_left()


@pytest.mark.parametrize("flag", ["identity", "gzip", "deflate"])
@pytest.mark.parametrize("cut", [1, 3, 5, 6, 40])
async def test_a_message_may_come_in_any_pieces_and_codings(flag: str, cut: int) -> None:
    service = answering()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    message = infer_message(size=300)
    coded = {"identity": message, "gzip": gzip.compress(message), "deflate": zlib.compress(message)}[flag]
    client.open(1, head_block(INFER, (b"grpc-encoding", flag.encode())))
    payload = prefixed(coded, int(flag != "identity"))
    for at in range(0, len(payload), cut):
        client.feed(frame(DATA, 0, 1, payload[at : at + cut]))
    client.feed(frame(DATA, END_STREAM, 1))
    assert await ended(client) == [(1, "0")]
    assert [call.message for call in service.seen] == [message]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_trailers_of_a_client_end_its_request() -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    client.open(1)
    client.say(1, prefixed(MESSAGE))
    client.feed(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01x\x01y"))
    assert await ended(client) == [(1, "0")]
    client.open(3)
    client.feed(frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x00\x01x\x01y"))
    assert await ended(client) == [(3, "13")]
    await bench.nothing_is_left()


async def test_blocks_that_come_again_are_new_calls_with_ids_of_their_own() -> None:
    service = answering()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    named = head_block(INFER, (b"x-request-id", b"given"), (b"x-user", b"u"))
    for stream, head in enumerate([head_block(), named] * 3):
        client.call(2 * stream + 1, MESSAGE, head)
    await turns()
    ids = [got.fields["x-request-id"] for got in client.frames(HEADERS) if "x-request-id" in got.fields]
    assert ids == [call.request_id for call in service.seen]
    assert ids[1::2] == ["given"] * 3
    assert len({*ids[0::2]}) == 3
    assert [("x-user", "u") in call.metadata for call in service.seen] == [False, True] * 3
    await bench.nothing_is_left()


async def test_binary_metadata_stays_here() -> None:
    service = answering()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, (b"x-trace-bin", b"AAEC"), (b"x-b-bin", b"AAE="), (b"x-odd-bin", b"%%")))
    assert await ended(client) == [(1, "0")]
    assert dict(service.seen[0].metadata) == {}
    await bench.nothing_is_left()
