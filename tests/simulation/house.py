"""The house under test: the product's own assembly and HTTP edge over the simulated faces."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gateway.assembly import Assembly, Parts
from gateway.core.criticality import CLASS_OF
from gateway.core.service import Service
from gateway.edge.explain import Explainer
from gateway.edge.grpc_call import read_call
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_port import GrpcPort
from gateway.edge.grpc_stream import StreamKit
from gateway.edge.headers import HeaderReader
from gateway.edge.http_connection import HttpConnection
from gateway.edge.http_server import HttpServer
from gateway.policy.keys import AnonymousAuthenticator
from gateway.records.memory_store import MemoryStore
from gateway.runtime.workers import InlineWorkers
from gateway.wire.http2 import Http2Limits
from tests.simulation.bounds import bounds_left, waiting_places
from tests.simulation.codec_network import CodecWays
from tests.simulation.quotas import LEASE, OtherGateway, SimulatedStore, shares_a_store
from tests.simulation.report import Entry, Front, stream_key
from tests.simulation.run import House, World
from tests.simulation.scenario import BODY_BYTES_MAX, POOL
from tests.simulation.stream_entrance import StreamDoor
from tests.simulation.tuning import EAGER

FINISH_S = 5.0
"""More than the longest deadline of any scenario: nothing is ever cut off by a shutdown here."""


ENVELOPE_BYTES = 64 * 1024
"""What a message may have around the body, as in `gateway.app`."""
STREAM_CALLS_MAX = 4
"""Few, so that clients meet the bound."""


class NoFiles:
    """`Files` without any."""

    async def read(self, path: str) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", path)


class RealHouse:
    """`House`: what `gateway.app` puts together, but for its ports, the library of its gRPC edge (C threads), and
    its admin server.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        policies, clock, chance = world.scenario.policies, world.clock, world.chance
        gateway = policies.fleet.gateway
        ways = world.ways = self._ways(world)
        self.store = MemoryStore()
        authenticator = AnonymousAuthenticator(CLASS_OF[policies.fleet.identity.highest_class])
        self.quota_store = SimulatedStore(world) if shares_a_store(world.scenario) else None
        self.other = None if self.quota_store is None else OtherGateway(world, self.quota_store)
        self.assembly = Assembly(
            policies,
            Parts(
                clock=clock,
                chance=chance,
                connector_of=lambda pool: world.network if ways is None else ways,
                resolver=world.network,
                files=NoFiles(),
                workers=InlineWorkers(),
                record_workers=InlineWorkers(),
                record_store=self.store,
                authenticator=authenticator,
                quota_store=self.quota_store,
                lease=LEASE,
                tuning=EAGER,
            ),
        )
        self.stack = self.assembly.stack
        self.front = Front(world.report, self.assembly.service)
        self.service: Service = self.front
        explainer = Explainer(chance.stream("edge.explain").getrandbits(256))
        reader = HeaderReader(gateway.forward_headers, chance.stream("edge.request_id"))
        self.streams: StreamDoor | None = None
        self.grpc: GrpcPort | None = None
        if world.scenario.codecs:
            kit = GrpcKit(
                service=self.front,
                catalogue=self.assembly.catalogue,
                authenticator=authenticator,
                reader=reader,
                explainer=explainer,
                budget=self.assembly.body_budget,
                observer=self.assembly.metrics,
                limits=msgspec.structs.replace(gateway.grpc, stream_calls_max=STREAM_CALLS_MAX),
                receive_bytes_max=BODY_BYTES_MAX + ENVELOPE_BYTES,
                chance=chance.stream("edge.grpc.retry_after"),
                clock=clock,
            )
            self.grpc = GrpcPort(kit, wheel=self.assembly.wheel)
            self.grpc.http2_limits = port_limits(self.grpc.http2_limits, chance.stream("simulation.port"))
        else:
            self.streams = StreamDoor(
                StreamKit(
                    service=self.front,
                    budget=self.assembly.body_budget,
                    observer=self.assembly.metrics,
                    explainer=explainer,
                    clock=clock,
                    read_call=read_call,
                    calls_max=STREAM_CALLS_MAX,
                ),
                self.closed,
            )
        self.http = HttpServer(
            service=self.front,
            catalogue=self.assembly.catalogue,
            authenticator=authenticator,
            limits=gateway.http,
            reader=reader,
            explainer=explainer,
            wheel=self.assembly.wheel,
            clock=clock,
            chance=chance,
            limits_of=self.assembly.stack.routes.body_limits,
            body_budget=self.assembly.body_budget,
            observer=self.assembly.metrics,
        )

    @staticmethod
    def _ways(world: World) -> CodecWays | None:
        if not world.scenario.codecs:
            return None
        return CodecWays(world, world.clock, world.chance.stream(f"fleet.connect/{POOL}"))

    def _port(self) -> GrpcPort:
        assert self.grpc is not None, "a house has one door for streams"
        return self.grpc

    async def start(self) -> None:
        self.assembly.start()
        if self.quota_store is not None and self.other is not None:
            self.quota_store.schedule()
            self.other.start()

    async def stop(self) -> None:
        report = self.world.report
        self.assembly.draining = True
        self.http.begin_drain()
        drain_s = self.world.scenario.drain_s
        door = self.streams.close if self.streams is not None else self._port().wait_closed
        began_s = self.world.clock.now_s()
        whole = await door(drain_s)
        # A client that is told that the port goes closes its connection when it has all its answers.
        if drain_s >= FINISH_S and (not whole or self.world.clock.now_s() >= began_s + drain_s):
            report.violate("streams had to be cut off, although every limit of their calls had passed")
        await self.front.drain()
        if not await self.http.wait_closed(FINISH_S):
            report.violate("the HTTP edge had to cut calls off, although every deadline had passed")
        if self.quota_store is not None and self.other is not None:
            await self.other.stop()
            report.store_losses = self.quota_store.losses
        timers = len(self.assembly.wheel)
        if timers:
            report.violate(f"left behind: {timers} timers on the wheel")
        figures = await self.assembly.aclose()
        report.records_dropped = sum(figures["dropped"].values())
        if not figures["balanced"] or figures["queued"] or figures["reserved"]:
            report.violate(f"the record log does not balance: {dict(figures)}")
        self._read_records()

    def _read_records(self) -> None:
        """The records as they would stand in the file."""
        told = 0
        for line in self.store.lines:
            shown = json.loads(line)
            if "dropped" in shown:
                told += shown["dropped"]
                continue
            attempts = tuple((each["replica"], each["outcome"]) for each in shown["attempts"])
            entry = Entry(
                shown["outcome"],
                shown["reason"],
                shown["version"],
                shown["policy_revision"],
                attempts,
                shown["responses"],
                shown["message"],
                shown["class"],
            )
            key = stream_key(shown["request_id"], shown["stream_message"])
            self.world.report.records.setdefault(key, []).append(entry)
        if told != self.world.report.records_dropped:
            self.world.report.violate(f"{self.world.report.records_dropped} records dropped, lines tell of {told}")

    def closed(self) -> bool:
        return self.assembly.draining

    def accept(self) -> asyncio.BaseProtocol | None:
        return HttpConnection(self.http)

    def knows(self, model: str) -> bool:
        return bool(self.assembly.directory.snapshot.known_versions(POOL, model))

    def slots(self, machine: str, model: str, version: str) -> int | None:
        for candidate in self.assembly.directory.snapshot.candidates(POOL, model, version):
            if candidate.replica == f"{POOL}/{machine}":
                desk = self.assembly.stack.admissions[model]._desks.get(version)
                return candidate.slots if desk is None else desk.admission._slots.get(candidate.replica, 0)
        return None

    def held_until_s(self, machine: str, model: str, version: str) -> float:
        member = self.assembly.directory._members.get(f"{POOL}/{machine}")
        record = None if member is None else member.replica.models.get((model, version))
        return -math.inf if record is None else record.held_until_s

    def stuck_steps(self) -> Iterator[str]:
        for model, layer in self.assembly.stack.sequences.items():
            if layer._table._waiting:
                for (version, sequence), entry in layer._table._entries.items():
                    if entry.steps and not entry.steps[0].gone:
                        yield f"{model} {version}: a step of sequence {sequence!r} waits, and nothing is before it"

    def waiting_places(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        return waiting_places(self.assembly.stack, self.world.clock.now_s())

    def left_behind(self) -> list[str]:
        now_s = self.world.clock.now_s()
        left = [
            f"{model} {version}: {state['in_flight']} permits, {state['waiting']} waiting"
            for model, version, state in self.waiting_places()
            if state["in_flight"] or state["waiting"]
        ]
        left += bounds_left(self.stack, now_s)
        http = self.http.statistics(now_s)
        if http["connections"] or http["calls"]:
            left.append(f"{http['connections']} HTTP connections with {http['calls']} calls")
        if self.grpc is not None:
            left += _left_at_port(self.grpc, now_s)
        for model, layer in self.assembly.stack.sequences.items():
            waiting = layer.statistics(now_s)["waiting"]
            under_way = len(layer._table._entries) - len(layer._table._idle)
            if waiting or under_way:
                left.append(f"{model}: {waiting} steps wait, {under_way} sequences have a step under way")
        quota = self.assembly.stack.quota
        if quota is not None and quota.counts(now_s)["busy"]:
            left.append(f"{quota.counts(now_s)['busy']} quotas have calls under way")
        if self.assembly.body_budget.used_bytes:
            left.append(f"{self.assembly.body_budget.used_bytes} bytes of bodies")
        running = self.assembly.supervisor.statistics(now_s)["running"]
        if running:
            left.append(f"background jobs {running}")
        return left


def port_limits(limits: Http2Limits, chance: random.Random) -> Http2Limits:
    """Often so small that clients and streams meet them."""
    return replace(
        limits,
        window_bytes=chance.choice((limits.window_bytes, 1000, 500, 50)),
        header_table_bytes=chance.choice((4096, 4096, 0, 300)),
        high_water_bytes=chance.choice((limits.high_water_bytes, 1000, 100)),
        small_bytes=chance.choice((limits.small_bytes, limits.small_bytes, 60)),
    )


def _left_at_port(port: GrpcPort, now_s: float) -> Iterator[str]:
    said = port.statistics(now_s)
    if said["connections"] or said["calls"] or said["handshakes"]:
        yield f"{said['connections']} gRPC connections with {said['calls']} calls, {said['handshakes']} handshakes"
    if port.rpcs or port.tasks or port.streams:
        yield f"in the gRPC port {len(port.rpcs)} RPCs, {len(port.tasks)} tasks, {len(port.streams)} streams"


def build(world: World) -> House:
    """Compose the gateway over the simulated faces."""
    return RealHouse(world)
