"""All clients of a run: who sends what when, over which entrance."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.entrance import GrpcEntrance, enter
from tests.simulation.grpc_callers import GrpcCallers
from tests.simulation.plans import Leg, SequencePlan, SessionPlan
from tests.simulation.scenario import Scenario
from tests.simulation.stream_entrance import StreamClients

if TYPE_CHECKING:
    from tests.simulation.run import House, World


class Clients:
    """Plays the plans of a scenario. Numbers name calls, sessions their place in the scenario."""

    def __init__(self, world: World, house: House) -> None:
        self._world, self._house = world, house
        self._loop, self._report = world.loop, world.report
        scenario = self._report.scenario
        self._plans = {plan.number: plan for plan in scenario.calls}
        self._entrance = enter(world.loop, world.report, world.clock, house)
        self._streams: StreamClients | GrpcCallers | None = None
        if isinstance(self._entrance, GrpcEntrance):
            self._streams = self._entrance.callers
        elif house.streams is not None:
            self._streams = StreamClients(world.loop, world.report, world.clock, house.streams, scenario.seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._to_come = 0
        self._all_made = asyncio.Event()

    def schedule(self) -> None:
        """Set a timer for each client."""
        scenario = self._report.scenario
        for plan in scenario.calls:
            if not plan.driven:
                self._at(plan.at_s, self._call, plan.number)
        for session in scenario.sessions:
            if not session.driven:
                self._at(session.at_s, self._session, session)
        for sequence in scenario.sequences:
            if sequence.legs:
                self._at(sequence.at_s, self._sequence, sequence)
        if not self._to_come:
            self._all_made.set()

    async def finish(self) -> None:
        """Wait until every client has come and gone."""
        await self._all_made.wait()
        await asyncio.gather(*self._tasks)
        await self._entrance.close()

    def _at(self, at_s: float, client: object, *arguments: object) -> None:
        self._to_come += 1
        when_s = max(self._loop.time(), self._world.trace.origin_s + at_s)
        self._loop.call_at(when_s, self._make, client, *arguments)

    def _make(self, client: object, *arguments: object) -> None:
        self._tasks.append(self._loop.create_task(client(*arguments)))  # type: ignore[operator]
        self._to_come -= 1
        if not self._to_come:
            self._all_made.set()

    async def _call(self, number: int) -> None:
        plan = self._plans[number]
        self._report.known_at[number] = self._house.knows(plan.model)
        self._report.sent_at_s[number] = self._loop.time()
        await self._entrance.client(plan)

    async def _session(self, plan: SessionPlan) -> None:
        assert self._streams is not None
        for _, number in plan.messages:
            self._report.known_at[number] = self._house.knows(self._plans[number].model)
        await self._streams.session(plan)
        for _, number in plan.messages:
            self._report.known_at[number] &= self._house.knows(self._plans[number].model)

    async def _sequence(self, plan: SequencePlan) -> None:
        for leg in plan.legs:
            await self._leg(leg)
            await asyncio.sleep(leg.pause_s)

    async def _leg(self, leg: Leg) -> None:
        if leg.session is not None:
            await self._session(self._report.scenario.sessions[leg.session])
        elif leg.burst:
            tasks = []
            for number in leg.calls:
                tasks.append(self._loop.create_task(self._call(number)))
                await asyncio.sleep(0.001)
            await asyncio.gather(*tasks)
        else:
            for number in leg.calls:
                # In a task of its own, for a client that leaves cancels its task.
                await self._loop.create_task(self._call(number))
                await asyncio.sleep(leg.pause_s)


def clients_ways(scenario: Scenario, house: House) -> tuple[str, str]:
    """How calls enter and how they leave, for the trace."""
    if scenario.codecs and house.grpc is not None:
        return f"in: gRPC{' and HTTP/1.1' if scenario.as_bytes else ''} as bytes", "out: HTTP/2 as bytes"
    enter_as = "HTTP/1.1 as bytes" if scenario.as_bytes and house.accept() is not None else "objects"
    return f"in: {enter_as}", "out: objects"


def without_streams(scenario: Scenario) -> Scenario:
    """The same without what streams and sequences are needed for."""
    calls = tuple(plan for plan in scenario.calls if not plan.streamed and plan.sequence is None)
    return replace(scenario, calls=calls, sessions=(), sequences=())
