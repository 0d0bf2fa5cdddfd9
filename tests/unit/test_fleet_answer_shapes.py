"""What is remembered of good answers calls no answer good that a walk over its fields does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.answer_shapes import SHAPES_MAX, START_BYTES_MAX, AnswerShapes
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.answered_as import answered_as
from gateway.wire.kserve.request_view import model_override

NAMES = model_override("fraud", "2")
OUTPUT, RAW = pb.len_field(5, b"described"), pb.len_field(6, bytes(range(200)))
USUAL = NAMES + OUTPUT + RAW
WITH_ID = NAMES + pb.text_field(3, "id-7") + OUTPUT + RAW
BASES = (
    USUAL,
    WITH_ID,
    NAMES,
    NAMES + OUTPUT,
    NAMES + RAW,
    NAMES + OUTPUT + RAW + RAW,
    NAMES + OUTPUT + RAW + OUTPUT,
    NAMES + OUTPUT + pb.len_field(6, b""),
    NAMES + OUTPUT + RAW + pb.text_field(3, "ascii"),
)


def remembered(shapes: AnswerShapes, answer: bytes) -> bool:
    """As the transport asks."""
    start = shapes.starts.get(len(answer))
    return start is not None and answer.startswith(start)


def test_answers_that_differ_in_the_tensor_s_bytes_alone_are_known_without_a_walk() -> None:
    shapes = AnswerShapes(NAMES)
    assert not remembered(shapes, USUAL)
    assert shapes.good(USUAL)
    assert remembered(shapes, USUAL)
    assert remembered(shapes, USUAL[:-200] + bytes(200))
    assert not remembered(shapes, USUAL[:-1])
    assert not remembered(shapes, model_override("fraud", "3") + OUTPUT + RAW)


@pytest.mark.parametrize("answer", [NAMES, NAMES + OUTPUT + RAW + RAW, NAMES + OUTPUT, BASES[-1], BASES[-3]])
def test_other_forms_are_walked_over_each_time(answer: bytes) -> None:
    shapes = AnswerShapes(NAMES)
    assert shapes.good(answer)
    assert shapes.good(answer)
    assert not remembered(shapes, answer)


def test_what_is_not_good_is_not_remembered() -> None:
    shapes = AnswerShapes(NAMES)
    for answer in (b"", b"\xff\xff", USUAL[:-1], USUAL + b"\x32", model_override("fraud", "3") + OUTPUT + RAW):
        assert not shapes.good(answer)
        assert not remembered(shapes, answer)
    assert not shapes.starts


def test_what_is_remembered_is_bounded() -> None:
    shapes = AnswerShapes(NAMES)
    for size in range(10 * SHAPES_MAX):
        assert shapes.good(NAMES + OUTPUT + pb.len_field(6, bytes(size)))
    assert len(shapes.starts) == SHAPES_MAX
    long = AnswerShapes(NAMES)
    assert long.good(NAMES + pb.len_field(5, bytes(START_BYTES_MAX)) + RAW)
    assert set(long.starts.values()) == {None}


@settings(max_examples=1000, deadline=None)
@given(
    base=st.sampled_from(BASES),
    number=st.integers(0, len(BASES) - 1),
    cut=st.integers(0, 400),
    at=st.integers(0, 400),
    byte=st.integers(0, 255),
    more=st.binary(max_size=8),
)
def test_a_remembered_form_never_says_yes_where_the_walk_says_no(
    base: bytes, number: int, cut: int, at: int, byte: int, more: bytes
) -> None:
    shapes = AnswerShapes(NAMES)
    assert shapes.good(base)
    assert shapes.good(BASES[number])
    changed = bytearray(base[: len(base) - cut % len(base)] + more) if cut > 100 else bytearray(base)
    changed[at % len(changed)] = byte
    if remembered(shapes, bytes(changed)):
        assert answered_as(bytes(changed), NAMES)
