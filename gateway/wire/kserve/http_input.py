"""One entry of `inputs` in an HTTP request: checked, and turned into an `InferInputTensor` and its raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any

from gateway.core.errors import GatewayError
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME, MAX_TENSOR_BYTES, Datatype, element_count
from gateway.wire.kserve.json_text import bad_request, quoted
from gateway.wire.kserve.request_view import shared_memory_refused
from gateway.wire.kserve.tensor_message import MAX_SHAPE_RANK, encode_tensor

MAX_DEPTH = 100
"""How deeply `data` may be nested; Triton's own bound since 25.05."""

_INT64_MAX = (1 << 63) - 1
_CACHE_MAX = 4096
_CACHED_RANK_MAX = 8
_CACHED_NAME_MAX = 128
_SIZE = struct.Struct("<I")

Pack = Callable[..., bytes]


class TensorHead:
    """Everything about an input but its elements: `field` is the encoded `InferInputTensor` as a field of the request,
    `byte_size` what `count` elements take (None for BYTES), `pack` turns the elements into bytes where `struct` does.
    """

    __slots__ = ("byte_size", "count", "datatype", "field", "pack")

    def __init__(self, name: str, datatype: Datatype, shape: list[int], count: int) -> None:
        self.field = pb.len_field(5, encode_tensor(name, datatype.name, shape))
        self.datatype = datatype
        self.count = count
        self.byte_size = count * datatype.size if datatype.size else None
        self.pack: Pack | None = struct.Struct(f"<{count}{datatype.code}").pack if datatype.code else None


