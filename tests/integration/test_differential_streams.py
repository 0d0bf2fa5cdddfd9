"""ModelStreamInfer as bytes, directly and through the gateway; see `test_streams.py` for how streams behave in time."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.support.differential import Differential
from tests.support.differential_grpc import infer_request, stream, tensor
from tests.support.tensors import packed_bytes

FP32 = infer_request([tensor("INPUT_FP32", "FP32", [2])], [struct.pack("<2f", 1, float("nan"))], id="f")
END = {"triton_enable_empty_final_response": True}
KINDS = {"max_tokens": "INT32", "fail_at": "INT32", "delay_ms": "FP32", "first_delay_ms": "FP32"}


def tokens(text: bytes = b"hello", *, id: str = "t", parameters: Any = None, version: str = "", **options: Any) -> Any:
    inputs = [tensor("text_input", "BYTES", [1], [text])]
    for name, value in options.items():
        inputs.append(tensor(name, KINDS.get(name, "BYTES"), [1], [value]))
    return infer_request(inputs, model="streamer", id=id, model_version=version, parameters=parameters or {})


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_decoupled_responses_come_with_the_same_flags(differential: Differential, count: int) -> None:
    differential.check(stream([tokens(max_tokens=count)]))
    comparison = differential.check(stream([tokens(max_tokens=count, parameters=END)]), "stream-end-version")
    assert len(comparison.through.messages) == count + 1
    differential.check(stream([tokens(max_tokens=count, parameters=END, version="1")]))
    differential.check(stream([tokens(max_tokens=count, id="")]))


@pytest.mark.parametrize("final", [b"usual", b"apart", b"joined"])
def test_the_end_in_every_form(differential: Differential, final: bytes) -> None:
    for count in (0, 1, 3):
        for parameters in ({}, END):
            differential.check(stream([tokens(max_tokens=count, final=final, version="1", parameters=parameters)]))
            failing = tokens(max_tokens=3, fail_at=count, final=final, version="1", parameters=parameters)
            differential.check(stream([failing]))


@pytest.mark.parametrize(
    "text", [b"bytes:\x00\xff\xfe", "chars:é😀\n".encode(), b"echo:a\nb\r\n\n", b"echo:" + b"x" * 300_000]
)
def test_tokens_keep_their_bytes(differential: Differential, text: bytes) -> None:
    differential.check(stream([tokens(text)]))


CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")


@pytest.mark.parametrize("code", CODES)
def test_errors_stand_in_the_stream(differential: Differential, code: str) -> None:
    for at in (0, 2):
        differential.check(stream([tokens(max_tokens=3, fail_at=at, fail_with=code.encode(), version="1")]))
        differential.check(stream([tokens(max_tokens=3, fail_at=at, fail_with=code.encode())]), "stream-end-version")


REFUSED: list[Any] = [
    infer_request([], model="nosuch", id="a"),
    infer_request([], model="", id="a"),
    infer_request([], model="streamer", id="a"),
    infer_request([], model="identity", model_version="7", id="a"),
    infer_request([tensor("INPUT_FP32", "FP32", [2])], [b"abc"], id="a"),
    infer_request([tensor("INPUT_FP32", "INT32", [2])], [bytes(8)], id="a"),
    infer_request([tensor("INPUT_FP32", "FP32", [2])], [], id="a"),
    infer_request([tensor("nosuch", "FP32", [2])], [bytes(8)], id="a"),
    infer_request([tensor("INPUT_FP32", "FP32", [2])], [bytes(8)], id="a", outputs=["nosuch"]),
    infer_request([tensor("INPUT_FP32", "FP32", [2])], [bytes(8)], id="a", parameters={"own": None}),
    infer_request([tensor("INPUT_FP32", "FP32", [2])], [bytes(8)], id="a", parameters={"timeout": "x"}),
]


def test_requests_that_are_refused_leave_the_stream_alive(differential: Differential) -> None:
    for wrong in REFUSED:
        differential.check(stream([wrong]))
        differential.check(stream([FP32, wrong, FP32], in_order=False))  # errors of validation overtake


def test_models_that_are_not_decoupled_answer_in_order(differential: Differential) -> None:
    requests = []
    for number in range(30):
        raw = struct.pack("<2i", number, -number)
        requests.append(infer_request([tensor("INPUT_INT32", "INT32", [2])], [raw], id=str(number)))
    differential.check(stream(requests))
    differential.check(stream(requests[:1]))
    differential.check(stream([]))


def test_every_datatype_over_a_stream(differential: Differential) -> None:
    requests = [
        infer_request([tensor("INPUT_BF16", "BF16", [2])], [b"\xc1\x7f\x81\xff"], id="b"),
        infer_request([tensor("INPUT_FP16", "FP16", [2])], [b"\x01\x7e\x01\xfc"], id="h"),
        infer_request([tensor("INPUT_BYTES", "BYTES", [2])], [packed_bytes(b"\0\xff", b"")], id="s"),
        infer_request([tensor("INPUT_UINT64", "UINT64", [1], [2**64 - 1])], id="u"),
        infer_request([tensor("INPUT_MATRIX_FP32", "FP32", [0, 5])], [b""], id="e"),
        infer_request(
            [tensor("x", "FP32", [1, 2])],
            [bytes(8)],
            model="mixed",
            id="m",
            outputs=[("y", {"classification": 1}), "h"],
        ),
    ]
    differential.check(stream(requests))


def test_several_models_on_one_stream(differential: Differential) -> None:
    requests = [tokens(max_tokens=4, id="a"), FP32, tokens(max_tokens=2, id="b", delay_ms=5.0), FP32]
    differential.check(stream(requests, in_order=False))


def test_the_empty_end_changes_nothing_for_others(differential: Differential) -> None:
    again = service_pb2.ModelInferRequest()
    again.CopyFrom(FP32)
    again.parameters["triton_enable_empty_final_response"].bool_param = True
    differential.check(stream([again, FP32]))


def test_true_statuses_that_are_asked_for_change_nothing_else(differential: Differential) -> None:
    """A model's own error is not sent: it may end the Triton that the suite shares."""
    asked = (("triton_grpc_error", "true"),)
    differential.check(stream([FP32, FP32], metadata=asked))
    differential.check(stream([infer_request([], model="nosuch", id="a"), FP32], metadata=asked))
    differential.check(stream([tokens(max_tokens=3)], metadata=asked))


@pytest.mark.parametrize("message", [b"\xff\xff", b"\x0a", b""])
def test_messages_that_are_none(differential: Differential, message: bytes) -> None:
    differential.check(stream([message]), *(["grpc-strict"] if message else []))


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_streams(differential: Differential, compression: Any) -> None:
    differential.check(
        stream([FP32, tokens(b"echo:" + b"y" * 5000, version="1")], compression=compression, in_order=False)
    )


def test_a_stream_ends_with_its_deadline(differential: Differential) -> None:
    comparison = differential.compare(stream([tokens(max_tokens=1000, delay_ms=20.0)], timeout_s=0.3))
    assert comparison.direct.code == comparison.through.code == "DEADLINE_EXCEEDED"
