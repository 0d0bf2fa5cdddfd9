"""Health and metadata, which have the same content over both protocols.

Protobuf on one side, Triton's JSON on the other, plain dataclasses between. Decoders of a caller's bytes raise
`GatewayError` (BAD_REQUEST, code INTERNAL), decoders of a replica's `GatewayError` (UPSTREAM_BROKEN).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import orjson

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.request_view import unparseable
from gateway.wire.kserve.response_view import broken
from gateway.wire.kserve.tensor_message import encode_tensor, read_tensor

REFUSED_EXTENSIONS = frozenset(
    ("system_shared_memory", "cuda_shared_memory", "trace", "logging", "model_repository(unload_dependents)")
)
"""Extensions of which the gateway serves nothing. `model_repository` is not among them: its index is served."""

SERVER_NAME = "triton"
"""What a server that was given no other `--id` calls itself. The gateway is one server to its callers, whichever
replica the rest of the metadata comes from.
"""


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor as a model declares it. `datatype` is the protocol's name; -1 in `shape` is a variable dimension. In
    metadata `shape` has the batch dimension where the model batches, in a configuration it lacks it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model's metadata; `versions` are those that can serve."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]

    def with_versions(self, versions: Iterable[str]) -> ModelMetadata:
        """The same for other versions: the union over the fleet, or the one that was asked for."""
        return replace(self, versions=tuple(versions))

    def to_json(self) -> bytes:
        """Triton's HTTP form."""
        return orjson.dumps(self)

    def to_protobuf(self) -> bytes:
        """A serialized `ModelMetadataResponse`."""
        parts = [_text(1, self.name)]
        parts += (pb.text_field(2, version) for version in self.versions)
        parts.append(_text(3, self.platform))
        parts += (pb.len_field(4, encode_tensor(tensor.name, tensor.datatype, tensor.shape)) for tensor in self.inputs)
        parts += (pb.len_field(5, encode_tensor(tensor.name, tensor.datatype, tensor.shape)) for tensor in self.outputs)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """A server's name, version and extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]

    def for_callers(self) -> ServerMetadata:
        """The same under the name of all, and without the extensions that the gateway refuses."""
        kept = tuple(each for each in self.extensions if each not in REFUSED_EXTENSIONS)
        return replace(self, name=SERVER_NAME, extensions=kept)

    def to_json(self) -> bytes:
        """Triton's HTTP form."""
        return orjson.dumps(self)

    def to_protobuf(self) -> bytes:
        """A serialized `ServerMetadataResponse`."""
        parts = [_text(1, self.name), _text(2, self.version)]
        parts += (pb.text_field(3, extension) for extension in self.extensions)
        return b"".join(parts)


def _text(number: int, value: str) -> bytes:
    return pb.text_field(number, value) if value else b""


def encode_bool(value: bool) -> bytes:
    """A serialized `ServerLiveResponse`, `ServerReadyResponse` or `ModelReadyResponse`."""
    return b"\x08\x01" if value else b""


def decode_bool(message: bytes) -> bool:
    """The value in one of a replica's live and ready responses."""
    value = False
    try:
        for number, wire, a, b in pb.fields(message, 0, len(message)):
            if number == 1:
                pb.expect(wire, pb.VARINT, 1, b)
                value = a != 0
    except pb.WireError as error:
        raise broken(str(error)) from None
    return value


def encode_model_request(name: str, version: str = "") -> bytes:
    """A serialized `ModelReadyRequest`, `ModelMetadataRequest`, `ModelConfigRequest` or `ModelStatisticsRequest`."""
    return _text(1, name) + _text(2, version)


def decode_model_request(message: bytes, what: str = "ModelMetadataRequest") -> tuple[str, str]:
    """Name and version in one of a caller's requests about a model; `what` is the message's name for the error."""
    names = {1: "", 2: ""}
    try:
        for number, wire, a, b in pb.fields(message, 0, len(message)):
            if number in names:
                pb.expect(wire, pb.LEN, number, b)
                names[number] = pb.text(message, a, b)
    except pb.WireError as error:
        raise unparseable(what, error) from None
    return names[1], names[2]


def check_request(message: bytes, what: str, text: int = 0) -> None:
    """Raise `GatewayError` if the bytes of a request of which nothing matters are no message. `text` is the number of
    its only field, a string; 0: it has none.
    """
    try:
        for number, wire, a, b in pb.fields(message, 0, len(message)):
            if number == text and wire == pb.LEN:
                pb.text(message, a, b)
    except pb.WireError as error:
        raise unparseable(what, error) from None


def decode_model_metadata(message: bytes) -> ModelMetadata:
    """A replica's `ModelMetadataResponse`."""
    names = {1: "", 3: ""}
    versions: list[str] = []
    tensors: dict[int, list[TensorMetadata]] = {4: [], 5: []}
    try:
        for number, wire, a, b in pb.fields(message, 0, len(message)):
            if number > 5:
                continue
            pb.expect(wire, pb.LEN, number, b)
            if number == 2:
                versions.append(pb.text(message, a, b))
            elif number in names:
                names[number] = pb.text(message, a, b)
            else:
                tensors[number].append(TensorMetadata(*read_tensor(message, a, b)))
    except pb.WireError as error:
        raise broken(str(error)) from None
    return ModelMetadata(names[1], tuple(versions), names[3], tuple(tensors[4]), tuple(tensors[5]))


def decode_server_metadata(message: bytes) -> ServerMetadata:
    """A replica's `ServerMetadataResponse`."""
    names = {1: "", 2: ""}
    extensions: list[str] = []
    try:
        for number, wire, a, b in pb.fields(message, 0, len(message)):
            if number > 3:
                continue
            pb.expect(wire, pb.LEN, number, b)
            if number == 3:
                extensions.append(pb.text(message, a, b))
            else:
                names[number] = pb.text(message, a, b)
    except pb.WireError as error:
        raise broken(str(error)) from None
    return ServerMetadata(names[1], names[2], tuple(extensions))
