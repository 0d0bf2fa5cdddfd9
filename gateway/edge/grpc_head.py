"""The head of an RPC over HTTP/2: which method, how its messages are coded, how long the caller waits, who calls.

Callers send the same block of fields again and again, and the codec then gives the same `HeaderBlock`: what it says is
remembered in its `note`, and read once.
"""

from __future__ import annotations

from gateway.core.credentials import Peer
from gateway.core.errors import GatewayError, Reason
from gateway.edge.grpc_head_plan import OF_THE_KIND, HeadPlan, plan_of
from gateway.edge.grpc_methods import CONTROL_METHODS, HEALTH_CHECK, INFER, REFUSED, SERVICE, STREAM_INFER
from gateway.edge.grpc_questions import ASKED
from gateway.edge.grpc_rpc_head import ASK, CALL, CONTROL, READ_HERE, STREAM, UNSERVED, RpcHead
from gateway.edge.headers import HeaderReader
from gateway.wire.hpack import HeaderBlock

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

_CONTENT_TYPE = b"content-type"
_GRPC = b"application/grpc"
_GRPC_KINDS = (b"application/grpc+", b"application/grpc;")
"""gRPC-Web has other frames, and is none of them."""

Fields = tuple[tuple[bytes, bytes], ...]

NOT_GRPC = "this port speaks gRPC: content-type must be application/grpc"
NOT_POST = "this port speaks gRPC: the method must be POST"


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
        """What the fields of a good HTTP/2 request say."""
        layout = block.layout
        if layout is None:
            return self._read(block)
        plan = layout.note
        if isinstance(plan, HeadPlan):
            planned = plan.read(block.values)
            return self._read(block) if planned is None else planned
        head = self._read(block)
        if plan is None:
            layout.note = plan_of(head, layout, block.fields, self._reader)
        return head

    def _read(self, block: HeaderBlock) -> RpcHead:
        """Field by field. Remembered in the block unless something is wrong with it."""
        fields = block.fields
        run = self._run
        rest = fields[len(run) :]
        # A content type that comes again behind them counts: then all is read.
        if run and fields[: len(run)] == run and _CONTENT_TYPE not in [name for name, _ in rest]:
            head = RpcHead(self._kind, self._method, self._reader.read_bytes(rest, self._peer))
        else:
            rest = fields
            head = RpcHead(UNSERVED, "", self._reader.read_bytes(fields, self._peer))
            self._read_kind(head, fields)
        head.timeout_s = head.headers.timeout_s
        for name, value in rest:
            if name in READ_HERE:
                head.take(name, value)
        if head.fault is None and head.headers.fault is None:
            block.note = head
        return head

    def _read_kind(self, head: RpcHead, fields: Fields) -> None:
        """Method, path and content type, wherever they stand."""
        found = dict(fields)
        head.kind, head.method = self._kind, self._method = _KINDS.get(found[b":path"], _UNKNOWN)
        content_type = found.get(_CONTENT_TYPE, b"")
        self._run = ()
        if found[b":method"] != b"POST":
            head.status, head.fault = 405, GatewayError(Reason.BAD_REQUEST, NOT_POST)
        elif content_type != _GRPC and not content_type.startswith(_GRPC_KINDS):
            head.status, head.fault = 415, GatewayError(Reason.BAD_REQUEST, NOT_GRPC)
        else:
            size = 0
            while size < len(fields) and fields[size][0] not in READ_HERE and not self._reader.takes(fields[size][0]):
                size += 1
            run, rest = fields[:size], fields[size:]
            if not any(name in OF_THE_KIND for name, _ in rest):
                self._run = run
