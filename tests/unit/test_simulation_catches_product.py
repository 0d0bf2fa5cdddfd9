"""The simulation of the real house finds faults planted in the product's own code."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.faces import IndexEntry
from gateway.core.permit import Permit
from gateway.decide.admission import Admission
from gateway.edge.http_call import HttpCall
from gateway.fleet.prober import Prober
from gateway.fleet.replica import Replica
from gateway.fleet.transport import ReplicaTransport
from gateway.records.log import RecordLog
from gateway.records.record import PredictionRecord
from gateway.runtime.scope import DeadlineScope
from gateway.runtime.wheel import Timer
from tests.unit.simulation_findings import finds, verdict

DIRECT = range(0, 16, 2)
BYTES = range(1, 17, 2)


def test_the_real_house_passes_every_check_by_both_entrances() -> None:
    assert verdict(range(2)) == ""  # one seed by each; many more are among the thousand


@pytest.mark.parametrize("seeds", [DIRECT, BYTES])
def test_a_leaked_permit_is_found(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    sound = Admission.give_back
    count = 0

    def leaky(self: Admission, permit: Permit, now_s: float) -> None:
        nonlocal count
        count += 1
        if count % 50:
            sound(self, permit, now_s)

    monkeypatch.setattr(Admission, "give_back", leaky)
    assert finds("slots are held, but", seeds)


def test_timers_left_on_the_wheel_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "cancel", lambda self: None)
    assert finds("timers on the wheel", DIRECT)


def test_a_deadline_that_does_not_fire_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeadlineScope, "fire", lambda self: None)
    assert finds("no_answer_after_the_deadline", DIRECT)


def test_memory_of_bodies_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpCall, "_release", lambda self: None)
    assert finds("bytes of bodies", BYTES)


def test_work_for_a_client_that_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def indifferent(self: HttpCall) -> None:
        self.call.abandoned = True

    monkeypatch.setattr(HttpCall, "abandon", indifferent)
    assert finds("too long after its client left", range(1, 81, 2))


def test_an_answer_that_lies_about_its_version_is_found_if_it_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaTransport, "_wrong", lambda *_: None)
    assert finds("the_answer_is_the_questions_own", range(40))


def test_a_replica_that_is_never_found_to_be_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "not_live", lambda self, *_, **__: None)
    monkeypatch.setattr(Replica, "_against", lambda self, *_: None)
    assert finds("has not been able to answer", range(40))


def test_a_model_version_that_is_never_warmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Replica.to_warm

    def forgetful(self: Replica) -> list[Any]:
        return [each for each in sound(self) if self.life == 0]

    monkeypatch.setattr(Replica, "to_warm", forgetful)
    assert finds("gets no calls of", range(40))


def test_a_background_job_that_fails_is_found_although_it_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Prober._index
    count = 0

    async def fragile(self: Prober) -> list[IndexEntry]:
        nonlocal count
        count += 1
        if count % 20 == 0:
            raise KeyError("planted")
        return await sound(self)

    monkeypatch.setattr(Prober, "_index", fragile)
    assert finds("logged by sluice.supervisor", range(2))


def test_a_lost_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = RecordLog.offer

    def forgetful(self: RecordLog, record: PredictionRecord) -> bool:
        return True if record.request_id.endswith("7") else sound(self, record)

    monkeypatch.setattr(RecordLog, "offer", forgetful)
    assert finds("records are missing, 0 dropped", DIRECT)


def test_a_response_written_for_a_call_that_has_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = HttpCall._end

    def again(self: HttpCall) -> None:
        sound(self)
        if self.answered and self.call.request_id.endswith("3") and self.call.trail.reason is None:
            self._outlet._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")  # type: ignore[attr-defined]

    monkeypatch.setattr(HttpCall, "_end", again)
    assert finds("bytes came over HTTP that no request asked for", BYTES)


def test_a_fault_of_the_gateway_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PredictionRecord, *_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(PredictionRecord, "__init__", broken)
    assert finds("planted", range(1))
