"""Random requests for `identity` and `mixed`: well-formed ones, and such with something broken in them.

Three things are left out because they end the Triton that the suite shares: a classification of an output of BYTES, or
of one without elements (2.51 divides by zero), and shapes of gigabytes, which it allocates before it looks at the data.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from hypothesis import strategies as st

from gateway.wire.kserve.datatypes import BY_NAME
from tests.support.differential_grpc import CONTENTS, GrpcSent, infer_request, tensor, unary
from tests.support.differential_http import HttpSent, infer
from tests.support.tensors import packed_bytes

Json = dict[str, Any]
VECTORS = {datatype: f"INPUT_{datatype}" for datatype in BY_NAME}
MATRICES = {datatype: f"INPUT_MATRIX_{datatype}" for datatype in ("FP32", "BOOL", "INT64", "FP16", "BF16", "BYTES")}
RAW_ONLY = ("FP16", "BF16")
SIZES = {name: row.size for name, row in BY_NAME.items()}

texts = st.text(st.characters(codec="utf-8"), max_size=8)


def _integers(datatype: str) -> st.SearchStrategy[int]:
    bits = SIZES[datatype] * 8
    low, high = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1])


def elements(datatype: str) -> st.SearchStrategy[Any]:
    """One element as JSON has it; of BYTES as text."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return texts
    if datatype == "FP32":
        return st.floats(width=32) | st.integers(-(2**24), 2**24)
    if datatype == "FP64":
        return st.floats() | st.integers(-(2**53), 2**53)
    return _integers(datatype)


