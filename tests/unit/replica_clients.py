"""Clients of replicas that misbehave, over either transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.core.faces import Endpoints, ReplicaClient
from gateway.core.faults import UpstreamFault
from tests.support.replica_clients import connector_of
from tests.unit.fleet_peer import Act, Listener, Peer, listening

LIMIT_S = 60
CONNECT_MS = 10_000
"""For one attempt to connect: a second, as the gateway has it, is no more than what a busy machine may lose at once."""


class Clients:
    """Makes clients of one transport."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.ours = transport == "http2"

    def connect(self, endpoints: Endpoints, **options: int) -> ReplicaClient:
        if self.ours:
            options = {"connect_timeout_ms": CONNECT_MS} | options
        return connector_of(self.transport, None, **options).connect(endpoints)

    @asynccontextmanager
    async def client_of(self, port: int, **options: int) -> AsyncIterator[ReplicaClient]:
        address = f"127.0.0.1:{port}"
        client = self.connect(Endpoints(address, address, address), **options)
        try:
            async with asyncio.timeout(LIMIT_S):
                yield client
        finally:
            await client.aclose()

    @asynccontextmanager
    async def served(self, act: Act, **options: int) -> AsyncIterator[tuple[Listener, ReplicaClient]]:
        async with listening(act) as listener, self.client_of(listener.port, **options) as client:
            yield listener, client

    async def fault_of(
        self, act: Act | None, timeout_s: float = 30.0, raw: Callable[[asyncio.StreamWriter], None] | None = None
    ) -> UpstreamFault:
        """How a call ends that `act` answers."""
        async with listening(act, raw) as listener, self.client_of(listener.port) as client:
            with pytest.raises(UpstreamFault) as caught:
                await client.infer(b"", (), timeout_s)
            return caught.value


def action(*steps: Callable[[Peer, int], object]) -> Act:
    async def act(peer: Peer, stream: int) -> None:
        for step in steps:
            step(peer, stream)

    return act