class Packed:
    """In the place of `data`: the raw bytes of elements that have been decoded, checked and counted already."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


_heads: dict[tuple[str, str, tuple[int, ...]], TensorHead] = {}
"""Heads seen before. Shapes repeat from call to call; the bound keeps a caller from filling memory with others."""


def encode_input(entry: Any, tail_bytes: int, used: int) -> tuple[bytes, bytes | int]:
    """The encoded tensor, and its raw bytes, or how many of them stand in the binary tail, which has `tail_bytes`, of
    which the tensors before have `used`.

    Raises `GatewayError`: BAD_REQUEST for whatever is malformed, UNSUPPORTED for shared memory.
    """
    if type(entry) is not dict:
        raise bad_request("each entry of 'inputs' must be an object")
    head = head_of_entry(entry)
    parameters = entry.get("parameters")
    if parameters and type(parameters) is dict:  # Triton overlooks what is no object
        if "shared_memory_region" in parameters:
            raise shared_memory_refused(f"input {quoted(entry['name'])}")
        if "binary_data_size" in parameters:
            if "data" in entry:
                raise bad_request(f"input {quoted(entry['name'])} has both 'data' and 'binary_data_size'")
            return head.field, _binary_bytes(entry["name"], head, parameters["binary_data_size"], tail_bytes, used)
    if "data" not in entry:
        raise bad_request(f"input {quoted(entry['name'])} has neither 'data' nor 'binary_data_size'")
    return head.field, encode_elements(entry["name"], head, entry["data"])


def head_of_entry(entry: dict[str, Any]) -> TensorHead:
    """The head of an entry of `inputs`. Raises `GatewayError` (BAD_REQUEST)."""
    name = entry.get("name")
    datatype = entry.get("datatype")
    shape = entry.get("shape")
    if type(name) is not str or type(datatype) is not str or type(shape) is not list:
        raise _malformed(entry)
    # Types before the look-up: True and 1.0 would find the head of 1.
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= _INT64_MAX:
            raise bad_request(f"'shape' of input {quoted(name)} must hold integers from 0 to {_INT64_MAX}")
    return head_of(name, datatype, shape)


def head_of(name: str, datatype: str, shape: list[int]) -> TensorHead:
    """`make_head`, remembered. Dimensions are integers that are not negative."""
    key = (name, datatype, tuple(shape))
    head = _heads.get(key)
    if head is None:
        head = make_head(name, datatype, shape)
        if len(shape) <= _CACHED_RANK_MAX and len(name) <= _CACHED_NAME_MAX:
            if len(_heads) >= _CACHE_MAX:
                _heads.clear()
            _heads[key] = head
    return head


def make_head(name: str, datatype: str, shape: list[int]) -> TensorHead:
    """The head for an input. Raises `GatewayError` (BAD_REQUEST) for an unknown datatype or an impossible shape."""
    row = BY_NAME.get(datatype)
    if row is None:
        raise bad_request(f"input {quoted(name)} has the unknown datatype {quoted(datatype)}")
    if len(shape) > MAX_SHAPE_RANK:
        raise bad_request(f"'shape' of input {quoted(name)} has more than {MAX_SHAPE_RANK} dimensions")
    count = element_count(shape)
    if count is None or count * (row.size or _SIZE.size) > MAX_TENSOR_BYTES:
        raise bad_request(f"'shape' of input {quoted(name)} is more than a message can carry (2 GiB)")
    return TensorHead(name, row, shape, count)


def _malformed(entry: dict[str, Any]) -> GatewayError:
    name = entry.get("name")
    if type(name) is not str:
        return bad_request("each entry of 'inputs' must have a string 'name'")
    if type(entry.get("datatype")) is not str:
        return bad_request(f"input {quoted(name)} must have a string 'datatype'")
    return bad_request(f"input {quoted(name)} must have an array 'shape'")


def _binary_bytes(name: str, head: TensorHead, size: Any, tail_bytes: int, used: int) -> int:
    if type(size) is not int or size < 0:
        raise bad_request(f"'binary_data_size' of input {quoted(name)} must be a non-negative integer")
    left = tail_bytes - used
    if size > left:
        raise bad_request(
            f"input {quoted(name)} announces {size} bytes of binary data, but only {left} are left in the body"
            + ("" if tail_bytes else " behind the JSON (is Inference-Header-Content-Length set?)")
        )
    if head.byte_size is not None and head.byte_size != size:
        raise bad_request(
            f"input {quoted(name)} has {size} bytes of binary data, but its shape and datatype make {head.byte_size}"
        )
    return size


def encode_elements(name: str, head: TensorHead, data: Any) -> bytes:
    """The raw bytes of JSON `data`, which may be flat or nested in any way, row-major. Raises `GatewayError`
    (BAD_REQUEST).
    """
    datatype = head.datatype
    if type(data) is list and len(data) == head.count and head.pack is not None:
        try:  # as is usual: numbers, flat, as many as there must be
            if datatype.accepts.issuperset(map(type, data)):
                return head.pack(*data)
        except (struct.error, OverflowError):
            raise _out_of_range(name, datatype, data) from None
    if not datatype.json:
        raise bad_request(
            f"input {quoted(name)}: {datatype.name} cannot be sent as JSON; send it as binary data (binary_data_size)"
        )
    if type(data) is not list:
        if type(data) is Packed:
            return data.raw
        raise bad_request(f"'data' of input {quoted(name)} must be an array")
    kinds = set(map(type, data))
    if list in kinds:
        data = flatten(name, data)
        kinds = set(map(type, data))
    if len(data) != head.count:
        raise bad_request(f"input {quoted(name)} has {len(data)} elements, but its shape makes {head.count}")
    if not kinds <= datatype.accepts:
        raise _wrong_kind(name, datatype, data)
    if head.pack is not None:
        return encode_elements(name, head, data)  # now they are flat
    if datatype.name == "BOOL":
        return bytes(data)
    parts: list[bytes] = []
    for element in data:
        encoded = element.encode()
        parts += (_SIZE.pack(len(encoded)), encoded)
    return b"".join(parts)


def flatten(name: str, data: list[Any]) -> list[Any]:
    """The leaves of nested lists, in order. Linear in their size, whatever their form."""
    depth = 1
    while data and type(data[0]) is list:
        if depth == MAX_DEPTH:
            raise _too_deep(name)
        if len(data) == 1:
            data = data[0]
        elif set(map(type, data)) == {list}:
            data = list(chain.from_iterable(data))
        else:
            break
        depth += 1
    if list not in set(map(type, data)):
        return data
    # Uneven nesting, which Triton takes as well.
    flat: list[Any] = []
    stack = [iter(data)]
    while stack:
        for item in stack[-1]:
            if type(item) is list:
                if depth + len(stack) > MAX_DEPTH:
                    raise _too_deep(name)
                stack.append(iter(item))
                break
            flat.append(item)
        else:
            stack.pop()
    return flat


def _too_deep(name: str) -> GatewayError:
    return bad_request(f"'data' of input {quoted(name)} is nested more than {MAX_DEPTH} deep")


def _wrong_kind(name: str, datatype: Datatype, data: list[Any]) -> GatewayError:
    for index, value in enumerate(data):
        if type(value) not in datatype.accepts:
            shown = {None: "null", True: "true", False: "false"}.get(value) if type(value) in _WORDS else None
            got = shown or quoted(value if type(value) in (int, float, str) else "an object")
            return bad_request(
                f"input {quoted(name)}: element {index} must be {datatype.described} for {datatype.name}, got {got}"
            )
    return bad_request(f"input {quoted(name)} has elements of a wrong type")


_WORDS = frozenset((bool, type(None)))


def _out_of_range(name: str, datatype: Datatype, data: list[Any]) -> GatewayError:
    one = struct.Struct("<" + datatype.code)
    for index, value in enumerate(data):
        try:
            one.pack(value)
        except (struct.error, OverflowError):
            return bad_request(
                f"input {quoted(name)}: element {index}, {quoted(value)}, is out of range for {datatype.name}"
            )
    return bad_request(f"input {quoted(name)} has an element out of range for {datatype.name}")
