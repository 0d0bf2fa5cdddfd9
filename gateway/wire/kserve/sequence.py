"""Where a request stands in a sequence, read from its parameters; and a sequence of the gateway's own, to warm with.

What Triton 2.51 refuses is refused in its words; the texts were provoked on a live server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gateway.core.call import SequenceStep
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.parameters import Kind, Parameter, entry_field

ID_TEXT_MAX = 128
"""Bytes of a string id."""

_UINT64 = (1 << 64) - 1
_OWN = "sluice warm-up"


def sequence_step(parameters: Mapping[str, Parameter]) -> SequenceStep | None:
    """The step that a `ModelInferRequest` with these parameters is; None without an id (0 and "" are none).

    A number is taken as unsigned, as Triton takes it: -1 is 18446744073709551615. Raises `GatewayError` for a parameter
    of the wrong type and for a string of more than 128 bytes, or with a NUL in it.
    """
    if not parameters:
        return None
    start, end = _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
    parameter = parameters.get("sequence_id")
    if parameter is None:
        return None
    value = parameter.value
    if parameter.kind is Kind.INT64 and isinstance(value, int):
        return _step(value & _UINT64, start, end)
    if parameter.kind is Kind.STRING and isinstance(value, str):
        return _step(value, start, end)
    raise _wrong_type("sequence_id", "int64_param or string_param")


def sequence_step_of_json(parameters: Mapping[str, Any]) -> SequenceStep | None:
    """The same for the `parameters` of a JSON request, whose types have been checked. Raises `GatewayError` for a
    string of more than 128 bytes.
    """
    value = parameters.get("sequence_id", 0)
    if not value:
        return None
    return _step(value, parameters.get("sequence_start", False), parameters.get("sequence_end", False))


def _step(value: int | str, start: bool, end: bool) -> SequenceStep | None:
    if not value:
        return None
    if isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > ID_TEXT_MAX:
        raise GatewayError(
            Reason.BAD_REQUEST,
            f"string correlation ID cannot be longer than {ID_TEXT_MAX} characters",
            Code.UNIMPLEMENTED,
        )
    if isinstance(value, str) and "\0" in value:
        # Triton cuts it off there: two sequences would be one.
        raise GatewayError(Reason.BAD_REQUEST, "a string correlation ID must not hold a NUL character")
    return SequenceStep(value, start, end)


def _flag(parameters: Mapping[str, Parameter], name: str) -> bool:
    parameter = parameters.get(name)
    if parameter is None:
        return False
    if parameter.kind is not Kind.BOOL:
        raise _wrong_type(name, "bool_param")
    return bool(parameter.value)


def _wrong_type(name: str, expected: str) -> GatewayError:
    return GatewayError(Reason.BAD_REQUEST, f"invalid value type for '{name}' parameter, expected {expected}.")


def own_sequence(model: str, *, text: bool) -> bytes:
    """Bytes that, put behind a serialized `ModelInferRequest`, make it a sequence of one call: of the entries of a map
    the last one counts. The id is a number of 62 random-looking bits, or a string (`text`), that no caller will choose.
    """
    digest = hashlib.blake2b(f"{_OWN} {model}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(digest) >> 2 | 1 << 61
    choice = (Kind.STRING, f"{_OWN} {number:x}") if text else (Kind.INT64, number)
    return b"".join(
        (
            entry_field(4, "sequence_id", *choice),
            entry_field(4, "sequence_start", Kind.BOOL, True),
            entry_field(4, "sequence_end", Kind.BOOL, True),
        )
    )
