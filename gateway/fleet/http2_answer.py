"""What comes back: its header blocks, of which each is read once and remembered, and its compression."""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_faults import of_grpc, of_http
from gateway.runtime.workers import Workers
from gateway.wire.content_coding import IDENTITY
from gateway.wire.grpc import GrpcFault, decompress, read_encoding, read_end
from gateway.wire.hpack import HeaderBlock


class Block:
    """Kept in a block's `note`. The same block may come as a head and as trailers, so it is read as both."""

    __slots__ = ("encoding", "end", "fault", "good_end")

    def __init__(self, block: HeaderBlock) -> None:
        self.end: tuple[Code, str] | None = read_end(block.fields)
        """Code and text, where it has a gRPC status."""
        self.good_end = self.end is not None and self.end[0] is Code.OK
        self.encoding = IDENTITY
        """Of those of the answer's messages that are compressed."""
        self.fault: UpstreamFault | None = None
        """Why this is no head of a gRPC answer. A copy for each call: `fresh`."""
        status, kind, encoding = b"", b"", None
        for name, value in block.fields:
            if name == b":status":
                status = value
            elif name == b"content-type":
                kind = value
            elif name == b"grpc-encoding":
                encoding = value
        if status and status != b"200":
            self.fault = of_http(int(status))
        elif status and not kind.startswith(b"application/grpc"):
            self.fault = UpstreamFault(Code.UNKNOWN, "the answer is not gRPC, by its content-type", from_peer=False)
        else:
            try:
                self.encoding = read_encoding(encoding)
            except GrpcFault as fault:
                self.fault = UpstreamFault(fault.code, fault.text, from_peer=True)


def read_block(block: HeaderBlock) -> Block:
    """What `block` says, kept with it."""
    note = block.note
    if note.__class__ is Block:
        return note
    read = block.note = Block(block)
    return read


def fresh(fault: UpstreamFault) -> UpstreamFault:
    """The same fault as an exception of its own: one that is raised gets a traceback."""
    return UpstreamFault(fault.code, fault.text, from_peer=fault.from_peer, sent=fault.sent)


UNPACKED_HERE_BYTES = 1024
"""A compressed message up to this size is unpacked on the loop: it comes to a megabyte at the most."""


class Unpacker:
    """Unpacks compressed messages; large ones away from the loop, which they would hold up."""

    def __init__(self, message_bytes_max: int, workers: Workers) -> None:
        self._message_bytes_max = message_bytes_max
        self._workers = workers

    async def unpack(self, payload: bytes, encoding: bytes) -> bytes:
        """The message. Raises `UpstreamFault`."""
        limit = self._message_bytes_max
        try:
            if len(payload) <= UNPACKED_HERE_BYTES:
                return decompress(payload, encoding, limit)
            return await self._workers.run(lambda: decompress(payload, encoding, limit))
        except GrpcFault as fault:
            raise of_grpc(fault) from None
