"""What is read of a ModelInferRequest, with the reference library as the judge."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import request_view as rv
from gateway.wire.kserve.parameters import UNSET, Kind, Parameter
from tests.unit.kserve_messages import infer_requests, names

Message = service_pb2.ModelInferRequest


def same_parameters(ours: dict[str, Parameter], theirs: Any) -> bool:
    if set(ours) != set(theirs):
        return False
    for key, parameter in theirs.items():
        which = parameter.WhichOneof("parameter_choice")
        expected = (
            UNSET if which is None else Parameter(Kind[which.removesuffix("_param").upper()], getattr(parameter, which))
        )
        # repr, because NaN is not equal to itself and True is equal to 1
        if repr(ours[key]) != repr(expected):
            return False
    return True


@given(infer_requests())
def test_the_head_is_what_the_reference_reads(request: Any) -> None:
    head = rv.read_head(request.SerializeToString())
    assert (head.model_name, head.model_version, head.id) == (request.model_name, request.model_version, request.id)
    assert same_parameters(head.parameters, request.parameters)


@given(infer_requests(), infer_requests())
def test_concatenated_messages_read_as_protobuf_merges_them(first: Any, second: Any) -> None:
    both = first.SerializeToString() + second.SerializeToString()
    merged = Message.FromString(both)
    head = rv.read_head(both)
    assert (head.model_name, head.model_version, head.id) == (merged.model_name, merged.model_version, merged.id)
    assert same_parameters(head.parameters, merged.parameters)


@given(infer_requests(), names, names)
def test_an_overridden_model_and_version_win_and_nothing_else_changes(request: Any, model: str, version: str) -> None:
    changed = Message.FromString(rv.override_model(request.SerializeToString(), model, version))
    assert (changed.model_name, changed.model_version) == (model, version)
    changed.model_name, changed.model_version = request.model_name, request.model_version
    assert changed.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)


def read_or_refuse(message: bytes) -> rv.RequestHead | None:
    """The head, or None if it was refused, which must be done as the caller's fault with Triton's code."""
    refused: list[tuple[Reason, Code]] = []
    head = None
    try:
        head = rv.read_head(message)
    except GatewayError as error:
        refused.append((error.reason, error.code))
    assert refused in ([], [(Reason.BAD_REQUEST, Code.INTERNAL)])
    return head


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_or_read_as_the_reference_reads_them(junk: bytes) -> None:
    head = read_or_refuse(junk)
    try:
        theirs = Message.FromString(junk)
    except DecodeError:
        return  # perhaps only inside a tensor, which the head does not look into
    if head is not None:
        assert (head.model_name, head.model_version, head.id) == (theirs.model_name, theirs.model_version, theirs.id)


@given(infer_requests(), st.data())
def test_a_message_cut_short_is_refused_unless_the_cut_falls_between_fields(request: Any, data: st.DataObject) -> None:
    whole = request.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        theirs = Message.FromString(cut)
    except DecodeError:
        assert read_or_refuse(cut) is None
    else:
        head = read_or_refuse(cut)
        assert head is not None
        assert head.model_name == theirs.model_name


def test_a_shared_memory_parameter_of_a_tensor_is_seen_and_others_are_not() -> None:
    plain = Message(model_name="shared_memory_region", inputs=[{"name": "shared_memory_region"}])
    assert not rv.read_head(plain.SerializeToString()).shared_memory
    plain.parameters["shared_memory_region"].string_param = "a custom one: Triton hands it to the model"
    assert not rv.read_head(plain.SerializeToString()).shared_memory
    assert not rv.read_head(b"\x0a\x01m").shared_memory
    by_input = Message(inputs=[{"name": "x"}])
    by_input.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert rv.read_head(by_input.SerializeToString()).shared_memory == "input 'x'"
    by_output = Message(outputs=[{"name": "x"}])
    by_output.outputs[0].parameters["shared_memory_region"].string_param = "r"
    assert rv.read_head(by_output.SerializeToString()).shared_memory == "output 'x'"
    second = Message(inputs=[{"name": "in memory"}, {"name": "elsewhere"}])
    second.inputs[1].parameters["shared_memory_region"].string_param = "r"
    assert rv.read_head(second.SerializeToString()).shared_memory == "input 'elsewhere'"
    region = b"\x22\x16\x0a\x14shared_memory_region"
    name_last = b"\x2a%c%b\x0a\x01x" % (len(region) + 3, region)
    assert rv.read_head(name_last).shared_memory == "input 'x'"
    assert rv.shared_memory_refused("input 'x'").reason is Reason.UNSUPPORTED


def test_of_many_tensors_that_may_be_in_shared_memory_not_all_are_looked_into() -> None:
    tensor = b"\x2a\x16\x0a\x14shared_memory_region"
    assert not rv.read_head(tensor * rv.MAX_TENSORS).shared_memory
    with pytest.raises(GatewayError, match="tensors"):
        rv.read_head(tensor * (rv.MAX_TENSORS + 1))


@pytest.mark.parametrize(
    "message",
    [
        b"\x2a\x18\x20\x01shared_memory_region\x0a\x01",  # an input whose parameters are a varint
        b"\xff\xff",
        b"\x0a\x02\xff\xfe",  # name that is not UTF-8
        b"\x1a\x02\xed\xa0",  # id that ends inside a character
        b"\x08\x01",  # field 1 as a varint
        b"\x0a\x05abc",
        b"\x0a\x03abc\x0b\x0c",  # a group
        b"\x0a\x03abc\x63",  # a group that would swallow what is appended
        b"\x22\x04\x0a\x02\xff\xff",  # a parameter's key that is not UTF-8
        b"\x22\x04\x12\x02\x0d\x01",  # a parameter's value under another wire type
        b"\x00",
    ],
)
def test_bytes_that_do_not_parse_are_the_callers_fault_with_tritons_code(message: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        rv.read_head(message)
    assert (caught.value.reason, caught.value.code) == (Reason.BAD_REQUEST, Code.INTERNAL)
    assert "ModelInferRequest" in caught.value.message


def test_unknown_fields_are_skipped() -> None:
    message = b"\x40\x05" + b"\xa2\x06\x03abc" + b"\x0a\x01m" + b"\x4d\x00\x00\x00\x00"
    assert rv.read_head(message).model_name == "m"


def test_an_empty_message_is_a_request_without_a_name() -> None:
    assert rv.read_head(b"").model_name == ""


def test_outputs_that_are_wanted_as_classes_are_found_by_their_parameter_alone() -> None:
    request = service_pb2.ModelInferRequest(model_name="classification")
    request.outputs.add(name="plain")
    request.outputs.add(name="top").parameters["classification"].int64_param = 3
    request.outputs.add(name="classification").parameters["binary_data"].bool_param = True
    assert rv.read_head(request.SerializeToString()).classified == ("top",)
    del request.outputs[:]
    request.raw_input_contents.append(b"classification")
    assert rv.read_head(request.SerializeToString()).classified == ()
