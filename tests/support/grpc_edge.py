"""The gRPC edge alone over a real socket, in front of a scripted service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.credentials import Credentials
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, ModelConfigBytes, StatisticsBytes
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_port import GrpcPort
from gateway.edge.grpcio_server import GrpcioServer
from gateway.edge.headers import HeaderReader
from gateway.edge.observer import SilentObserver
from gateway.policy.schema import GrpcLimits
from gateway.runtime.clock import SystemClock
from gateway.runtime.wheel import TimerWheel
from gateway.runtime.workers import Workers

SERVICE = "/inference.GRPCInferenceService/"
ANSWER = service_pb2.ModelInferResponse(model_name="m", model_version="1").SerializeToString()


class AnyKey:
    """Everybody is anonymous."""

    def identify(self, credentials: Credentials) -> Identity:
        return ANONYMOUS


class OneKey:
    """The key `good` opens model `mine`."""

    def identify(self, credentials: Credentials) -> Identity:
        if credentials.secret != "good":
            raise GatewayError(Reason.UNAUTHENTICATED, "the API key is not known")
        return Identity("shop", frozenset({"mine"}))


class OneModel:
    """A catalogue that knows model `mine`, version 1."""

    def __init__(self) -> None:
        self.questions = 0
        """How often the model servers were asked."""
        self.out = 0
        """How many such questions wait for their answer."""
        self.heard = asyncio.Event()
        """The model servers answer; a test may clear it."""
        self.heard.set()

    def server_live(self) -> bool:
        return True

    def server_ready(self) -> bool:
        return True

    def model_ready(self, model: str, version: str) -> bool:
        self._check(model, version)
        return True

    def server_metadata(self) -> bytes:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0").SerializeToString()  # type: ignore[no-any-return]

    def model_metadata(self, model: str, version: str) -> bytes:
        self._check(model, version)
        return service_pb2.ModelMetadataResponse(name=model, versions=["1"]).SerializeToString()  # type: ignore[no-any-return]

    def model_config(self, model: str, version: str) -> ModelConfigBytes:
        self._check(model, version)
        return ModelConfigBytes(service_pb2.ModelConfigResponse().SerializeToString(), b"{}")

    async def model_statistics(self, model: str, version: str, identity: Identity) -> StatisticsBytes:
        await self._question()
        if model:
            self._check(model, version)
        answer = service_pb2.ModelStatisticsResponse(model_stats=[{"name": "mine", "version": "1"}])
        return StatisticsBytes(answer.SerializeToString(), b"")

    async def repository_index(self, ready: bool, identity: Identity) -> bytes:
        await self._question()
        return service_pb2.RepositoryIndexResponse(  # type: ignore[no-any-return]
            models=[{"name": "mine", "version": "1", "state": "READY", "reason": f"ready={ready} {identity.tenant}"}]
        ).SerializeToString()

    async def _question(self) -> None:
        self.questions += 1
        self.out += 1
        try:
            await self.heard.wait()
        finally:
            self.out -= 1

    @staticmethod
    def _check(model: str, version: str) -> None:
        if model != "mine":
            raise GatewayError(Reason.UNKNOWN_MODEL, "Request for unknown model")
        if version not in ("", "1"):
            raise GatewayError(Reason.UNKNOWN_VERSION, "Request for unknown model version")


class Events(SilentObserver):
    """An observer that remembers."""

    def __init__(self) -> None:
        self.faults = 0
        self.requests: list[tuple[str, str, str]] = []
        self.broken: list[str] = []
        """How clients broke the protocol."""

    def protocol_fault(self, protocol: str, kind: str) -> None:
        self.broken.append(kind)

    def request_without_call(self, protocol: str, route: str, status: str) -> None:
        self.requests.append((protocol, route, status))

    def internal_fault(self, protocol: str) -> None:
        self.faults += 1


Server = GrpcPort | GrpcioServer
SERVERS = ("http2", "grpcio")
"""What `gateway.grpc.server` may say."""


def make_server(kind: str, kit: GrpcKit, wheel: TimerWheel) -> Server:
    """The server that the policy calls `kind`, without TLS."""
    return GrpcPort(kit, wheel=wheel) if kind == "http2" else GrpcioServer(kit)


class EdgeUnderTest:
    """What a test gets: a channel to the edge, and what the edge holds."""

    def __init__(self, channel: Any, server: Server, budget: ByteBudget, events: Events, catalogue: OneModel) -> None:
        self.channel = channel
        self.server = server
        self.budget = budget
        self.events = events
        self.catalogue = catalogue
        self.address = ""
        """`host:port`, for clients of the test's own."""

    def call(self, method: str, message: bytes = b"", **options: Any) -> Any:
        """Start a unary call of raw bytes."""
        path = method if method.startswith("/") else SERVICE + method
        return self.channel.unary_unary(path)(message, **options)

    def infer(self, model: str = "mine", version: str = "", **options: Any) -> Any:
        request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
        return self.call("ModelInfer", request.SerializeToString(), **options)

    def nothing_is_left(self) -> bool:
        return self.server.statistics(0.0)["calls"] == 0 and self.budget.used_bytes == 0


class MakeEdge(Protocol):
    """The fixture `grpc_edge`: an edge on either server."""

    def __call__(
        self,
        service: Any,
        authenticator: Authenticator | None = None,
        *,
        limits: GrpcLimits | None = None,
        memory_bytes: int = 1 << 20,
        receive_bytes_max: int = 1 << 26,
        workers: Workers | None = None,
    ) -> AbstractAsyncContextManager[EdgeUnderTest]: ...


@asynccontextmanager
async def running_edge(
    service: Any,
    authenticator: Authenticator | None = None,
    *,
    server: str = "http2",
    limits: GrpcLimits | None = None,
    memory_bytes: int = 1 << 20,
    receive_bytes_max: int = 1 << 26,
    workers: Workers | None = None,
) -> AsyncIterator[EdgeUnderTest]:
    """Run an edge for the block; at its end nothing may be left of any call."""
    budget, events, catalogue, clock = ByteBudget(memory_bytes), Events(), OneModel(), SystemClock()
    wheel = TimerWheel(clock)
    kit = GrpcKit(
        service=service,
        catalogue=catalogue,
        authenticator=authenticator or AnyKey(),
        reader=HeaderReader(("*",), random.Random(1)),
        explainer=Explainer(1),
        budget=budget,
        observer=events,
        limits=limits or GrpcLimits(),
        receive_bytes_max=receive_bytes_max,
        chance=random.Random(2),
        clock=clock,
        workers=workers,
    )
    served = make_server(server, kit, wheel)
    address = await served.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
        edge = EdgeUnderTest(channel, served, budget, events, catalogue)
        edge.address = address
        try:
            yield edge
        finally:
            await served.aclose()
            wheel.close()
    assert edge.nothing_is_left()
