"""Decompressing one gRPC message: its memory is reserved as it grows, and a large one is no work for the loop."""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.inflating import InflatingBody
from gateway.wire.grpc import GrpcFault, check_compressed


async def inflate(kit: GrpcKit, encoding: bytes, payload: bytes) -> bytes:
    """The message in a `payload` whose flag says that it is compressed. So many bytes are reserved in the budget, for
    the caller to give back. Raises `GatewayError`.
    """
    try:
        check_compressed(payload, encoding)
    except GrpcFault as fault:
        raise _bad(fault.text) from None
    if not payload:
        return b""
    limit = kit.message_bytes_max
    body = InflatingBody(kit.workers, kit.budget, limit, lambda: _too_large(limit))
    try:
        await body.add((payload,))
        body.end()
        message = body.pieces[0] if len(body.pieces) == 1 else b"".join(body.pieces)
    except GatewayError as error:
        if error.reason is Reason.BAD_REQUEST:
            raise _bad(error.message) from None
        raise
    finally:
        body.close()
    if not kit.budget.try_reserve(len(message)):
        raise AssertionError("what was given back this moment can be had again")
    return message


def _bad(text: str) -> GatewayError:
    return GatewayError(Reason.BAD_REQUEST, text, Code.INTERNAL)


def _too_large(limit: int) -> GatewayError:
    return GatewayError(Reason.TOO_LARGE, f"SERVER: Decompressed message larger than max ({limit})")
