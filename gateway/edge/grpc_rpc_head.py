"""What the head of an RPC over HTTP/2 says, as far as the gateway wants to know it."""

from __future__ import annotations

from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import REQUEST_ID, TRUE_STATUS
from gateway.edge.grpc_kit import least
from gateway.edge.headers import ClientHeaders
from gateway.wire.content_coding import IDENTITY
from gateway.wire.grpc.compression import read_encoding
from gateway.wire.grpc.errors import GrpcFault
from gateway.wire.grpc.timeout import parse_timeout

CALL, STREAM, CONTROL, ASK, UNSERVED = range(5)
"""Kinds of RPC: an inference, a stream of them, a question answered from what is known, one that the model servers are
asked, and all others."""

REQUEST_ID_NAME, GRPC_TIMEOUT, _ENCODING = REQUEST_ID.encode(), b"grpc-timeout", b"grpc-encoding"
READ_HERE = frozenset({REQUEST_ID_NAME, GRPC_TIMEOUT, _ENCODING, TRUE_STATUS.encode()})
"""Fields that `RpcHead.take` knows."""


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

    def __init__(
        self,
        kind: int,
        method: str,
        headers: ClientHeaders,
        named: bool = False,
        timeout_s: float | None = None,
        rpc_timeout_s: float | None = None,
        encoding: bytes = IDENTITY,
        true_status: bool = False,
    ) -> None:
        self.kind = kind
        self.method = method
        """The path of a known method, else ""."""
        self.headers = headers
        self.named = named
        """The caller gave the request its id; else `headers.request_id` is for one RPC only."""
        self.timeout_s = timeout_s
        """The shorter of what the caller's two headers say."""
        self.rpc_timeout_s = rpc_timeout_s
        """What `grpc-timeout` alone says: on a stream the other header is for each of its calls."""
        self.encoding = encoding
        """Of messages whose flag says that they are compressed."""
        self.true_status = true_status
        """On a stream: the first failure of a model ends it with its status."""
        self.fault: GatewayError | None = None
        """Why this can be no RPC."""
        self.status = 0
        """The HTTP status for that; 0: it is told as gRPC tells it."""

    def take(self, name: bytes, value: bytes) -> None:
        """One of the fields that are read here. Of several of one name the last counts."""
        try:
            if name == GRPC_TIMEOUT:
                self.rpc_timeout_s = parse_timeout(value)
                self.timeout_s = least(self.headers.timeout_s, self.rpc_timeout_s)
            elif name == _ENCODING:
                self.encoding = read_encoding(value)
            elif name == REQUEST_ID_NAME:
                self.named = value != b""
            else:
                self.true_status = value == b"true"
        except GrpcFault as fault:
            if self.fault is None:
                self.fault = GatewayError(Reason.BAD_REQUEST, fault.text, fault.code)
