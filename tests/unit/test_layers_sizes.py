"""Sizes: a call's work, and what is too large, by shapes alone; in front of sequences and queues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.snapshot import FleetSnapshot, ModelState, ModelView, ReplicaState, ReplicaView
from gateway.decide.work import WORK_MIN, WorkSettings, rounds, units
from gateway.layers.sizes import SizeLimits, Sizes
from tests.support.calls import make_call
from tests.support.tensors import packed_bytes
from tests.unit.test_kserve_input_sizes import request

NONE = SizeLimits()


def fleet(*, batches: bool = True) -> FleetSnapshot:
    view = ModelView("fraud", "2", ModelState.WARMED, 4, batches=batches)
    return FleetSnapshot(0, (ReplicaView("gpu/a", "gpu", "a", ReplicaState.LIVE, {("fraud", "2"): view}),))


def measured(
    message: bytes,
    work: WorkSettings | None = None,
    limits: SizeLimits = NONE,
    *,
    batches: bool = True,
    explain: bool = False,
) -> Call:
    call = make_call(message=message)
    call.explain = explain
    Sizes(model="fraud", pool="gpu", limits=limits, work=work).measure(call, fleet(batches=batches), "2")
    return call


def with_parameters(**parameters: Any) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="fraud")
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return bytes(message.SerializeToString())


TWO = request(("ids", "INT32", [4, 6], bytes(96)), ("text", "BYTES", [4, 1], packed_bytes(b"a", b"bcd", b"", b"ef")))


@pytest.mark.parametrize(
    ("settings", "work"),
    [
        (WorkSettings("batch"), 4),
        (WorkSettings("batch", input="text", unit=8), 0.5),
        (WorkSettings("elements"), 28),
        (WorkSettings("elements", input="ids", unit=12), 2),
        (WorkSettings("bytes", unit=10), (96 + 22) / 10),
        (WorkSettings("bytes", input="text"), 22),
        (WorkSettings("elements", input="nowhere", default=3), 3),
        (WorkSettings("elements", most=5), 5),
        (WorkSettings("elements", unit=1e9), WORK_MIN),
    ],
)
def test_work_is_what_the_policy_measures(settings: WorkSettings, work: float) -> None:
    assert measured(TWO, settings).work == pytest.approx(work)


def test_without_a_batch_dimension_there_are_no_rows() -> None:
    assert measured(TWO, WorkSettings("batch", default=2), batches=False).work == 2


@pytest.mark.parametrize(
    ("value", "work"), [(20, 20.0), (2.5, 2.5), (True, 7.0), ("20", 7.0), (-1, 7.0), (math.nan, 7.0), (math.inf, 99.0)]
)
def test_a_parameter_counts_if_it_is_an_amount(value: Any, work: float) -> None:
    settings = WorkSettings("parameter", parameter="w", default=7, most=99)
    assert measured(with_parameters(w=value), settings).work == work
    assert measured(with_parameters(other=3), settings).work == 7


def test_the_work_that_the_load_labs_model_is_told_counts() -> None:
    message = request(("work", "FP32", [2, 1], np.array([[20], [0.5]], "<f4").tobytes()))
    assert measured(message, WorkSettings("value", input="work")).work == 20.5


def test_unusual_work_is_noted_and_usual_work_for_those_who_ask() -> None:
    settings = WorkSettings("elements", input="ids", unit=12)
    notes = measured(TWO, settings).trail.notes
    assert notes is not None
    assert notes[0] == ("work", "elements", {"work": 2.0, "unit": 12, "amount": 24.0})
    usual = WorkSettings("batch", unit=4)
    assert measured(TWO, usual).trail.notes is None
    assert measured(TWO, usual, explain=True).trail.notes


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (SizeLimits(batch_max=3), "input 'ids' has 4 rows; model 'fraud' takes at most 3 in one call"),
        (SizeLimits(input_length_max=5), "input 'ids' has 6 elements in a row; model 'fraud' takes at most 5"),
        (SizeLimits(input_length_max=2, length_of="text"), "input 'text' has 3 bytes in a row"),
    ],
)
def test_what_is_too_large_is_refused_with_its_numbers(limits: SizeLimits, text: str) -> None:
    with pytest.raises(GatewayError) as refused:
        measured(TWO, limits=limits)
    assert refused.value.reason is Reason.TOO_LARGE
    assert text in refused.value.message


@pytest.mark.parametrize(
    "limits",
    [SizeLimits(batch_max=4), SizeLimits(input_length_max=6), SizeLimits(input_length_max=3, length_of="text")],
)
def test_what_is_just_not_too_large_passes(limits: SizeLimits) -> None:
    call = measured(TWO, limits=limits)
    assert call.work == 1.0
    assert call.trail.notes is None


def test_without_a_batch_dimension_the_whole_shape_is_one_row() -> None:
    measured(TWO, limits=SizeLimits(batch_max=1), batches=False)
    with pytest.raises(GatewayError, match="24 elements in a row"):
        measured(TWO, limits=SizeLimits(input_length_max=23, length_of="ids"), batches=False)


def test_a_version_is_without_batches_if_one_replica_says_so() -> None:
    assert fleet().batches("gpu", "fraud", "2")
    assert not fleet(batches=False).batches("gpu", "fraud", "2")
    assert fleet().batches("gpu", "fraud", "3")


def test_nearly_one_unit_is_one() -> None:
    settings = WorkSettings("batch", unit=100)
    assert [units(amount, settings) for amount in (94, 95, 100, 105, 106)] == [0.94, 1.0, 1.0, 1.0, 1.06]


@given(st.one_of(st.none(), st.floats()), st.floats(0.001, 1e6), st.floats(0.01, 10))
def test_units_are_always_an_amount(amount: float | None, unit: float, default: float) -> None:
    assert WORK_MIN <= units(amount, WorkSettings("batch", unit=unit, default=default, most=1e6)) <= 1e6


def test_settings_that_mean_nothing_are_refused() -> None:
    for wrong in (
        {"by": "parameter"},
        {"by": "batch", "parameter": "w"},
        {"by": "value"},
        {"by": "parameter", "parameter": "w", "input": "x"},
        {"by": "batch", "unit": 0},
        {"by": "batch", "default": 0},
        {"by": "batch", "default": 3, "most": 2},
    ):
        with pytest.raises(ValueError, match=r"."):
            WorkSettings(**wrong)


def test_a_large_call_lasts_as_many_rounds_as_it_fills() -> None:
    assert [rounds(work, 8) for work in (0.5, 1, 8, 20)] == [1, 1, 1, 2.5]
    assert rounds(20, 0.5) == 1
