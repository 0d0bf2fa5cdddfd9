"""The quick look at who answered says yes only where the careful one does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import GatewayError
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.answered_as import answered_as
from gateway.wire.kserve.request_view import model_override
from gateway.wire.kserve.response_view import read_response_head

NAMES = model_override("fraud", "2")
OUTPUT, RAW = pb.len_field(5, b"described"), pb.len_field(6, bytes(300))
USUAL = NAMES + OUTPUT + RAW


def careful(message: bytes) -> bool:
    try:
        head = read_response_head(message)
    except GatewayError:
        return False
    return (head.model_name, head.model_version) == ("fraud", "2")


@pytest.mark.parametrize(
    "message",
    [USUAL, NAMES, NAMES + pb.text_field(3, "id-7") + pb.len_field(4, b"") + OUTPUT + OUTPUT + RAW + RAW],
    ids=["usual", "names alone", "id and parameters"],
)
def test_what_servers_write_is_known_at_once(message: bytes) -> None:
    assert answered_as(message, NAMES)
    assert careful(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        model_override("fraud", "3") + OUTPUT,
        USUAL + pb.text_field(2, "3"),
        USUAL + pb.text_field(1, "other"),
        USUAL[:-1],
        USUAL + b"\x32",
        USUAL + b"\x32\xff",
        NAMES + pb.len_field(3, b"\xff"),
        OUTPUT + NAMES,
        USUAL + pb.len_field(9, b"unknown"),
    ],
    ids=[
        "nothing", "another version", "another version last", "another model last", "cut", "a tag alone",
        "a cut length", "no text", "another order", "unknown field",
    ],
)  # fmt: skip
def test_all_else_is_left_to_the_careful_one(message: bytes) -> None:
    assert not answered_as(message, NAMES)


@settings(max_examples=500, deadline=None)
@given(
    base=st.sampled_from([USUAL, NAMES + pb.text_field(3, "id-7") + OUTPUT + RAW]),
    cut=st.integers(0, 400),
    at=st.integers(0, 400),
    byte=st.integers(0, 255),
    more=st.binary(max_size=8),
)
def test_it_never_says_yes_where_the_careful_one_says_no(
    base: bytes, cut: int, at: int, byte: int, more: bytes
) -> None:
    changed = bytearray(base[: len(base) - cut % len(base)] + more)
    changed[at % len(changed)] = byte
    message = bytes(changed)
    if answered_as(message, NAMES):
        assert careful(message)
