"""The simulation finds nothing in a sound house, and finds every fault that is planted in it."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.core.snapshot import ReplicaView
from gateway.decide.admission import Admission
from gateway.decide.balance import Balance
from gateway.decide.ticket import Ticket
from gateway.layers import record
from gateway.layers.desk import AdmissionDesk
from gateway.runtime.scope import DeadlineScope
from tests.simulation import runner
from tests.simulation.network import NetworkClient
from tests.simulation.run import House, World
from tests.simulation.small_house import SmallFleet, SmallHouse
from tests.unit.simulation_findings import finds, verdict

SEEDS = range(30)
ROOT = Path(__file__).resolve().parents[2]

Send = Callable[[Service, Call], Any]


class Wrapped:
    """A layer made of one function."""

    def __init__(self, inner: Service, send: Send) -> None:
        self.inner, self._send = inner, send

    async def send(self, call: Call) -> Reply:
        reply: Reply = await self._send(self.inner, call)
        return reply


def below(send: Send) -> Callable[[World], House]:
    """A house with `send` between the layers and the transport."""
    return lambda world: SmallHouse(world, wrap_transport=lambda inner: Wrapped(inner, send))


def above(send: Send) -> Callable[[World], House]:
    """A house with `send` outside of all layers."""
    return lambda world: SmallHouse(world, wrap_service=lambda inner: Wrapped(inner, send))


def test_a_sound_house_passes_every_check() -> None:
    assert verdict(range(40), SmallHouse) == ""


def test_a_leaked_permit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Admission.give_back
    count = 0

    def leaky(self: Admission, permit: Permit, now_s: float) -> None:
        nonlocal count
        count += 1
        if count % 50:
            sound(self, permit, now_s)

    monkeypatch.setattr(Admission, "give_back", leaky)
    assert finds("slots are held, but", SEEDS, SmallHouse)


def test_a_permit_leaked_at_the_very_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SmallHouse.stop

    async def leaky(self: SmallHouse) -> None:
        await sound(self)
        for layer in self.stack.admissions.values():
            for desk in layer._desks.values():
                desk.admission.offer(Ticket(0.0, 1e9), 0.0)

    monkeypatch.setattr(SmallHouse, "stop", leaky)
    assert finds("left behind: ", SEEDS, SmallHouse)


def test_a_lost_wake_up_is_found_although_deadlines_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = AdmissionDesk.wake

    def forgetful(self: AdmissionDesk) -> None:
        self.admission.decided = [each for each in self.admission.decided if int(each.offered_s * 1e6) % 3]
        sound(self)

    monkeypatch.setattr(AdmissionDesk, "wake", forgetful)
    assert finds("slots are held, but", SEEDS, SmallHouse)


def test_a_free_slot_beside_a_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Admission.give_back

    def lazy(self: Admission, permit: Permit, now_s: float) -> None:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Admission, "_serve", lambda self, now_s: None)
            sound(self, permit, now_s)

    monkeypatch.setattr(Admission, "give_back", lazy)
    assert finds("calls wait although a slot is free", SEEDS, SmallHouse)


def test_more_calls_than_slots_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Balance, "pick", lambda self, held, now_s, **how: self._candidates[0].replica if self._candidates else None
    )
    assert finds("calls in flight on", SEEDS, SmallHouse)


def test_an_overfull_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "queue_max_of", lambda self, limit: 10_000)
    assert finds("queues_keep_their_bound", SEEDS, SmallHouse)


def test_two_records_of_one_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = record.RecordLayer._end

    def twice(self: record.RecordLayer, call: Call, *rest: Any) -> None:
        sound(self, call, *rest)
        if call.request_id.endswith("7"):
            sound(self, call, *rest)

    monkeypatch.setattr(record.RecordLayer, "_end", twice)
    assert finds("one_record: ", SEEDS, SmallHouse)


def test_a_missing_record_of_a_client_that_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = record.RecordLayer._end

    def forgetful(self: record.RecordLayer, call: Call, outcome: Outcome, *rest: Any) -> None:
        if outcome is not Outcome.ABANDONED:
            sound(self, call, outcome, *rest)

    monkeypatch.setattr(record.RecordLayer, "_end", forgetful)
    assert finds("records are missing, 0 dropped", SEEDS, SmallHouse)


def test_an_answer_after_the_deadline_is_found() -> None:
    async def generous(inner: Service, call: Call) -> Reply:
        reply = await inner.send(call)
        call.deadline_s += 10.0
        await asyncio.sleep(0.05)
        return reply

    assert finds("no_answer_after_the_deadline: call-", SEEDS, above(generous))


def test_a_deadline_that_does_not_fire_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeadlineScope, "fire", lambda self: None)
    assert finds("ms after its deadline", SEEDS, SmallHouse)


def test_swapped_answers_are_found() -> None:
    last: list[bytes] = []

    async def swap(inner: Service, call: Call) -> Reply:
        reply = await inner.send(call)
        last.append(reply.message)
        return Reply(last[-2] if len(last) % 10 == 0 else reply.message)

    assert finds("the_answer_is_the_questions_own", SEEDS, below(swap))


def test_a_record_that_names_another_version_than_the_one_that_ran_is_found() -> None:
    async def confused(inner: Service, call: Call) -> Reply:
        reply = await inner.send(call)
        call.trail.version_served = "1"
        return reply

    assert finds("the record says version '1'", SEEDS, below(confused))


def test_a_call_sent_twice_is_found() -> None:
    async def double(inner: Service, call: Call) -> Reply:
        if call.request_id.endswith("5"):
            await inner.send(call)
        return await inner.send(call)

    assert finds("nothing_runs_oftener_than_it_was_sent", SEEDS, below(double))


def test_an_attempt_that_outlives_its_call_is_found() -> None:
    async def shielded(inner: Service, call: Call) -> Reply:
        return await asyncio.shield(asyncio.ensure_future(inner.send(call)))

    assert finds("slots are held, but", SEEDS, below(shielded)), "the attempt runs on after its slot was given back"


def test_a_cancel_that_does_not_reach_the_replica_is_not_mistaken_for_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = NetworkClient.aclose

    async def leave_open(self: NetworkClient) -> None:
        await sound(self)
        self.calls[object()] = None  # type: ignore[index]

    monkeypatch.setattr(NetworkClient, "aclose", leave_open)
    assert finds("upstream calls are still out", range(2), SmallHouse)


def test_calls_to_a_replica_that_is_long_gone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SmallFleet._look

    async def stubborn(self: SmallFleet, machine: str, client: NetworkClient) -> ReplicaView | None:
        return await sound(self, machine, client) or self.views.get(machine)

    monkeypatch.setattr(SmallFleet, "_look", stubborn)
    assert finds("which has not been able to answer for", range(30), SmallHouse)


def test_a_fleet_that_never_comes_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SmallFleet._look

    async def grudge(self: SmallFleet, machine: str, client: NetworkClient) -> ReplicaView | None:
        if getattr(client, "grudge", False):
            return None
        view = await sound(self, machine, client)
        if view is None and self.views.get(machine) is not None:
            client.grudge = True  # type: ignore[attr-defined]
        return view

    monkeypatch.setattr(SmallFleet, "_look", grudge)
    assert finds("gets no calls of model-a 1 yet, 5 s after the last fault", range(30), SmallHouse)


def test_a_background_job_that_died_unnoticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SmallHouse.start

    async def start(self: SmallHouse) -> None:
        await sound(self)

        async def job() -> None:
            raise OSError("planted")

        asyncio.ensure_future(job())  # noqa: RUF006

    monkeypatch.setattr(SmallHouse, "start", start)
    assert finds("exception was never retrieved: OSError: planted", range(1), SmallHouse)


def test_a_task_left_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SmallHouse.start

    async def start(self: SmallHouse) -> None:
        await sound(self)
        asyncio.ensure_future(asyncio.sleep(3600))  # noqa: RUF006

    monkeypatch.setattr(SmallHouse, "start", start)
    assert finds("task left over", range(1), SmallHouse)


async def _by_the_wall_clock(inner: Service, call: Call) -> Reply:
    await asyncio.sleep((time.perf_counter_ns() % 1000) * 1e-7)
    return await inner.send(call)


async def _by_unseeded_chance(inner: Service, call: Call) -> Reply:
    await asyncio.sleep(random.random() * 1e-4)
    return await inner.send(call)


async def _by_memory_addresses(inner: Service, call: Call) -> Reply:
    keep.append(object())
    await asyncio.sleep((id(keep[-1]) // 16 % 997) * 1e-7)
    return await inner.send(call)


keep: list[object] = []


@pytest.mark.parametrize("send", [_by_the_wall_clock, _by_unseeded_chance, _by_memory_addresses])
def test_whatever_the_seed_does_not_decide_makes_two_runs_differ(send: Send) -> None:
    assert "two runs of one seed differ" in verdict(range(2), above(send))


def test_a_failed_seed_is_explained_with_its_trace_and_its_replay() -> None:
    async def broken(inner: Service, call: Call) -> Reply:
        raise ZeroDivisionError("planted")

    text = runner.explain(runner.judge(4, below(broken)))
    assert text.startswith("seed 4 FAILED")
    assert "ZeroDivisionError: planted" in text
    assert " ms  ended  " in text
    assert text.endswith("replay: python -m tests.simulation --seed 4 --trace")


def test_the_command_exits_with_1_if_a_seed_fails_and_with_0_if_none_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "pinned", list)
    out = tmp_path / "out.json"
    assert runner.main(["--seeds", "2", "--jobs", "1", "--json", str(out)]) == 0
    assert '"failed": 0' in out.read_text()
    capsys.readouterr()
    monkeypatch.setattr(DeadlineScope, "fire", lambda self: None)
    assert runner.main(["--seeds", "3", "--jobs", "1"]) == 1
    assert "replay: python -m tests.simulation --seed " in capsys.readouterr().out


def test_pinned_seeds_are_run_besides_those_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("# head\n\n1   # inside the range\n70001 # outside\n")
    monkeypatch.setattr(runner, "PINNED", pins)
    assert runner.main(["--seeds", "2", "--jobs", "1", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["seed"] for each in report["seeds"]] == [70001, 0, 1]


def test_a_replay_in_another_process_with_other_string_hashes_gives_the_same_trace() -> None:
    code = "from tests.simulation.runner import judge; print([judge(seed).digest for seed in range(6)])"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert "''" not in digests.pop(), "a run that failed has no digest"
