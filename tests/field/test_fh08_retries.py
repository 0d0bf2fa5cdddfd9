"""FH-08, the part of second attempts: three fakes, retries on, a breaker that opens at five failures. Each meaning of
UNAVAILABLE twenty times from either protocol: how often it was sent, what the caller was told, and that nobody but a
closed port is blamed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_fleet import FakeFleet, fleet_of, until_async
from tests.support.fake_triton import (
    NO_VERSION,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    RESTRICTED,
    STOPPING,
    UNKNOWN_MODEL,
    UNKNOWN_VERSION,
    UNLOADED,
    Act,
    Exchange,
    FakeModel,
    FakeTriton,
    Said,
    obey,
)

LIMIT_S = 120
TIMES = 20
M = FakeModel("m")
RETRIES_ALONE = {"read_only": True, "hedging": {"enabled": False}}


@dataclass(frozen=True, slots=True)
class Case:
    """What is said upstream, what the caller hears, and how often a call is sent at most."""

    said: Said
    status: int
    code: str
    attempts_max: int
    outcome: str
    retry_after: bool = False


CASES = {
    "a unknown model": Case(UNKNOWN_MODEL, 503, "UNAVAILABLE", 1, "not_loaded", retry_after=True),
    "b unknown version": Case(UNKNOWN_VERSION, 503, "UNAVAILABLE", 1, "not_loaded", retry_after=True),
    "b no version left": Case(NO_VERSION, 503, "UNAVAILABLE", 2, "not_loaded", retry_after=True),
    "b version unloaded": Case(UNLOADED, 503, "UNAVAILABLE", 2, "not_loaded", retry_after=True),
    "stopping": Case(STOPPING, 503, "UNAVAILABLE", 2, "not_loaded", retry_after=True),
    "c restricted": Case(RESTRICTED, 500, "INTERNAL", 1, "refused"),
    "d waited too long": Case(QUEUE_TIMEOUT, 504, "DEADLINE_EXCEEDED", 2, "overload"),
    "e queue full": Case(QUEUE_FULL, 503, "RESOURCE_EXHAUSTED", 2, "overload", retry_after=True),
}


def saying(said: Said, after_s: float = 0.0) -> Act:
    """To callers; the gateway's own test calls, which carry no id, are answered."""

    async def act(exchange: Exchange) -> None:
        if exchange.request.id:
            await asyncio.sleep(after_s)
            await exchange.refuse(said)
        else:
            await obey(exchange)

    return act


async def breakers(fleet: FakeFleet) -> dict[str, dict[str, Any]]:
    """By replica: what stands between it and the calls of `m`."""
    status, body = await fleet.get("admin", "/v1/fleet")
    assert status == 200
    by_replica: dict[str, dict[str, Any]] = json.loads(body)["statistics"]["admission"]["m"]["1"]["ejection"][
        "by_replica"
    ]
    return by_replica


def sends(fleet: FakeFleet, request_id: str) -> list[int]:
    return [len(fake.requests(request_id)) for fake in fleet.fakes]


@pytest.mark.parametrize("name", CASES)
async def test_what_one_replica_says_is_tried_elsewhere_once_at_most_and_nobody_is_blamed(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M) as a,
        FakeTriton(M) as b,
        FakeTriton(M) as c,
        fleet_of(tmp_path, [a, b, c], {"m": RETRIES_ALONE}) as fleet,
    ):
        for fake in fleet.fakes:
            fake.acts["m"] = saying(case.said)
        twice = 0
        for protocol in ("http", "grpc"):
            for _ in range(TIMES):
                request_id = fleet.next_id("case")
                told = await fleet.call(protocol, "m", request_id)
                assert told.code == (case.status if protocol == "http" else case.code)
                assert 1 <= told.attempts <= case.attempts_max
                sent = sends(fleet, request_id)
                assert sum(sent) == told.attempts
                assert max(sent) == 1, "never the same replica twice"
                if protocol == "http":
                    assert (told.after is not None) == case.retry_after
                twice += told.attempts == 2
        if case.attempts_max == 2:
            assert 1 <= twice <= 3 + 0.1 * 2 * TIMES, "what the budget holds at the start, and what the calls pay"
        for record in await fleet.records("case", 2 * TIMES):
            assert record["outcome"] == case.outcome
            words = [each["decided"] for each in record.get("decisions", ()) if each["by"] == "retry"]
            if record["attempt_count"] == 2:
                assert words == ["attempts"], "it has had its retry"
            elif case.attempts_max == 2:
                assert words in (["empty"], ["no_replica"])
            else:
                assert words == ["final"]
        for replica in (await fleet.replicas()).values():
            assert (replica["state"], replica["times_down"]) == ("live", 0)
        if case.outcome != "not_loaded":
            rows = await breakers(fleet)
            assert len(rows) == 3
            assert {row["standing"] for row in rows.values()} == {"healthy"}, rows


