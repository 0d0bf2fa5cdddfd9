"""The in-memory Triton keeps the rules of the real one, each rule a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Attempt
from gateway.core.codes import Code
from gateway.core.faces import Endpoints
from gateway.core.faults import UpstreamFault, classify
from gateway.core.outcome import Outcome
from gateway.core.restraint import Free
from tests.simulation.batcher import ModelSpec, answer_digest
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.network import Exchange, Network, NetworkClient
from tests.simulation.trace import Trace
from tests.simulation.triton import Lie, Metrics, Triton

T = TypeVar("T")

ADDRESS = "10.0.0.1:8001"
SLOW = ModelSpec("slow", max_batch_size=4, s0_s=0.1, s1_s=0.0, noise=0.0, load_s=0.2)


def question(
    text: str, model: str = "slow", version: str = "", *, rows: int = 1, width: int = 8, timeout_us: int = 0
) -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=text)
    message.inputs.add(name="x", datatype="UINT8", shape=[rows, width])
    message.raw_input_contents.append(text.encode().ljust(rows * width, b"."))
    if timeout_us:
        message.parameters["timeout"].int64_param = timeout_us
    return bytes(message.SerializeToString())


class Bench:
    """One server, one client, its clock and its log."""

    def __init__(self, loop: SimulationLoop, *specs: ModelSpec) -> None:
        self.loop = loop
        self.trace = Trace(loop.time)
        self.network = Network(loop, "test", self.trace)
        self.server = Triton("t1", specs or (SLOW,), loop, "test", self.trace)
        self.network.machines[ADDRESS] = self.server
        self.client: NetworkClient = self.network.connect(Endpoints(ADDRESS, ""))

    def ask(self, text: str, *, patience_s: float = 30.0, **options: Any) -> asyncio.Task[bytes]:
        return self.loop.create_task(self.client.infer(question(text, **options), (), patience_s))

    def at_s(self) -> float:
        return self.loop.time() - self.trace.origin_s

    def executions(self) -> list[tuple[object, ...]]:
        """(model, version, requests in the batch) of every execution begun."""
        return [fields[1:4] for _, kind, fields in self.trace.events if kind == "execute"]


def on_bench(body: Callable[[Bench], Awaitable[T]], *specs: ModelSpec, started: bool = True, seed: int = 1) -> T:
    async def main(loop: SimulationLoop) -> T:
        bench = Bench(loop, *specs)
        if started:
            bench.server.start()
            await asyncio.sleep(10.0)
            bench.trace.origin_s = loop.time()
        return await body(bench)

    return simulate(main, seed=seed)


async def fault_of(work: Awaitable[object]) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        await work
    return caught.value


def test_an_answer_names_the_version_that_ran_and_belongs_to_its_question() -> None:
    async def body(bench: Bench) -> None:
        answer = pb.ModelInferResponse.FromString(await bench.ask("one"))
        assert (answer.model_name, answer.model_version, answer.id) == ("slow", "1", "one")
        assert answer.raw_output_contents[0] == answer_digest(b"one.....", "slow", "1")

    on_bench(body)


def test_ports_open_only_after_loading() -> None:
    async def body(bench: Bench) -> None:
        bench.server.start()
        await asyncio.sleep(0.1)
        refused = await fault_of(bench.client.server_live(1.0))
        assert (refused.code, refused.sent, refused.from_peer) == (Code.UNAVAILABLE, False, False)
        await asyncio.sleep(0.15)
        assert await bench.client.server_live(1.0)

    on_bench(body, started=False)


def test_waiting_requests_of_equal_shape_are_batched_up_to_the_maximum() -> None:
    async def body(bench: Bench) -> None:
        await asyncio.gather(*(bench.ask(f"q{number}") for number in range(10)))
        assert [size for _, _, size in bench.executions()] == [1, 4, 4, 1]

    on_bench(body)


def test_different_shapes_are_never_in_one_batch() -> None:
    async def body(bench: Bench) -> None:
        asked = []
        for text, width in (("first", 8), ("b", 8), ("c", 16), ("d", 8)):
            asked.append(bench.ask(text, width=width))
            await asyncio.sleep(0.01)
        await asyncio.gather(*asked)
        assert [size for _, _, size in bench.executions()] == [1, 1, 1, 1]

    on_bench(body)


def test_rows_count_against_the_maximum_not_requests() -> None:
    async def body(bench: Bench) -> None:
        first = bench.ask("first")
        await asyncio.sleep(0.01)
        await asyncio.gather(first, *(bench.ask(f"q{number}", rows=2) for number in range(4)))
        assert [size for _, _, size in bench.executions()] == [1, 2, 2]

    on_bench(body)


def test_a_queue_delay_lets_a_batch_fill_or_goes_when_it_is_over() -> None:
    spec = ModelSpec("slow", max_batch_size=4, max_queue_delay_s=0.05, s0_s=0.1, s1_s=0.0, noise=0.0)

    async def body(bench: Bench) -> None:
        early, late = bench.ask("a"), bench.ask("b")
        await asyncio.sleep(0.04)
        assert bench.executions() == []
        await asyncio.gather(early, late)
        assert bench.executions() == [("slow", "1", 2)]
        assert 0.15 <= bench.at_s() < 0.152
        filled = [bench.ask(f"q{number}") for number in range(4)]
        await asyncio.sleep(0.01)
        assert bench.executions()[1:] == [("slow", "1", 4)], "a full batch leaves at once"
        await asyncio.gather(*filled)

    on_bench(body, spec)


def test_instances_run_side_by_side() -> None:
    async def body(bench: Bench) -> None:
        await asyncio.gather(*(bench.ask(f"q{number}", width=8 + number) for number in range(3)))
        assert bench.at_s() < 0.11

    on_bench(body, ModelSpec("slow", instances=3, s0_s=0.1, s1_s=0.0, noise=0.0))


def test_a_full_queue_refuses_in_requests_and_does_not_count_those_that_run() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.01)
        waiting = [bench.ask(f"w{number}", rows=2) for number in range(2)]
        await asyncio.sleep(0.01)
        refused = await fault_of(bench.ask("late"))
        assert (refused.code, refused.from_peer) == (Code.UNAVAILABLE, True)
        assert "Exceeds maximum queue size" in refused.text
        assert classify(refused).outcome is Outcome.OVERLOAD
        await asyncio.gather(running, *waiting)

    on_bench(body, ModelSpec("slow", max_batch_size=4, max_queue_size=2, s0_s=0.1, noise=0.0))


def test_without_dynamic_batching_the_queue_is_unbounded_and_runs_one_by_one() -> None:
    async def body(bench: Bench) -> None:
        await asyncio.gather(*(bench.ask(f"q{number}") for number in range(9)))
        assert [size for _, _, size in bench.executions()] == [1] * 9

    on_bench(body, ModelSpec("slow", dynamic_batching=False, max_queue_size=2, s0_s=0.01, noise=0.0))


@pytest.mark.parametrize(("dynamic", "executed"), [(True, 0), (False, 1)])
def test_a_cancel_removes_a_queued_request_only_with_dynamic_batching(dynamic: bool, executed: int) -> None:
    async def body(bench: Bench) -> None:
        running, queued = bench.ask("running"), bench.ask("queued", width=16)
        await asyncio.sleep(0.05)
        queued.cancel()
        await running
        await asyncio.sleep(1.0)
        assert bench.server.executed[b"queued".ljust(16, b".")] == executed
        assert bench.network.open_calls == 0

    on_bench(body, ModelSpec("slow", dynamic_batching=dynamic, s0_s=0.1, noise=0.0))


@pytest.mark.parametrize("seed", range(20))
def test_a_cancel_never_overtakes_its_request(seed: int) -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.01)
        for number in range(20):
            queued = bench.ask(f"q{number}", width=16)
            await asyncio.sleep(0)
            queued.cancel()
        await running
        await asyncio.sleep(1.0)
        assert len(bench.executions()) == 1

    on_bench(body, seed=seed)


def test_a_cancel_does_not_stop_what_runs_and_frees_the_instance_no_sooner() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.02)
        running.cancel()
        await bench.ask("next")
        assert bench.at_s() >= 0.2
        assert bench.executions() == [("slow", "1", 1), ("slow", "1", 1)]

    on_bench(body)


def test_a_deadline_passing_at_the_client_is_its_own_fault_and_cancels_on_the_server() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        expired = await fault_of(bench.ask("queued", width=16, patience_s=0.03))
        assert (expired.code, expired.from_peer) == (Code.DEADLINE_EXCEEDED, False)
        await running
        await asyncio.sleep(0.6)
        assert len(bench.executions()) == 1

    on_bench(body)


def queue_timeout_spec(default_s: float, override: bool) -> ModelSpec:
    return ModelSpec("slow", default_timeout_s=default_s, allow_timeout_override=override, s0_s=2.0, noise=0.0)


@pytest.mark.parametrize(
    ("default_s", "override", "own_us", "expires"),
    [
        (1.0, False, 0, True),
        (1.0, True, 100_000, True),
        (60.0, True, 100_000, True),
        (60.0, False, 100_000, False),
        (0.0, True, 100_000, False),
        (1.0, True, 90_000_000, True),
    ],
)
def test_a_queue_timeout_needs_a_default_and_may_only_be_shortened(
    default_s: float, override: bool, own_us: int, expires: bool
) -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.01)
        queued = bench.ask("queued", width=16, timeout_us=own_us)
        if expires:
            fault = await fault_of(queued)
            assert (fault.code, fault.text) == (Code.UNAVAILABLE, "Request timeout expired")
            limit_s = min(default_s, own_us * 1e-6 or default_s)
            assert limit_s <= bench.at_s() <= limit_s + 0.52, "looked at lazily: late, never early"
        else:
            await queued
        await running

    on_bench(body, queue_timeout_spec(default_s, override))


def test_a_queue_timeout_never_stops_what_runs() -> None:
    async def body(bench: Bench) -> None:
        await bench.ask("running")
        assert bench.at_s() >= 2.0

    on_bench(body, queue_timeout_spec(0.5, False))


def test_unknown_not_ready_and_unversioned_are_told_apart_by_code_and_text() -> None:
    async def body(bench: Bench) -> None:
        expected = {
            ("nobody", ""): (Code.NOT_FOUND, "'nobody' is not found"),
            ("slow", "9"): (Code.NOT_FOUND, "'slow' version 9 is not found"),
            ("slow", "-1"): (Code.INVALID_ARGUMENT, "version string '-1'"),
            ("broken", ""): (Code.NOT_FOUND, "'broken' has no available versions"),
            ("broken", "1"): (Code.UNAVAILABLE, "'broken' version 1 is not at ready state"),
        }
        for (model, version), (code, text) in expected.items():
            fault = await fault_of(bench.ask("q", model=model, version=version))
            assert fault.code is code, (model, version)
            assert text in fault.text
            if code is not Code.INVALID_ARGUMENT:
                assert classify(fault).outcome is Outcome.NOT_LOADED

    on_bench(body, SLOW, ModelSpec("broken", broken=frozenset({"1"})))


def test_no_version_means_the_highest_ready_one_by_number() -> None:
    async def body(bench: Bench) -> None:
        answer = pb.ModelInferResponse.FromString(await bench.ask("q"))
        assert answer.model_version == "10"

    on_bench(body, ModelSpec("slow", versions=("9", "10", "11"), broken=frozenset({"11"})))


def test_one_failed_version_makes_the_server_not_ready_while_the_old_one_serves() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.client.server_ready(1.0)
        bench.server.load("slow", "2", broken=True)
        await asyncio.sleep(0.1)
        assert {entry.state for entry in await bench.client.repository_index(1.0)} == {"READY", "LOADING"}
        await asyncio.sleep(0.2)
        assert not await bench.client.server_ready(1.0)
        assert await bench.client.model_ready("slow", "", 1.0)
        assert not await bench.client.model_ready("slow", "2", 1.0)
        assert pb.ModelInferResponse.FromString(await bench.ask("q")).model_version == "1"
        bench.server.load("slow", "2")
        await asyncio.sleep(0.3)
        assert await bench.client.server_ready(1.0)

    on_bench(body)


def test_a_good_new_version_unloads_the_old_after_its_requests_unless_the_policy_keeps_it() -> None:
    async def body(bench: Bench) -> None:
        bench.server.load("slow", "2")
        await asyncio.sleep(0.17)
        in_flight = bench.ask("old", version="1")
        await asyncio.sleep(0.05)
        states = {entry.version: entry.state for entry in await bench.client.repository_index(1.0)}
        assert states == {"1": "UNLOADING", "2": "READY"}
        assert (await fault_of(bench.ask("q", version="1"))).code is Code.UNAVAILABLE
        assert pb.ModelInferResponse.FromString(await in_flight).model_version == "1"
        entries = {entry.version: entry for entry in await bench.client.repository_index(1.0)}
        assert (entries["1"].state, entries["1"].reason) == ("UNAVAILABLE", "unloaded")
        bench.server.load("slow", "3", keep_old=True)
        await asyncio.sleep(0.3)
        assert await bench.client.model_ready("slow", "2", 1.0)

    on_bench(body)


def test_a_failed_reload_of_the_serving_version_leaves_the_old_copy() -> None:
    async def body(bench: Bench) -> None:
        bench.server.load("slow", "1", broken=True)
        await asyncio.sleep(0.3)
        assert [entry.state for entry in await bench.client.repository_index(1.0)] == ["READY"]
        await bench.ask("q")

    on_bench(body)


def test_a_model_that_was_never_loaded_has_only_its_name_in_the_index() -> None:
    async def body(bench: Bench) -> None:
        (entry,) = await bench.client.repository_index(1.0)
        assert (entry.name, entry.version, entry.state) == ("later", "", "")

    on_bench(body, ModelSpec("later", named_at_start=False))


def test_invalid_requests_are_the_callers_fault() -> None:
    async def body(bench: Bench) -> None:
        assert (await fault_of(bench.client.infer(b"\xff\xff", (), 1.0))).code is Code.INTERNAL
        too_many = await fault_of(bench.ask("q", rows=5))
        assert "batch-size must be <= 4" in too_many.text
        empty = pb.ModelInferRequest(model_name="slow").SerializeToString()
        for message in (question("q", rows=5), empty, question("q").replace(b"UINT8", b"INT64")):
            fault = await fault_of(bench.client.infer(message, (), 1.0))
            assert classify(fault).outcome is Outcome.CALLER_FAULT
        assert bench.executions() == []

    on_bench(body)


def test_a_crash_resets_what_was_out_and_then_refuses_until_it_has_started_again() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.05)
        bench.server.crash()
        lost = await fault_of(running)
        assert (lost.code, lost.from_peer, lost.sent) == (Code.UNAVAILABLE, False, True)
        refused = await fault_of(bench.ask("q"))
        assert (refused.from_peer, refused.sent) == (False, False)
        assert classify(lost).outcome is classify(refused).outcome is Outcome.TRANSPORT
        bench.server.start()
        await asyncio.sleep(0.3)
        await bench.ask("again")
        assert len(bench.executions()) == 2, "a batch of the former life never ends"

    on_bench(body)


def test_a_request_on_its_way_when_the_process_dies_counts_as_sent() -> None:
    async def body(bench: Bench) -> None:
        await bench.ask("first")
        travelling = bench.ask("travelling")
        await asyncio.sleep(0.00001)
        bench.server.crash()
        assert (await fault_of(travelling)).sent

    on_bench(body)


def test_a_stopping_server_finishes_what_it_has_and_refuses_new_connections() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.02)
        bench.server.stop()
        refused = await fault_of(bench.ask("late"))
        assert (refused.code, refused.from_peer) == (Code.UNAVAILABLE, True)
        other = bench.network.connect(Endpoints(ADDRESS, ""))
        assert not (await fault_of(other.server_live(1.0))).sent
        await running
        await asyncio.sleep(0.2)
        assert bench.server.process.value == "down"

    on_bench(body)


def test_a_frozen_process_accepts_and_answers_nothing_until_it_thaws() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.02)
        bench.server.freeze()
        fault = await fault_of(bench.client.server_live(0.5))
        assert (fault.code, fault.from_peer) == (Code.DEADLINE_EXCEEDED, False)
        assert not running.done()
        bench.server.thaw()
        await running
        assert await bench.client.server_live(0.5)

    on_bench(body)


def test_a_black_hole_holds_both_ways_and_computing_goes_on_behind_it() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.02)
        bench.network.black_hole(ADDRESS)
        held = bench.ask("held")
        await asyncio.sleep(1.0)
        assert bench.server.counts_of("slow", "1").success == 1
        assert not running.done()
        bench.network.heal(ADDRESS)
        await asyncio.gather(running, held)

    on_bench(body)


def test_a_machine_that_is_gone_answers_nothing_at_all() -> None:
    async def body(bench: Bench) -> None:
        del bench.network.machines[ADDRESS]
        fault = await fault_of(bench.client.server_live(0.3))
        assert fault.code is Code.DEADLINE_EXCEEDED

    on_bench(body)


def test_a_slow_server_takes_its_factor_longer() -> None:
    async def body(bench: Bench) -> None:
        bench.server.slowness = 5.0
        await bench.ask("q")
        assert 0.5 <= bench.at_s() < 0.51

    on_bench(body)


def test_lies_show_only_where_they_are_told() -> None:
    async def body(bench: Bench) -> None:
        bench.server.lie = Lie.GONE
        assert await bench.client.server_ready(1.0)
        assert await bench.client.model_ready("slow", "1", 1.0)
        assert [entry.state for entry in await bench.client.repository_index(1.0)] == ["READY"]
        assert classify(await fault_of(bench.ask("q"))).outcome is Outcome.NOT_LOADED
        bench.server.lie = Lie.FAST_ERRORS
        assert classify(await fault_of(bench.ask("q"))).outcome is Outcome.BROKEN
        assert bench.at_s() < 0.01
        bench.server.lie = Lie.WRONG_VERSION
        assert pb.ModelInferResponse.FromString(await bench.ask("q")).model_version == "8"
        bench.server.lie = Lie.WRONG_MODEL
        assert pb.ModelInferResponse.FromString(await bench.ask("q")).model_name == "not-slow"
        bench.server.lie = Lie.NOT_READY
        assert not await bench.client.server_ready(1.0)
        await bench.ask("q")

    on_bench(body)


def test_metrics_count_as_the_real_ones_do() -> None:
    async def body(bench: Bench) -> None:
        running = bench.ask("running")
        await asyncio.sleep(0.01)
        queued = [bench.ask(f"w{number}") for number in range(2)]
        await asyncio.sleep(0.01)
        label = '{model="slow",version="1"}'
        assert f"nv_inference_pending_request_count{label} 2" in await bench.client.scrape(1.0)
        await fault_of(bench.ask("refused"))
        await asyncio.gather(running, *queued)
        text = await bench.client.scrape(1.0)
        assert f"nv_inference_request_success{label} 3" in text
        assert f"nv_inference_exec_count{label} 2" in text
        assert "nv_inference_request_failure" in text
        assert '"REJECTED"} 0' in text, "a full queue does not show in the failures"
        bench.server.metrics = Metrics.GARBAGE
        assert "}} NaN" in await bench.client.scrape(1.0)
        bench.server.metrics = Metrics.GONE
        assert not (await fault_of(bench.client.scrape(1.0))).sent

    on_bench(body, ModelSpec("slow", max_batch_size=4, max_queue_size=2, s0_s=0.1, noise=0.0))


def test_configuration_and_metadata_say_what_the_model_is() -> None:
    async def body(bench: Bench) -> None:
        config = await bench.client.model_config("slow", "1", 1.0)
        parsed: model_config_pb2.ModelConfig = pb.ModelConfigResponse.FromString(config.proto).config
        assert (parsed.max_batch_size, parsed.instance_group[0].count) == (4, 1)
        assert parsed.dynamic_batching.preferred_batch_size == [4]
        assert b'"max_batch_size": 4' in config.json
        metadata = pb.ModelMetadataResponse.FromString(await bench.client.model_metadata("slow", "", 1.0))
        assert (list(metadata.versions), metadata.inputs[0].name) == (["1"], "x")
        assert (await fault_of(bench.client.model_config("nobody", "", 1.0))).code is Code.NOT_FOUND

    on_bench(body)


def test_names_resolve_to_what_they_are_bound_to_and_others_do_not() -> None:
    async def body(bench: Bench) -> None:
        bench.network.names["pool.local"] = ("10.0.0.1",)
        assert await bench.network.resolve("pool.local") == ("10.0.0.1",)
        with pytest.raises(OSError, match="not known"):
            await bench.network.resolve("other.local")

    on_bench(body)


def test_closing_a_client_resets_its_calls_and_cancels_them() -> None:
    async def body(bench: Bench) -> None:
        running, queued = bench.ask("running"), bench.ask("queued", width=16)
        await asyncio.sleep(0.02)
        await bench.client.aclose()
        assert (await fault_of(running)).code is Code.UNAVAILABLE
        assert (await fault_of(queued)).sent
        await asyncio.sleep(1.0)
        assert len(bench.executions()) == 1

    on_bench(body)


def test_statistics_are_of_what_is_ready_and_count_what_ran() -> None:
    async def body(bench: Bench) -> None:
        def read(message: bytes) -> dict[tuple[str, str], pb.ModelStatistics]:
            return {(row.name, row.version): row for row in pb.ModelStatisticsResponse.FromString(message).model_stats}

        client, key = bench.client, ("slow", "2")
        assert list(read(await client.model_statistics("", "", 1.0))) == [("slow", "2"), ("slow", "10")]
        assert list(read(await client.model_statistics("", "7", 1.0))) == [key, ("slow", "10")], (
            "without a name it is void"
        )
        await asyncio.gather(*(bench.ask(str(number), version="2", rows=2) for number in range(3)))
        row = read(await client.model_statistics("slow", "2", 1.0))[key]
        assert (row.inference_count, row.inference_stats.success.count) == (6, 3)
        assert row.execution_count == sum(each.compute_infer.count for each in row.batch_stats) == 2
        bench.server._unload("slow", "2")
        await asyncio.sleep(1)
        for name, version, text in (
            ("nope", "", "requested model 'nope' is not available"),
            ("slow", "2", "requested model version is not available for model 'slow'"),
            ("slow", "x", "failed to get model version from specified version string 'x'"),
        ):
            error = await fault_of(client.model_statistics(name, version, 1.0))
            assert error.code is Code.INVALID_ARGUMENT
            assert error.text.startswith(text)
        bench.server.unload("slow")
        await asyncio.sleep(1)
        error = await fault_of(client.model_statistics("slow", "10", 1.0))
        assert error.text == "requested model 'slow' is not available"
        assert read(await client.model_statistics("", "", 1.0)) == {}

    on_bench(body, ModelSpec("slow", versions=("2", "10"), max_batch_size=4, s0_s=0.1, s1_s=0.0, noise=0.0))


class Refusing(Free):
    """Nothing may be cancelled."""

    def may_cancel(self, *, again: bool = False) -> bool:
        return False


@pytest.mark.parametrize("in_its_turn", [False, True])
def test_a_call_runs_out_unless_its_answer_has_come_in_the_turn_of_its_cancel(
    in_its_turn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench) -> Attempt:
        sound = Exchange.end

        def end(self: Exchange, answer: object) -> None:
            sound(self, answer)
            task.cancel()

        if in_its_turn:
            monkeypatch.setattr(Exchange, "end", end)
        bench.client.restrain(Refusing())
        attempt = Attempt("main/t1", bench.loop.time())
        task = bench.loop.create_task(bench.client.infer(question("a"), (), 30.0, b"", attempt))
        await asyncio.sleep(0.05 if not in_its_turn else 0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (attempt.rest is None) == in_its_turn
        await asyncio.sleep(0.5)
        return attempt

    attempt = on_bench(body)
    assert attempt.rest is None or attempt.rest.over
