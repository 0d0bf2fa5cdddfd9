"""What the gateway reads of a `ModelInferResponse`: who answered, and where each output's bytes stand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import orjson

from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME, Datatype, element_count
from gateway.wire.kserve.json_text import quoted
from gateway.wire.kserve.parameters import NO_PARAMETERS, Parameter, with_entry
from gateway.wire.kserve.tensor_message import read_tensor

_CACHE_MAX = 4096
_CACHED_BYTES_MAX = 256

Unpack = Callable[..., tuple[Any, ...]]


class OutputHead:
    """One output but for its elements. `json_start` is the opening of its JSON object up to and with the shape;
    `byte_size` is what its elements take (None for BYTES), `unpack` reads them where `struct` does.
    """

    __slots__ = ("byte_size", "count", "datatype", "json_start", "name", "shape", "unpack")

    def __init__(self, name: str, datatype: Datatype, shape: tuple[int, ...], count: int) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.count = count
        self.byte_size = count * datatype.size if datatype.size else None
        self.unpack: Unpack | None = struct.Struct(f"<{count}{datatype.code}").unpack_from if datatype.code else None
        described = {"name": name, "datatype": datatype.name, "shape": shape}
        self.json_start = orjson.dumps(described)[:-1]


class ResponseView:
    """A response's head and outputs; `raws[i]` is where the bytes of `outputs[i]` start and stop in the message."""

    __slots__ = ("id", "model_name", "model_version", "outputs", "parameters", "raws")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        id: str,
        parameters: dict[str, Parameter],
        outputs: list[OutputHead],
        raws: list[tuple[int, int]],
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters = parameters
        self.outputs = outputs
        self.raws = raws


class ResponseHead:
    """Who answered: model and version as the replica wrote them, and the request id that it returns."""

    __slots__ = ("id", "model_name", "model_version")

    def __init__(self, model_name: str, model_version: str, id: str) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id


def broken(problem: str) -> GatewayError:
    """The error for an answer that the gateway cannot make sense of: the model server's fault."""
    return GatewayError(Reason.UPSTREAM_BROKEN, f"the model server's answer is not a valid response: {problem}")


def read_response_head(message: bytes) -> ResponseHead:
    """The head of a serialized `ModelInferResponse`; tensors are skipped. Raises `GatewayError` (UPSTREAM_BROKEN)."""
    names = [b"", b"", b"", b""]
    pos = 0
    end = len(message)
    try:
        for _ in range(pb.MAX_FIELDS):
            if pos >= end:
                break
            tag = message[pos]
            if tag in _KNOWN_TAGS:
                start, pos = pb.read_length(message, pos + 1, end)
                if tag < 0x22:
                    names[tag >> 3] = message[start:pos]
            else:
                pos = _skip(message, pos, end)
        if pos < end:
            raise pb.WireError(f"more than {pb.MAX_FIELDS} fields in one message", pos)
        return ResponseHead(names[1].decode(), names[2].decode(), names[3].decode())
    except (pb.WireError, UnicodeDecodeError) as error:
        raise broken(_problem(error)) from None


def read_response(message: bytes) -> ResponseView:
    """The whole of a serialized `ModelInferResponse` except the tensors' elements.

    Raises `GatewayError` (UPSTREAM_BROKEN) if the bytes are no such message, or outputs and raw entries do not match.
    """
    try:
        return _read_response(message)
    except (pb.WireError, UnicodeDecodeError) as error:
        raise broken(_problem(error)) from None


_KNOWN_TAGS = frozenset((0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32))


def _skip(message: bytes, pos: int, end: int) -> int:
    number, _, _, after = pb.field_at(message, pos, end)
    if number <= 6:
        raise pb.WireError(f"field {number} has an unexpected wire type", after)
    return after


def _problem(error: pb.WireError | UnicodeDecodeError) -> str:
    return str(error) if isinstance(error, pb.WireError) else "a name is not valid UTF-8"


def _read_response(message: bytes) -> ResponseView:
    names = [b"", b"", b"", b""]
    parameters = NO_PARAMETERS
    outputs: list[OutputHead] = []
    raws: list[tuple[int, int]] = []
    pos = 0
    end = len(message)
    for _ in range(pb.MAX_FIELDS):
        if pos >= end:
            break
        tag = message[pos]
        if tag not in _KNOWN_TAGS:
            pos = _skip(message, pos, end)
            continue
        start, pos = pb.read_length(message, pos + 1, end)
        if tag < 0x22:
            names[tag >> 3] = message[start:pos]
        elif tag == 0x32:
            raws.append((start, pos))
        elif tag == 0x2A:
            outputs.append(_output(message, start, pos))
        else:
            parameters = with_entry(parameters, message, start, pos)
    if pos < end:
        raise pb.WireError(f"more than {pb.MAX_FIELDS} fields in one message", pos)
    if len(outputs) != len(raws):
        raise pb.WireError(f"{len(outputs)} outputs but {len(raws)} raw entries", end)
    for output, (start, stop) in zip(outputs, raws, strict=True):
        if output.byte_size is not None and output.byte_size != stop - start:
            raise pb.WireError(
                f"output {quoted(output.name)} has {stop - start} bytes, its shape makes {output.byte_size}", start
            )
    return ResponseView(names[1].decode(), names[2].decode(), names[3].decode(), parameters, outputs, raws)


_heads: dict[bytes, OutputHead] = {}
"""Heads seen before, by their bytes; bounded, because shapes may follow the callers'."""


def _output(message: bytes, start: int, stop: int) -> OutputHead:
    if stop - start > _CACHED_BYTES_MAX:
        return _parse_output(message, start, stop)
    key = message[start:stop]
    head = _heads.get(key)
    if head is None:
        head = _parse_output(message, start, stop)
        if len(_heads) >= _CACHE_MAX:
            _heads.clear()
        _heads[key] = head
    return head


def _parse_output(message: bytes, start: int, stop: int) -> OutputHead:
    name, datatype, shape = read_tensor(message, start, stop)
    row = BY_NAME.get(datatype)
    if row is None:
        raise pb.WireError(f"output {quoted(name)} has the unknown datatype {quoted(datatype)}", start)
    count = None if any(dim < 0 for dim in shape) else element_count(shape)
    if count is None:
        raise pb.WireError(f"output {quoted(name)} has the impossible shape {list(shape)}", start)
    return OutputHead(name, row, shape, count)
