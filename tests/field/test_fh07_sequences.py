"""FH-07: the steps of a sequence run on one replica and version, or fail honestly. On three real servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import LocalFleet
from gateway.decide.sequences import place
from tests.conftest import STATEFUL, replicas_of
from tests.support.gateway_process import GatewayProcess, write_policies
from tests.support.sequences import GrpcSteps, HttpSteps, StepFailed, Steps, StreamSteps, Sum

NUMBERS, TEXTS = STATEFUL
"""`accumulator-text` takes ids of both types, and tells what it saw as text."""
LARGE = 9007199254740992
"""From here on not every whole number is a double."""
POLICY = {
    "objective": {"p99_ms": 2000},
    "deadline": {"default_ms": 60_000, "max_ms": 60_000},
    "admission": {"queue_max": 1000},
    "read_only": True,
    "hedging": {"enabled": True},
    "retries": {"max": 1},
}
"""The last of two hundred sequences waits for most of the others, on a busy machine for half a minute. Calls may go
twice here, by the policy's word; those of sequences never do.
"""


@pytest.fixture(scope="module")
def gateway(stateful_fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in front of the three servers, all of them ready."""
    with started(tmp_path_factory.mktemp("gateway-fh07"), stateful_fleet) as process:
        yield process
        assert process.stop() == 0, process.log_text()
        none_went_twice(process)


def none_went_twice(gateway: GatewayProcess) -> None:
    records = gateway.records()
    assert records
    for record in records:
        assert [each["kind"] for each in record["attempts"]] in ([], ["primary"]), record


def started(directory: Path, fleet: LocalFleet) -> GatewayProcess:
    listen = write_policies(directory, replicas_of(fleet), models=dict.fromkeys(STATEFUL, POLICY))
    return GatewayProcess(directory, listen).wait_ready()


async def all_ready(gateway: GatewayProcess, replicas: int = 3) -> None:
    """Every replica takes calls of both models."""
    wanted = [f'sluice_model_replicas{{model="{name}",pool="cpu",state="warmed",version="1"}}' for name in STATEFUL]
    async with asyncio.timeout(60):
        while True:
            _, page = await asyncio.to_thread(gateway.get, "metrics", "/metrics")
            lines = page.decode().splitlines()
            if all(f"{series} {replicas}.0" in lines for series in wanted):
                return
            await asyncio.sleep(0.05)


async def whole_sequence(
    ways: tuple[Steps, ...], model: str, sequence_id: int | str, number: int, chance: random.Random
) -> list[str]:
    """Five steps, each over one of `ways`, the next when the last one has been answered. Returns what was wrong."""
    wrong, total = [], 0
    for index in range(5):
        value = 100 * number + index
        total += value
        steps = ways[(number + index) % len(ways)]
        try:
            got = await steps.step(model, sequence_id, value, start=index == 0, end=index == 4)
        except StepFailed as error:
            wrong.append(f"{sequence_id!r} step {index}: {error}")
            continue
        shown = sequence_id if model == NUMBERS else str(sequence_id)
        if got != Sum(total, index + 1, shown):
            wrong.append(f"{sequence_id!r} step {index}: {got}, not {total}")
        await asyncio.sleep(0.005 * chance.random())
    return wrong


def mixed_ids() -> list[int | str]:
    """200 ids: large numbers in steps of 1, small numbers and the same as texts, long texts."""
    large = [LARGE + number for number in range(80)]
    small = list(range(7, 37))
    long = [f"{number:0120d}" for number in range(60)]
    return [*large, *small, *(str(number) for number in small), *long]


@pytest.mark.parametrize("kind", ["grpc", "http", "both"])
async def test_two_hundred_interleaved_sequences_are_not_refused_once(gateway: GatewayProcess, kind: str) -> None:
    ids = mixed_ids()
    assert len(set(ids)) == 200
    await all_ready(gateway)
    chance = random.Random(7)
    async with asyncio.timeout(120), GrpcSteps(gateway.grpc) as over_grpc, HttpSteps(gateway.http) as over_http:
        both: tuple[Steps, ...] = (over_grpc, over_http)
        ways = {"grpc": both[:1], "http": both[1:], "both": both}[kind]
        found = await asyncio.gather(
            *(whole_sequence(ways, TEXTS, each, number, chance) for number, each in enumerate(ids)),
            *(whole_sequence(ways, NUMBERS, LARGE + number, number, chance) for number in range(50)),
        )
    assert [each for one in found for each in one] == []


async def test_two_hundred_sequences_each_on_a_stream_of_its_own_are_not_refused_once(gateway: GatewayProcess) -> None:
    await all_ready(gateway)
    chance = random.Random(7)

    async def on_a_stream(sequence_id: int | str, number: int) -> list[str]:
        async with StreamSteps(gateway.grpc) as steps:
            return await whole_sequence((steps,), TEXTS, sequence_id, number, chance)

    async with asyncio.timeout(120):
        found = await asyncio.gather(*(on_a_stream(each, number) for number, each in enumerate(mixed_ids())))
    assert [each for one in found for each in one] == []


async def test_many_sequences_on_one_stream_run_in_the_order_of_their_requests(
    gateway: GatewayProcess, stateful_fleet: LocalFleet
) -> None:
    """None of them waits for an answer: all twelve times five requests are written at once, interleaved."""
    await all_ready(gateway)
    homes = four_on_each([f"cpu/{server.spec.grpc_address}" for server in stateful_fleet], NUMBERS)
    async with asyncio.timeout(60), StreamSteps(gateway.grpc) as steps:
        got = await asyncio.gather(
            *(
                steps.step(NUMBERS, sequence_id, 10**index, start=index == 0, end=index == 4)
                for index in range(5)
                for sequence_id in homes
            )
        )
    expected = [Sum(int("1" * (index + 1)), index + 1, sequence_id) for index in range(5) for sequence_id in homes]
    assert got == expected


