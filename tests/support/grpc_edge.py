"""The gRPC edge alone over a real socket, in front of a scripted service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.credentials import Credentials
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, ModelConfigBytes, StatisticsBytes
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.grpc_server import GrpcServer
from gateway.edge.headers import HeaderReader
from gateway.edge.observer import SilentObserver
from gateway.policy.schema import GrpcLimits
from gateway.runtime.clock import SystemClock

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

    def request_without_call(self, protocol: str, route: str, status: str) -> None:
        self.requests.append((protocol, route, status))

    def internal_fault(self, protocol: str) -> None:
        self.faults += 1


class EdgeUnderTest:
    """What a test gets: a channel to the edge, and what the edge holds."""

    def __init__(
        self, channel: Any, server: GrpcServer, budget: ByteBudget, events: Events, catalogue: OneModel
    ) -> None:
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


@asynccontextmanager
async def grpc_edge(service: Any, authenticator: Authenticator | None = None) -> AsyncIterator[EdgeUnderTest]:
    """Run an edge for the block; at its end nothing may be left of any call."""
    budget, events, catalogue = ByteBudget(1 << 20), Events(), OneModel()
    server = GrpcServer(
        service=service,
        catalogue=catalogue,
        authenticator=authenticator or AnyKey(),
        reader=HeaderReader(("*",), random.Random(1)),
        explainer=Explainer(1),
        budget=budget,
        observer=events,
        limits=GrpcLimits(),
        receive_bytes_max=1 << 26,
        chance=random.Random(2),
        clock=SystemClock(),
    )
    address = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
        edge = EdgeUnderTest(channel, server, budget, events, catalogue)
        edge.address = address
        try:
            yield edge
        finally:
            await server.aclose()
    assert edge.nothing_is_left()
