"""What a key takes, in words: one vocabulary for the loader's messages and for the manual."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

from gateway.policy.scalars import UNIT_NAMES, plain_number
from gateway.policy.schema import HOST_PORT, HOST_PORT_OR_EMPTY, MODEL_NAME, POOL_NAME, VERSION
from gateway.policy.size_schema import LANE_NAME

PATTERNS: dict[str, tuple[str, str]] = {
    MODEL_NAME: ("a model's name, 1 to 255 characters", "write the name as Triton has it"),
    VERSION: ('a version in quotes, as in "1"', "versions are whole numbers from 1, without leading zeros"),
    POOL_NAME: ("a pool's name", "use lower-case letters, digits and inner dashes, at most 63 characters"),
    LANE_NAME: ("a lane's name", "use lower-case letters, digits and dashes, a letter first, at most 31 characters"),
    HOST_PORT: ("`host:port`", "write as in `10.0.0.7:8001`"),
    HOST_PORT_OR_EMPTY: ("`host:port`, or empty", "write as in `10.0.0.7:8002`"),
}
"""Pattern to (what it stands for, what to write). Other rooms' patterns are added by `name_pattern`."""


def name_pattern(pattern: str, meaning: str, remedy: str) -> str:
    """Give a pattern its words; returns the pattern."""
    PATTERNS[pattern] = (meaning, remedy)
    return pattern


def bare(info: inspect.Type) -> inspect.Type:
    """A type without its annotations, and without None where the schema means "may be left out"."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        some = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        if len(some) == 1:
            return bare(some[0])
    return info


def literals(info: inspect.Type) -> tuple[str, ...]:
    return tuple(str(value) for value in info.values) if isinstance(info, inspect.LiteralType) else ()


def span(info: Any) -> str:
    """The range of a number: `1 to 20`, `at least 64`, or ""."""
    low = info.ge if info.ge is not None else info.gt
    high = info.le if info.le is not None else info.lt
    above = "above " if info.ge is None and info.gt is not None else ""
    if low is not None and high is not None:
        return f"{above}{plain_number(low)} {'and at most' if above else 'to'} {plain_number(high)}"
    if low is not None:
        return f"{above or 'at least '}{plain_number(low)}"
    return f"at most {plain_number(high)}" if high is not None else ""


def wanted(info: inspect.Type, unit: str = "") -> str:
    """What a value of this type is, as a noun phrase: `a whole number of milliseconds, 1 to 20`."""
    info = bare(info)
    if isinstance(info, inspect.IntType | inspect.FloatType):
        noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        noun += f" of {UNIT_NAMES[unit]}" if unit else ""
        limits = span(info)
        return f"{noun}, {limits}" if limits else noun
    if isinstance(info, inspect.BoolType):
        return "`true` or `false`"
    if isinstance(info, inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in literals(info))
    if isinstance(info, inspect.StrType):
        return PATTERNS[info.pattern][0] if info.pattern else "text"
    if isinstance(info, inspect.VarTupleType):
        return f"a list, each {wanted(info.item_type, unit)}"
    if isinstance(info, inspect.DictType):
        return f"a mapping from {wanted(info.key_type)} to {wanted(info.value_type, unit)}"
    if isinstance(info, inspect.StructType):
        return "a mapping"
    raise AssertionError(f"the schema uses {type(info).__name__}, which the loader does not know")
