"""Balance: who is asked to prove itself by which call, what those that are gone cost, and what is kept of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gateway.core.call import Attempt
from gateway.core.outcome import Latency, Outcome
from gateway.core.permit import Permit
from gateway.core.snapshot import Candidate, ModelState, Phases, ReplicaState, ReplicaView
from gateway.decide.admission import Admission
from gateway.decide.balance import BRIEF_MAX
from gateway.decide.ejection import Ejection
from gateway.layers.admit import LOADS_AGAIN_S, AdmitLayer
from gateway.layers.track import TrackLayer
from gateway.runtime.wheel import TimerWheel
from tests.support.admission import Desk, replica_of
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService

USUAL_S = 0.020


def candidates(*names: str, slots: int = 4) -> tuple[Candidate, ...]:
    return tuple(Candidate(name, slots) for name in names)


def ended(admission: Admission, permit: Permit, now_s: float, outcome: Outcome, took_s: float = USUAL_S) -> None:
    """The attempt of a permit is over."""
    permit.attempt = attempt = Attempt(permit.replica, now_s - took_s)
    attempt.outcome, attempt.ended_s = outcome, now_s
    admission.give_back(permit, now_s)


def taught(*names: str, slots: int = 4, calls: int = 400) -> tuple[Admission, float]:
    """An admission that knows how long calls take, and the instant."""
    admission, now_s = Admission(random.Random(1)), 100.0
    admission.update(candidates(*names, slots=slots), now_s)
    for _ in range(calls):
        permit = admission.take(now_s + 10.0, now_s)
        assert permit is not None
        now_s += USUAL_S
        ended(admission, permit, now_s, Outcome.OK)
    return admission, now_s


def broken(admission: Admission, name: str, now_s: float) -> float:
    """`name` fails until it is ejected; returns when its pause is over."""
    for _ in range(2000):
        if name in admission.balance.ejection.ejected:
            now_s += 2.0
            admission.balance.ejection.admissible(name, now_s)
            assert admission.balance.ejection.waits_to_prove(name)
            return now_s
        permit = admission.take(now_s + 10.0, now_s)
        assert permit is not None
        now_s += 0.3
        bad = permit.replica == name
        ended(admission, permit, now_s, Outcome.BROKEN if bad else Outcome.OK)
    raise AssertionError(f"{name} was never ejected")


# --- who proves -------------------------------------------------------------------------------------------------------


def test_a_call_with_too_little_time_is_not_the_probe_and_the_next_one_with_enough_is() -> None:
    admission, now_s = taught("a", "b", "c")
    now_s = broken(admission, "a", now_s)
    need_s = admission.pacer.pace(admission.limit, now_s).need_s
    assert need_s > 0
    brief = admission.take(now_s + need_s / 2, now_s)
    assert brief is not None
    assert (brief.replica != "a", brief.special) == (True, None)
    long = admission.take(now_s + 2 * need_s, now_s)
    assert long is not None
    assert long.replica == "a"
    assert long.special is not None
    assert long.special.probe is not None


def test_nor_is_a_brief_call_the_probe_when_it_asks_with_a_ticket() -> None:
    admission, now_s = taught("a", "b", "c")
    now_s = broken(admission, "a", now_s)
    desk = Desk()
    desk.admission, desk.now_s = admission, now_s
    need_s = admission.pacer.pace(admission.limit, now_s).need_s
    assert replica_of(desk.ask(deadline_s=now_s + need_s / 2)) != "a"
    assert replica_of(desk.ask(deadline_s=now_s + 2 * need_s)) == "a"


def test_a_brief_call_waits_rather_than_to_be_the_probe_when_all_others_are_full() -> None:
    admission, now_s = taught("a", "b", "c", slots=1)
    now_s = broken(admission, "a", now_s)
    need_s = admission.pacer.pace(admission.limit, now_s).need_s
    assert need_s > 0
    assert {admission.take(now_s + need_s / 2, now_s).replica for _ in "bc"} == {"b", "c"}  # type: ignore[union-attr]
    assert admission.take(now_s + need_s / 2, now_s) is None


def test_a_second_attempt_is_a_probe_only_where_nothing_else_is_free() -> None:
    admission, now_s = taught("a", "b", "c", slots=1)
    now_s = broken(admission, "a", now_s)
    admission.balance.picker.forget("a")  # its score would keep the call away as well
    retry = admission.another("retry", ("b",), now_s)
    assert retry is not None
    assert (retry.replica, retry.special and retry.special.probe) == ("c", None)
    last = admission.another("retry", ("b",), now_s)
    assert last is not None
    assert last.replica == "a"
    assert last.special is not None
    assert last.special.probe is not None
    assert last.special.doubt is not None
    assert last.special.doubt.word == "probe"


def test_a_brief_call_is_no_try_of_a_suspect() -> None:
    admission, now_s = taught("a", "b")
    picker = admission.balance.picker
    for _ in range(6):
        now_s += 0.3
        picker.observe("a", Latency.RECORD, 10 * USUAL_S, now_s)
    assert not picker.trusted("a")
    now_s += 16.0
    assert admission.pacer.window.count(now_s) > 50
    need_s = admission.pacer.pace(admission.limit, now_s).need_s
    assert need_s > 0
    brief = admission.take(now_s + need_s / 2, now_s)
    assert brief is not None
    assert brief.replica == "b"
    tried = admission.take(now_s + 10.0, now_s)
    assert tried is not None
    assert tried.replica == "a"
    assert picker.why == "try"


def test_where_all_calls_have_too_little_time_one_of_many_is_the_try() -> None:
    admission, now_s = taught("a", "b")
    picker = admission.balance.picker
    for _ in range(6):
        now_s += 0.3
        picker.observe("a", Latency.RECORD, 10 * USUAL_S, now_s)
    now_s += 16.0
    need_s = admission.pacer.pace(admission.limit, now_s).need_s
    assert need_s > 0

    def sent(time_s: float) -> str:
        permit = admission.take(now_s + time_s, now_s)
        assert permit is not None
        ended(admission, permit, now_s, Outcome.ABANDONED)
        return permit.replica

    assert [sent(need_s / 2) for _ in range(BRIEF_MAX)] == ["b"] * BRIEF_MAX
    assert sent(need_s / 2) == "a"
    assert [sent(need_s / 2) for _ in range(BRIEF_MAX)] == ["b"] * BRIEF_MAX, "counted from the beginning"
    assert sent(10.0) == "b", "no try is due; but there was one that could have been it"
    now_s += 1.1
    assert [sent(need_s / 2) for _ in range(BRIEF_MAX)] == ["b"] * BRIEF_MAX


# --- those that are gone ----------------------------------------------------------------------------------------------


def test_a_replica_that_is_down_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    admission, now_s = taught("a", "b", "c")
    admission.update(candidates("a", "b"), now_s, ("c",))
    ejection = admission.balance.ejection
    assert ejection.calm, "the short way, for as long as it is down"
    assert not ejection.admissible("c", now_s)
    assert ejection.statistics(now_s)["down"] == 1
    asked: list[float] = []
    monkeypatch.setattr(Ejection, "wants_probe", lambda self, now_s: asked.append(now_s))
    for _ in range(50):
        permit = admission.take(now_s + 10.0, now_s)
        assert permit is not None
        assert permit.special is None
        now_s += USUAL_S
        ended(admission, permit, now_s, Outcome.OK)
    assert not asked, "nobody is asked about on the short way"
    admission.update(candidates("a", "b", "c"), now_s)
    assert ejection.standing("c", now_s) == "slow_start"
    assert ejection.weight("c", now_s) == 0.1, "and its slow start is not forgotten"


def house(fleet: HandFleet, clock: ManualClock) -> AdmitLayer:
    answering = ScriptedService()
    return AdmitLayer(
        TrackLayer(answering, clock), model="fraud", pool="gpu", fleet=fleet, queue_max=None,
        clock=clock, wheel=TimerWheel(clock), chance=random.Random(4),
    )  # fmt: skip


def coming_back(state: ModelState, live_s: float) -> ReplicaView:
    view = replica("a", {("fraud", "2"): 4})
    models = {key: replace(model, state=state) for key, model in view.models.items()}
    return replace(view, models=models, phases=Phases(live_s=live_s))


def test_a_replica_that_is_warmed_again_after_it_was_down_starts_slowly() -> None:
    clock, other, well = ManualClock(), replica("b", {("fraud", "2"): 4}), replica("a", {("fraud", "2"): 4})
    fleet = HandFleet(well, other)
    layer = house(fleet, clock)
    layer._desk("2")
    ejection = layer._desks["2"].admission.balance.ejection
    fleet.publish(replace(well, state=ReplicaState.DOWN), other)
    for state in (ReplicaState.SEEN, ReplicaState.CONNECTED):
        clock.advance(1.0)
        fleet.publish(replace(well, state=state), other)
    live_s = clock.now_s()
    for model in (ModelState.UNAVAILABLE, ModelState.LOADING, ModelState.READY):
        clock.advance(LOADS_AGAIN_S * (model is not ModelState.UNAVAILABLE))
        fleet.publish(coming_back(model, live_s), other)
        assert ejection.standing("gpu/a", clock.now_s()) == "down", "it takes no calls yet"
        assert ejection.calm
    fleet.publish(well, other)
    assert ejection.standing("gpu/a", clock.now_s()) == "slow_start"


def test_one_that_comes_back_without_the_version_is_not_counted_for_ever() -> None:
    clock, other, well = ManualClock(), replica("b", {("fraud", "2"): 4}), replica("a", {("fraud", "2"): 4})
    for without in (coming_back(ModelState.UNAVAILABLE, 1000.0), replica("a", {("other", "1"): 4})):
        fleet = HandFleet(well, other)
        layer = house(fleet, clock)
        layer._desk("2")
        fleet.publish(replace(well, state=ReplicaState.DOWN), other)
        fleet.publish(without, other)
        clock.advance(LOADS_AGAIN_S)
        fleet.publish(replace(without, last_error="something else changed"), other)
        figures = layer.statistics(clock.now_s())["2"]["ejection"]
        assert (figures["replicas"], figures["down"]) == (1, 0)
        clock = ManualClock()


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_of_thousands_that_came_and_went_nothing_is_kept() -> None:
    admission, now_s, chance = Admission(random.Random(1)), 10.0, random.Random(2)
    held: list[Permit] = []
    for generation in range(1500):
        names = [f"r-{generation + number}" for number in range(4)]
        down = [f"r-{generation - 1}"] if generation % 3 == 0 else []
        admission.update(candidates(*names), now_s, down)
        for _ in range(3):
            permit = admission.take(now_s + 100.0, now_s)
            if permit is not None:
                held.append(permit)
        now_s += 0.05
        while len(held) > 6:
            outcome = chance.choice((Outcome.OK, Outcome.BROKEN, Outcome.TRANSPORT, Outcome.EXPIRED))
            ended(admission, held.pop(chance.randrange(len(held))), now_s, outcome, 0.05)
    balance = admission.balance
    ejection, known = balance.ejection, balance.picker._known
    sizes = {
        "in flight": len(admission._in_flight),
        "known": len(admission._known),
        "slots": len(balance._slots),
        "breakers": len(ejection._breakers),
        "down": len(ejection._down),
        "ejected": len(ejection._ejected),
        "rows": len(known._by_replica),
    }
    assert {name for name, size in sizes.items() if size > 4 + len(held)} == set(), sizes
    assert len(ejection.news) <= 256
