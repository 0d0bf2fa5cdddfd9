"""The in-memory Triton's streams and sequences keep the rules of the real one, each rule a test."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import ModelSpec, answer_digest
from tests.simulation.network_stream import NetworkStream
from tests.simulation.sequencer import next_state
from tests.simulation.states import Lie
from tests.simulation.streamer import ERROR, ERROR_TEXT, StreamOrder, order_of, part_digest
from tests.unit.test_simulation_triton import ADDRESS, Bench, fault_of, on_bench

STREAMER = ModelSpec("s", max_batch_size=1, instances=8, dynamic_batching=False, decoupled=True)
KEEPER = ModelSpec("k", max_batch_size=2, sequences=2, dynamic_batching=False, sequence_idle_s=1.0, noise=0.0)
PLAIN = ModelSpec("p", max_batch_size=1, instances=2, dynamic_batching=False, s0_s=0.05, s1_s=0.0, noise=0.0)

Seen = tuple[str, str, bytes, bool | None]
"""(request id, error, output, final flag)."""


def question(number: int, order: StreamOrder | None = None) -> bytes:
    return (f"call-{number:05d}-".encode() + (order.encode() if order else b"")).ljust(40, b".")


def request(model: str, data: bytes, request_id: str = "", version: str = "", **parameters: Any) -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    message.inputs.add(name="x", datatype="UINT8", shape=[1, len(data)])
    message.raw_input_contents.append(data)
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], field, value)
    return bytes(message.SerializeToString())


def seen(message: bytes | None) -> Seen:
    assert message is not None
    streamed = pb.ModelStreamInferResponse.FromString(message)
    inner = streamed.infer_response
    final = inner.parameters["triton_final_response"].bool_param if inner.parameters else None
    return inner.id, streamed.error_message, b"".join(inner.raw_output_contents), final


async def silent(stream: NetworkStream) -> bool:
    """Nothing more comes. Gives the stream up."""
    try:
        async with asyncio.timeout(5.0):
            await stream.read()
    except TimeoutError:
        return True
    return False


def asked(number: int, order: StreamOrder, *, end: bool) -> bytes:
    flags: dict[str, Any] = {"triton_enable_empty_final_response": True} if end else {}
    return request("s", question(number, order), f"r{number}", **flags)


def idle(bench: Bench) -> bool:
    scheduler = bench.server.models["s"]["1"].scheduler
    return scheduler is not None and scheduler.idle


def test_an_order_is_read_as_it_was_written() -> None:
    order = StreamOrder(12, 3, 40, 7, True, True)
    assert order_of(question(5, order)) == order
    assert order_of(b"\0") == StreamOrder(), "a warm-up's zeros"
    assert StreamOrder(2, fail_at=1).parts() == [0, ERROR]
    assert StreamOrder(2, fail_at=1, goes_on=True).parts() == [0, ERROR, 1]
    assert StreamOrder(2, fail_at=2).parts() == [0, 1, ERROR]


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_end_alone_is_told_only_if_asked_for_and_not_joined_to_the_last_response(
    count: int, joined: bool, end: bool
) -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        order = StreamOrder(count, 10, 5, joined=joined)
        stream.write(asked(1, order, end=end))
        for index in range(count):
            output = part_digest(question(1, order), index, "s", "1")
            assert seen(await stream.read()) == ("r1", "", output, joined and index == count - 1)
        if end and not (joined and count):
            assert seen(await stream.read()) == ("r1", "", b"", True)
        assert await silent(stream)

    on_bench(body, STREAMER)


def test_the_end_alone_names_the_version_as_the_request_did() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(0), end=True))
        message = await stream.read()
        assert message is not None
        inner = pb.ModelStreamInferResponse.FromString(message).infer_response
        assert (inner.model_name, inner.model_version) == ("s", "")
        stream.cancel()

    on_bench(body, STREAMER)


def test_decoupled_models_answer_as_they_come_and_pauses_are_kept() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(2, 100, 100), end=False))
        stream.write(asked(2, StreamOrder(1, 10), end=False))
        assert [seen(await stream.read())[0] for _ in range(3)] == ["r2", "r1", "r1"]
        assert 0.2 <= bench.at_s() < 0.21
        stream.cancel()

    on_bench(body, STREAMER)


def test_a_models_error_is_a_message_and_the_model_may_go_on() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(2, 1, 1, fail_at=1, goes_on=True), end=True))
        got = [seen(await stream.read()) for _ in range(4)]
        assert [(error, bool(output), final) for _, error, output, final in got] == [
            ("", True, False), (ERROR_TEXT, False, False), ("", True, False), ("", False, True),
        ]  # fmt: skip
        stream.write(asked(2, StreamOrder(1, 1, 1, fail_at=1, joined=True), end=True))
        assert [seen(await stream.read())[3] for _ in range(2)] == [False, True]
        assert await silent(stream)

    on_bench(body, STREAMER)


def test_what_is_refused_before_the_model_has_no_flag_and_the_stream_lives_on() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(request("s", question(1), "r1", version="9"))
        assert seen(await stream.read()) == ("r1", "Request for unknown model: 's' version 9 is not found", b"", None)
        bench.server.lie = Lie.FAST_ERRORS
        stream.write(request("s", question(2), "r2"))
        _, error, _, final = seen(await stream.read())
        assert "Failed to process" in error
        assert final is False, "the model reported it; its end would follow"
        bench.server.lie = Lie.NONE
        stream.write(request("s", question(3), "r3"))
        assert seen(await stream.read())[0] == "r3"
        stream.cancel()

    on_bench(body, STREAMER)


def test_models_with_one_response_answer_in_the_order_of_requests() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        for number, model in ((1, "p"), (2, "q"), (3, "nobody"), (4, "q")):
            stream.write(request(model, question(number), f"r{number}"))
        got = [seen(await stream.read()) for _ in range(4)]
        assert [(each[0], each[3]) for each in got] == [("r1", True), ("r2", True), ("r3", None), ("r4", True)]
        assert bench.at_s() >= 0.05
        stream.cancel()

    quick = ModelSpec("q", max_batch_size=1, dynamic_batching=False, s0_s=0.001, s1_s=0.0, noise=0.0)
    on_bench(body, PLAIN, quick)


def test_a_decoupled_model_is_refused_to_single_calls() -> None:
    async def body(bench: Bench) -> None:
        fault = await fault_of(bench.client.infer(request("s", question(1)), (), 1.0))
        assert fault.code is Code.UNIMPLEMENTED
        assert "decoupled transaction policy" in fault.text

    on_bench(body, STREAMER)


def test_a_cancelled_stream_is_seen_by_the_model_at_its_next_response() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(100, 0, 50), end=False))
        await stream.read()
        await asyncio.sleep(0.06)
        stream.cancel()
        await asyncio.sleep(0.01)
        assert not idle(bench), "it waits, and does not look"
        await asyncio.sleep(0.05)
        assert idle(bench)
        assert bench.network.open_calls == 0

    on_bench(body, STREAMER)


def test_requests_beyond_those_side_by_side_wait() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        for number in range(3):
            stream.write(asked(number, StreamOrder(1, 100), end=False))
        assert [seen(await stream.read())[0] for _ in range(3)] == ["r0", "r1", "r2"]
        assert bench.at_s() >= 0.3
        stream.cancel()

    on_bench(body, ModelSpec("s", max_batch_size=1, instances=1, dynamic_batching=False, decoupled=True))


# -- what befalls a stream as a whole ---------------------------------------------------------------------------------


def test_a_process_that_dies_resets_its_streams() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(9, 0, 50), end=False))
        await stream.read()
        bench.server.crash()
        fault = await fault_of(stream.read())
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        refused = bench.client.open_stream((), math.inf)
        refused.write(asked(2, StreamOrder(1), end=False))
        assert not (await fault_of(refused.read())).sent
        assert bench.network.open_calls == 0

    on_bench(body, STREAMER)


def test_a_frozen_process_is_silent_and_a_black_hole_loses_nothing() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(3, 10, 10), end=False))
        await stream.read()
        bench.server.freeze()
        await asyncio.sleep(1.0)
        assert not stream._inbox
        bench.server.thaw()
        await stream.read()
        bench.network.black_hole(ADDRESS)
        stream.write(asked(2, StreamOrder(1), end=False))
        await asyncio.sleep(1.0)
        assert not stream._inbox
        bench.network.heal(ADDRESS)
        assert [seen(await stream.read())[0] for _ in range(2)] == ["r1", "r2"]
        stream.cancel()

    on_bench(body, STREAMER)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_overtakes_on_a_stream_whatever_a_black_hole_held(seed: int) -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        for number in range(10):
            stream.write(request("q", question(number), f"r{number}"))
            await asyncio.sleep(0.0002)
            if number == 3:
                bench.network.black_hole(ADDRESS)
            if number == 7:
                bench.network.heal(ADDRESS)
        assert [seen(await stream.read())[0] for _ in range(10)] == [f"r{number}" for number in range(10)]
        stream.cancel()

    on_bench(body, ModelSpec("q", max_batch_size=1, instances=9, dynamic_batching=False, s0_s=0.001), seed=seed)


def test_a_time_limit_and_a_closed_client_end_a_stream() -> None:
    async def body(bench: Bench) -> None:
        limited = bench.client.open_stream((), 0.5)
        fault = await fault_of(limited.read())
        assert (fault.code, fault.from_peer) == (Code.DEADLINE_EXCEEDED, False)
        assert bench.at_s() >= 0.5
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(9, 0, 50), end=False))
        await stream.read()
        await bench.client.aclose()
        assert (await fault_of(stream.read())).code is Code.UNAVAILABLE
        assert bench.network.open_calls == 0

    on_bench(body, STREAMER)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_middle_box_ends_streams_in_order_or_not(orderly: bool) -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(9, 0, 50), end=False))
        await stream.read()
        bench.network.cut_streams(ADDRESS, orderly)
        if orderly:
            assert await stream.read() is None
        else:
            with pytest.raises(UpstreamFault):
                await stream.read()
        assert bench.network.open_calls == 0

    on_bench(body, STREAMER)


def test_a_stopping_server_finishes_its_streams_and_refuses_their_new_requests() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        stream.write(asked(1, StreamOrder(2, 50, 50), end=False))
        await asyncio.sleep(0.01)
        bench.server.stop()
        stream.write(asked(2, StreamOrder(1), end=False))
        got = [seen(await stream.read()) for _ in range(3)]
        assert [each[0] for each in got] == ["r2", "r1", "r1"]
        assert "Server is stopping" in got[0][1]
        assert got[0][3] is None
        stream.cancel()

    on_bench(body, STREAMER)


# -- sequences --------------------------------------------------------------------------------------------------------


async def step(bench: Bench, sequence: int | str, number: int, *, start: bool = False, end: bool = False) -> bytes:
    message = request("k", question(number), f"r{number}", sequence_id=sequence, sequence_start=start, sequence_end=end)
    answer = pb.ModelInferResponse.FromString(await bench.client.infer(message, (), 30.0))
    return bytes(answer.raw_output_contents[0])


def expected(*numbers: int) -> bytes:
    state = b""
    for number in numbers:
        state = next_state(state, question(number))
    return answer_digest(state, "k", "1")


def test_an_answer_tells_of_all_steps_since_the_start() -> None:
    async def body(bench: Bench) -> None:
        assert await step(bench, 7, 1, start=True) == expected(1)
        assert await step(bench, 7, 2) == expected(1, 2)
        assert await step(bench, 7, 3, start=True) == expected(3), "a start begins it anew"
        assert await step(bench, 7, 4, end=True) == expected(3, 4)
        assert "must specify the START flag" in (await fault_of(step(bench, 7, 5))).text

    on_bench(body, KEEPER)


def test_the_number_7_and_the_string_7_are_two_sequences_and_numbers_are_unsigned() -> None:
    async def body(bench: Bench) -> None:
        await step(bench, 7, 1, start=True)
        fault = await fault_of(step(bench, "7", 2))
        assert fault.code is Code.INVALID_ARGUMENT
        await step(bench, 7, 3, end=True)
        await step(bench, -1, 4, start=True)
        assert await step(bench, -1, 5) == expected(4, 5)

    on_bench(body, KEEPER)


@pytest.mark.parametrize("nobody", [0, ""])
def test_a_request_without_an_id_is_refused(nobody: int | str) -> None:
    async def body(bench: Bench) -> None:
        fault = await fault_of(step(bench, nobody, 1, start=True))
        assert fault.code is Code.INVALID_ARGUMENT
        assert "non-zero or non-empty correlation ID" in fault.text

    on_bench(body, KEEPER)


def test_a_start_without_a_free_slot_waits_for_one_and_what_follows_it_waits_behind() -> None:
    async def body(bench: Bench) -> None:
        await step(bench, 1, 1, start=True)
        await step(bench, 2, 2, start=True)
        third = asyncio.ensure_future(step(bench, 3, 3, start=True))
        behind = asyncio.ensure_future(step(bench, 3, 4))
        await asyncio.sleep(0.5)
        assert not third.done()
        await step(bench, 1, 5, end=True)
        assert await third == expected(3)
        assert await behind == expected(3, 4)

    on_bench(body, KEEPER)


def test_a_silent_sequence_is_forgotten_and_frees_its_slot() -> None:
    async def body(bench: Bench) -> None:
        await step(bench, 1, 1, start=True)
        await asyncio.sleep(0.9)
        assert await step(bench, 1, 2) == expected(1, 2)
        await asyncio.sleep(1.1)
        assert "must specify the START flag" in (await fault_of(step(bench, 1, 3))).text
        assert not bench.server.models["k"]["1"].scheduler.slots  # type: ignore[union-attr]

    on_bench(body, KEEPER)


def test_a_sequence_dies_with_its_process() -> None:
    async def body(bench: Bench) -> None:
        await step(bench, 1, 1, start=True)
        bench.server.crash()
        bench.server.start()
        await asyncio.sleep(0.5)
        assert "must specify the START flag" in (await fault_of(step(bench, 1, 2))).text

    on_bench(body, KEEPER)


def test_the_steps_of_a_sequence_run_one_after_the_other_and_those_of_others_beside_them() -> None:
    async def body(bench: Bench) -> None:
        stream = bench.client.open_stream((), math.inf)
        for number, sequence in ((1, 1), (2, 2), (3, 1), (4, 2)):
            flags: dict[str, Any] = {"sequence_id": sequence, "sequence_start": number < 3, "sequence_end": number > 2}
            stream.write(request("k", question(number), f"r{number}", **flags))
        got = [seen(await stream.read()) for _ in range(4)]
        assert [each[2] for each in got] == [expected(1), expected(2), expected(1, 3), expected(2, 4)]
        assert 0.2 <= bench.at_s() < 0.25
        stream.cancel()

    spec = ModelSpec("k", max_batch_size=2, sequences=2, dynamic_batching=False, s0_s=0.1, s1_s=0.0, noise=0.0)
    on_bench(body, spec)


def test_a_cancel_of_a_step_that_waits_ends_its_sequence_and_one_of_a_step_that_runs_does_not() -> None:
    async def body(bench: Bench) -> None:
        await step(bench, 6, 1, start=True)
        running = asyncio.ensure_future(step(bench, 6, 2))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(step(bench, 6, 3))
        await asyncio.sleep(0.01)
        waiting.cancel()
        behind = asyncio.ensure_future(step(bench, 6, 4))
        assert await running == expected(1, 2)
        assert (await fault_of(behind)).code is Code.CANCELLED
        assert "must specify the START flag" in (await fault_of(step(bench, 6, 5))).text
        await step(bench, 7, 1, start=True)
        running = asyncio.ensure_future(step(bench, 7, 2))
        await asyncio.sleep(0.01)
        running.cancel()
        assert await step(bench, 7, 3) == expected(1, 2, 3)

    spec = ModelSpec("k", max_batch_size=2, sequences=2, dynamic_batching=False, s0_s=0.1, s1_s=0.0, noise=0.0)
    on_bench(body, spec)


def test_what_was_queued_behind_the_end_of_a_sequence_is_refused() -> None:
    async def body(bench: Bench) -> None:
        await step(bench, 8, 1, start=True)
        last = asyncio.ensure_future(step(bench, 8, 2, end=True))
        await asyncio.sleep(0.001)
        behind = asyncio.ensure_future(step(bench, 8, 3))
        assert await last == expected(1, 2)
        assert "must specify the START flag" in (await fault_of(behind)).text

    on_bench(body, KEEPER)


def test_a_step_cancelled_with_its_sequence_looks_on_a_stream_like_an_answer_without_outputs() -> None:
    """Its error has no text: seen on a live server."""

    async def body(bench: Bench) -> None:
        await step(bench, 6, 1, start=True)
        running = asyncio.ensure_future(step(bench, 6, 2))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(step(bench, 6, 3))
        await asyncio.sleep(0.01)
        waiting.cancel()
        stream = bench.client.open_stream((), math.inf)
        stream.write(request("k", question(4), "behind", sequence_id=6))
        message = await stream.read()
        assert seen(message) == ("behind", "", b"", True)
        await running
        stream.cancel()

    spec = ModelSpec("k", max_batch_size=2, sequences=2, dynamic_batching=False, s0_s=0.1, s1_s=0.0, noise=0.0)
    on_bench(body, spec)
