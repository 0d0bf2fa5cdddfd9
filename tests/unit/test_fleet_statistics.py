"""Statistics and the repository index over a fleet: sums that never go back, shared questions, and who sees what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.fleet import rounds, statistics_ledger
from gateway.fleet.rounds import Rounds
from gateway.fleet.statistics_ledger import StatisticsLedger
from gateway.policy.schema import FileReplicas, Health, Replicas
from gateway.wire.kserve.statistics import ModelStatistics
from tests.simulation.batcher import ModelSpec
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.run import VirtualClock
from tests.simulation.triton import Lie
from tests.unit.fleet_world import POOL, FleetWorld, request, run

A, B = "10.0.0.1", "10.0.0.2"
KEY = ("gpu", "m", "1")

# --- the ledger -----------------------------------------------------------------------------------------------------


def row(count: int, *, memory: int = 0, last: int = 0) -> bytes:
    message = pb.ModelStatistics(name="m", version="1", inference_count=count, execution_count=count)
    message.last_inference = last
    message.inference_stats.success.count, message.inference_stats.success.ns = count, 10 * count
    if memory:
        message.memory_usage.add(type="GPU", id=0, byte_size=memory)
    return bytes(message.SerializeToString())


class Book:
    """A ledger, driven by rounds of answers: replica to its count, None for one that lists nothing."""

    def __init__(self) -> None:
        self.ledger = StatisticsLedger()

    def round(self, present: set[str], **answers: int | None) -> int | None:
        for replica, count in answers.items():
            self.ledger.record(replica, {} if count is None else {KEY: row(count)})
        self.ledger.settle(present)
        total = self.total
        return None if total is None else total.inference_count

    @property
    def total(self) -> ModelStatistics | None:
        return self.ledger.totals().get(KEY)


def test_answers_are_added_and_a_silent_replica_counts_with_what_it_said_last() -> None:
    book = Book()
    assert book.round({"a", "b"}, a=5, b=7) == 12
    assert book.round({"a", "b"}, a=6) == 13
    assert book.round({"a", "b"}, a=6, b=9) == 15


def test_what_was_counted_before_a_new_start_stays_in() -> None:
    book = Book()
    book.round({"a", "b"}, a=5, b=7)
    assert book.round({"a", "b"}, a=1, b=7) == 13
    assert book.round({"a", "b"}, a=4, b=7) == 16
    assert book.round({"a", "b"}, a=0, b=8) == 17


def test_what_a_replica_counted_that_left_stays_in_and_is_not_counted_twice_when_it_returns() -> None:
    book = Book()
    book.round({"a", "b"}, a=5, b=7)
    assert book.round({"b"}, b=8) == 13
    assert book.round({"a", "b"}, a=9, b=8) == 17, "its counters went on where they were"
    assert book.round({"b"}, b=8) == 17
    assert book.round({"a", "b"}, a=2, b=8) == 19, "its counters began anew"


def test_a_version_that_nobody_lists_is_forgotten() -> None:
    book = Book()
    book.round({"a", "b"}, a=5, b=7)
    assert book.round({"a", "b"}, a=None, b=7) == 12, "loaded still somewhere"
    assert book.round({"a", "b"}, a=None, b=None) is None
    assert book.round({"a", "b"}, a=1, b=None) == 1
    assert book.round(set()) is None


def test_memory_is_what_is_used_now() -> None:
    book = Book()
    for replica in ("a", "b"):
        book.ledger.record(replica, {KEY: row(3, memory=100)})
    book.ledger.settle({"a", "b"})
    assert book.total is not None
    assert dict(book.total.memory) == {("GPU", 0): 200}
    book.ledger.settle({"a"})
    assert dict(book.total.memory) == {("GPU", 0): 100}
    assert book.total.inference_count == 6


def test_of_many_departed_replicas_only_the_sum_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_ledger, "DEPARTED_MAX", 3)
    book = Book()
    for number in range(20):
        assert book.round({"a", f"r{number}"}, a=1, **{f"r{number}": 10}) == 1 + 10 * (number + 1)
    assert len(book.ledger._accounts) == 2 + 3
    assert book.round({"a"}, a=None) is None
    assert not book.ledger._older
    assert list(book.ledger._accounts) == ["a"]


def test_an_answer_that_cannot_be_read_changes_nothing() -> None:
    book = Book()
    book.round({"a"}, a=5)
    with pytest.raises(GatewayError):
        book.ledger.record("a", {KEY: b"\x0a\x05a"})
    assert book.round({"a"}) == 5


events = st.lists(
    st.tuples(st.sampled_from(["run", "silent", "restart", "leave", "return"]), st.integers(0, 2), st.integers(1, 9)),
    max_size=40,
)


@given(events)
@settings(max_examples=200)
def test_the_sum_never_goes_back_and_never_counts_more_than_was_run(history: list[tuple[str, int, int]]) -> None:
    book, last = Book(), 0
    counters, present, ran = [0, 0, 0], [True, True, True], 0
    for kind, number, amount in history:
        heard = [True] * 3
        if kind == "run":
            counters[number] += amount
            ran += amount
        elif kind == "restart":
            counters[number] = 0
        elif kind == "silent":
            heard[number] = False
        elif kind == "leave" and sum(present) > 1:
            present[number] = False
        elif kind == "return":
            present[number] = True
        names = {f"r{each}" for each in range(3) if present[each]}
        answers = {f"r{each}": counters[each] for each in range(3) if present[each] and heard[each]}
        total = book.round(names, **answers)
        if total is not None:
            assert last <= total <= ran
            last = total


# --- rounds ---------------------------------------------------------------------------------------------------------


class Asked:
    """A question of 0.1 s that notes when it began, and answers with that time."""

    def __init__(self, loop: SimulationLoop) -> None:
        self.loop = loop
        self.origin_s = loop.time()
        self.began_s: list[float] = []
        self.out = 0
        self.cancelled = 0
        self.fault: Exception | None = None
        self.work_s = 0.0
        self.rounds = Rounds(self._ask, VirtualClock(loop))

    def now_s(self) -> float:
        return round(self.loop.time() - self.origin_s, 6)

    async def _ask(self) -> float:
        began_s = self.now_s()
        self.began_s.append(began_s)
        self.out += 1
        assert self.out == 1, "two rounds at once"
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.out -= 1
        if self.fault is not None:
            raise self.fault
        if self.work_s:
            self.rounds.rest(self.work_s)
        return began_s


def on_rounds(main: Callable[[Asked], Awaitable[None]]) -> None:
    async def body(loop: SimulationLoop) -> None:
        async with asyncio.timeout(100):
            await main(Asked(loop))

    simulate(body, seed=1)


def test_an_answer_always_began_after_its_question() -> None:
    async def main(asked: Asked) -> None:
        async def one(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            at_s = asked.now_s()
            assert await asked.rounds.fresh() >= at_s

        await asyncio.gather(*(one(0.003 * number) for number in range(200)))
        assert len(asked.began_s) <= 0.6 / 0.1 + 3

    on_rounds(main)


def test_those_who_ask_while_a_question_is_out_share_the_next_one() -> None:
    async def main(asked: Asked) -> None:
        first = asyncio.ensure_future(asked.rounds.fresh())
        await asyncio.sleep(0.01)
        others = await asyncio.gather(*(asked.rounds.fresh() for _ in range(1000)))
        assert await first == 0.0
        assert set(others) == {asked.began_s[1]}
        assert len(asked.began_s) == 2

    on_rounds(main)


def test_rounds_pause_and_the_more_so_the_more_work_they_are() -> None:
    async def main(asked: Asked) -> None:
        for work_s, gap_s in ((0.0, 0.1), (0.02, 0.18), (10.0, rounds.REST_MAX_S)):
            asked.work_s = work_s
            before_s = await asked.rounds.fresh()
            asked.work_s = 0.0
            assert await asked.rounds.fresh() - before_s == pytest.approx(gap_s, abs=1e-5)
            await asyncio.sleep(5)

    on_rounds(main)


def test_a_question_for_which_nobody_waits_any_more_is_cancelled() -> None:
    async def main(asked: Asked) -> None:
        waiting = [asyncio.ensure_future(asked.rounds.fresh()) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in waiting[:2]:
            task.cancel()
        await asyncio.sleep(0.01)
        assert (asked.out, asked.cancelled) == (1, 0), "somebody still waits"
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0)
        assert (asked.out, asked.cancelled) == (0, 1)
        assert await asked.rounds.fresh() > 0, "and the next one is asked as ever"

    on_rounds(main)


def test_whoever_asks_while_a_cancelled_question_ends_is_answered() -> None:
    async def main(asked: Asked) -> None:
        leaving = asyncio.ensure_future(asked.rounds.fresh())
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.sleep(0)
        assert await asked.rounds.fresh() >= 0.01

    on_rounds(main)


def test_a_fault_is_told_to_all_who_waited_and_the_next_round_is_asked() -> None:
    async def main(asked: Asked) -> None:
        asked.fault = ValueError("broken")
        told = await asyncio.gather(*(asked.rounds.fresh() for _ in range(3)), return_exceptions=True)
        assert told == [asked.fault] * 3
        asked.fault = None
        assert await asked.rounds.fresh() > 0

    on_rounds(main)


def test_at_the_end_nothing_is_out_and_nobody_waits() -> None:
    async def main(asked: Asked) -> None:
        waiting = [asyncio.ensure_future(asked.rounds.fresh())]
        await asyncio.sleep(0.01)
        waiting.append(asyncio.ensure_future(asked.rounds.fresh()))
        await asyncio.sleep(0.01)
        await asked.rounds.aclose()
        assert (asked.out, asked.cancelled) == (0, 1)
        told: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        assert [error.reason for error in told] == [Reason.DRAINING] * 2
        with pytest.raises(GatewayError):
            await asked.rounds.fresh()

    on_rounds(main)


# --- the fleet ------------------------------------------------------------------------------------------------------


async def statistics(
    world: FleetWorld, model: str = "", version: str = "", identity: Identity = ANONYMOUS
) -> dict[tuple[str, str], pb.ModelStatistics]:
    answer = await world.catalogue.model_statistics(model, version, identity)
    response = pb.ModelStatisticsResponse.FromString(answer.proto)
    assert json_format.ParseDict(json.loads(answer.json), pb.ModelStatisticsResponse()) == response
    return {(each.name, each.version): each for each in response.model_stats}


async def index(world: FleetWorld, *, ready: bool = False, identity: Identity = ANONYMOUS) -> list[tuple[str, ...]]:
    message = await world.catalogue.repository_index(ready, identity)
    found = pb.RepositoryIndexResponse.FromString(message).models
    return [(each.name, each.version, each.state, each.reason) for each in found]


async def error_of(work: Awaitable[object]) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await work
    assert "10.0.0" not in caught.value.message
    return caught.value


async def infer(world: FleetWorld, host: str, count: int, model: str = "m", version: str = "") -> None:
    connection = world.directory.connection(f"{POOL}/{host}:8001")
    assert connection is not None
    for number in range(count):
        await connection.client.infer(request(model, f"{number}".encode(), version), (), 5.0)


async def served(world: FleetWorld, *hosts: str, model: str = "m") -> None:
    await world.until(lambda: world.takers(model) == set(hosts))


def test_calls_to_any_replica_are_counted_in_the_sum() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        before = (await statistics(world, "m"))["m", "1"]
        await infer(world, A, 3)
        await infer(world, B, 4)
        after = (await statistics(world, "m", "1"))["m", "1"]
        assert after.inference_count - before.inference_count == 7
        assert after.inference_stats.success.count - before.inference_stats.success.count == 7
        hosts = [world.tritons[host].counts_of("m", "1") for host in (A, B)]
        assert after.execution_count == sum(each.executions for each in hosts)
        assert after.inference_stats.queue.ns == 1000 * sum(each.queue_us for each in hosts)
        assert {each.batch_size: each.compute_infer.count for each in after.batch_stats} == dict(
            hosts[0].batches + hosts[1].batches
        )

    run(main)


def test_all_models_are_in_the_order_of_name_and_version() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m", "10") == {A, B} and world.takers("b") == {A, B})
        assert list(await statistics(world)) == [("b", "1"), ("m", "2"), ("m", "10")]
        assert list(await statistics(world, "", "2")) == [("b", "1"), ("m", "2"), ("m", "10")], "as on Triton"
        assert list(await statistics(world, "m")) == [("m", "2"), ("m", "10")]
        assert await index(world) == [("b", "1", "READY", ""), ("m", "2", "READY", ""), ("m", "10", "READY", "")]

    run(main, ModelSpec("m", versions=("2", "10")), ModelSpec("b"))


def test_callers_see_only_what_policies_open_and_they_may_call() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        await served(world, A, B, model="other")
        world.tritons[A].models["stray"] = {"1": world.tritons[A].models["m"]["1"]}
        some = Identity("t", frozenset({"other"}))
        assert list(await statistics(world)) == [("m", "1"), ("other", "1")]
        assert list(await statistics(world, identity=some)) == [("other", "1")]
        assert [line[:3] for line in await index(world)] == [("m", "1", "READY"), ("other", "1", "READY")]
        assert [line[0] for line in await index(world, identity=some)] == ["other"]
        assert (await error_of(statistics(world, "m", "2"))).reason is Reason.UNKNOWN_VERSION

    run(main, ModelSpec("m", versions=("1", "2")), ModelSpec("other"), policies={"m": {"versions": ("1",)}})


def test_unknown_models_are_the_callers_fault_and_cost_the_fleet_nothing() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        asked = _count_questions(world)
        error = await error_of(statistics(world, "nope"))
        assert (error.reason, error.code) == (Reason.UNKNOWN_MODEL, Code.INVALID_ARGUMENT)
        assert error.message == "requested model 'nope' is not available"
        assert not asked
        error = await error_of(statistics(world, "m", "7"))
        assert (error.reason, error.code) == (Reason.UNKNOWN_VERSION, Code.INVALID_ARGUMENT)
        assert error.message == "requested model version is not available for model 'm'"

    run(main)


def test_a_model_that_is_away_is_503_and_not_unknown() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        for host in (A, B):
            world.tritons[host].unload("m")
        for version in ("", "1"):
            error = await error_of(statistics(world, "m", version))
            assert (error.reason, error.code) == (Reason.NO_REPLICA, Code.UNAVAILABLE)
        assert await statistics(world) == {}
        assert await index(world) == [("m", "1", "UNAVAILABLE", "unloaded")]
        assert await index(world, ready=True) == []

    run(main)


def test_a_replica_that_does_not_answer_counts_with_its_last_word_within_the_time_limit() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        await infer(world, A, 2)
        await infer(world, B, 2)
        before = (await statistics(world, "m"))["m", "1"].inference_count
        world.tritons[B].freeze()
        await infer(world, A, 3)
        at_s = world.loop.time()
        assert (await statistics(world, "m"))["m", "1"].inference_count == before + 3
        assert world.loop.time() - at_s < 0.6
        await world.until(lambda: world.takers("m") == {A}, 5)
        assert (await statistics(world, "m"))["m", "1"].inference_count == before + 3, "down, and in the fleet"
        world.tritons[B].thaw()
        await served(world, A, B)
        assert (await statistics(world, "m"))["m", "1"].inference_count >= before + 3

    run(main)


def test_counts_do_not_go_back_when_a_replica_is_started_anew() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        await infer(world, B, 9)
        before = (await statistics(world, "m"))["m", "1"].inference_count
        world.tritons[B].crash()
        world.tritons[B].start()
        await world.until(lambda: world.takers("m") == {A}, 5)
        await served(world, A, B)
        after = (await statistics(world, "m"))["m", "1"]
        lives = sum(world.tritons[host].counts_of("m", "1").inferences for host in (A, B))
        assert after.inference_count > before
        assert after.inference_count == before + lives - world.tritons[A].counts_of("m", "1").inferences

    run(main)


def test_counts_do_not_go_back_when_a_replica_leaves() -> None:
    def addresses(*hosts: str) -> bytes:
        return ("[" + ",".join(f'{{"grpc":"{h}:8001","http":"{h}:8000"}}' for h in hosts) + "]").encode()

    async def main(world: FleetWorld) -> None:
        world.files.contents["/policies/replicas.json"] = addresses(A, B)
        await served(world, A, B)
        await infer(world, B, 9)
        before = (await statistics(world, "m"))["m", "1"].inference_count
        world.files.contents["/policies/replicas.json"] = addresses(A)
        await world.until(lambda: world.replica(B) is None, 5)
        await infer(world, A, 1)
        assert (await statistics(world, "m"))["m", "1"].inference_count == before + 1
        world.files.contents["/policies/replicas.json"] = addresses(A, B)
        await served(world, A, B)
        now = sum(world.tritons[host].counts_of("m", "1").inferences for host in (A, B))
        assert (await statistics(world, "m"))["m", "1"].inference_count == now, "nothing is counted twice"

    run(main, replicas=Replicas(file=FileReplicas(path="replicas.json", refresh_s=0.2)))


def test_when_nobody_answers_that_is_said() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        await statistics(world)
        for host in (A, B):
            world.tritons[host].freeze()
        for what, work in (("statistics", statistics(world)), ("statistics", statistics(world, "m"))):
            error = await error_of(work)
            assert (error.reason, error.code) == (Reason.NO_REPLICA, Code.UNAVAILABLE)
            assert f"none of 2 model servers answered the question for {what}" in error.message
        assert "the repository index" in (await error_of(index(world))).message
        for host in (A, B):
            world.tritons[host].thaw()

    run(main)


def test_before_any_replica_is_there_the_answer_is_503() -> None:
    async def main(world: FleetWorld) -> None:
        assert (await error_of(statistics(world))).reason is Reason.NO_REPLICA
        assert (await error_of(index(world))).reason is Reason.NO_REPLICA

    run(main, start=False)


def _count_questions(world: FleetWorld) -> list[str]:
    """Notes every question for statistics that reaches a server, from now on."""
    asked: list[str] = []
    for host, triton in world.tritons.items():

        def noted(name: str, asked_for: str, host: str = host, ask: Any = triton.statistics) -> bytes:
            asked.append(host)
            return bytes(ask(name, asked_for))

        triton.statistics = noted  # type: ignore[method-assign, assignment]
    return asked


def test_a_flood_of_questions_is_one_question_at_a_time_to_the_fleet() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        asked = _count_questions(world)
        began_s = world.loop.time()
        for _ in range(10):
            await asyncio.gather(*(statistics(world, "m") for _ in range(300)))
        took_s = world.loop.time() - began_s
        assert len(asked) == 2 * 10
        assert len(asked) / 2 <= took_s / rounds.REST_MIN_S + 1

    run(main)


def test_a_caller_that_leaves_takes_the_question_back() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        await asyncio.sleep(1)
        for host in (A, B):
            world.tritons[host].freeze()
        for ask in (statistics(world), index(world)):
            task = asyncio.ensure_future(ask)
            await asyncio.sleep(0.001)
            others = world.network.open_calls
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert world.network.open_calls <= others - 2
        for host in (A, B):
            world.tritons[host].thaw()

    run(main, health=Health(interval_ms=60_000))


def test_an_answer_that_makes_no_sense_counts_as_none() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        before = (await statistics(world, "m"))["m", "1"].inference_count
        for host in (A, B):
            world.tritons[host].statistics = lambda name, asked: b"\xff\xff"  # type: ignore[method-assign]
        assert (await error_of(statistics(world, "m"))).reason is Reason.NO_REPLICA
        del world.tritons[A].statistics
        assert (await statistics(world, "m"))["m", "1"].inference_count == before

    run(main)


def test_a_version_is_ready_in_the_index_when_the_gateway_sends_calls_there() -> None:
    async def main(world: FleetWorld) -> None:
        for host in (A, B):
            world.tritons[host].lie = Lie.FAST_ERRORS
        await world.until(lambda: world.model_state(A, "m") is not None and world.model_state(B, "m") is not None)
        await asyncio.sleep(1)
        ((name, version, state, reason),) = await index(world)
        assert (name, version, state) == ("m", "1", "LOADING")
        assert "ready on the model server, not in service here: warm-up" in reason
        assert await index(world, ready=True) == []
        world.tritons[A].lie = Lie.NONE
        await served(world, A)
        ((name, version, state, reason),) = await index(world)
        assert (name, version, state) == ("m", "1", "READY")
        assert reason.startswith("of 2 replicas: READY on 1; LOADING on 1: ")
        world.tritons[B].lie = Lie.NONE
        await served(world, A, B)
        assert await index(world, ready=True) == [("m", "1", "READY", "")]

    run(main)


def test_the_index_tells_of_replicas_that_failed_to_load_and_of_silent_ones() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        world.tritons[A].load("m", "2")
        world.tritons[B].load("m", "2", broken=True)
        await world.until(lambda: world.takers("m", "2") == {A}, 5)
        lines = await index(world)
        assert [line[:3] for line in lines] == [("m", "1", "READY"), ("m", "2", "READY")]
        assert "UNAVAILABLE on 1: Internal: failed to load the model" in lines[1][3]
        world.tritons[B].freeze()
        lines = await index(world)
        assert "READY on 1" in lines[1][3]
        assert "no answer from 1" in lines[1][3]
        world.tritons[B].thaw()

    run(main)


def test_a_model_that_was_never_loaded_has_a_line_without_a_version() -> None:
    async def main(world: FleetWorld) -> None:
        await served(world, A, B)
        assert ("idle", "", "", "") in await index(world)

    run(main, ModelSpec("m"), ModelSpec("idle", named_at_start=False))
