"""Steps of sequences, read from parameters as Triton reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import SequenceStep
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.http_request import decode_http_infer
from gateway.wire.kserve.parameters import Kind, Parameter
from gateway.wire.kserve.request_view import read_head
from gateway.wire.kserve.sequence import own_sequence, sequence_step, sequence_step_of_json


def message(**parameters: Any) -> bytes:
    """`name=(member, value)`."""
    request = pb.ModelInferRequest(model_name="m")
    for name, (member, value) in parameters.items():
        setattr(request.parameters[name], member, value)
    return bytes(request.SerializeToString())


def over_grpc(**parameters: Any) -> SequenceStep | None:
    return sequence_step(read_head(message(**parameters)).parameters)


def over_http(**parameters: Any) -> SequenceStep | None:
    return decode_http_infer(json.dumps({"parameters": parameters, "inputs": []}).encode()).sequence


@pytest.mark.parametrize("sequence_id", [1, 7, 9007199254740993, 2**63 - 1, "7", "x" * 120, "ü" * 64])
def test_an_id_keeps_its_type_and_every_bit_over_both_protocols(sequence_id: int | str) -> None:
    member = "string_param" if isinstance(sequence_id, str) else "int64_param"
    expected = SequenceStep(sequence_id, True, False)
    assert over_grpc(sequence_id=(member, sequence_id), sequence_start=("bool_param", True)) == expected
    assert over_http(sequence_id=sequence_id, sequence_start=True, sequence_end=False) == expected


def test_a_negative_number_is_the_unsigned_one_that_triton_makes_of_it() -> None:
    assert over_grpc(sequence_id=("int64_param", -1)) == over_http(sequence_id=2**64 - 1)
    assert over_http(sequence_id=2**64 - 1) == SequenceStep(2**64 - 1, False, False)


def test_zero_and_the_empty_string_are_no_sequence() -> None:
    assert over_grpc() is None
    assert over_grpc(sequence_id=("int64_param", 0), sequence_start=("bool_param", True)) is None
    assert over_grpc(sequence_id=("string_param", ""), sequence_end=("bool_param", True)) is None
    assert over_grpc(sequence_start=("bool_param", True)) is None
    assert over_http(sequence_id=0, sequence_start=True) is None
    assert over_http(sequence_id="") is None
    assert over_http(priority=3) is None


@pytest.mark.parametrize(("member", "value"), [("bool_param", True), ("double_param", 7.0), ("uint64_param", 7)])
def test_an_id_of_another_type_is_refused_in_tritons_words(member: str, value: object) -> None:
    with pytest.raises(GatewayError) as refused:
        over_grpc(sequence_id=(member, value))
    error = refused.value
    assert (error.reason, error.code) == (Reason.BAD_REQUEST, Code.INVALID_ARGUMENT)
    assert error.message == "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."


@pytest.mark.parametrize("name", ["sequence_start", "sequence_end"])
def test_a_flag_of_another_type_is_refused_in_tritons_words(name: str) -> None:
    with pytest.raises(GatewayError) as refused:
        over_grpc(sequence_id=("int64_param", 7), **{name: ("int64_param", 1)})
    assert refused.value.message == f"invalid value type for '{name}' parameter, expected bool_param."


@pytest.mark.parametrize("sequence_id", ["x" * 129, "ü" * 65])
def test_a_string_that_triton_finds_too_long_is_refused_as_triton_does(sequence_id: str) -> None:
    assert len(sequence_id.encode()) > 128
    with pytest.raises(GatewayError, match="cannot be longer than 128 characters") as refused:
        over_grpc(sequence_id=("string_param", sequence_id))
    assert refused.value.code is Code.UNIMPLEMENTED
    with pytest.raises(GatewayError, match="cannot be longer than 128 characters") as refused:
        over_http(sequence_id=sequence_id)
    assert refused.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize("text", [False, True])
def test_the_gateways_own_sequence_is_one_call_whatever_the_request_said(text: bool) -> None:
    request = message(
        sequence_id=("int64_param", 5), sequence_end=("bool_param", False), other=("string_param", "kept")
    )
    warm = request + own_sequence("m", text=text)
    parameters = pb.ModelInferRequest.FromString(warm).parameters
    assert parameters["other"].string_param == "kept"
    step = sequence_step(read_head(warm).parameters)
    assert step is not None
    assert (step.start, step.end) == (True, True)
    if text:
        assert str(step.id).startswith("sluice warm-up ")
    else:
        assert isinstance(step.id, int)
        assert step.id >= 2**61
    other = sequence_step(read_head(own_sequence("other", text=text)).parameters)
    assert other is not None
    assert other.id != step.id


@pytest.mark.parametrize("sequence_id", ["a\0b", "\0", "a\0"])
def test_an_id_that_triton_would_cut_off_is_refused(sequence_id: str) -> None:
    parameter = Parameter(Kind.STRING, sequence_id)
    with pytest.raises(GatewayError, match="NUL") as refused:
        sequence_step({"sequence_id": parameter})
    assert refused.value.reason is Reason.BAD_REQUEST
    with pytest.raises(GatewayError, match="NUL"):
        sequence_step_of_json({"sequence_id": sequence_id})
