"""The lab's model `accel` in a simulated Triton, with its execution log."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.batcher import ModelSpec, Request, Scheduler
from tests.simulation.intake import AnyScheduler
from tests.simulation.trace import Trace
from tests.simulation.triton import Triton

Log = Callable[[list[Request], float], None]
"""Takes a batch that begins to run now, and how long it will take, seconds."""


class Untold(Trace):
    """No trace: there are too many events of too many runs, and a seed can be run alone."""

    def add(self, kind: str, *fields: object) -> None:
        """Forget it."""


class AccelTriton(Triton):
    """A server that tells what it runs, and when its ports open."""

    log: Log = staticmethod(lambda batch, took_s: None)
    on_open: Callable[[], None] = staticmethod(lambda: None)

    def _scheduler(self, spec: ModelSpec, version: str) -> AnyScheduler:
        return _Logged(self, spec, version)

    def _open(self) -> None:
        super()._open()
        self.on_open()


class _Logged(Scheduler):
    def __init__(self, server: AccelTriton, spec: ModelSpec, version: str) -> None:
        super().__init__(server, spec, version)
        self._accel = server

    def _takes_s(self, batch: list[Request]) -> float:
        took_s = super()._takes_s(batch)
        self._accel.log(batch, took_s)
        return took_s
