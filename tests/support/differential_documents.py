"""Requests in JSON that the differential tests send."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def tensor(name: str, datatype: str, shape: Any, data: Any = None, **parameters: Any) -> Json:
    made: Json = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        made["data"] = data
    if parameters:
        made["parameters"] = parameters
    return made


PLAIN = tensor("INPUT_INT32", "INT32", [2], [1, 2])
X = tensor("x", "FP32", [1, 2], [1, 2])
USER = tensor("user", "FP32", [16], [0.25] * 16)
ITEMS = tensor("items", "FP32", [3, 16], [i / 7 for i in range(48)])


def document(inputs: Any = (PLAIN,), outputs: Any = None, parameters: Any = None, **more: Any) -> Json:
    made: Json = {"inputs": list(inputs) if isinstance(inputs, tuple) else inputs, **more}
    if outputs is not None:
        made["outputs"] = outputs
    if parameters is not None:
        made["parameters"] = parameters
    return made


def one(datatype: str, text: str, *, binary: bool = True) -> bytes:
    """A document with one element, written as given."""
    name = f"INPUT_{datatype}"
    wish = '"parameters":{"binary_data_output":true},' if binary else ""
    return f'{{{wish}"inputs":[{{"name":"{name}","datatype":"{datatype}","shape":[1],"data":[{text}]}}]}}'.encode()


def without(entry: Json, member: str) -> Json:
    return {key: value for key, value in entry.items() if key != member}


def region(name: Any) -> Json:
    return {"shared_memory_region": name, "shared_memory_byte_size": 8}