def to_raw(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BOOL":
        return bytes(values)
    if datatype == "BYTES":
        return packed_bytes(*(value if isinstance(value, bytes) else value.encode() for value in values))
    code = BY_NAME[datatype].code
    return struct.pack(f"<{len(values)}{code}", *values)


def nested(values: list[Any], shape: list[int]) -> list[Any]:
    if len(shape) < 2 or not values:
        return values
    return [values[i : i + shape[1]] for i in range(0, len(values), shape[1])]


@st.composite
def inputs(draw: st.DrawFn, *, binary: bool | None = None) -> tuple[Json, bytes]:
    """One input of `identity` over HTTP, and its binary tail."""
    datatype = draw(st.sampled_from(list(VECTORS)))
    matrix = datatype in MATRICES and draw(st.booleans())
    shape = draw(st.lists(st.integers(0, 4), min_size=1 + matrix, max_size=1 + matrix))
    count = math.prod(shape)
    made: Json = {"name": (MATRICES if matrix else VECTORS)[datatype], "datatype": datatype, "shape": shape}
    if datatype in RAW_ONLY:
        raw = draw(st.binary(min_size=2 * count, max_size=2 * count))
    elif datatype == "BYTES" and draw(st.booleans()) and binary is not False:
        raw = packed_bytes(*draw(st.lists(st.binary(max_size=6), min_size=count, max_size=count)))
    else:
        values = draw(st.lists(elements(datatype), min_size=count, max_size=count))
        if binary is False or (binary is None and draw(st.booleans())):
            made["data"] = nested(values, shape) if draw(st.booleans()) else values
            return made, b""
        raw = to_raw(datatype, values)
    made["parameters"] = {"binary_data_size": len(raw)}
    return made, raw


parameter_values = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
parameters = st.dictionaries(
    st.sampled_from(
        ["own", "other", "priority", "timeout", "sequence_id", "sequence_start", "headers", "é", "triton_x"]
    ),
    parameter_values,
    max_size=2,
)
NO_WISH: Json = {}
wishes = st.sampled_from([NO_WISH, {"binary_data_output": True}, {"binary_data_output": False}])


@st.composite
def identity_documents(draw: st.DrawFn, *, classes: bool = True) -> tuple[Json, bytes]:
    chosen = draw(st.lists(inputs(), min_size=1, max_size=3, unique_by=lambda pair: str(pair[0]["name"])))
    entries = [entry for entry, _ in chosen]
    made: Json = {"inputs": entries}
    both: Json = {**draw(parameters), **draw(wishes)}
    if draw(st.booleans()) and both:
        made["parameters"] = both
    if draw(st.booleans()):
        made["id"] = draw(texts)
    if draw(st.booleans()):
        made["outputs"] = [draw(outputs(entry, classes=classes)) for entry in draw(st.permutations(entries))]
    return made, b"".join(raw for _, raw in chosen)


@st.composite
def outputs(draw: st.DrawFn, entry: Json, *, classes: bool) -> Json:
    made: Json = {"name": "OUTPUT" + entry["name"].removeprefix("INPUT")}
    wanted: Json = dict(draw(st.sampled_from([NO_WISH, {"binary_data": True}, {"binary_data": False}])))
    if classes and entry.get("datatype") != "BYTES" and math.prod(entry["shape"]) and draw(st.integers(0, 3)) == 0:
        wanted["classification"] = draw(st.integers(0, 5))
    if draw(st.booleans()) or wanted:
        made["parameters"] = wanted
    return made


@st.composite
def mixed_documents(draw: st.DrawFn, *, classes: bool = True) -> tuple[Json, bytes]:
    shape = [draw(st.integers(1, 9)), draw(st.integers(1, 4))]
    values = draw(st.lists(elements("FP32"), min_size=math.prod(shape), max_size=math.prod(shape)))
    entry: Json = {"name": "x", "datatype": "FP32", "shape": shape}
    raw = b""
    if draw(st.booleans()):
        raw = to_raw("FP32", values)
        entry["parameters"] = {"binary_data_size": len(raw)}
    else:
        entry["data"] = nested(values, shape)
    made: Json = {"inputs": [entry], "parameters": {**draw(parameters), **draw(wishes)}}
    names = draw(st.lists(st.sampled_from(["y", "z", "h"]), max_size=3))
    made["outputs"] = []
    for name in names:
        output = draw(outputs({"name": "INPUT", "shape": shape}, classes=classes))
        made["outputs"].append({**output, "name": name})
    return made, raw


@st.composite
def http_requests(draw: st.DrawFn) -> HttpSent:
    """A well-formed inference."""
    model = draw(st.sampled_from(["identity", "mixed"]))
    made, tail = draw(identity_documents() if model == "identity" else mixed_documents())
    sizes = draw(st.none() | st.lists(st.integers(1, 50), max_size=4))
    indent = draw(st.sampled_from([None, None, 1]))
    text = json.dumps(made, indent=indent, ensure_ascii=draw(st.booleans())).encode()
    return infer(text, tail, model=model, chunks=sizes, framed=draw(st.booleans()))


# --- broken ------------------------------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    5,
    1.5,
    1e300,
    "",
    "x",
    "é",
    "FP32",
    "INT8",
    [],
    [1],
    [[1]],
    {},
    {"a": 1},
    {"name": "x"},
)
"""Nothing that makes a shape of gigabytes."""


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found.append((value, key))
        found += places(inner)
    return found


@st.composite
def broken_documents(draw: st.DrawFn) -> HttpSent:
    """A document in which one or two values are missing, doubled or others."""
    model = draw(st.sampled_from(["identity", "mixed"]))
    made, tail = draw(identity_documents(classes=False) if model == "identity" else mixed_documents(classes=False))
    made = json.loads(json.dumps(made))
    for _ in range(draw(st.integers(1, 2))):
        every = places(made)
        if not every:
            break
        container, key = draw(st.sampled_from(every))
        kind = draw(st.sampled_from(["other", "other", "missing", "doubled"]))
        if kind == "missing":
            del container[key]
        elif kind == "doubled" and isinstance(container, list):
            container.append(container[key])
        else:
            container[key] = json.loads(json.dumps(draw(st.sampled_from(ODD))))
    return infer(json.dumps(made).encode(), tail, model=model, framed=draw(st.booleans()))


