"""Plain words of YAML to values, by the core schema of YAML 1.2.2 (section 10.3.2), and numbers written with a unit.

The core schema is resolved here and not by the YAML library, because libraries differ exactly where people get hurt:
`no`, `12:30`, `2024-01-01` and `1_000` are text here, `1e3` is a number, and `012` is refused where a number is wanted.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Literal

Kind = Literal["null", "bool", "int", "float", "text"]
Plain = None | bool | int | float | str

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_RADIX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_POWER = re.compile(r"([-+]?[0-9]+)[eE]\+?([0-9]{1,2})")
_DECIMAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
_DIGITS_MAX = 40
"""No key of a policy takes a longer number; Python refuses to read some thousands of digits at all."""

_WITH_UNIT = re.compile(r"([-+]?(?:[0-9][0-9_,]*)?\.?[0-9]+)\s*([A-Za-zµ%]{1,12})")

_SECONDS: dict[str, Fraction] = {
    name: factor
    for names, factor in (
        ("ns nanos nanoseconds", Fraction(1, 10**9)),
        ("us µs usec usecs micros microseconds", Fraction(1, 10**6)),
        ("ms msec msecs millis millisecond milliseconds", Fraction(1, 1000)),
        ("s sec secs second seconds", Fraction(1)),
        ("m min mins minute minutes", Fraction(60)),
        ("h hr hrs hour hours", Fraction(3600)),
        ("d day days", Fraction(86400)),
    )
    for name in names.split()
}
_BYTES: dict[str, Fraction] = {
    name: Fraction(factor)
    for names, factor in (
        ("b byte bytes", 1),
        ("k kb kilobytes", 1000),
        ("ki kib", 1024),
        ("mb megabytes", 1000**2),
        ("mi mib", 1024**2),
        ("g gb gigabytes", 1000**3),
        ("gi gib", 1024**3),
    )
    for name in names.split()
}
UNIT_NAMES = {"ms": "milliseconds", "s": "seconds", "bytes": "bytes"}


def resolve(text: str) -> tuple[Kind, Plain]:
    """What a plain (unquoted) scalar means."""
    if text in _NULL:
        return "null", None
    if text in _BOOL:
        return "bool", _BOOL[text]
    if _INT.fullmatch(text):
        return "int", int(text[:_DIGITS_MAX])
    if _RADIX.fullmatch(text):
        return "int", int(text[2 : _DIGITS_MAX + 2], 8 if text[1] == "o" else 16)
    if _FLOAT.fullmatch(text):
        return "float", float(text)
    if _INFINITY.fullmatch(text):
        return "float", -math.inf if text[0] == "-" else math.inf
    if text in _NAN:
        return "float", math.nan
    return "text", text


def whole(text: str) -> int | None:
    """`1e3` as an exact whole number; None if the text is not of that form."""
    match = _POWER.fullmatch(text)
    if match is None or len(match[1]) > _DIGITS_MAX:
        return None
    return int(match[1]) * int("1" + "0" * int(match[2]))


def unit_of(key: str) -> str:
    """The unit that a key carries in its name: "ms", "s", "bytes", or "" if it counts things (per second, say)."""
    words = key.split("_")
    if "per" in words:
        return ""
    if "bytes" in words:
        return "bytes"
    return words[-1] if len(words) > 1 and words[-1] in ("ms", "s") else ""


def dimension(unit: str) -> str:
    """Of a unit as people write it: "time", "size", or "" for a word that is no unit."""
    lower = unit.lower()
    if lower in _SECONDS:
        return "time"
    return "size" if lower in _BYTES else ""


def split_unit(text: str) -> tuple[str, str] | None:
    """`4 MiB` as ("4", "MiB"); None if the text is not a number with a word behind it."""
    match = _WITH_UNIT.fullmatch(text.strip())
    return (match[1].replace("_", "").replace(",", ""), match[2]) if match else None


def convert(number: str, unit: str, wanted: str) -> str | None:
    """A number with a unit, in the unit that a key wants, as text to write; None if the two do not measure the same."""
    table = _BYTES if wanted == "bytes" else _SECONDS
    source, target = unit.lower(), wanted.lower()
    if not wanted or source not in table or target not in table:
        return None
    if len(number) > _DIGITS_MAX or not _DECIMAL.fullmatch(number):  # an exponent could ask for gigabytes of digits
        return None
    value = Fraction(number) * table[source] / table[target]
    return plain_number(value) if value.denominator == 1 else f"{float(value):.12g}"


def plain_number(value: Fraction | float) -> str:
    """A number without exponent or needless point, as it should stand in a file."""
    number = float(value)
    return str(int(value)) if -1e18 < number < 1e18 and value == int(value) else repr(number)
