"""The gateway under stress: the product's own assembly with the numbers of the manual, but for its ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.assembly import Assembly, Parts
from gateway.core.criticality import CLASS_OF
from gateway.core.service import Service
from gateway.decide.tuning import Tuning
from gateway.policy.keys import AnonymousAuthenticator
from gateway.records.record import PredictionRecord
from gateway.runtime.chance import Chance
from gateway.runtime.clock import Clock
from gateway.runtime.workers import InlineWorkers
from load.sluice import POOL
from tests.simulation.bounds import bounds_left
from tests.simulation.house import NoFiles
from tests.simulation.network import Network
from tests.simulation.stress.policies import MODEL, Setting

VERSION = "1"


class CountingStore:
    """A store of records that counts lines and keeps none."""

    def __init__(self) -> None:
        self.lines = 0

    def append(self, lines: bytes) -> None:
        self.lines += lines.count(b"\n")

    def sync(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is left to do."""


class _EmptyLines:
    """In the place of what renders records: their lines decide nothing, and a seventh of a run would go into them. How
    many there are is looked at.
    """

    @staticmethod
    def quick(record: PredictionRecord) -> bytes:
        return b"\n"


class StressHouse:
    """What `gateway.app` puts together, in front of `network`."""

    def __init__(self, setting: Setting, seed: int, network: Network, clock: Clock) -> None:
        policies = setting.policies
        self._clock = clock
        self._addresses = setting.machines
        self.store = CountingStore()
        self.assembly = Assembly(
            policies,
            Parts(
                clock=clock,
                chance=Chance(seed),
                connector_of=lambda pool: network,
                resolver=network,
                files=NoFiles(),
                workers=InlineWorkers(),
                record_workers=InlineWorkers(),
                record_store=self.store,
                authenticator=AnonymousAuthenticator(CLASS_OF[policies.fleet.identity.highest_class]),
                tuning=Tuning(),
            ),
        )
        self.assembly.record_log._quick = _EmptyLines()  # type: ignore[assignment]
        self.service: Service = self.assembly.service
        self.start: Callable[[], None] = self.assembly.start

    def serving(self) -> int:
        """Replicas that take calls of the model."""
        return len(self.assembly.directory.snapshot.candidates(POOL, MODEL, VERSION))

    async def stop(self, calls: int) -> list[str]:
        """Shut down in order, after the last of so many calls has ended. What is not as it must be then."""
        timers = len(self.assembly.wheel)
        figures = await self.assembly.aclose()
        # What ran on for nobody has its slot until the connection closes; nothing else has one now.
        wrong = list(self._left())
        if timers:
            wrong.append(f"left behind: {timers} timers on the wheel")
        if not figures["balanced"] or figures["queued"] or figures["reserved"]:
            wrong.append(f"the record log does not balance: {dict(figures)}")
        if self.store.lines != calls:
            wrong.append(f"{calls} calls have ended, and there are {self.store.lines} records")
        return wrong

    def _left(self) -> Iterator[str]:
        assembly, now_s = self.assembly, self._clock.now_s()
        for model, layer in assembly.stack.admissions.items():
            for version, state in layer.statistics(now_s).items():
                if state["in_flight"] or state["waiting"]:
                    yield f"left behind: {model} {version}: {state['in_flight']} permits, {state['waiting']} waiting"
        yield from (f"left behind: {text}" for text in bounds_left(assembly.stack, now_s))
