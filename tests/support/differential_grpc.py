"""gRPC for the differential tests: messages as bytes, through generic stubs that neither build nor read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

WAIT_S = 20.0
SERVICE = "/inference.GRPCInferenceService/"
_MAX = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True)
class GrpcSent:
    """One unary call, or one stream of messages."""

    method: str
    messages: tuple[bytes, ...]
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    compression: Any = None
    timeout_s: float = WAIT_S
    streams: bool = False
    in_order: bool = True
    """Whether the order of the responses means anything."""


@dataclass(frozen=True)
class GrpcAnswer:
    """What came: the code's name, its text, and the messages before it. `names` are the keys of all metadata."""

    code: str
    text: str = ""
    messages: tuple[bytes, ...] = ()
    names: frozenset[str] = frozenset()
    reason: str = ""


@dataclass
class GrpcSide:
    """One server."""

    address: str
    _channel: Any = field(default=None)

    def ask(self, sent: GrpcSent) -> GrpcAnswer:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.address, options=_MAX)
        options = {"timeout": sent.timeout_s, "metadata": sent.metadata, "compression": sent.compression}
        found: list[bytes] = []
        if sent.streams:
            call = self._channel.stream_stream(sent.method)(iter(sent.messages), **options)
            try:
                found.extend(call)
            except grpc.RpcError:
                pass
        else:
            try:
                response, call = self._channel.unary_unary(sent.method).with_call(sent.messages[0], **options)
                found.append(response)
            except grpc.RpcError as error:
                call = error
        trailing = dict(call.trailing_metadata() or ())
        names = frozenset(trailing) | frozenset(dict(call.initial_metadata() or ()))
        reason = str(trailing.get("x-sluice-reason", ""))
        return GrpcAnswer(call.code().name, call.details() or "", tuple(found), names, reason)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def unary(method: str, message: Any, **options: Any) -> GrpcSent:
    """A call of the service's method (or a whole path) with a message, or its bytes."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return GrpcSent(method if method.startswith("/") else SERVICE + method, (data,), **options)


def stream(messages: Iterable[Any], **options: Any) -> GrpcSent:
    """A ModelStreamInfer with these requests."""
    data = tuple(each if isinstance(each, bytes) else each.SerializeToString() for each in messages)
    return GrpcSent(SERVICE + "ModelStreamInfer", data, streams=True, **options)


def tensor(name: str, datatype: str, shape: Iterable[int], values: Any = None) -> Any:
    """An input; with `values`, its elements as `contents`."""
    made = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=list(shape))
    if values is not None:
        getattr(made.contents, CONTENTS[datatype]).extend(values)
    return made


def infer_request(
    inputs: Iterable[Any],
    raw: Iterable[bytes] = (),
    *,
    model: str = "identity",
    outputs: Iterable[Any] = (),
    **more: Any,
) -> Any:
    """A ModelInferRequest. `parameters` are name to a value, whose kind decides the member, or to (member, value)."""
    parameters = more.pop("parameters", {})
    message = service_pb2.ModelInferRequest(model_name=model, inputs=list(inputs), **more)
    message.raw_input_contents.extend(raw)
    for output in outputs:
        name, wanted = output if isinstance(output, tuple) else (output, {})
        set_parameters(message.outputs.add(name=name).parameters, wanted)
    set_parameters(message.parameters, parameters)
    return message


_MEMBERS = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


def set_parameters(target: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if value is None:
            target[key].SetInParent()
            continue
        member, plain = value if isinstance(value, tuple) else (_MEMBERS[type(value)], value)
        setattr(target[key], member, plain)