async def test_a_large_number_in_json_reaches_the_model_with_every_bit(gateway: GatewayProcess) -> None:
    await all_ready(gateway)
    async with asyncio.timeout(60), HttpSteps(gateway.http) as over_http, GrpcSteps(gateway.grpc) as over_grpc:
        for sequence_id in (LARGE + 1, 2**63 + 1, 2**64 - 1):
            assert await over_http.step(NUMBERS, sequence_id, 1, start=True) == Sum(1, 1, sequence_id)
            signed = sequence_id if sequence_id < 2**63 else sequence_id - 2**64
            assert await over_grpc.step(NUMBERS, signed, 2, end=True) == Sum(3, 2, sequence_id), "and is the same there"


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_start_and_end_on_one_call_and_an_end_that_comes_twice(gateway: GatewayProcess, kind: str) -> None:
    await all_ready(gateway)
    async with asyncio.timeout(60):
        steps = GrpcSteps(gateway.grpc) if kind == "grpc" else HttpSteps(gateway.http)
        async with steps:
            assert await steps.step(NUMBERS, 11, 5, start=True, end=True) == Sum(5, 1, 11)
            assert await steps.step(NUMBERS, 11, 5, start=True) == Sum(5, 1, 11)
            assert await steps.step(NUMBERS, 11, 5, end=True) == Sum(10, 2, 11)
            with pytest.raises(StepFailed, match="must specify the START flag") as refused:
                await steps.step(NUMBERS, 11, 5, end=True)
            assert refused.value.code == (400 if kind == "http" else "INVALID_ARGUMENT")
            assert refused.value.reason == "upstream_invalid"
            with pytest.raises(StepFailed, match="non-zero or non-empty correlation ID"):
                await steps.step(NUMBERS, 0, 5, start=True)


async def test_the_calls_of_one_sequence_run_in_the_order_in_which_they_came(gateway: GatewayProcess) -> None:
    await all_ready(gateway)
    async with asyncio.timeout(60), GrpcSteps(gateway.grpc) as steps:
        assert (await steps.step(NUMBERS, 21, 0, start=True)).count == 1
        got = await asyncio.gather(*(steps.step(NUMBERS, 21, 1) for _ in range(30)))
        assert [each.count for each in got] == list(range(2, 32))
        assert (await steps.step(NUMBERS, 21, 0, end=True)).count == 32


async def test_when_a_replica_is_killed_exactly_its_sequences_are_lost_until_they_are_started_again(
    stateful_fleet: LocalFleet, tmp_path: Path
) -> None:
    with started(tmp_path, stateful_fleet) as gateway:
        await all_ready(gateway)
        replicas = [f"cpu/{server.spec.grpc_address}" for server in stateful_fleet]
        homes = four_on_each(replicas, NUMBERS)
        victim = stateful_fleet["triton-1"]
        gone = f"cpu/{victim.spec.grpc_address}"
        try:
            async with asyncio.timeout(120), GrpcSteps(gateway.grpc) as over_grpc, HttpSteps(gateway.http) as over_http:
                ways = (over_grpc, over_http)
                for sequence_id in homes:
                    for index in range(2):
                        await over_grpc.step(NUMBERS, sequence_id, 1, start=index == 0)
                victim.kill()
                for number, (sequence_id, home) in enumerate(homes.items()):
                    steps = ways[number % 2]
                    if home != gone:
                        assert (await steps.step(NUMBERS, sequence_id, 1)).count == 3
                        continue
                    await lost(steps, sequence_id)
                await all_ready(gateway, 2)
                await asyncio.to_thread(victim.start, wait=True)
                await all_ready(gateway, 3)
                for number, (sequence_id, home) in enumerate(homes.items()):
                    steps = ways[number % 2]
                    if home != gone:
                        assert (await steps.step(NUMBERS, sequence_id, 1, end=True)).count == 4
                        continue
                    await lost(steps, sequence_id)  # The server is back, what it knew is not.
                    assert (await steps.step(NUMBERS, sequence_id, 1, start=True)).count == 1
                    assert (await steps.step(NUMBERS, sequence_id, 1, end=True)).count == 2
                _, page = await asyncio.to_thread(gateway.get, "metrics", "/metrics")
                told = f'sluice_sequence_events_total{{event="lost",model="{NUMBERS}"}} 4.0'
                assert told in page.decode().splitlines()
        finally:
            if not victim.alive():
                victim.start(wait=True)
        assert gateway.stop() == 0, gateway.log_text()
        none_went_twice(gateway)


async def lost(steps: Steps, sequence_id: int) -> None:
    with pytest.raises(StepFailed) as raised:
        await steps.step(NUMBERS, sequence_id, 1)
    error = raised.value
    assert error.code in (503, "UNAVAILABLE")
    assert error.reason == "sequence_lost"
    assert f"sequence {sequence_id} " in error.text
    assert "127.0.0.1" not in error.text


def four_on_each(replicas: list[str], model: str) -> dict[int, str]:
    """Twelve ids and where they will live: four on each, so that all fit (a server holds eight of NUMBERS, four of
    TEXTS).
    """
    found: dict[int, str] = {}
    room = dict.fromkeys(replicas, 4)
    sequence_id = LARGE
    while sum(room.values()):
        home = place(model, sequence_id, replicas)
        if room[home]:
            room[home] -= 1
            found[sequence_id] = home
        sequence_id += 1
    return found
