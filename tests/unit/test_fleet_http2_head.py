"""Heads of requests to replicas: what is remembered must be what would be encoded, and what a peer's decoder reads."""

from __future__ import annotations

import random

import pytest

from gateway.core.call import Metadata
from gateway.fleet.http2_head import HeadEncoder, request_block, shared_fields
from gateway.wire.grpc import parse_timeout
from gateway.wire.hpack import HpackDecoder

AUTHORITY, SCHEME = b"replica:8001", b"http"
PATHS = ("/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ServerLive", "/other/Method")


def sent(encoder: HeadEncoder, path: str) -> bytes:
    """A head as links send it."""
    return (encoder.heads.get(path) or encoder.head(path)).encode("latin-1")


def test_a_remembered_head_says_what_an_encoded_one_does_whatever_happens_to_the_table() -> None:
    remembered = 0
    for seed in range(40):
        chance = random.Random(seed)
        encoder, decoder = HeadEncoder(AUTHORITY, SCHEME), HpackDecoder(4096, 65_536)
        for _ in range(60):
            if chance.random() < 0.1:
                # What a peer's SETTINGS do; of the size that our block tells, the decoder is told before.
                size = chance.choice((0, 40, 100, 300, 4096))
                encoder.set_table_bytes(size)
                update = encoder.take_update()
            else:
                update = b""
            path = chance.choice(PATHS)
            remembered += path in encoder.heads
            block = decoder.decode(update + sent(encoder, path))
            assert block.fields == shared_fields(path, AUTHORITY, SCHEME), f"seed {seed}"
    assert remembered > 400, "otherwise this says nothing about what is remembered"


def test_a_head_is_remembered_when_it_does_not_change_any_more_and_forgotten_with_the_table() -> None:
    encoder, path = HeadEncoder(AUTHORITY, SCHEME), PATHS[0]
    for _ in range(4):
        assert path not in encoder.heads
        text = encoder.head(path)
    assert encoder.heads == {path: text}
    assert len(text) < 12
    encoder.head(PATHS[1])
    assert not encoder.heads, "another path may have changed the table"
    encoder.head(path)
    encoder.head(path)
    assert path in encoder.heads
    encoder.set_table_bytes(0)
    assert not encoder.heads


@pytest.mark.parametrize(
    ("metadata", "carried"),
    [
        ((), {}),
        ((("traceparent", "00-ab-cd-01"),), {b"traceparent": b"00-ab-cd-01"}),
        ((("a", " blanks "), ("b", "")), {b"a": b"blanks", b"b": b""}),
        ((("long", "x" * 126), ("longer", "y" * 127)), {b"long": b"x" * 126, b"longer": b"y" * 127}),
        ((("umlaut", "ü"), ("line", "a\nb"), ("tab", "\t"), ("grpc-timeout", "1S"), ("te", "x"), ("Big", "x")), {}),
        ((("some-bin", "AAE"), ("bad-bin", "*")), {b"some-bin": b"AAE"}),
    ],
)
@pytest.mark.parametrize("path", PATHS[:1])
def test_metadata_that_grpc_can_carry_goes_out_behind_the_shared_fields(
    metadata: Metadata, carried: dict[bytes, bytes], path: str
) -> None:
    encoder, decoder = HeadEncoder(AUTHORITY, SCHEME), HpackDecoder(4096, 65_536)
    shared = shared_fields(path, AUTHORITY, SCHEME)
    for _ in range(6):
        head = encoder.heads.get(path) or encoder.head(path)
        fields = decoder.decode(request_block(head, metadata, float("inf"))).fields
        assert fields[: len(shared)] == shared
        assert dict(fields[len(shared) :]) == carried


def test_the_time_limit_that_is_told_is_never_shorter_and_at_most_a_millisecond_longer() -> None:
    chance, decoder = random.Random(1), HpackDecoder(4096, 65_536)
    limits = [chance.choice((0.004, 0.2, 2.0, 20.0, 200.0, 2000.0)) * (0.5 + chance.random()) for _ in range(2000)]
    for limit_s in (0.0001, 0.1, 0.0999999, 1.0, 9.9999999, 10.0, 99.9999, 999.99, 1000.0, 99_998.9, *limits):
        for _ in range(2):  # worked out, and remembered
            ((name, value),) = decoder.decode(request_block("", (), limit_s)).fields
            assert name == b"grpc-timeout"
            told_s = parse_timeout(value)
            assert limit_s - 1e-9 <= told_s <= limit_s + 0.001


def test_a_time_limit_that_has_passed_is_told_as_the_least_whatever_limits_were_told_before() -> None:
    decoder = HpackDecoder(4096, 65_536)
    for limit_s in (20.0, 0.2, 999.0):
        request_block("", (), limit_s)
    for passed_s in (0.0, -0.05, -0.2, -0.201, -9.99, -9.991, -20.0):
        ((_, value),) = decoder.decode(request_block("", (), passed_s)).fields
        assert parse_timeout(value) <= 0.0011, f"{passed_s} s"
