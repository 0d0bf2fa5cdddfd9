"""Heads that a plan reads say what they say when they are read field by field."""

from __future__ import annotations

import random

import pytest

from gateway.core.credentials import NO_PEER
from gateway.edge.grpc_head import HeadReader
from gateway.edge.grpc_head_plan import HeadPlan
from gateway.edge.grpc_rpc_head import RpcHead
from gateway.edge.headers import HeaderReader
from gateway.wire.hpack import HpackDecoder
from gateway.wire.hpack.huffman import encode_huffman
from gateway.wire.hpack.integers import encode_integer

Field = tuple[bytes, bytes]

ID = (
    b"id-000000001",
    b"id-000000002",
    b"id  blank  0",
    b"\xc3\xa4-000000001",
    b"id-\x00\x1f-000001",
    b"id-\x7f-0000001",
)
TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
PARENT = (
    b"00-" + TRACE + b"-" + SPAN + b"-01",
    b"00-" + TRACE[::-1] + b"-" + SPAN + b"-00",
    b"01-" + TRACE + b"-" + SPAN + b"-01",
    b"ff-" + TRACE + b"-" + SPAN + b"-01",
    b"00-" + b"0" * 32 + b"-" + SPAN + b"-01",
    b"00-" + TRACE + b"-" + b"0" * 16 + b"-01",
    b"00-" + TRACE.upper() + b"-" + SPAN + b"-01",
    b"00_" + TRACE + b"-" + SPAN + b"-01",
    b"00-" + TRACE + b"-" + SPAN + b"-\xff1",
)
TIMEOUT = (b"100m", b"250m", b"001S", b"0 1S", b"10mm", b"   u", b"\xff\xff1m")
USUAL: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    (b"x-request-id", ID),
    (b"traceparent", PARENT),
    (b"grpc-timeout", TIMEOUT),
)
BASE = b"\x83\x86"  # POST, http
PATH: Field = (b":path", b"/inference.GRPCInferenceService/ModelInfer")
CONTENT_TYPE: Field = (b"content-type", b"application/grpc")

ROWS: dict[str, tuple[tuple[Field, ...], tuple[tuple[bytes, tuple[bytes, ...]], ...], bool]] = {
    # What is in the table, what varies, and whether there is a plan for it.
    "the usual": ((CONTENT_TYPE,), USUAL, True),
    "no id": ((CONTENT_TYPE,), USUAL[1:], True),
    "no trace": ((CONTENT_TYPE,), (USUAL[0], USUAL[2]), True),
    "nothing but the time": ((CONTENT_TYPE,), USUAL[2:], True),
    "another order": ((CONTENT_TYPE,), USUAL[::-1], True),
    "what nobody reads": ((CONTENT_TYPE,), ((b"user-agent", (b"a/1", b"b/2", b"\xff/2")), *USUAL), True),
    "what goes on, and is the same": ((CONTENT_TYPE, (b"x-mine", b"always")), USUAL, True),
    "a key": ((CONTENT_TYPE, (b"x-api-key", b"secret")), USUAL, True),
    "a state": ((CONTENT_TYPE, (b"tracestate", b"a=1")), USUAL, True),
    "the other time limit": ((CONTENT_TYPE, (b"x-request-timeout-ms", b"200")), USUAL, True),
    "an explanation": ((CONTENT_TYPE, (b"x-sluice-explain", b"1")), USUAL, True),
    "compressed": ((CONTENT_TYPE, (b"grpc-encoding", b"gzip")), USUAL, True),
    "a true status": ((CONTENT_TYPE, (b"triton_grpc_error", b"true")), USUAL, True),
    "an id twice": ((CONTENT_TYPE, (b"x-request-id", b"id-000000001")), USUAL, False),
    "a trace twice": ((CONTENT_TYPE,), (*USUAL, USUAL[1]), False),
    "a time twice": ((CONTENT_TYPE, (b"grpc-timeout", b"50m")), USUAL, False),
    "what goes on": ((CONTENT_TYPE,), (*USUAL, (b"x-mine", (b"one", b"two", b"\x00\x00\x00"))), False),
    "a key that varies": ((CONTENT_TYPE,), (*USUAL, (b"x-api-key", (b"one", b"two"))), False),
    "a time limit that varies": ((CONTENT_TYPE,), (*USUAL, (b"x-request-timeout-ms", (b"100", b"200", b"1x0"))), False),
    "a wish": ((CONTENT_TYPE,), (*USUAL, (b"x-sluice-min-rung", (b"1", b"2"))), False),
    "a class": (
        (CONTENT_TYPE,),
        (*USUAL, (b"x-sluice-priority", (b"critical", b"CRITICAL", b"critica ", b"\xff" * 8))),
        True,
    ),
    "a class that is the same": ((CONTENT_TYPE, (b"x-sluice-priority", b"sheddable")), USUAL, True),
    "a class twice": (
        (CONTENT_TYPE, (b"x-sluice-priority", b"critical")),
        (*USUAL, (b"x-sluice-priority", (b"critical",))),
        False,
    ),
    "a type that varies": ((), (*USUAL, (b"content-type", (b"application/grpc", b"application/json"))), False),
    "an encoding that varies": ((CONTENT_TYPE,), (*USUAL, (b"grpc-encoding", (b"gzip", b"brot"))), False),
    "no gRPC": (((b"content-type", b"application/json"),), USUAL, False),
    "empty": ((CONTENT_TYPE,), ((b"x-request-id", (b"",)), (b"traceparent", (b"",)), USUAL[2]), False),
    "an empty id": ((CONTENT_TYPE,), ((b"x-request-id", (b"",)), USUAL[2]), False),
}


