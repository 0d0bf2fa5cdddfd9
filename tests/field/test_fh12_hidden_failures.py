"""FH-12 · Failures hide inside an OK stream or behind a 200.

A fake upstream says them: as a text in a message, in trailers behind messages, before and behind the first metadata.
Each failure is one of its call, in its record, its metrics and what its replica learns, and reaches the caller where
the protocol has a place for it.

Not yet applicable, since they need layers that do not exist: what a breaker counts; and setting a replica aside for
streams of a decoupled model that break behind their first message. The directory's own test calls take such a model's
first response for good, because some never end, so only calls can tell, and nobody counts those yet. For models with
one response per request a test call follows the first failure, and sets the replica aside: within a second or so,
whatever number of calls fail in that time, since only a breaker counts.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from gateway.wire.sse import SseDecoder
from tests.support.fake_fleet import UNARY, FakeFleet, Told, fleet_of, request, until_async
from tests.support.fake_triton import (
    BAD_INPUT,
    CUDA_FAULT,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    RESTRICTED,
    UNLOADED,
    Act,
    Ended,
    Exchange,
    FakeModel,
    FakeTriton,
    Said,
    obey,
    refusing,
)

LIMIT_S = 120
ONE, MANY = FakeModel("one"), FakeModel("many", decoupled=True)
"""The first gives one response per request and is called by single requests, also out of a client's stream; the second
over streams.
"""
POLICIES: dict[str, dict[str, Any]] = {"one": {}, "many": {}}
Status = grpc.StatusCode

pytestmark = pytest.mark.asyncio(loop_scope="module")
"""One loop for all: the shared fake stands still when its loop does."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeFleet]:
    """A gateway before one fake with both models."""
    directory = tmp_path_factory.mktemp("fh12-gateway")
    async with FakeTriton(ONE, MANY) as fake, fleet_of(directory, [fake], POLICIES) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(shared: FakeFleet) -> AsyncIterator[FakeFleet]:
    """The same for a test that tells the fake what to do; afterwards it obeys again, and serves."""
    async with asyncio.timeout(LIMIT_S):
        yield shared
        shared.fakes[0].acts.clear()
        await shared.serving("one", "many")


async def write(call: Any, model: str, *ids: str) -> None:
    for each in ids:
        await call.write(request(model, each))


async def read(call: Any) -> tuple[str, str]:
    """Id and text of the next answer; an error's text stands behind `error: `."""
    answer = await call.read()
    assert answer is not grpc.aio.EOF
    inner = answer.infer_response
    if answer.error_message:
        return inner.id, f"error: {answer.error_message}"
    return inner.id, inner.raw_output_contents[0][4:].decode()


# --- errors as texts in a stream -------------------------------------------------------------------------------------


async def second_and_fourth_fail(exchange: Exchange) -> None:
    if exchange.request.id == "2":
        await exchange.refuse(QUEUE_FULL)
    elif exchange.request.id == "4":
        await exchange.refuse(CUDA_FAULT)
        if exchange.streamed:
            raise Ended(Status.OK, "")
    else:
        await obey(exchange)


@pytest.mark.parametrize("model", ["one", "many"])
async def test_errors_inside_a_stream_are_failures_of_their_requests_and_of_no_other(
    model: str, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(ONE, MANY) as fake,
        fleet_of(tmp_path, [fake], POLICIES) as fleet,
    ):
        fake.acts[model] = second_and_fourth_fail
        call = fleet.stream("hidden")
        found = []
        for each in "1234":
            await write(call, model, each)
            found.append(await read(call))
        full = QUEUE_FULL.text.format(id="2")
        assert found == [("1", "x"), ("2", f"error: {full}"), ("3", "x"), ("4", "error: cuda fault 700")]
        # The caller's stream outlives the one upstream. A request may cross that one's end: it is lost, and told so.
        crossed = 0
        await write(call, model, "5")
        while (last := await read(call)) != ("5", "x"):
            assert last == ("5", "error: the connection to the model server broke before it answered")
            crossed += 1
            await write(call, model, "5")
        assert crossed <= (1 if model == "many" else 0)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Status.OK

        whole = sorted(await fleet.records("hidden", 5 + crossed), key=lambda record: record["stream_message"])
        records = {record["body_id"]: record for record in whole}
        assert {name: (each["outcome"], each["reason"], each["status"]) for name, each in records.items()} == {
            "1": ("ok", "", "OK"),
            "2": ("overload", "upstream_queue_full", "RESOURCE_EXHAUSTED"),
            "3": ("ok", "", "OK"),
            "4": ("broken", "upstream_broken", "INTERNAL"),
            "5": ("ok", "", "OK"),
        }
        outcomes = {name: each["attempts"][0]["outcome"] for name, each in records.items()}
        assert outcomes == {"1": "ok", "2": "overload", "3": "ok", "4": "broken", "5": "ok"}
        for outcome, count in (("ok", 3), ("overload", 1), ("broken", 1)):
            assert await fleet.metric("sluice_attempts_total", model=model, outcome=outcome) == count
            assert await fleet.metric("sluice_replica_attempts_total", outcome=outcome) == count
        for reason, count in (("", 3), ("upstream_queue_full", 1), ("upstream_broken", 1)):
            assert await fleet.metric("sluice_calls_total", model=model, protocol="grpc", reason=reason) == count
        replica = (await fleet.replicas())[fake.addresses["grpc"]]
        assert (replica["state"], replica["times_down"]) == ("live", 0)


