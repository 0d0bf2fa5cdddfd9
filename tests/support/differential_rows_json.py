"""Rows of the table of deviations that are about the JSON of requests and answers."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

from gateway.wire.kserve.datatypes import BY_NAME
from tests.support.differential_compare import HEADER_LENGTH, Comparison, split_inference, unpacked
from tests.support.differential_row_kit import ANSWER, NOTHING, Aspects, entries, is_http, parameters_of, refused, row

_MALFORMED = re.compile(r"Unable to (parse|set) |failed to parse the request JSON buffer: |attempt to (access|get) ")


@row("bad-json")
def _bad_json(c: Comparison) -> Aspects:
    if not is_http(c) or c.through.status != 400 or c.through.reason != "bad_request":
        return NOTHING
    if c.direct.status == 200:
        return ANSWER if any(name in (c.through.error or "") for name in _overlooked(c)) else NOTHING
    malformed = c.direct.status == 500 and _MALFORMED.search(c.direct.error or "")
    return frozenset({"status"}) if malformed else NOTHING


def _overlooked(c: Comparison) -> Iterator[str]:
    """Names of inputs without elements whose data Triton does not look at."""
    for entry in entries(c.document, "inputs"):
        shape = entry.get("shape")
        given = parameters_of(entry).get("binary_data_size") or not _is_empty(entry.get("data", []))
        if isinstance(shape, list) and 0 in shape and given:
            yield f"'{entry.get('name')}'"


def _is_empty(data: Any) -> bool:
    return isinstance(data, list) and all(map(_is_empty, data))


@row("bad-header-length")
def _bad_header_length(c: Comparison) -> Aspects:
    values = [value for name, value in c.sent.headers if name.lower() == HEADER_LENGTH] if is_http(c) else []
    odd = len(values) > 1 or any(not re.fullmatch(r"[0-9]{1,10}", value.strip(" \t")) for value in values)
    return ANSWER if odd and refused(c, 400) else NOTHING


@row("binary-default")
def _binary_default(c: Comparison) -> Aspects:
    if parameters_of(c.document).get("binary_data_output") is not True or c.through.status != 200:
        return NOTHING
    inherit = {
        str(entry.get("name")) for entry in entries(c.document, "outputs") if "binary_data" not in parameters_of(entry)
    }
    parts = split_inference(c.through, unpacked(c.through))
    if parts is None or not any(each.binary and each.name in inherit for each in parts[1]):
        return NOTHING
    if c.direct.status == 200:
        return frozenset({"form", "type", "headers"})
    # What Triton cannot write as JSON.
    return ANSWER if c.direct.status == 400 and "via JSON is not supported" in (c.direct.error or "") else NOTHING


def numbers(data: Any) -> Iterator[int | float]:
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield item


@row("json-range")
def _json_range(c: Comparison) -> Aspects:
    if not is_http(c) or not refused(c, 400) or "out of range" not in c.through.error:
        return NOTHING
    for entry in entries(c.document, "inputs"):
        known = BY_NAME.get(str(entry.get("datatype")))
        if known is None or not known.code:
            continue
        for number in numbers(entry.get("data")):
            try:
                struct.pack("<" + known.code, number)
            except (struct.error, OverflowError):
                return ANSWER
    return NOTHING


@row("json-doubles")
def _json_doubles(c: Comparison) -> Aspects:
    if set(c.differences) & {"tensors", "head"} != {"tensors"} or not any(numbers(list(_data(c)))):
        return NOTHING
    return frozenset({"tensors"}) if all(map(_near, *c.differences["tensors"])) else NOTHING


def _near(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Two outputs that are equal, or whose doubles, or the best of them, are neighbours."""
    if a[:3] != b[:3] or a[3] == b[3]:
        return a == b
    if a[1] == "FP64":
        return _ulps(a[3], b[3]) <= 3
    best = [[text.split(b":") for text in re.findall(rb"[-0-9.]+:[0-9]+", each[3])] for each in (a, b)]
    pairs = list(zip(*best, strict=True))
    return bool(pairs) and all(x[1] == y[1] and math.isclose(float(x[0]), float(y[0])) for x, y in pairs)


def _data(c: Comparison) -> Iterator[Any]:
    for entry in entries(c.document, "inputs"):
        if entry.get("datatype") == "FP64":
            yield entry.get("data")


def _ulps(a: bytes, b: bytes) -> int:
    """How far apart the two are at most, in units of the last place."""
    count = len(a) // 8
    pairs = zip(struct.unpack(f"<{count}q", a), struct.unpack(f"<{count}q", b), strict=True)
    return max((abs(x - y) for x, y in pairs), default=0)


@row("json-text")
def _json_text(c: Comparison) -> Aspects:
    if not is_http(c) or not refused(c, 400):
        return NOTHING
    if c.document is not None and not _is_utf8(c.sent.body[: _json_length(c)]):
        return ANSWER
    if c.direct.status == 200 and "surrogate" in c.through.error and re.search(rb"(?i)\\ud[c-f]", c.sent.body):
        return ANSWER
    # The other way: Triton writes bytes into JSON as they are.
    text = c.direct.body[: int(c.direct.header(HEADER_LENGTH) or len(c.direct.body))]
    return ANSWER if c.direct.status == 200 and "not UTF-8" in c.through.error and not _is_utf8(text) else NOTHING


def _json_length(c: Comparison) -> int:
    named = c.sent.header(HEADER_LENGTH)
    return int(named) if named is not None and named.isdigit() else len(c.sent.body)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@row("duplicate-members")
def _duplicate_members(c: Comparison) -> Aspects:
    found: list[bool] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) != len(pairs))
        return dict(pairs)

    if is_http(c):
        try:
            json.loads(c.sent.body, object_pairs_hook=look)
        except ValueError:
            return NOTHING
    return ANSWER if any(found) else NOTHING
