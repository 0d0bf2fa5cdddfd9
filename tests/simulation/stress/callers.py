"""Clients: independent ones who come at their times, and closed loops of those who ask again as soon as they know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Attempt, Call
from gateway.core.criticality import CLASS_OF
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.service import Service
from gateway.runtime.clock import Clock
from load.arrivals import Arrival
from load.connection import WRONG_ANSWER
from load.inputs import AccelInputs
from load.scenario import LoadedScenario
from load.scenario_schema import TrafficSpec
from tests.simulation.batcher import answer_digest
from tests.simulation.stress.house import VERSION
from tests.simulation.stress.policies import MODEL

TICK_S = 0.002
"""Of the gateway's timer wheel, which keeps the deadlines: no later than so much after its deadline has a call ended.
"""


class Ended(NamedTuple):
    """A call, after its end. Times are seconds; `offset_s` is when it was sent, from the start of what is counted."""

    number: int
    traffic: int
    offset_s: float
    took_s: float
    error: str
    """As the load lab names the endings; "" for a right answer."""
    text: str
    """What the caller was told besides."""
    attempts: tuple[Attempt, ...]


class Callers:
    """Makes the calls of one scenario, and keeps how each ended in `ended`."""

    def __init__(
        self, scenario: LoadedScenario, service: Service, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._traffic = scenario.spec.traffic
        self._service, self._clock, self._loop = service, clock, loop
        self._inputs = [AccelInputs(work=each.work, label=each.name) for each in self._traffic]
        self._classes = [None if each.priority is None else CLASS_OF[each.priority] for each in self._traffic]
        self.made = 0
        self.ended: list[Ended] = []

    async def come(self, arrivals: Iterator[Arrival], start_s: float) -> None:
        """Open loop: each is sent at its time from `start_s` on, whatever became of those before. Returns when all have
        ended.
        """
        loop, tasks = self._loop, list[asyncio.Task[Ended]]()
        done = loop.create_future()

        def next_one(due: Arrival) -> None:
            coming: Arrival | None = due
            while coming is not None and start_s + coming.offset_s <= loop.time():
                tasks.append(loop.create_task(self._one(coming.traffic, start_s)))
                coming = next(arrivals, None)
            if coming is None:
                done.set_result(None)
            else:
                loop.call_at(start_s + coming.offset_s, next_one, coming)

        first = next(arrivals)
        loop.call_at(start_s + first.offset_s, next_one, first)
        await done
        await asyncio.gather(*tasks)

    async def ask_again(self, callers: int, start_s: float, until_s: float) -> None:
        """Closed loop: so many, each of whom asks again when it has its answer, until that time on the clock."""

        async def one() -> None:
            while self._loop.time() < until_s:
                before_s = self._loop.time()
                ended = await self._one(0, start_s)
                if ended.error and self._loop.time() == before_s:
                    await asyncio.sleep(0.001)  # refused at once: who asks again at once asks for ever at one instant

        await asyncio.gather(*(one() for _ in range(callers)))

    async def _one(self, traffic: int, start_s: float) -> Ended:
        self.made += 1
        number, spec, now_s = self.made, self._traffic[traffic], self._clock.now_s
        message = self._inputs[traffic].grpc_message(number)
        sent_s = now_s()
        call = Call(
            f"{spec.name}-{number}",
            MODEL,
            "",
            sent_s,
            self._clock.wall_s(),
            message,
            body_bytes=len(message),
            timeout_s=spec.deadline_ms / 1000,
            protocol="grpc",
            priority=self._classes[traffic],
        )
        error, text = await self._sent(call, spec, message)
        ended = Ended(number, traffic, sent_s - start_s, now_s() - sent_s, error, text, tuple(call.trail.attempts))
        self.ended.append(ended)
        return ended

    async def _sent(self, call: Call, spec: TrafficSpec, message: bytes) -> tuple[str, str]:
        """How it ended, as the load lab names it. As the gateway's edges do: what comes late in a tick is no answer."""
        try:
            reply = await self._service.send(call)
        except GatewayError as error:
            return f"code {error.code.name}", f"{error.reason.label}: {error.message}"
        now_s = self._clock.now_s()
        if call.deadline_s < now_s <= call.deadline_s + TICK_S:
            await reply.aclose(Outcome.EXPIRED)
            return f"code {Reason.DEADLINE.code.name}", Reason.DEADLINE.label
        answer = pb.ModelInferResponse.FromString(reply.message)
        await reply.aclose(Outcome.OK)
        right = answer.raw_output_contents[0] == answer_digest(message[-4:], MODEL, VERSION)
        return ("", "") if right and answer.model_version == VERSION else (WRONG_ANSWER, "")
