"""The smallest whole gateway: the real layers over a fleet and a transport of a few lines.

It holds the simulation to its word. The checks must find nothing in it, and must find every fault that the mutation
tests plant in it; so it is kept apart from the real fleet and transport, whose faults the simulation is there to find.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.criticality import CLASS_OF
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Endpoints
from gateway.core.faults import UpstreamFault, classify, to_error
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.core.snapshot import FleetSnapshot, ModelState, ModelView, ReplicaState, ReplicaView
from gateway.edge.grpc_port import GrpcPort
from gateway.policy.keys import AnonymousAuthenticator
from gateway.runtime.wheel import TimerWheel
from gateway.stack import Stack, build_stack, quotas_of
from tests.simulation.bounds import bounds_left, waiting_places
from tests.simulation.limit_checks import places
from tests.simulation.network import NetworkClient
from tests.simulation.report import Front, Sink
from tests.simulation.run import World
from tests.simulation.scenario import POOL
from tests.simulation.stream_entrance import StreamDoor
from tests.simulation.tuning import EAGER


class SmallFleet:
    """`SnapshotSource`: asks every machine for its index in turn, and believes the answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listeners: list[Callable[[FleetSnapshot], None]] = []
        self.snapshot = FleetSnapshot(0, ())
        self.clients: dict[str, NetworkClient] = {}
        self.views: dict[str, ReplicaView] = {}
        health = world.scenario.policies.fleet.pools[POOL].health
        self._specs = {spec.name: spec for spec in world.scenario.specs}
        self._interval_s, self._timeout_s = health.interval_ms / 2000, health.timeout_ms / 1000

    def subscribe(self, listener: Callable[[FleetSnapshot], None]) -> None:
        self._listeners.append(listener)

    async def watch(self, machine: str) -> None:
        """One machine's prober."""
        client = self.clients[machine] = self._world.network.connect(Endpoints(machine, ""))
        for _ in range(1_000_000):
            host = machine.partition(":")[0]
            listed = not self._world.network.names or host in next(iter(self._world.network.names.values()))
            view = await self._look(machine, client) if listed else None
            if view is None:
                self.views.pop(machine, None)
            else:
                self.views[machine] = view
            self._publish()
            await asyncio.sleep(self._interval_s)

    async def _look(self, machine: str, client: NetworkClient) -> ReplicaView | None:
        try:
            entries = await client.repository_index(self._timeout_s)
        except UpstreamFault:
            return None
        models = {
            (entry.name, entry.version): ModelView(
                entry.name,
                entry.version,
                ModelState.WARMED if entry.state == "READY" else ModelState.UNAVAILABLE,
                slots=self.declared(entry.name),
                places=places(self._specs[entry.name]),
            )
            for entry in entries
            if entry.version
        }
        return ReplicaView(f"{POOL}/{machine}", POOL, machine, ReplicaState.LIVE, models)

    def declared(self, model: str) -> int:
        admission = self._world.scenario.policies.models[model].admission
        return admission.slots_per_replica or (2 * places(self._specs[model]) if admission.limit.adaptive else 4)

    def _publish(self) -> None:
        replicas = tuple(self.views[machine] for machine in sorted(self.views))
        if replicas != self.snapshot.replicas:
            self.snapshot = FleetSnapshot(self.snapshot.number + 1, replicas)
            for listener in self._listeners:
                listener(self.snapshot)


class SmallTransport:
    """The innermost service: one send, one answer, checked."""

    def __init__(self, world: World, fleet: SmallFleet) -> None:
        self._world = world
        self._fleet = fleet

    async def send(self, call: Call) -> Reply:
        assert call.message is not None
        version, attempt = call.trail.version_routed, call.trail.attempts[-1]
        request = call.message + pb.ModelInferRequest(model_name=call.model, model_version=version).SerializeToString()
        patience_s = call.deadline_s - self._world.clock.now_s()
        if patience_s <= 0:
            call.trail.attempts.pop()  # as the product's: nothing is sent, so nothing was tried
            raise GatewayError(Reason.DEADLINE, "the deadline passed before the request was sent to a model server")
        try:
            client = self._fleet.clients[attempt.replica.partition("/")[2]]
            answer = await client.infer(request, call.metadata, patience_s)
        except UpstreamFault as fault:
            row = classify(fault)
            attempt.outcome, attempt.text, attempt.ended_s = row.outcome, fault.text, self._world.clock.now_s()
            raise to_error(fault, row) from fault
        message = pb.ModelInferResponse.FromString(answer)
        call.trail.version_served = message.model_version
        if (message.model_name, message.model_version) != (call.model, version):
            attempt.outcome, attempt.ended_s = Outcome.BROKEN, self._world.clock.now_s()
            raise GatewayError(Reason.UPSTREAM_WRONG_ANSWER, "the replica answered for another model or version")
        return Reply(answer)


class SmallHouse:
    """`House`. `wrap_transport` and `wrap_service` let a mutation test put a fault inside or outside of the layers."""

    def __init__(
        self,
        world: World,
        wrap_transport: Callable[[Service], Service] = lambda inner: inner,
        wrap_service: Callable[[Service], Service] = lambda inner: inner,
    ) -> None:
        self.world = world
        self.fleet = SmallFleet(world)
        self.wheel = TimerWheel(world.clock)
        self.stack: Stack = build_stack(
            world.scenario.policies,
            transport=wrap_transport(SmallTransport(world, self.fleet)),
            fleet=self.fleet,
            authenticator=AnonymousAuthenticator(CLASS_OF[world.scenario.policies.fleet.identity.highest_class]),
            sinks=(Sink(world.report),),
            reserve_record=lambda: None,
            clock=world.clock,
            wheel=self.wheel,
            pick_chance=world.chance.stream("pick"),
            split_chance=world.chance.stream("split"),
            limit_chance=world.chance.stream("limit"),
            tuning=EAGER,
            quotas=quotas_of(world.scenario.policies),
        )
        self.front = Front(world.report, wrap_service(self.stack.service))
        self.service: Service = self.front
        self.streams: StreamDoor | None = None
        self.grpc: GrpcPort | None = None
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [self.world.loop.create_task(self.fleet.watch(machine)) for machine in self.world.machines]

    async def stop(self) -> None:
        self._stopping = True
        await self.front.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.fleet.clients.values():
            await client.aclose()
        self.wheel.close()

    def closed(self) -> bool:
        return self._stopping

    def accept(self) -> asyncio.BaseProtocol | None:
        return None

    def knows(self, model: str) -> bool:
        return bool(self.fleet.snapshot.known_versions(POOL, model))

    def slots(self, machine: str, model: str, version: str) -> int | None:
        for candidate in self.fleet.snapshot.candidates(POOL, model, version):
            if candidate.replica == f"{POOL}/{machine}":
                desk = self.stack.admissions[model]._desks.get(version)
                return candidate.slots if desk is None else desk.admission._slots.get(candidate.replica, 0)
        return None

    def held_until_s(self, machine: str, model: str, version: str) -> float:
        return -math.inf

    def stuck_steps(self) -> Iterator[str]:
        return iter(())

    def waiting_places(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        return waiting_places(self.stack, self.world.clock.now_s())

    def left_behind(self) -> list[str]:
        return [
            f"{model} {version}: {state['in_flight']} permits, {state['waiting']} waiting"
            for model, version, state in self.waiting_places()
            if state["in_flight"] or state["waiting"]
        ] + list(bounds_left(self.stack, self.world.clock.now_s()))
