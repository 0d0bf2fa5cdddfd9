"""What an input, an output and a tensor's metadata have in common as messages: name (1), datatype (2), shape (3)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.wire.kserve import protobuf as pb

MAX_SHAPE_RANK = 64


def encode_tensor(name: str, datatype: str, shape: Sequence[int]) -> bytes:
    """The body of an `InferInputTensor`, an `InferOutputTensor` or a `TensorMetadata` with nothing but these three."""
    body = pb.text_field(1, name) if name else b""
    if datatype:
        body += pb.text_field(2, datatype)
    if shape:
        body += pb.len_field(3, b"".join(map(pb.varint, shape)))
    return body


def read_tensor(message: bytes, start: int, stop: int) -> tuple[str, str, tuple[int, ...]]:
    """Name, datatype and shape of such a body; other fields are left alone. Raises `WireError`."""
    name = datatype = ""
    shape: list[int] = []
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 3:
            read_shape(message, wire, a, b, shape)
        elif number <= 2:
            pb.expect(wire, pb.LEN, number, b)
            if number == 1:
                name = pb.text(message, a, b)
            else:
                datatype = pb.text(message, a, b)
    return name, datatype, tuple(shape)


def read_shape(message: bytes, wire: int, a: int, b: int, shape: list[int], number: int = 3) -> None:
    """Append the dimensions of one occurrence of a `repeated int64` field `number`, packed or not."""
    if wire == pb.VARINT:
        shape.append(pb.signed(a))
    else:
        pb.expect(wire, pb.LEN, number, b)
        while a < b:
            value, a = pb.read_varint(message, a, b)
            shape.append(pb.signed(value))
            if len(shape) > MAX_SHAPE_RANK:
                break
    if len(shape) > MAX_SHAPE_RANK:
        raise pb.WireError(f"shape with more than {MAX_SHAPE_RANK} dimensions", a)
