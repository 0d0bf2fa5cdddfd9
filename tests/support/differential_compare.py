"""What is compared of two answers to the same request: everything that a caller can see, each aspect by its name.

Over HTTP: `status`; `type`; `framing` (a length, chunks, the end of the connection); `interim` (100 Continue);
`coding` and `packed` (the size of a compressed body); `end` (whether the connection goes on); `headers` (names that
only one side has) and `more` (names that only the gateway has, and documents); of good answers `document`, or of
inferences `head` (model, version, id, parameters, names and order of outputs), `tensors` (datatype, shape, every bit)
and `form` (JSON or binary); of errors `error` (their shape), and `text` where the gateway passes Triton's on. Over
gRPC: `code`, `messages`, `text`, `headers`, `more`.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from gateway.wire.kserve.datatypes import BY_NAME
from tests.support.differential_grpc import SERVICE, GrpcAnswer, GrpcSent
from tests.support.differential_http import HttpAnswer, HttpSent

FRAMING_NAMES = frozenset({"content-length", "transfer-encoding", "connection"})
OWN_NAMES = frozenset({"retry-after", "allow", "grpc-retry-pushback-ms", "www-authenticate"})
HEADER_LENGTH = "inference-header-content-length"
_NO_PARTS = ("", "")


@dataclass(frozen=True)
class Tensor:
    """One output, whichever way it came."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    binary: bool


