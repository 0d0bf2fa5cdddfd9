"""The tensor datatypes of the protocol, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row. `size` is bytes per element, 0 for BYTES, whose elements carry their own length. `code` is the `struct`
    character of an element, "" where JSON does not go through `struct`. `json` tells whether it can stand in JSON.
    `contents_field` is its field in `InferTensorContents`, None where only raw bytes can carry it. `accepts` are the
    Python types of its elements in decoded JSON. `config_number` is its number in a model configuration.
    """

    name: str
    size: int
    code: str
    json: bool
    contents_field: int | None
    accepts: frozenset[type]
    described: str
    config_number: int


def _row(name: str, size: int, code: str, contents_field: int | None, described: str, config_number: int) -> Datatype:
    accepts: dict[str, frozenset[type]] = {
        "a number": frozenset((int, float)),
        "an integer": frozenset((int,)),
        "true or false": frozenset((bool,)),
        "a string": frozenset((str,)),
    }
    return Datatype(
        name=name,
        size=size,
        code=code,
        json=bool(described),
        contents_field=contents_field,
        accepts=accepts.get(described, frozenset()),
        described=described,
        config_number=config_number,
    )


TABLE: tuple[Datatype, ...] = (
    _row("BOOL", 1, "", 1, "true or false", 1),
    _row("UINT8", 1, "B", 4, "an integer", 2),
    _row("UINT16", 2, "H", 4, "an integer", 3),
    _row("UINT32", 4, "I", 4, "an integer", 4),
    _row("UINT64", 8, "Q", 5, "an integer", 5),
    _row("INT8", 1, "b", 2, "an integer", 6),
    _row("INT16", 2, "h", 2, "an integer", 7),
    _row("INT32", 4, "i", 2, "an integer", 8),
    _row("INT64", 8, "q", 3, "an integer", 9),
    _row("FP16", 2, "", None, "", 10),
    _row("BF16", 2, "", None, "", 14),
    _row("FP32", 4, "f", 6, "a number", 11),
    _row("FP64", 8, "d", 7, "a number", 12),
    _row("BYTES", 0, "", 8, "a string", 13),
)

BY_NAME: dict[str, Datatype] = {row.name: row for row in TABLE}
BY_CONFIG_NUMBER: dict[int, Datatype] = {row.config_number: row for row in TABLE}

MAX_TENSOR_BYTES = (1 << 31) - 1
"""No tensor can be larger: a protobuf message, hence any answer or request over gRPC, ends at 2 GiB."""


def element_count(shape: Sequence[int]) -> int | None:
    """The product of non-negative dimensions; None once it is past what any message could carry. A zero anywhere makes
    the tensor empty.
    """
    if 0 in shape:
        return 0
    count = 1
    for dim in shape:
        count *= dim
        if count > MAX_TENSOR_BYTES:
            return None
    return count