@pytest.mark.parametrize("model", ["one", "many"])
async def test_others_that_are_out_on_the_same_stream_get_their_answers(model: str, tmp_path: Path) -> None:
    held = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        if exchange.request.id == "bad":
            await exchange.refuse(CUDA_FAULT)
        else:
            if exchange.request.id:
                await held.wait()
            await obey(exchange)

    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(ONE, MANY) as fake,
        fleet_of(tmp_path, [fake], {model: {"admission": {"slots_per_replica": 8}}}) as fleet,
    ):
        fake.acts[model] = act
        call = fleet.stream("others")
        await write(call, model, "a", "bad", "b")
        if model == "many":
            assert await read(call) == ("bad", "error: cuda fault 700"), "it waits for nobody"
        async with asyncio.timeout(30):
            while len(fake.requests()) < 3:
                await asyncio.sleep(0.01)
        held.set()
        rest = [await read(call) for _ in range(2 if model == "many" else 3)]
        if model == "one":
            assert rest == [("a", "x"), ("bad", "error: cuda fault 700"), ("b", "x")], "each in its place"
        else:
            assert sorted(rest) == [("a", "x"), ("b", "x")]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert Counter(each["outcome"] for each in await fleet.records("others", 3)) == {"ok": 2, "broken": 1}


SAID: dict[str, tuple[Said, str, str]] = {
    "queue full": (QUEUE_FULL, "RESOURCE_EXHAUSTED", "upstream_queue_full"),
    "waited too long": (QUEUE_TIMEOUT, "DEADLINE_EXCEEDED", "upstream_queue_timeout"),
    "unloaded": (UNLOADED, "UNAVAILABLE", "upstream_not_loaded"),
    "bad input": (BAD_INPUT, "INVALID_ARGUMENT", "upstream_invalid"),
    "unknown text": (CUDA_FAULT, "INTERNAL", "upstream_broken"),
    "restricted": (RESTRICTED, "INTERNAL", "upstream_refused"),
}


@pytest.mark.parametrize("name", SAID)
async def test_the_class_is_the_same_whether_a_code_told_it_or_a_text(name: str, fleet: FakeFleet) -> None:
    said, code, reason = SAID[name]
    prefix = fleet.next_id("class")
    for model in ("one", "many"):
        fleet.fakes[0].acts[model] = to_callers(refusing(said))
        call = fleet.stream(f"{prefix}-{model}")
        await write(call, model, "a")
        await read(call)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    for record in await fleet.records(f"{prefix}-", 2):
        assert (record["status"], record["reason"]) == (code, reason), record["model"]


def to_callers(act: Act) -> Act:
    """The gateway's own test calls, which carry no id, are answered."""

    async def chosen(exchange: Exchange) -> None:
        await (act if exchange.request.id else obey)(exchange)

    return chosen


@pytest.mark.parametrize("model", ["one", "many"])
async def test_a_caller_who_wants_true_statuses_gets_the_first_failure_as_the_end(model: str, fleet: FakeFleet) -> None:
    fleet.fakes[0].acts[model] = second_and_fourth_fail
    call = fleet.stream(triton_grpc_error="true")
    await write(call, model, "1")
    assert await read(call) == ("1", "x")
    await write(call, model, "2")
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    assert ended.value.code() is Status.RESOURCE_EXHAUSTED
    assert ended.value.details() == QUEUE_FULL.text.format(id="2")


# --- a status in trailers behind messages ----------------------------------------------------------------------------


async def one_message_and_then_14(exchange: Exchange) -> None:
    await exchange.headers()
    await exchange.respond(b"half", final=False)
    raise Ended(Status.UNAVAILABLE, "the model fell over")


