"""Makes the faults of a scenario happen to simulated machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from load.fault_schema import SlowFault
from load.faults import Planned, Span
from tests.simulation.network import Network
from tests.simulation.states import Process
from tests.simulation.stress.accel import AccelTriton

_BY_THE_MODEL = "stragglers"
"""What the model does by itself, from the start to the end (`policies.py`)."""


class Faults:
    """The faults on all machines. `spans` tells when each really began and ended, seconds from the start."""

    def __init__(
        self, planned: Sequence[Planned], machines: Sequence[AccelTriton], addresses: Sequence[str], network: Network
    ) -> None:
        self._planned = [each for each in planned if each.kind != _BY_THE_MODEL]
        self._machines, self._addresses, self._network = machines, addresses, network
        self._now_s: Callable[[], float] = network.loop.time
        self.spans: list[Span] = []

    def before(self) -> None:
        """What is there before the first call of the warm-up."""
        for each in self._planned:
            if each.from_start:
                self._begin(each, self._span(each, 0.0))

    def schedule(self, start_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """All others, at their times from `start_s` on."""
        for each in self._planned:
            if not each.from_start:
                span = self._span(each, each.begin_s)
                loop.call_at(start_s + each.begin_s, self._begin, each, span)
                if each.end_s is not None:
                    loop.call_at(start_s + each.end_s, self._end, each, span, start_s)

    def _span(self, each: Planned, begin_s: float) -> Span:
        span = Span(each.index, each.kind, each.replica, begin_s)
        self.spans.append(span)
        return span

    def _begin(self, each: Planned, span: Span) -> None:
        machine = self._machines[each.replica]
        if each.kind == "kill":
            machine.crash()
        elif each.kind == "freeze":
            machine.freeze()
        elif each.kind == "blackhole":
            self._network.black_hole(self._addresses[each.replica])
        else:
            assert isinstance(each.fault, SlowFault), each.kind
            machine.slowness = each.fault.factor

    def _end(self, each: Planned, span: Span, start_s: float) -> None:
        machine = self._machines[each.replica]
        if each.kind == "kill":
            assert machine.process is Process.DOWN

            def opened() -> None:
                span.end_s = round(self._now_s() - start_s, 6)

            machine.on_open = opened
            machine.start()
            return
        if each.kind == "freeze":
            machine.thaw()
        elif each.kind == "blackhole":
            self._network.heal(self._addresses[each.replica])
        else:
            machine.slowness = 1.0
        span.end_s = round(self._now_s() - start_s, 6)
