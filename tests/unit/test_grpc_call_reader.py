"""Messages that look like one before say the same of their calls as if each were the first."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.edge.grpc_call import read_call
from gateway.edge.grpc_call_reader import CONSTANT_BYTES_MAX, LIKE_MAX, PIECES_MAX, SIZES_MAX, CallReader


def fresh() -> Call:
    return Call(request_id="r", model="", version="", arrived_s=0.0, arrived_wall_s=0.0)


def said(read: Any, message: bytes) -> object:
    """All that reading `message` makes of a call, or the error."""
    call = fresh()
    try:
        read(call, message)
    except GatewayError as error:
        return (error.reason, error.message, error.code)
    refused = None
    if call.receive is not None:
        with pytest.raises(GatewayError) as caught:
            asyncio.run(call.receive())  # type: ignore[arg-type]
        refused = (caught.value.reason, caught.value.message)
    step = call.sequence
    return (
        (call.model, call.version, call.body_id, call.wants_end, call.classified),
        (call.message, refused),
        step and (step.id, type(step.id), step.start, step.end),
    )


def message(model: str, *raw: bytes, **more: Any) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=raw, **more)
    for place, each in enumerate(raw):
        request.inputs.add(name=f"IN{place}", datatype="UINT8", shape=[len(each)])
    return bytes(request.SerializeToString(deterministic=True))


def with_parameter(made: bytes, key: str, **value: Any) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(made)
    request.parameters[key].MergeFrom(service_pb2.InferParameter(**value))
    return bytes(request.SerializeToString(deterministic=True))


def classes(made: bytes) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(made)
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 3
    return bytes(request.SerializeToString(deterministic=True))


def shared(made: bytes) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(made)
    request.outputs.add(name="OUT").parameters["shared_memory_region"].string_param = "r"
    return bytes(request.SerializeToString(deterministic=True))


KINDS = (
    message("one", b"abcdefgh"),
    message("two", b"abcdefgh"),
    message("six", b"abcdefgh"),
    message("one", b"abcd", b"efgh"),
    message("one", b"ef", b"", b"abcdefgh"),
    message("one", b"abcdefgh", model_version="1"),
    message("one", b"abcdefgh", model_version="x"),
    message("one", b"abcdefgh", id="7"),
    message("one", b"shared_memory_region"),
    message("one"),
    b"",
    with_parameter(message("one", b"abcdefgh"), "sequence_id", int64_param=7),
    with_parameter(message("one", b"abcdefgh"), "sequence_id", string_param="7"),
    with_parameter(message("one", b"abcdefgh"), "triton_enable_empty_final_response", bool_param=True),
    classes(message("one", b"abcdefgh")),
    shared(message("one", b"abcdefgh")),
    message("one", b"abcdefgh") + message("two"),
)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_says_what_reading_says(seed: int) -> None:
    chance, reader = random.Random(seed), CallReader()
    for _ in range(3000):
        changed = bytearray(chance.choice(KINDS))
        for _ in range(chance.choice((0, 0, 0, 1, 3)) if changed else 0):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 8, 0x0A, 0x3A, 0x7F, 0x80, 255))
        now = bytes(changed)

        assert said(reader.read, now) == said(read_call, now)


def test_a_message_that_looks_like_one_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, read = CallReader(), 0

    def counted(call: Call, made: bytes) -> None:
        nonlocal read
        read += 1
        read_call(call, made)

    monkeypatch.setattr("gateway.edge.grpc_call_reader.read_call", counted)
    for number in range(40):
        for model in ("one", "two", "six"):
            call, made = fresh(), message(model, b"%08d" % number, b"")
            reader.read(call, made)
            assert (call.model, call.message) == (model, made)

    assert read == 4  # the first of all, which no other had the size of, and one of each model


def test_what_is_remembered_has_bounds() -> None:
    reader = CallReader()
    for number in range(2 * SIZES_MAX):
        for _ in range(3):
            reader.read(fresh(), message("m" * number, b"abc"))
            assert len(reader._sizes) <= SIZES_MAX
    large = message("m" * CONSTANT_BYTES_MAX, b"abc")
    for _ in range(3):
        reader.read(fresh(), large)
    assert not reader._sizes[len(large)].kinds


def test_messages_of_many_empty_tensors_are_not_kept_in_pieces() -> None:
    reader = CallReader()
    for count, known in ((PIECES_MAX - 1, 1), (PIECES_MAX + 1, 0), (900, 0)):
        made = b"".join((message("one"), b"\x3a\0" * count))
        for _ in range(3):
            reader.read(fresh(), made)
        assert len(reader._sizes[len(made)].kinds) == known


def test_a_message_with_too_much_outside_of_its_raw_contents_is_not_copied() -> None:
    reader, made = CallReader(), service_pb2.ModelInferRequest(model_name="one")
    made.inputs.add(name="IN", datatype="FP32", shape=[1_000_000]).contents.fp32_contents.extend([1.5] * 1_000_000)
    large = bytes(made.SerializeToString()) + b"\x3a\1x"
    reader.read(fresh(), large)
    tracemalloc.start()
    try:
        reader.read(fresh(), large)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < len(large) // 10


def test_kinds_that_do_not_come_any_more_make_room() -> None:
    reader = CallReader()
    for number in range(100):
        made = message("one", b"abc", id=f"{number:03}")
        reader.read(fresh(), made)
        assert len(reader._sizes[len(made)].kinds) <= LIKE_MAX
    (size,) = reader._sizes.values()
    assert all(known.body_id > "080" for known in size.kinds)