@pytest.mark.parametrize("forward", [("*",), (), ("x-request-id",)])
@pytest.mark.parametrize("row", ROWS)
def test_a_planned_head_says_what_it_says_field_by_field(row: str, forward: tuple[str, ...]) -> None:
    table, varying, has_plan = ROWS[row]
    table = (PATH, *table)
    decoder, chance = HpackDecoder(), random.Random(7)
    reader = HeadReader(HeaderReader(forward, random.Random(1)), NO_PEER)
    inserted = b"".join(b"\x40" + literal_of(name) + literal_of(value) for name, value in table)
    plain = HpackDecoder(remember=False)
    for each in (decoder, plain):
        each.decode(inserted)
    indices = b"".join(bytes((0x80 | 62 + len(table) - 1 - place,)) for place in range(len(table)))
    planned = 0
    for _ in range(400):
        chosen = [(name, values[0] if chance.random() < 0.6 else chance.choice(values)) for name, values in varying]
        raw = BASE + indices + b"".join(b"\x00" + literal_of(name) + literal_of(value) for name, value in chosen)
        block = decoder.decode(raw)
        planned += block.layout is not None and isinstance(block.layout.note, HeadPlan)

        head = reader.read(block)

        alone = HeadReader(HeaderReader(forward, random.Random(1)), NO_PEER).read(plain.decode(raw))
        assert told(head) == told(alone)

    if row == "what goes on" and "*" not in forward:
        has_plan = True  # it does not
    assert planned > 100 if has_plan else not planned


@pytest.mark.parametrize("name", ["x-request-id", "traceparent", "grpc-timeout", "x-mine"])
def test_what_names_the_tenant_is_read_each_time(name: str) -> None:
    """Whichever header that is; the policy lets it be the last of these alone."""
    decoder, plain = HpackDecoder(), HpackDecoder(remember=False)
    reader = HeadReader(HeaderReader((), random.Random(1), name), NO_PEER)
    parent = b"00-" + TRACE + b"-" + SPAN + b"-0%d"
    forms = {b"x-request-id": b"id-%d", b"traceparent": parent, b"grpc-timeout": b"%dS", b"x-mine": b"t%d"}
    for number in range(10):
        varying = tuple((each, value % (number if each == name.encode() else 1)) for each, value in forms.items())
        fields = (PATH, CONTENT_TYPE, *varying)
        raw = BASE + b"".join(b"\x00" + coded(each) + coded(value, each == name.encode()) for each, value in fields)

        head = reader.read(decoder.decode(raw))

        assert head.headers.credentials.claimed == dict(varying)[name.encode()].decode()
        alone = HeadReader(HeaderReader((), random.Random(1), name), NO_PEER).read(plain.decode(raw))
        assert told(head) == told(alone)


