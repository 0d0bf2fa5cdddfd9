"""Requests and answers of the KServe protocol (`gateway.wire.kserve`) in JSON, binary and protobuf. The first byte
chooses the decoder.
"""

from __future__ import annotations

import random

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.core.errors import GatewayError
from gateway.wire.kserve.http_request import decode_http_infer
from gateway.wire.kserve.request_view import read_head
from tests.fuzz.mutations import change
from tests.fuzz.target import Target
from tests.unit.test_kserve_fuzz import DECODERS, FRAMED_JSON, SAMPLES, TOKENS, feed

GROWTH_MAX = 16
"""Bytes of a message for each byte of its JSON: a digit and a comma become an FP64."""

ROWS = len(DECODERS)
NAMES = [name for name, _, _ in DECODERS]
PIECES = (
    *TOKENS,
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"0", b"-0", b"1e5", b"\\u0000", b"\\n", b"\xed\xa0\x80", b"[[1],[2]]"),
    *(
        b'"inputs":',
        b'"outputs":',
        b'"parameters":{',
        b'"id":""',
        b'"sequence_id":"s",',
        b'"classification":3',
        b"UINT64",
    ),
    *(
        b"\x08\x01",
        b"\x0a\x00",
        b"\x12\x00",
        b"\x22\x05\x0a\x01a\x12\x00",
        b"\x2a\x02\x0a\x00",
        b"\x3a\x01\x00",
        b"\x43\x44",
    ),
    *(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x1a\x02\xff\x01", b"\x7f", b"\xfa\x01\x00"),
)


def check(data: bytes) -> None:
    row, body = (data[0] % (ROWS + 2) if data else 0), data[1:]
    if row < ROWS:
        _, decode, blamed = DECODERS[row]
        feed(decode, body, blamed)
    elif row == ROWS:
        json_request(body)
    else:
        protobuf_request(body)


def json_request(body: bytes) -> None:
    """What is taken becomes a message that protobuf's own library reads, and that is read here as well."""
    header, _, tail = body.partition(b"\x00\x00")
    for given, length in ((body, None), (header + tail, len(header)), (FRAMED_JSON + body, len(FRAMED_JSON))):
        try:
            request = decode_http_infer(given, length)
        except GatewayError:
            continue
        assert len(request.message) <= GROWTH_MAX * len(given) + 100
        parsed = service_pb2.ModelInferRequest.FromString(request.message)
        head = read_head(request.message)
        assert head.id == parsed.id == request.id
        assert set(head.parameters) == set(parsed.parameters)
        assert not head.shared_memory
        assert head.classified == request.classified
        # And however the bytes are held.
        assert decode_http_infer(memoryview(bytearray(given)), length).message == request.message


def protobuf_request(message: bytes) -> None:
    """What protobuf's own library takes and this takes, both read the same."""
    try:
        head = read_head(message)
    except GatewayError:
        return
    try:
        parsed = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        return  # Inside of tensors, which the gateway does not look at.
    assert (head.model_name, head.model_version, head.id) == (parsed.model_name, parsed.model_version, parsed.id)
    # Python's library overlooks an entry with fields that it does not know; Triton's does not.
    assert set(head.parameters) >= set(parsed.parameters)


def seeds() -> list[bytes]:
    """Each sample for each decoder that takes it, and for one that does not."""
    made = [bytes((row,)) + sample for row in (ROWS, ROWS + 1) for sample in SAMPLES]
    for row, (_, decode, blamed) in enumerate(DECODERS):
        good = [sample for sample in SAMPLES if not feed(decode, sample, blamed)]
        made += [bytes((row,)) + sample for sample in (*good[:4], SAMPLES[row % len(SAMPLES)])]
    made += [bytes((NAMES.index("raw"),)) + bytes(24), bytes((NAMES.index("header length"),)) + b"17"]
    return made


def mutate(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.05:
        return bytes((chance.randrange(ROWS + 2),)) + data[1:]
    return data[:1] + change(data[1:], chance, PIECES)


TARGET = Target(seeds, check, mutate)
