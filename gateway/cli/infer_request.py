"""What `sluice infer` sends: the body, made from the model's own description, and the route that fits the model.

A decoupled model answers with any number of responses, for which `infer` has no form; it is called by
`generate_stream`, whose request is one flat object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

INFER, STREAM = "infer", "generate_stream"
_ZEROS: dict[str, Any] = {"BOOL": False, "BYTES": "", "FP32": 0.0, "FP64": 0.0}
_WITHOUT_JSON = frozenset({"FP16", "BF16"})
_NO_INPUTS = b'{"inputs": []}'


@dataclass(slots=True)
class Asked:
    """One request: `route` is INFER or STREAM."""

    route: str
    body: bytes


@dataclass(slots=True)
class Model:
    """What the gateway says of a model. Both parts are empty if it cannot say: the call itself then tells why."""

    name: str
    metadata: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def decoupled(self) -> bool:
        return bool(self.config.get("model_transaction_policy", {}).get("decoupled"))

    @property
    def stateful(self) -> bool:
        return "sequence_batching" in self.config

    @property
    def may_keep_sequences(self) -> bool:
        """An ensemble's own configuration does not tell."""
        return self.stateful or "ensemble_scheduling" in self.config or not self.config

    @property
    def corrid_is_text(self) -> bool:
        controls = self.config.get("sequence_batching", {}).get("control_input", [])
        kinds = [each for control in controls for each in control.get("control", [])]
        return any(
            kind.get("kind") == "CONTROL_SEQUENCE_CORRID" and kind.get("data_type") == "TYPE_STRING" for kind in kinds
        )

    @property
    def inputs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.metadata.get("inputs", [])
        return found

    def needed_inputs(self) -> list[dict[str, Any]]:
        """Those that a call cannot do without; where all are optional, those that can be written in JSON."""
        optional = {tensor.get("name") for tensor in self.config.get("input", []) if tensor.get("optional")}
        needed = [tensor for tensor in self.inputs if tensor["name"] not in optional]
        return needed or [tensor for tensor in self.inputs if tensor["datatype"] not in _WITHOUT_JSON]

    @property
    def all_optional(self) -> bool:
        declared = self.config.get("input", [])
        return bool(declared) and all(tensor.get("optional") for tensor in declared)


def prepare(
    arguments: argparse.Namespace, connection: http.client.HTTPConnection, base: str, key: dict[str, str]
) -> Asked:
    """Ask about the model and make the request. Raises ValueError for what the user must put right, OSError and
    HTTPException as the connection does.
    """
    given = _file(arguments.request) if arguments.request else None
    config = _get(connection, base + "/config", key)
    model = Model(arguments.model, config=config)
    if given is not None:
        return Asked(STREAM, _flat(given)) if model.decoupled else Asked(INFER, given)
    model.metadata = _get(connection, base, key)
    if not model.inputs:
        return Asked(INFER, _NO_INPUTS)
    parameters = _sequence(arguments, model)
    inputs = _inputs(arguments, model)
    if not model.decoupled:
        document = {"inputs": inputs, "parameters": parameters, "outputs": _outputs(model)}
        return Asked(
            INFER, json.dumps({name: value for name, value in document.items() if value or name == "inputs"}).encode()
        )
    flat = {tensor["name"]: _flattened(tensor["data"]) for tensor in inputs}
    return Asked(STREAM, json.dumps({**flat, "parameters": parameters} if parameters else flat).encode())


def _file(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"--request: {name} cannot be read ({error.strerror})") from error


def _get(connection: http.client.HTTPConnection, path: str, key: dict[str, str]) -> dict[str, Any]:
    connection.request("GET", path, headers=key)
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _flat(request: bytes) -> bytes:
    """A KServe request as one of `generate_stream`; what is none goes as it is, and the gateway says what it wants."""
    try:
        document = json.loads(request)
        tensors = {tensor["name"]: _flattened(tensor["data"]) for tensor in document["inputs"]}
    except (ValueError, KeyError, TypeError):
        return request
    more = {name: document[name] for name in ("id", "parameters") if name in document}
    return json.dumps({**tensors, **more}).encode()