def test_a_content_type_that_comes_again_counts_in_every_head() -> None:
    reader = HeadReader(HeaderReader((), random.Random(1)), NO_PEER)
    usual = (PATH, CONTENT_TYPE, (b"user-agent", b"a"), (b"grpc-timeout", b"1S"))
    statuses = []
    for fields in (usual, (*usual, (b"content-type", b"text/html")), usual):
        raw = BASE + b"".join(b"\x00" + coded(name) + coded(value) for name, value in fields)
        statuses.append(reader.read(HpackDecoder().decode(raw)).status)
    assert statuses == [0, 415, 0]


@pytest.mark.parametrize(("size", "planned"), [(900, True), (1100, False)])
def test_what_a_plan_keeps_has_a_bound(size: int, planned: bool) -> None:
    decoder, reader = HpackDecoder(), HeadReader(HeaderReader(("*",), random.Random(1)), NO_PEER)
    own: Field = (b"x-mine", b"m" * size)
    decoder.decode(b"\x40" + coded(own[0]) + encode_integer(size, 0x7F, 0) + own[1])
    for number in range(5):
        raw = BASE + b"\x00" + coded(PATH[0]) + coded(PATH[1]) + b"\x00" + coded(CONTENT_TYPE[0])
        raw += coded(CONTENT_TYPE[1]) + b"\xbe\x00" + coded(b"grpc-timeout") + literal_of(b"%dS" % number)
        block = decoder.decode(raw)
        assert reader.read(block).headers.metadata == ((own[0].decode(), own[1].decode()),)
    assert block.layout is not None
    assert isinstance(block.layout.note, HeadPlan) == planned


def coded(text: bytes, plain: bool = False) -> bytes:
    """A string; `plain` ones are those that may vary in heads of one layout."""
    if plain:
        return literal_of(text)
    huffman = encode_huffman(text)
    return bytes((0x80 | len(huffman),)) + huffman


def literal_of(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def told(head: RpcHead) -> object:
    headers, fault = head.headers, head.fault
    return (
        (head.kind, head.method, head.named, head.timeout_s, head.rpc_timeout_s, head.encoding, head.true_status),
        (head.status, fault and (fault.reason, fault.message, fault.code)),
        (headers.request_id if head.named and headers.fault is None else None, headers.timeout_s),
        (headers.credentials, headers.explain, headers.metadata, headers.priority, headers.dropped),
        headers.fault and (headers.fault.reason, headers.fault.message),
    )


@pytest.mark.parametrize("indexed", [b"\x00", b"\x40"])
def test_the_class_of_one_head_is_never_anothers(indexed: bytes) -> None:
    """Whatever came before on the connection, and whether the client's encoder keeps the field in the table."""
    decoder, chance = HpackDecoder(), random.Random(5)
    reader = HeadReader(HeaderReader(("*",), random.Random(1)), NO_PEER)
    words: tuple[bytes | None, ...] = (
        b"critical_plus",
        b"critical",
        b"sheddable_plus",
        b"sheddable",
        b"nonsense",
        None,
    )
    for number in range(300):
        word = chance.choice(words)
        fields = (PATH, CONTENT_TYPE, (b"x-request-id", b"id-%03d" % number))
        raw = BASE + b"".join(b"\x00" + coded(name) + coded(value) for name, value in fields)
        if word is not None:
            raw += indexed + coded(b"x-sluice-priority") + coded(word)

        head = reader.read(decoder.decode(raw))

        assert head.headers.request_id == f"id-{number:03d}"
        if word == b"nonsense":
            assert head.headers.fault is not None
            assert "sheddable_plus" in head.headers.fault.message
        else:
            assert head.headers.fault is None
            assert head.headers.priority == (None if word is None else words.index(word))