@dataclass(frozen=True)
class Comparison:
    """One request and its two answers."""

    sent: Any
    direct: Any
    through: Any

    @cached_property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Aspect to what Triton and what the gateway has of it, where the two are not the same."""
        aspects = _of_http if isinstance(self.sent, HttpSent) else _of_grpc
        direct, through = aspects(self.sent, self.direct, self), aspects(self.sent, self.through, self)
        names = [*direct, *(name for name in through if name not in direct)]
        found = {name: (direct.get(name), through.get(name)) for name in names}
        return {name: pair for name, pair in found.items() if pair[0] != pair[1]}

    @cached_property
    def document(self) -> Any:
        """The JSON that an HTTP request sent, as far as it is JSON; else None."""
        if not isinstance(self.sent, HttpSent):
            return None
        body, length = self.sent.body, self.sent.header(HEADER_LENGTH)
        if length is not None and length.strip().isdigit():
            body = body[: int(length)]
        return read_json(body)

    def __str__(self) -> str:
        """For a person who must find out why the two differ."""
        lines = [
            f"{name}:\n    Triton: {shown(a)}\n    Sluice: {shown(b)}" for name, (a, b) in self.differences.items()
        ]
        return "\n".join(
            [f"sent: {shown(self.sent)}", *lines, f"Triton: {shown(self.direct)}", f"Sluice: {shown(self.through)}"]
        )


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 1500 else text[:1500] + "…"


def read_json(body: bytes) -> Any:
    """The document, read as Triton does: with its bare words, and bytes that are not UTF-8 kept. None if it is none."""
    try:
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def _is_own(name: str) -> bool:
    return name.startswith("x-") or name in OWN_NAMES


# --- HTTP --------------------------------------------------------------------------------------------------------


def _of_http(sent: HttpSent, answer: HttpAnswer, both: Comparison) -> dict[str, Any]:
    found: dict[str, Any] = {
        "status": answer.status,
        "type": answer.header("content-type"),
        "framing": answer.framing,
        "interim": answer.interim,
        "end": answer.ended or answer.says_close,
        "headers": frozenset(name for name in answer.names - FRAMING_NAMES if not _is_own(name)),
        "more": frozenset(name for name in answer.names if _is_own(name)),
        "coding": answer.header("content-encoding"),
    }
    if answer.status >= 400:
        found["error"] = "an error" if answer.error is not None else answer.body
        if both.through.reason.startswith("upstream") and "via JSON is not supported" not in (both.direct.error or ""):
            # The gateway always asks over gRPC, and Triton names the protocol in this one.
            found["text"] = (answer.error or "").replace("HTTP end point", "ModelInfer RPC")
    elif answer.status and sent.method != "HEAD":
        body = unpacked(answer)
        if answer.header("content-encoding"):
            # Compared where the content is as long, so that the level alone may make the difference.
            found["packed"] = len(answer.body)
        parts = split_inference(answer, body) if "/infer" in sent.target else None
        if parts is None:
            found["document"] = repr(read_json(body)) if answer.header("content-type") == "application/json" else body
        else:
            found["head"], tensors = parts
            found["tensors"] = tensors_of(tensors, {tensor.name: tensor.binary for tensor in _others(both, answer)})
            found["form"] = tuple((tensor.name, tensor.binary) for tensor in tensors)
    return found


def unpacked(answer: HttpAnswer) -> bytes:
    unpack: dict[str | None, Callable[[bytes], bytes]] = {
        None: bytes,
        "gzip": gzip.decompress,
        "deflate": zlib.decompress,
    }
    return unpack[answer.header("content-encoding")](answer.body)


def _others(both: Comparison, answer: HttpAnswer) -> list[Tensor]:
    other = both.through if answer is both.direct else both.direct
    if other.status != 200:
        return []
    parts = split_inference(other, unpacked(other))
    return parts[1] if parts else []


def tensors_of(tensors: list[Tensor], others: dict[str, bool]) -> tuple[Any, ...]:
    """To be compared. JSON has one NaN only: where the two sides chose different forms, all are alike."""
    return tuple(
        (each.name, each.datatype, each.shape, each.raw if others.get(each.name) == each.binary else _one_nan(each))
        for each in tensors
    )


def _one_nan(tensor: Tensor) -> bytes:
    code = {"FP32": "f", "FP64": "d"}.get(tensor.datatype)
    if code is None:
        return tensor.raw
    values = struct.unpack(f"<{len(tensor.raw) // struct.calcsize(code)}{code}", tensor.raw)
    return struct.pack(f"<{len(values)}{code}", *(value if value == value else float("nan") for value in values))


def split_inference(answer: HttpAnswer, body: bytes) -> tuple[Any, list[Tensor]] | None:
    """Everything but the tensors, and the tensors. None if the answer is no inference. Its own lengths must hold."""
    named = answer.header(HEADER_LENGTH)
    text, tail = (body, b"") if named is None else (body[: int(named)], body[int(named) :])
    document = read_json(text)
    if not isinstance(document, dict) or "outputs" not in document:
        return None
    tensors = []
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            raw = elements_to_bytes(output["datatype"], output["data"])
        else:
            raw, tail = tail[:size], tail[size:]
            assert len(raw) == size, "the binary part is shorter than the JSON says"
        tensors.append(Tensor(output["name"], output["datatype"], tuple(output["shape"]), raw, size is not None))
    assert not tail, "bytes behind the last tensor"
    # The order of members is compared too, but for where `parameters` stand.
    others = {key: repr(value) for key, value in document.items() if key != "outputs"}
    keys = tuple(tuple(key for key in output if key not in ("data", "parameters")) for output in document["outputs"])
    return (tuple(others.items()), keys, tuple(document)), tensors


def elements_to_bytes(datatype: str, values: list[Any]) -> bytes:
    """The raw form of JSON elements."""
    row = BY_NAME[datatype]
    if row.code:
        return struct.pack(f"<{len(values)}{row.code}", *values)
    if datatype == "BOOL":
        return bytes(values)
    encoded = [value.encode("utf-8", "surrogateescape") for value in values]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


# --- gRPC --------------------------------------------------------------------------------------------------------


def _of_grpc(sent: GrpcSent, answer: GrpcAnswer, both: Comparison) -> dict[str, Any]:
    messages = [_comparable(sent, message) for message in answer.messages]
    found: dict[str, Any] = {
        "code": answer.code,
        "messages": tuple(map(bytes, messages if sent.in_order else sorted(messages))),
        "headers": frozenset(name for name in answer.names if not _is_own(name)),
        "more": frozenset(name for name in answer.names if _is_own(name)),
    }
    if both.through.reason.startswith("upstream"):
        # Maps have no order: of two wrong parameters either is told.
        found["text"] = re.sub(r"invalid value .*", "a wrong parameter", answer.text, flags=re.DOTALL)
    return found


def _comparable(sent: GrpcSent, message: bytes) -> Any:
    """Maps in one order, all else as it is: bytes that differ are values that differ, NaN included."""
    kind = response_type(sent)
    return message if kind is None else kind.FromString(message).SerializeToString(deterministic=True)


def response_type(sent: GrpcSent) -> type[Message] | None:
    method = sent.method.removeprefix(SERVICE)
    return getattr(service_pb2, f"{method}Response", None)
