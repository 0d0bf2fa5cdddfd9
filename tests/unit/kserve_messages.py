"""Hypothesis strategies and samples for the KServe codec tests; the messages are the reference library's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.support.tensors import packed_bytes

names = st.text(max_size=12)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
uint64s = st.integers(0, (1 << 64) - 1)

NUMPY: dict[str, str] = {
    "BOOL": "?",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
JSON_NUMERIC = tuple(name for name in NUMPY if name != "FP16")


@st.composite
def infer_parameters(draw: st.DrawFn) -> Any:
    parameter = service_pb2.InferParameter()
    kind = draw(st.sampled_from(("bool", "int64", "string", "double", "uint64", "unset")))
    if kind == "bool":
        parameter.bool_param = draw(st.booleans())
    elif kind == "int64":
        parameter.int64_param = draw(int64s)
    elif kind == "string":
        parameter.string_param = draw(names)
    elif kind == "double":
        parameter.double_param = draw(st.floats())
    elif kind == "uint64":
        parameter.uint64_param = draw(uint64s)
    return parameter


parameter_maps = st.dictionaries(names, infer_parameters(), max_size=4)


def put(target: Any, parameters: dict[str, Any]) -> None:
    """Copy drawn parameters into a message's map."""
    for key, value in parameters.items():
        target[key].CopyFrom(value)


@st.composite
def infer_requests(draw: st.DrawFn) -> Any:
    """Any `ModelInferRequest`, also such as Triton would refuse."""
    request = service_pb2.ModelInferRequest(model_name=draw(names), model_version=draw(names), id=draw(names))
    put(request.parameters, draw(parameter_maps))
    raw = draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        tensor = request.inputs.add(
            name=draw(names),
            datatype=draw(st.sampled_from((*NUMPY, "BF16", "BYTES", "?"))),
            shape=draw(st.lists(int64s, max_size=4)),
        )
        put(tensor.parameters, draw(parameter_maps))
        if raw:
            request.raw_input_contents.append(draw(st.binary(max_size=200)))
        else:
            contents = tensor.contents
            contents.bool_contents.extend(draw(st.lists(st.booleans(), max_size=3)))
            contents.int_contents.extend(draw(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=3)))
            contents.int64_contents.extend(draw(st.lists(int64s, max_size=3)))
            contents.uint64_contents.extend(draw(st.lists(uint64s, max_size=3)))
            contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=3)))
            contents.fp64_contents.extend(draw(st.lists(st.floats(), max_size=3)))
            contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=9), max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        output = request.outputs.add(name=draw(names))
        put(output.parameters, draw(parameter_maps))
    return request


@st.composite
def arrays(draw: st.DrawFn, datatype: str) -> Any:
    """A small array of any shape, empty ones and non-finite floats included."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    count = int(np.prod(shape))
    dtype = np.dtype(NUMPY[datatype])
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if datatype == "BOOL":
        raw = bytes(each & 1 for each in raw)
    return np.frombuffer(raw, dtype).reshape(shape)


@st.composite
def infer_responses(draw: st.DrawFn) -> Any:
    """A `ModelInferResponse` as Triton makes it, whose outputs all have a JSON form."""
    response = service_pb2.ModelInferResponse(model_name=draw(names), model_version=draw(names), id=draw(names))
    put(response.parameters, draw(parameter_maps))
    for index in range(draw(st.integers(0, 4))):
        datatype = draw(st.sampled_from((*JSON_NUMERIC, "BYTES")))
        output = response.outputs.add(name=f"o{index}", datatype=datatype)
        if datatype == "BYTES":
            elements = draw(st.lists(names, max_size=4))
            output.shape.append(len(elements))
            response.raw_output_contents.append(packed_bytes(*(each.encode() for each in elements)))
        else:
            array = draw(arrays(datatype))
            output.shape.extend(array.shape)
            response.raw_output_contents.append(array.tobytes())
    return response
