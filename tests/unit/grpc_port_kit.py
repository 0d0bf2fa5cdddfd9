"""What tests of our own gRPC server share: a service that answers, and what a client has been told."""

from __future__ import annotations

from gateway.core.reply import Reply
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    END_STREAM,
    HEADERS,
    Got,
    HandClient,
    infer_message,
)

MESSAGE = infer_message()


def answering() -> ScriptedService:
    """Answers every call at once."""
    return ScriptedService(lambda call: Reply(ANSWER))


async def ended(client: HandClient) -> list[tuple[int, str]]:
    """The streams that ended with a status since this was asked last."""
    await turns()
    return [(got.stream, got.fields["grpc-status"]) for got in client.frames(HEADERS) if "grpc-status" in got.fields]


async def one(client: HandClient) -> Got:
    """The one block of an answer that is nothing but an error."""
    await turns()
    (got,) = client.frames(HEADERS)
    assert got.flags & END_STREAM
    return got
