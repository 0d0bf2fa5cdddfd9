"""The head of an RPC over HTTP/2: which method, how its messages are coded, how long the caller waits, who calls.

Callers send the same block of fields again and again, and the codec then gives the same `HeaderBlock`: what it says is
remembered in its `note`, and read once.
"""

from __future__ import annotations

from gateway.core.credentials import Peer
from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import REQUEST_ID, TRUE_STATUS
from gateway.edge.grpc_kit import least
from gateway.edge.grpc_methods import CONTROL_METHODS, HEALTH_CHECK, INFER, REFUSED, SERVICE, STREAM_INFER
from gateway.edge.grpc_questions import ASKED
from gateway.edge.headers import ClientHeaders, HeaderReader
from gateway.wire.content_coding import IDENTITY
from gateway.wire.grpc.compression import read_encoding
from gateway.wire.grpc.errors import GrpcFault
from gateway.wire.grpc.timeout import parse_timeout
from gateway.wire.hpack import HeaderBlock

CALL, STREAM, CONTROL, ASK, UNSERVED = range(5)
"""Kinds of RPC: an inference, a stream of them, a question answered from what is known, one that the model servers are
asked, and all others."""

_KINDS: dict[bytes, tuple[int, str]] = {
    INFER.encode(): (CALL, INFER),
    STREAM_INFER.encode(): (STREAM, STREAM_INFER),
    HEALTH_CHECK.encode(): (CONTROL, HEALTH_CHECK),
    **{
        method.encode(): (ASK if method.removeprefix(SERVICE) in ASKED else CONTROL, method)
        for method in CONTROL_METHODS
    },
    **{method.encode(): (UNSERVED, method) for method in REFUSED},
}
_UNKNOWN = (UNSERVED, "")
_REQUEST_ID = REQUEST_ID.encode()
_TRUE_STATUS = TRUE_STATUS.encode()

_GRPC = b"application/grpc"
_GRPC_KINDS = (b"application/grpc+", b"application/grpc;")
"""gRPC-Web has other frames, and is none of them."""

_READ_HERE = frozenset({_REQUEST_ID, b"grpc-timeout", b"grpc-encoding", _TRUE_STATUS})
_OF_THE_RUN = frozenset({b":method", b":path", b"content-type"})
Fields = tuple[tuple[bytes, bytes], ...]

NOT_GRPC = "this port speaks gRPC: content-type must be application/grpc"
NOT_POST = "this port speaks gRPC: the method must be POST"


class RpcHead:
    """What one block says. Shared by all RPCs that send it, so nothing here changes."""

    __slots__ = (
        "encoding",
        "fault",
        "headers",
        "kind",
        "method",
        "named",
        "rpc_timeout_s",
        "status",
        "timeout_s",
        "true_status",
    )

    def __init__(self, kind: int, method: str, headers: ClientHeaders) -> None:
        self.kind = kind
        self.method = method
        """The path of a known method, else ""."""
        self.headers = headers
        self.named = False
        """The caller gave the request its id; else `headers.request_id` is for one RPC only."""
        self.timeout_s: float | None = headers.timeout_s
        """The shorter of what the caller's two headers say."""
        self.rpc_timeout_s: float | None = None
        """What `grpc-timeout` alone says: on a stream the other header is for each of its calls."""
        self.encoding = IDENTITY
        """Of messages whose flag says that they are compressed."""
        self.true_status = False
        """On a stream: the first failure of a model ends it with its status."""
        self.fault: GatewayError | None = None
        """Why this can be no RPC."""
        self.status = 0
        """The HTTP status for that; 0: it is told as gRPC tells it."""


class HeadReader:
    """Reads the heads of one connection's RPCs, which come from `peer`.

    What varies from one to the next, if anything does, stands behind a run of fields that a client sends the same each
    time: these are looked at once, and then only compared.
    """

    __slots__ = ("_kind", "_method", "_peer", "_reader", "_run")

    def __init__(self, reader: HeaderReader, peer: Peer) -> None:
        self._reader = reader
        self._peer = peer
        self._run: Fields = ()
        """Fields that say nothing but method, path and content type, which are `_kind` and `_method`, and are good."""
        self._kind = UNSERVED
        self._method = ""

    def read(self, block: HeaderBlock) -> RpcHead:
        """What the fields of a good HTTP/2 request say. Remembered in the block unless something is wrong with it."""
        fields = block.fields
        run = self._run
        if run and fields[: len(run)] == run:
            rest = fields[len(run) :]
            head = RpcHead(self._kind, self._method, self._reader.read_bytes(rest, self._peer))
        else:
            rest = fields
            head = RpcHead(UNSERVED, "", self._reader.read_bytes(fields, self._peer))
            self._read_kind(head, fields)
        for name, value in rest:
            if name in _READ_HERE:
                if name == _REQUEST_ID:
                    head.named = value != b""
                else:
                    _take(head, name, value)
        if head.fault is None and head.headers.fault is None:
            block.note = head
        return head

    def _read_kind(self, head: RpcHead, fields: Fields) -> None:
        """Method, path and content type, wherever they stand."""
        found = dict(fields)
        head.kind, head.method = self._kind, self._method = _KINDS.get(found[b":path"], _UNKNOWN)
        content_type = found.get(b"content-type", b"")
        self._run = ()
        if found[b":method"] != b"POST":
            head.status, head.fault = 405, GatewayError(Reason.BAD_REQUEST, NOT_POST)
        elif content_type != _GRPC and not content_type.startswith(_GRPC_KINDS):
            head.status, head.fault = 415, GatewayError(Reason.BAD_REQUEST, NOT_GRPC)
        else:
            size = 0
            while size < len(fields) and fields[size][0] not in _READ_HERE and not self._reader.takes(fields[size][0]):
                size += 1
            run, rest = fields[:size], fields[size:]
            if not any(name in _OF_THE_RUN for name, _ in rest):
                self._run = run


def _take(head: RpcHead, name: bytes, value: bytes) -> None:
    """One of the fields that are read here. Of several of one name the last counts."""
    try:
        if name == b"grpc-timeout":
            head.rpc_timeout_s = parse_timeout(value)
            head.timeout_s = least(head.headers.timeout_s, head.rpc_timeout_s)
        elif name == b"grpc-encoding":
            head.encoding = read_encoding(value)
        else:
            head.true_status = value == b"true"
    except GrpcFault as fault:
        if head.fault is None:
            head.fault = GatewayError(Reason.BAD_REQUEST, fault.text, fault.code)
