"""FH-14 · A cancellation raised inside the server: the whole stack under both protocols, the fault placed layer by
layer.

The caller sets no deadline. Wherever the fault is raised, and whichever kind it is, the caller gets one status in
bounded time, the call leaves exactly one record that does not say "the caller left", and no slot, timer or byte stays
taken.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.credentials import Credentials
from gateway.core.errors import GatewayError
from gateway.core.faces import BodyLimits
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.snapshot import FleetSnapshot
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.headers import HeaderReader
from gateway.edge.http_server import HttpServer
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.schema import FleetPolicy, GrpcLimits, HttpLimits, ModelPolicy, Objective, PolicySet
from gateway.runtime.chance import Chance
from gateway.runtime.clock import SystemClock
from gateway.runtime.wheel import TimerWheel
from gateway.stack import Stack, build_stack
from tests.support.fleet import HandFleet, replica
from tests.support.grpc_edge import SERVERS, Events, OneModel, make_server

KINDS = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TimeoutError]
PLACES = ["policy step", "upstream call", "upstream call, later", "log enqueue", "identity"]


class Faulty:
    """Raises `kind` at `place`, once armed. Stands in for what the layers ask."""

    def __init__(self, kind: type[BaseException], place: str) -> None:
        self._kind = kind
        self._place = place
        self.armed = False

    def strike(self, place: str) -> None:
        if self.armed and place == self._place:
            raise self._kind


class Fleet(HandFleet):
    """A fleet that strikes when the policy step looks at it."""

    def __init__(self, fault: Faulty) -> None:
        self._fault = fault
        super().__init__(replica("a", {("mine", "1"): 2}))

    @property
    def snapshot(self) -> FleetSnapshot:
        self._fault.strike("policy step")
        return self._snapshot

    @snapshot.setter
    def snapshot(self, snapshot: FleetSnapshot) -> None:
        self._snapshot = snapshot


class Upstream:
    def __init__(self, fault: Faulty) -> None:
        self._fault = fault

    async def send(self, call: Call) -> Reply:
        self._fault.strike("upstream call")
        await asyncio.sleep(0)
        self._fault.strike("upstream call, later")
        call.trail.version_served = "1"
        answer = service_pb2.ModelInferResponse(model_name="mine", model_version="1")
        return Reply(answer.SerializeToString())


class Identity(AnonymousAuthenticator):
    __slots__ = ("_fault",)

    def __init__(self, fault: Faulty) -> None:
        super().__init__()
        self._fault = fault

    def identify(self, credentials: Credentials) -> Any:
        self._fault.strike("identity")
        return super().identify(credentials)


class Sink:
    def __init__(self, fault: Faulty) -> None:
        self._fault = fault
        self.outcomes: list[Outcome] = []

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        self.outcomes.append(outcome)
        self._fault.strike("log enqueue")


class House:
    """The stack with its two servers."""

    def __init__(self, fault: Faulty, server: str) -> None:
        clock, chance = SystemClock(), Chance(1)
        self.wheel = TimerWheel(clock)
        self.sink, self.events, self.budget = Sink(fault), Events(), ByteBudget(1 << 20)
        policy = ModelPolicy(
            model="mine", pool="gpu", objective=Objective(p99_ms=1000), ladder="none", impact="A test fails."
        )
        policies = PolicySet(revision="r", base_dir="/", fleet=FleetPolicy(pools={}), models={"mine": policy})
        authenticator = Identity(fault)
        self.stack: Stack = build_stack(
            policies, transport=Upstream(fault), fleet=Fleet(fault), authenticator=authenticator, sinks=(self.sink,),
            reserve_record=object, clock=clock, wheel=self.wheel, pick_chance=random.Random(1),
            split_chance=random.Random(2),
            limit_chance=random.Random(2),
        )  # fmt: skip
        reader, explainer = HeaderReader(("*",), random.Random(3)), Explainer(1)
        self.http = HttpServer(
            service=self.stack.service, catalogue=OneModel(), authenticator=authenticator, limits=HttpLimits(),
            reader=reader, explainer=explainer, wheel=self.wheel, clock=clock, chance=chance,
            limits_of=lambda model: BodyLimits(1 << 16, 1 << 16), body_budget=self.budget, observer=self.events,
        )  # fmt: skip
        kit = GrpcKit(
            service=self.stack.service, catalogue=OneModel(), authenticator=authenticator, reader=reader,
            explainer=explainer, budget=self.budget, observer=self.events, limits=GrpcLimits(),
            receive_bytes_max=1 << 20, chance=random.Random(4), clock=clock,
        )  # fmt: skip
        self.grpc = make_server(server, kit, self.wheel)
        fault.armed = True

    def nothing_is_taken(self) -> bool:
        slots = [row for layer in self.stack.admissions.values() for row in layer.statistics(0.0).values()]
        idle = all(row["in_flight"] == row["waiting"] == 0 for row in slots)
        return idle and self.budget.used_bytes == 0


@asynccontextmanager
async def house(kind: type[BaseException], place: str, server: str) -> AsyncIterator[tuple[House, str, str]]:
    built = House(Faulty(kind, place), server)
    http, grpc_address = await built.http.start("127.0.0.1:0"), await built.grpc.start("127.0.0.1:0")
    try:
        yield built, http, grpc_address
    finally:
        await built.grpc.aclose()
        built.http.begin_drain()
        await built.http.wait_closed(5)
        built.wheel.close()


async def call_http(address: str) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}).encode()
    writer.write(b"POST /v2/models/mine/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


async def call_grpc(address: str) -> grpc.StatusCode:
    request = service_pb2.ModelInferRequest(model_name="mine")
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString())
        code = await call.code()
        assert isinstance(code, grpc.StatusCode)
        return code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("server", SERVERS)
async def test_wherever_it_is_raised_the_caller_gets_one_status_and_the_call_one_record(
    kind: type[BaseException], place: str, server: str
) -> None:
    async with house(kind, place, server) as (built, http, grpc_address), asyncio.timeout(10):
        if place == "log enqueue":  # the answer is good, and a log that fails must not cost it
            assert await call_http(http) == 200
            assert await call_grpc(grpc_address) is grpc.StatusCode.OK
        else:
            assert await call_http(http) in (500, 503)
            assert await call_grpc(grpc_address) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
            assert built.events.faults == 2
        assert len(built.sink.outcomes) == 2, "one record for each call"
        assert Outcome.ABANDONED not in built.sink.outcomes, "nobody left"
        while not built.nothing_is_taken():
            await asyncio.sleep(0.001)
        assert len(built.wheel) <= 3, "at most the idle timers of open connections"


@pytest.mark.parametrize("server", SERVERS)
async def test_without_a_fault_the_same_house_answers(server: str) -> None:
    async with house(RuntimeError, "nowhere", server) as (built, http, grpc_address), asyncio.timeout(10):
        assert await call_http(http) == 200
        assert await call_grpc(grpc_address) is grpc.StatusCode.OK
        assert built.sink.outcomes == [Outcome.OK, Outcome.OK]
