"""Layouts of answers that are remembered: what comes from memory is what reading the message says, to the byte."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.errors import GatewayError
from gateway.wire.kserve import response_layout
from gateway.wire.kserve.http_request import ALL_BINARY, ALL_JSON, OutputPlan
from gateway.wire.kserve.http_response import HttpInferResponse, encode_http_infer
from tests.unit.kserve_messages import infer_responses

PLANS = st.builds(OutputPlan, st.booleans(), st.dictionaries(st.sampled_from(("o0", "o1", "y")), st.booleans()))


def message(values: list[float], *, name: str = "y", model: str = "m", version: str = "1", id: str = "") -> bytes:
    response = service_pb2.ModelInferResponse(model_name=model, model_version=version, id=id)
    response.outputs.add(name=name, datatype="FP32", shape=[len(values)])
    response.raw_output_contents.append(struct.pack(f"<{len(values)}f", *values))
    serialized: bytes = response.SerializeToString()
    return serialized


def shown(rendered: HttpInferResponse) -> tuple[object, ...]:
    return rendered.body, rendered.content_length, rendered.content_type, rendered.header_length


def anew(serialized: bytes, plan: OutputPlan, request_id: str) -> tuple[object, ...]:
    """Rendered without anything remembered."""
    response_layout._layouts.clear()
    return shown(encode_http_infer(serialized, plan, request_id))


@given(infer_responses(), PLANS, st.lists(st.text(max_size=9), min_size=1, max_size=3))
def test_a_remembered_layout_changes_nothing(response: Any, plan: OutputPlan, ids: list[str]) -> None:
    for request_id in [*ids, *ids]:
        for echoed in (request_id, "other", ""):
            response.id = echoed
            serialized = response.SerializeToString()
            try:
                from_memory: object = shown(encode_http_infer(serialized, plan, request_id))
            except GatewayError as error:
                from_memory = (error.reason, error.message)
            kept = dict(response_layout._layouts)
            try:
                fresh: object = anew(serialized, plan, request_id)
            except GatewayError as error:
                fresh = (error.reason, error.message)
            assert from_memory == fresh
            response_layout._layouts.update(kept)


@given(st.binary(min_size=1, max_size=8), st.integers(0, 60), st.integers(0, 8))
def test_bytes_that_differ_anywhere_are_not_taken_for_what_was_seen(junk: bytes, at: int, drop: int) -> None:
    good = message([1.0, 2.0, 3.0])
    encode_http_infer(good, ALL_JSON, "")
    damaged = good[:at] + junk + good[at + drop :]
    kept = dict(response_layout._layouts)
    try:
        from_memory: object = shown(encode_http_infer(damaged, ALL_JSON, ""))
    except GatewayError as error:
        from_memory = error.message
    try:
        fresh: object = anew(damaged, ALL_JSON, "")
    except GatewayError as error:
        fresh = error.message
    assert from_memory == fresh
    response_layout._layouts.update(kept)


def test_answers_of_one_size_are_told_apart() -> None:
    response_layout._layouts.clear()
    different = [
        message([1.0, 2.0]),
        message([1.0, 2.0], name="z"),
        message([1.0, 2.0], model="n"),
        message([1.0, 2.0], version="2"),
        message([1.0, 2.0], model="", version="1234"),
    ]
    assert len({len(each) for each in different}) == 1
    bodies = [encode_http_infer(each, ALL_JSON, "").body for each in different * 2]
    assert bodies == [anew(each, ALL_JSON, "")[0] for each in different * 2]
    assert len(set(bodies)) == len(different)


def test_the_id_may_change_and_is_the_callers() -> None:
    response_layout._layouts.clear()
    for request_id in ("", "a", "b" * 200, 'q"ü', ""):
        rendered = encode_http_infer(message([1.5], id=request_id), ALL_JSON, request_id)
        assert rendered.body == anew(message([1.5], id=request_id), ALL_JSON, request_id)[0]
    encode_http_infer(message([1.5], id="a"), ALL_JSON, "a")
    assert len(response_layout._layouts) == 1, "the id is no part of a layout"


def test_binary_outputs_are_views_of_the_message_at_hand() -> None:
    first, second = message([1.0, 2.0]), message([3.0, 4.0])
    encode_http_infer(first, ALL_BINARY, "")
    rendered = encode_http_infer(second, ALL_BINARY, "")
    assert rendered.chunks[1] == struct.pack("<2f", 3.0, 4.0)
    assert isinstance(rendered.chunks[1], memoryview)
    assert rendered.chunks[1].obj is second


@pytest.mark.parametrize("outputs", [0, 17])
def test_an_answer_with_none_or_many_outputs_is_not_remembered(outputs: int) -> None:
    response_layout._layouts.clear()
    response = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    for number in range(outputs):
        response.outputs.add(name=f"o{number}", datatype="UINT8", shape=[1])
        response.raw_output_contents.append(b"\x07")
    encode_http_infer(response.SerializeToString(), ALL_JSON, "")
    assert not response_layout._layouts


def test_what_is_remembered_is_bounded() -> None:
    response_layout._layouts.clear()
    for count in range(1, 1000):
        encode_http_infer(message([1.0] * count), ALL_JSON, "")
        encode_http_infer(message([1.0], name="y" * count * 10), ALL_JSON, "")
    assert len(response_layout._layouts) <= 512
    for layout in response_layout._layouts.values():
        assert len(layout.named) + sum(len(constant) for _, constant in layout.constants) <= 2048
