"""admit with calls of several classes: who runs next, who is turned away, what they are told, and what is counted."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call
from gateway.core.criticality import CLASS_OF
from gateway.core.errors import GatewayError, Reason
from gateway.layers.admit import RETRY_AFTER_MIN_S, AdmitLayer
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService
from tests.unit.test_layers_admit import KEY, books, layer, routed, settle


def of_class(name: str, request_id: str = "") -> Call:
    call = routed()
    call.criticality, call.request_id = CLASS_OF[name], request_id or name
    return call


async def full(inner: ScriptedService, queue_max: int | None = None) -> tuple[AdmitLayer, asyncio.Task[object]]:
    """A layer whose only slot is taken, and the call that has it."""
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner, queue_max)
    return subject, asyncio.ensure_future(subject.send(routed()))


async def test_the_next_slot_is_the_highest_class_s_however_late_it_came() -> None:
    inner = ScriptedService()
    subject, running = await full(inner)
    arrival = await inner.arrivals.get()
    order = ["sheddable", "sheddable_plus", "critical", "critical_plus"]
    waiting = [asyncio.ensure_future(subject.send(of_class(name))) for name in order]
    await settle()
    assert {name: entry["waiting"] for name, entry in subject.statistics(0.0)["2"]["classes"].items()} == dict.fromkeys(
        order, 1
    )
    ran = []
    for _ in order:
        arrival.answer()
        arrival = await inner.arrivals.get()
        ran.append(arrival.call.request_id)
    arrival.answer()
    await asyncio.gather(running, *waiting)
    assert ran == order[::-1]
    assert books(subject) == (0, 0)


async def test_a_full_queue_turns_the_lowest_class_away_and_says_so_by_class() -> None:
    inner = ScriptedService()
    subject, running = await full(inner, queue_max=1)
    await inner.arrivals.get()
    low = asyncio.ensure_future(subject.send(of_class("sheddable")))
    await settle()
    top = asyncio.ensure_future(subject.send(of_class("critical_plus")))
    await settle()
    with pytest.raises(GatewayError) as pushed_out:
        await low
    with pytest.raises(GatewayError) as too_late:
        await subject.send(of_class("critical"))
    for refused in (pushed_out, too_late):
        assert refused.value.reason is Reason.QUEUE_FULL
        assert refused.value.retry_after_s == RETRY_AFTER_MIN_S, "nothing is known of how long calls take"
    classes = subject.statistics(0.0)["2"]["classes"]
    assert classes["sheddable"] == {"waiting": 0, "refused": {"pushed_out": 1}}
    assert classes["critical"] == {"waiting": 0, "refused": {"queue_full": 1}}
    assert classes["critical_plus"] == {"waiting": 1, "refused": {}}
    for task in (running, top):
        task.cancel()
    await asyncio.wait((running, top))
    assert books(subject) == (0, 0)


async def test_who_is_turned_away_is_told_to_wait_as_long_as_the_queue_takes() -> None:
    inner = ScriptedService()
    subject, running = await full(inner, queue_max=6)
    await inner.arrivals.get()
    pacer = subject._desks["2"].admission.pacer
    for _ in range(60):
        pacer.answered(3.0, 1, 1, 1000.0)
    waiting = [asyncio.ensure_future(subject.send(of_class("critical", str(number)))) for number in range(6)]
    await settle()
    with pytest.raises(GatewayError) as refused:
        await subject.send(of_class("critical"))
    assert refused.value.retry_after_s == pytest.approx(7 * 3.0), "six before it, one at a time"
    top = asyncio.ensure_future(subject.send(of_class("critical_plus")))
    await settle()
    with pytest.raises(GatewayError) as pushed_out:
        await waiting[-1]
    assert pushed_out.value.retry_after_s == pytest.approx(7 * 3.0), "those who wait, and what runs"
    tasks = [running, top, *waiting[:-1]]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert books(subject) == (0, 0)