async def test_a_replica_whose_answers_end_in_trailers_with_14_is_set_aside(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(ONE) as bad,
        FakeTriton(ONE) as b,
        FakeTriton(ONE) as c,
        fleet_of(tmp_path, [bad, b, c], {"one": {}}) as fleet,
    ):
        bad.acts["one"] = one_message_and_then_14
        good = {fake.addresses["grpc"] for fake in (b, c)}
        failed: list[Told] = []
        while len(failed) < 20 and await fleet.takers("one") != good:
            for protocol in ("http", "grpc"):
                told = await fleet.call(protocol, "one", fleet.next_id("trailers"))
                if not told.ok:
                    failed.append(told)

        async def aside() -> bool:
            return await fleet.takers("one") == good

        await until_async(aside, "it is set aside after at most twenty failures")
        assert failed, "calls are what it is found by"
        for told in failed:
            assert told.code in (503, "UNAVAILABLE"), "the status as it came"
            assert told.text == "the model fell over"
            assert (told.reason, told.attempts) == ("upstream_broken", 1)
        sent = len(bad.requests("trailers"))
        for number in range(40):
            assert (await fleet.call(("http", "grpc")[number % 2], "one", fleet.next_id("after"))).ok
        assert len(bad.requests("after")) == 0
        assert sent == len(failed)
        assert await fleet.metric("sluice_attempts_total", model="one", outcome="broken") == len(failed)
        replica = (await fleet.replicas())[bad.addresses["grpc"]]
        assert (replica["state"], replica["times_down"]) == ("live", 0), "it lives; its model is what is wrong"
        bad.acts.clear()
        await fleet.serving("one")


async def test_a_stream_that_ends_in_trailers_with_14_is_a_failure_of_each_call_on_it(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(MANY) as fake,
        fleet_of(tmp_path, [fake], {"many": {}}) as fleet,
    ):
        fake.acts["many"] = to_callers(one_message_and_then_14)
        for number in range(20):
            call = fleet.stream("broken")
            await write(call, "many", str(number))
            assert await read(call) == (str(number), "half")
            assert await read(call) == (str(number), "error: the model fell over")
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        for record in await fleet.records("broken", 20):
            assert (record["outcome"], record["reason"]) == ("broken", "upstream_broken")
            assert (record["status"], record["responses"]) == ("UNAVAILABLE", 1), "the end was no response"
        assert await fleet.metric("sluice_attempts_total", model="many", outcome="broken") == 20

        call = fleet.stream(triton_grpc_error="true")
        await write(call, "many", "true")
        assert await read(call) == ("true", "half")
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert (ended.value.code(), ended.value.details()) == (Status.UNAVAILABLE, "the model fell over")


# --- generate --------------------------------------------------------------------------------------------------------


def fails_at(event: int, end: Act) -> Act:
    async def act(exchange: Exchange) -> None:
        for number in range(event):
            await exchange.respond(str(number).encode(), final=False)
        await end(exchange)

    return to_callers(act)


async def trailers_14(exchange: Exchange) -> None:
    raise Ended(Status.UNAVAILABLE, "the model fell over")


ENDS: dict[str, tuple[Act, int, str, bool]] = {
    "bad input": (refusing(BAD_INPUT), 400, "upstream_invalid", False),
    "queue full": (refusing(QUEUE_FULL), 503, "upstream_queue_full", True),
    "waited too long": (refusing(QUEUE_TIMEOUT), 504, "upstream_queue_timeout", False),
    "unloaded": (refusing(UNLOADED), 503, "upstream_not_loaded", True),
    "unknown text": (refusing(CUDA_FAULT), 500, "upstream_broken", False),
    "trailers": (trailers_14, 503, "upstream_broken", True),
}


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize("name", ENDS)
async def test_a_failure_before_the_first_event_is_a_status_and_never_200(
    name: str, path: str, fleet: FakeFleet
) -> None:
    end, status, reason, come_back = ENDS[name]
    prefix = fleet.next_id("generate")
    for model in ("one", "many"):
        fleet.fakes[0].acts[model] = fails_at(0, end)
        told = await fleet.http(model, f"{prefix}-{model}", path=path)
        assert (told.code, told.reason) == (status, reason), model
        assert told.headers["content-type"] == "application/json"
        assert (told.after is not None) == come_back
    for record in await fleet.records(f"{prefix}-", 2):
        assert (record["reason"], record["responses"]) == (reason, 0)


