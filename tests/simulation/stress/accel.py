"""The lab's model `accel` in a simulated Triton, with its execution log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.simulation.batcher import ModelSpec, Request, Scheduler
from tests.simulation.intake import AnyScheduler
from tests.simulation.trace import Trace
from tests.simulation.triton import Triton

Log = Callable[[list[Request], float], None]
"""Takes a batch that begins to run now, and how long it will take, seconds."""

_ID, _RAW = 3, 6
"""Fields of a `ModelInferResponse`."""


def _field(number: int, value: bytes) -> bytes:
    """One of less than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


class Untold(Trace):
    """No trace: there are too many events of too many runs, and a seed can be run alone."""

    def add(self, kind: str, *fields: object) -> None:
        """Forget it."""


class AccelTriton(Triton):
    """A server that tells what it runs, and when its ports open."""

    log: Log = staticmethod(lambda batch, took_s: None)
    on_open: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, name: str, specs: tuple[ModelSpec, ...], loop: asyncio.AbstractEventLoop, seed: str, trace: Trace
    ) -> None:
        super().__init__(name, specs, loop, seed, trace)
        self._heads: dict[tuple[str, str], bytes] = {}

    def answer(self, model: str, version: str, request_id: str, output: bytes, final: bool | None = None) -> bytes:
        """As the one of any server, for less: all answers of a version are alike but for two fields."""
        head = self._heads.get((model, version))
        if head is None:
            head = self._heads[model, version] = super().answer(model, version, "", b"")[: -len(_field(_RAW, b""))]
        return head + (_field(_ID, request_id.encode()) if request_id else b"") + _field(_RAW, output)

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
