"""Sizes: how large a call is, looked at once when its version is chosen: what it must not exceed, and its work.

No layer of its own: route asks it where a policy limits sizes or measures work, so a call that is too large neither
waits for its turn in a sequence nor in a queue, and a model whose policy says nothing of sizes pays nothing. Tensors
are not decoded: shapes and lengths say enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.snapshot import FleetSnapshot
from gateway.decide.work import WorkSettings, units
from gateway.layers.gate import shown
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.input_sizes import InputReader, InputSize, longest_text, parameter, total

TEXT = "BYTES"


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """None: no limit."""

    batch_max: int | None = None
    """Rows of a call, where the model's version has a batch dimension."""
    input_length_max: int | None = None
    """Elements of one row of an input; of BYTES, bytes."""
    length_of: str = ""
    """The input whose length is limited; "" for each."""


class Sizes:
    """The limits and the measure of one model."""

    __slots__ = ("_limited", "_limits", "_model", "_pool", "_reader", "_work")

    def __init__(self, *, model: str, pool: str, limits: SizeLimits, work: WorkSettings | None) -> None:
        self._model = model
        self._pool = pool
        self._limits = limits
        self._limited = limits.batch_max is not None or limits.input_length_max is not None
        self._work = work
        self._reader = InputReader()

    def measure(self, call: Call, snapshot: FleetSnapshot, version: str) -> None:
        """Refuse a call that is too large (TOO_LARGE), and write down its work. Its body has arrived."""
        message = call.message
        assert message is not None, "the deadline layer has waited for the body"
        batches = snapshot.batches(self._pool, self._model, version)
        work = self._work
        try:
            if work is None or work.by == "parameter":
                inputs = self._reader.read(message) if self._limited else []
            else:
                inputs = self._reader.read(message)
            if self._limited:
                self._check(message, inputs, batches)
            if work is None:
                return
            amount = _amount(message, inputs, batches, work)
        except pb.WireError as error:
            raise GatewayError(
                Reason.BAD_REQUEST, f"unable to parse the inputs for model '{shown(self._model)}': {error}"
            ) from None
        call.work = found = units(amount, work)
        if found != 1.0 or call.explain:
            saw: dict[str, float | str] = {"work": found, "unit": work.unit}
            if amount is not None and isfinite(amount):
                saw["amount"] = amount
            call.trail.note("work", work.by, saw)

    def _check(self, message: bytes, inputs: list[InputSize], batches: bool) -> None:
        limits = self._limits
        rows_max = limits.batch_max
        length_max = limits.input_length_max
        for each in inputs:
            rows = each.shape[0] if batches and each.shape else 1
            if rows_max is not None and rows > rows_max:
                raise GatewayError(
                    Reason.TOO_LARGE,
                    f"input '{shown(each.name)}' has {rows} rows; model '{shown(self._model)}' takes at most "
                    f"{rows_max} in one call",
                )
            if length_max is None or (limits.length_of and each.name != limits.length_of):
                continue
            length = self._length(message, each, rows, batches, length_max)
            if length > length_max:
                what = "bytes" if each.datatype == TEXT else "elements"
                raise GatewayError(
                    Reason.TOO_LARGE,
                    f"input '{shown(each.name)}' has {length} {what} in a row; model '{shown(self._model)}' takes at "
                    f"most {length_max}",
                )

    @staticmethod
    def _length(message: bytes, size: InputSize, rows: int, batches: bool, most: int) -> int:
        if size.datatype != TEXT:
            return size.elements(1 if batches else 0)
        data = size.stop - size.start
        return data if data <= most else longest_text(message, size, rows)


def _amount(message: bytes, inputs: list[InputSize], batches: bool, work: WorkSettings) -> float | None:
    """What is measured; None if the call does not tell."""
    if work.by == "parameter":
        given = parameter(message, work.parameter)
        value = None if given is None else given.value
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    chosen = [each for each in inputs if each.name == work.input] if work.input else inputs
    if not chosen:
        return float(len(message)) if work.by == "bytes" and not work.input else None
    if work.by == "batch":
        shape = chosen[0].shape
        return float(shape[0]) if batches and shape else None
    if work.by == "value":
        return total(message, chosen[0])
    if work.by == "bytes":
        return float(sum(each.stop - each.start for each in chosen))
    counts = [each.elements() for each in chosen]
    return float(sum(counts)) if min(counts) >= 0 else None