@st.composite
def broken_bytes(draw: st.DrawFn) -> HttpSent:
    """A body of which bytes are missing, or others."""
    made, tail = draw(identity_documents(classes=False))
    text = json.dumps(made).encode()
    body = bytearray(text + tail)
    at = draw(st.integers(0, len(body) - 1))
    kind = draw(st.sampled_from(["cut", "change", "insert", "remove"]))
    if kind == "cut":
        del body[at:]
    elif kind == "remove":
        del body[at]
    elif kind == "change":
        body[at] = draw(st.sampled_from(b'{}[],:"\\ x0-\x00\xff') | st.integers(0, 255))
    else:
        body.insert(at, draw(st.sampled_from(b'{}[],:"\\ x1-\x00\xff')))
    headers = [("Inference-Header-Content-Length", str(len(text)))] if tail or draw(st.booleans()) else []
    return infer(bytes(body), headers=headers)


# --- gRPC --------------------------------------------------------------------------------------------------------

grpc_values = st.one_of(
    parameter_values.filter(lambda value: not isinstance(value, int) or isinstance(value, bool) or value < 2**63),
    st.tuples(st.just("uint64_param"), st.integers(0, 2**64 - 1)),
    st.none(),
)


@st.composite
def grpc_messages(draw: st.DrawFn, *, classes: bool = True) -> bytes:
    """A well-formed ModelInferRequest for `identity`: all of it raw, or all of it contents."""
    raw_form = draw(st.booleans())
    allowed = [name for name in VECTORS if raw_form or name in CONTENTS]
    made, raws = [], []
    for datatype in draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=3, unique=True)):
        matrix = datatype in MATRICES and draw(st.booleans())
        shape = draw(st.lists(st.integers(0, 4), min_size=1 + matrix, max_size=1 + matrix))
        count = math.prod(shape)
        name = (MATRICES if matrix else VECTORS)[datatype]
        if datatype in RAW_ONLY:
            raw = draw(st.binary(min_size=2 * count, max_size=2 * count))
        else:
            kind = st.binary(max_size=6) if datatype == "BYTES" else elements(datatype)
            values = draw(st.lists(kind, min_size=count, max_size=count))
            raw = to_raw(datatype, values) if raw_form else b""
        made.append(tensor(name, datatype, shape, None if raw_form else values))
        raws.append(raw)
    wanted: list[Any] = []
    for each in made:
        if draw(st.booleans()):
            sound = classes and each.datatype != "BYTES" and math.prod(each.shape)
            k = draw(st.integers(1, 5)) if sound and draw(st.booleans()) else 0
            wanted.append(("OUTPUT" + each.name.removeprefix("INPUT"), {"classification": k} if k else {}))
    more = {"id": draw(texts), "model_version": draw(st.sampled_from(["", "1", "1", "9"]))}
    given = draw(
        st.dictionaries(st.sampled_from(["own", "priority", "timeout", "sequence_id", "é"]), grpc_values, max_size=2)
    )
    message = infer_request(made, raws if raw_form else [], outputs=wanted, parameters=given, **more)
    return bytes(message.SerializeToString())


@st.composite
def grpc_requests(draw: st.DrawFn) -> GrpcSent:
    return unary("ModelInfer", draw(grpc_messages()))


@st.composite
def broken_messages(draw: st.DrawFn) -> GrpcSent:
    """Bytes that were a message."""
    body = bytearray(draw(grpc_messages(classes=False)))
    at = draw(st.integers(0, len(body) - 1))
    kind = draw(st.sampled_from(["cut", "change", "insert", "remove"]))
    if kind == "cut":
        del body[at:]
    elif kind == "remove":
        del body[at]
    elif kind == "change":
        body[at] = draw(st.integers(0, 255))
    else:
        body.insert(at, draw(st.integers(0, 255)))
    return unary("ModelInfer", bytes(body))