async def test_d_a_queue_timeout_that_has_used_the_time_up_is_not_tried_again(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M) as a,
        FakeTriton(M) as b,
        fleet_of(tmp_path, [a, b], {"m": RETRIES_ALONE | {"deadline": {"default_ms": 1500, "max_ms": 1500}}}) as fleet,
    ):
        for _ in range(60):  # until the usual time of a call is known: half a second
            for fake in fleet.fakes:
                fake.acts["m"] = pausing(0.5)
            await asyncio.gather(*(fleet.call("grpc", "m", fleet.next_id("warm")) for _ in range(4)))
            if (await medians(fleet)) > 0.3:
                break
        for after_s, attempts in ((0.1, 2), (1.2, 1)):
            for fake in fleet.fakes:
                fake.acts["m"] = saying(QUEUE_TIMEOUT, after_s)
            for protocol in ("http", "grpc"):
                told = await fleet.call(protocol, "m", fleet.next_id("late"))
                assert told.code in (504, "DEADLINE_EXCEEDED")
                assert told.attempts == attempts
        late = [each for each in await fleet.records("late", 4) if each["attempt_count"] == 1]
        for record in late:
            decided = [each for each in record.get("decisions", ()) if each["by"] == "retry"]
            assert decided, record
            assert [each["decided"] for each in decided] == ["deadline"]
            saw = decided[0]["saw"]
            assert saw["remaining_s"] < saw["median_s"] + saw["wait_s"]


def pausing(after_s: float) -> Act:
    async def act(exchange: Exchange) -> None:
        await asyncio.sleep(after_s)
        await obey(exchange)

    return act


async def medians(fleet: FakeFleet) -> float:
    _, body = await fleet.get("admin", "/v1/fleet")
    return float(json.loads(body)["statistics"]["admission"]["m"]["1"]["pace"]["median_s"])


@pytest.mark.parametrize("read_only", [True, False])
async def test_f_a_closed_port_is_tried_elsewhere_and_it_alone_is_blamed(read_only: bool, tmp_path: Path) -> None:
    """Nothing was sent, so it is safe elsewhere even where the policy does not say that calls may go twice."""
    policy = RETRIES_ALONE | {"read_only": read_only}
    slow = {"health": {"interval_ms": 5000, "timeout_ms": 3000, "failures_to_down": 4}}
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M) as a,
        FakeTriton(M) as b,
        FakeTriton(M) as c,
        fleet_of(tmp_path, [a, b, c], {"m": policy}, pool=slow) as fleet,
    ):
        await a.stop()
        for protocol in ("grpc", "http"):
            for _ in range(TIMES // 2):  # two side by side: so one of them meets the closed port, and others are idle
                names = [fleet.next_id("closed") + "." for _ in range(2)]
                for told in await asyncio.gather(*(fleet.call(protocol, "m", name) for name in names)):
                    assert told.ok, told
                assert [sum(sends(fleet, name)) for name in names] == [1, 1]
        twice = 0
        for record in await fleet.records("closed", 2 * TIMES):
            assert record["outcome"] == "ok"
            outcomes = [each["outcome"] for each in record["attempts"]]
            assert outcomes in (["ok"], ["transport", "ok"])
            twice += len(outcomes) == 2
        assert twice >= 1

        async def left() -> bool:
            replica = (await fleet.replicas())[a.addresses["grpc"]]
            return bool(
                replica["state"] == "down"
                or (await breakers(fleet)).get(replica["id"], {}).get("standing") == "ejected"
            )

        await until_async(left, "the replica whose port is closed is left")
        for fake in (b, c):
            replica = (await fleet.replicas())[fake.addresses["grpc"]]
            assert (replica["state"], replica["times_down"]) == ("live", 0)
            assert (await breakers(fleet))[replica["id"]]["standing"] == "healthy"
        assert await fleet.metric("sluice_second_attempts_won_total", model="m", kind="retry") == twice


async def test_what_may_have_been_sent_is_not_sent_again_where_calls_may_not_go_twice(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M) as a,
        FakeTriton(M) as b,
        fleet_of(tmp_path, [a, b], {"m": {"read_only": False}}) as fleet,
    ):
        for fake in fleet.fakes:
            fake.acts["m"] = saying(QUEUE_FULL)
        for protocol in ("http", "grpc"):
            told = await fleet.call(protocol, "m", fleet.next_id("sent"))
            assert told.code in (503, "RESOURCE_EXHAUSTED")
            assert told.attempts == 1