@pytest.mark.parametrize("name", ENDS)
async def test_a_failure_behind_the_fifth_event_is_the_last_event(name: str, fleet: FakeFleet) -> None:
    end, _, reason, _ = ENDS[name]
    prefix = fleet.next_id("events")
    fleet.fakes[0].acts["many"] = fails_at(5, end)
    calls = {"name": "sluice_calls_total", "model": "many", "protocol": "http"}
    failed, good = await fleet.metric(**calls, reason=reason), await fleet.metric(**calls, reason="")
    told = await fleet.http("many", f"{prefix}-", path="generate_stream")
    assert told.code == 200
    events = [json.loads(event.text) for event in SseDecoder().feed(told.text.encode())]
    assert [each.get("text_output") for each in events] == ["0", "1", "2", "3", "4", None]
    assert list(events[-1]) == ["error"]
    record = (await fleet.records(f"{prefix}-", 1))[0]
    assert (record["reason"], record["responses"]) == (reason, 5 if name == "trailers" else 6)
    assert record["outcome"] != "ok"
    assert record["attempts"][0]["outcome"] == record["outcome"]

    async def counted() -> bool:
        return await fleet.metric(**calls, reason=reason) == failed + 1

    await until_async(counted, "the failure is on the metrics page")
    assert await fleet.metric(**calls, reason="") == good


# --- status 8, wherever it stands ------------------------------------------------------------------------------------


async def alone(exchange: Exchange) -> None:
    raise Ended(Status.RESOURCE_EXHAUSTED, "no more of that today")


async def behind_headers(exchange: Exchange) -> None:
    await exchange.headers()
    await alone(exchange)


async def behind_a_message(exchange: Exchange) -> None:
    await exchange.respond(b"half", final=False)
    await alone(exchange)


@pytest.mark.parametrize("act", [alone, behind_headers, behind_a_message])
async def test_a_status_has_one_meaning_before_and_behind_the_first_metadata(act: Act, fleet: FakeFleet) -> None:
    acts = fleet.fakes[0].acts
    acts["one"] = acts["many"] = to_callers(act)
    prefix = fleet.next_id("eight")
    for protocol in ("http", "grpc"):
        told = await fleet.call(protocol, "one", f"{prefix}-{protocol}")
        assert told.code in (503, "RESOURCE_EXHAUSTED")
        assert (told.text, told.reason) == ("no more of that today", "upstream_queue_full")
        assert told.after is not None
    assert await streamed_error(fleet, f"{prefix}-stream") == "error: no more of that today"
    for record in await fleet.records(f"{prefix}-", 3):
        assert (record["outcome"], record["status"]) == ("overload", "RESOURCE_EXHAUSTED")
        assert record["attempts"][0]["outcome"] == "overload"
    assert await fleet.takers("one") == {fleet.fakes[0].addresses["grpc"]}


async def streamed_error(fleet: FakeFleet, request_id: str) -> str:
    """What a stream's caller is told in the end."""
    call = fleet.stream(request_id)
    await write(call, "many", "a")
    _, text = await read(call)
    if text == "half":
        _, text = await read(call)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return text


@pytest.mark.parametrize(("act", "frames"), [(alone, "H"), (behind_headers, "HH"), (behind_a_message, "HDH")])
async def test_the_three_differ_on_the_wire(act: Act, frames: str) -> None:
    """Headers (H) and data (D) that the fake sends: what the cases above tell apart is there."""
    received = bytearray()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool) -> None:
        while piece := await reader.read(1 << 16):
            if keep:
                received.extend(piece)
            writer.write(piece)
        writer.close()

    async with asyncio.timeout(LIMIT_S), FakeTriton(ONE) as fake:
        fake.acts["one"] = act

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(fake.host, fake.ports[1])
            ways = pass_on(reader, there[1], keep=False), pass_on(there[0], writer, keep=True)
            await asyncio.gather(*ways, return_exceptions=True)

        async with await asyncio.start_server(between, fake.host, 0) as middle:
            port = middle.sockets[0].getsockname()[1]
            async with grpc.aio.insecure_channel(f"{fake.host}:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await channel.unary_unary(UNARY)(request("one", "a"))
        assert failed.value.code() is Status.RESOURCE_EXHAUSTED
    kinds, at = "", 0
    while at < len(received):
        kind, stream = received[at + 3], int.from_bytes(received[at + 5 : at + 9], "big")
        kinds += {0: "D", 1: "H"}.get(kind, "") if stream else ""
        at += 9 + int.from_bytes(received[at : at + 3], "big")
    assert kinds == frames
