"""What a client's stream needs of its server: the port to the client, and what all streams share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.core.call import Call
from gateway.core.faces import BodyBudget
from gateway.core.service import Service
from gateway.edge.explain import Explainer
from gateway.edge.observer import EdgeObserver
from gateway.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Unkept:
    """A message for which there was no memory: its length and its first bytes, which name the model if it is small."""

    length: int
    head: bytes


class StreamPort(Protocol):
    """The client's side of the stream. Each method is used by one task at a time; all may raise if the client left."""

    async def read(self) -> bytes | Unkept | None:
        """The next message; None when the client has said its last. Its memory is not reserved any more: whoever goes
        on to wait reserves it first. Raises `GatewayError` for bytes that end the stream.
        """
        ...

    async def send_headers(self, pairs: list[tuple[str, str]]) -> None:
        """At most once, before the first `write`."""
        ...

    async def write(self, message: bytes) -> None: ...


class ReadCall(Protocol):
    """Fills in a call from its message. Raises `GatewayError` if the bytes are no message at all."""

    def __call__(self, call: Call, message: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamKit:
    """What all streams of one server share."""

    service: Service
    budget: BodyBudget
    observer: EdgeObserver
    explainer: Explainer
    clock: Clock
    read_call: ReadCall
    calls_max: int
    """Requests of one stream that may be out; beyond it the client's next message is not read."""
    write_timeout_s: float = 60.0
    """A client that takes so long for one message is cut off."""