def _flattened(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [value for item in data for value in _flattened(item)]


def _sequence(arguments: argparse.Namespace, model: Model) -> dict[str, Any]:
    """The request parameters that say which step of which sequence the call is."""
    if arguments.sequence is None:
        if model.stateful:
            raise ValueError(
                f"{model.name} keeps a state over the calls of a sequence: name one with --sequence ID, with --start "
                "in its first call and --end in its last"
            )
        return {}
    if not model.may_keep_sequences:
        raise ValueError(f"{model.name} keeps no sequences: leave --sequence out")
    return {
        "sequence_id": sequence_id(arguments.sequence, text=model.corrid_is_text),
        "sequence_start": arguments.start,
        "sequence_end": arguments.end,
    }


def sequence_id(word: str, *, text: bool = False) -> int | str:
    """A whole number is a number, anything else a text, and `"7"` in quotes the text 7. `text`: the model takes texts
    alone. Raises ValueError.
    """
    try:
        value = json.loads(word)
    except ValueError:
        value = word
    if type(value) not in (int, str):
        value = word
    if value == "" or (type(value) is int and not 0 < value < 2**64):
        raise ValueError(f"--sequence: {word!r} names no sequence; give a whole number from 1 to 2^64-1, or a text")
    return str(value) if text else value


def _inputs(arguments: argparse.Namespace, model: Model) -> list[dict[str, Any]]:
    if not arguments.input:
        print("no input given: zeros in the model's shapes are sent", file=sys.stderr)
        return [_zeros(tensor) for tensor in model.needed_inputs()]
    given = dict(_pair(word) for word in arguments.input)
    inputs = []
    for tensor in model.inputs:
        name = tensor["name"]
        if name in given:
            data = given.pop(name)
            shape = shape_of(data, tensor["shape"])
            inputs.append({"name": name, "datatype": tensor["datatype"], "shape": shape, "data": data})
    if given:
        names = ", ".join(tensor["name"] for tensor in model.inputs)
        raise ValueError(f"{model.name} has no input {', '.join(given)}; it has {names}")
    return inputs


def _zeros(tensor: dict[str, Any]) -> dict[str, Any]:
    name, datatype = tensor["name"], tensor["datatype"]
    if datatype in _WITHOUT_JSON:
        raise ValueError(
            f"input {name} is {datatype}, which has no JSON form: name the inputs to send with --input, or use a "
            "client that sends binary"
        )
    shape = [1 if int(size) < 0 else int(size) for size in tensor["shape"]]
    return {"name": name, "datatype": datatype, "shape": shape, "data": [_ZEROS.get(datatype, 0)] * math.prod(shape)}


def _outputs(model: Model) -> list[dict[str, Any]]:
    """Empty for all of them, unless the answer could not be given in JSON then."""
    outputs: list[dict[str, Any]] = model.metadata.get("outputs", [])
    left_out = [tensor["name"] for tensor in outputs if tensor["datatype"] in _WITHOUT_JSON]
    shown = [{"name": tensor["name"]} for tensor in outputs if tensor["datatype"] not in _WITHOUT_JSON]
    # Where all are optional (`identity`) the model answers with what it was given, and must not be asked for more.
    if not left_out or not shown or model.all_optional:
        return []
    print(f"not asked for, as FP16 and BF16 have no JSON form: {', '.join(left_out)}", file=sys.stderr)
    return shown


def _pair(word: str) -> tuple[str, Any]:
    name, separator, text = word.partition("=")
    if not separator:
        raise ValueError(f"--input: {word!r} is not NAME=JSON")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"--input {name}: {text!r} is not JSON ({error}); text stands in quotes: --input '{name}=\"…\"'"
        ) from error
    return name, value if isinstance(value, list) else [value]


def shape_of(data: Any, wanted: Sequence[Any]) -> list[int]:
    """The shape of nested lists. A flat list takes the model's shape if it fills one with at most one free dimension;
    what does not fit goes as it is, and the model says what it wants.
    """
    free = [place for place, size in enumerate(wanted) if int(size) < 0]
    if len(wanted) > 1 and len(free) <= 1 and not any(isinstance(item, list) for item in data):
        filled = [int(size) for size in wanted]
        if free:
            fixed = -math.prod(filled)
            filled[free[0]] = len(data) // fixed if fixed else 0
        if data and math.prod(filled) == len(data):
            return filled
    shape = []
    while isinstance(data, list):
        shape.append(len(data))
        data = data[0] if data else None
    return shape
