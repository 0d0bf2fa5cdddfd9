"""FH-08 · One gRPC code, four meanings: UNAVAILABLE is often not worth a retry.

What the pinned server says in each case is provoked on it; the fakes then say it twenty times to callers of either
protocol. A replica is only left where it has not got the model version, or where nobody answers (f).

(a) and (b), "no such model or version", come in three kinds here, and only the first is for ever:

- No policy names the model, or the model has no such version: 404 / NOT_FOUND, and no attempt at all.
- A policy names it, and no replica has it: 503 / UNAVAILABLE, reason `no_replica`, no attempt. The row `no-replica` of
  the deviations says why: a model that is away for a moment (between an unload and a load, during a rollout) does not
  cease to exist, and a caller who is told NOT_FOUND does not come back.
- A replica that is thought to have it says that it has not, before a probe could see that: 503 / UNAVAILABLE as well,
  reason `upstream_not_loaded`, one attempt. It goes on with its other models.

(c) The model server refuses the gateway: 500 / INTERNAL, as all that an operator must mend; never 502, which many
clients and balancers send again.

Here policies do not say that calls may go twice. Second tries, where they do, and the state of the breakers are in
`test_fh08_retries.py`.
"""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2 as pb

from deploy.local import LocalFleet, TritonServer, free_ports
from tests.conftest import replicas_of
from tests.support.fake_fleet import UNARY, FakeFleet, fleet_of, until_async
from tests.support.fake_triton import (
    BAD_INPUT,
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
    refusing,
)
from tests.support.field_http import ask, record_of
from tests.support.gateway_process import GatewayProcess, write_policies

LIMIT_S = 120
TIMES = 20
M, N = FakeModel("m"), FakeModel("n")


# --- what the real server says ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """`accel` alone, with a queue of 64 and time limits. It ends stopped."""
    logs = tmp_path_factory.mktemp("fh08-triton-logs")
    bounded = ["--model-config-name=bounded"]
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=logs, arguments=bounded) as servers:
        yield servers["triton-0"]


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """One server that wants a key of everybody who infers."""
    logs = tmp_path_factory.mktemp("fh08-restricted-logs")
    key = "--grpc-restricted-protocol=inference:key=secret"
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=logs, arguments=[key]) as servers:
        yield servers


def accel(model: str = "accel", version: str = "", **parameters: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    message.inputs.add(name="work", datatype="FP32", shape=[1, 1])
    message.raw_input_contents.append(bytes(4))
    for name, value in parameters.items():
        message.parameters[name].int64_param = value
    return message


async def answer(channel: Any, message: pb.ModelInferRequest) -> tuple[Any, str]:
    """Code and text."""
    try:
        await channel.unary_unary(UNARY)(message.SerializeToString(), timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def is_said(said: Said, message: pb.ModelInferRequest) -> tuple[Any, str]:
    return said.code, said.about(message)


async def test_the_words_of_the_fakes_are_those_of_the_pinned_server(server: TritonServer) -> None:
    async with asyncio.timeout(LIMIT_S), grpc.aio.insecure_channel(server.spec.grpc_address) as channel:
        for said, message in (
            (UNKNOWN_MODEL, accel("nope")),
            (UNKNOWN_VERSION, accel(version="9")),
            (BAD_INPUT, _other_input()),
        ):
            assert await answer(channel, message) == is_said(said, message)

        running = await busy(server, channel)
        late = await asyncio.gather(*(answer(channel, accel(timeout=100_000)) for _ in range(3)))
        assert is_said(QUEUE_TIMEOUT, accel()) in late, late
        await asyncio.wait(running)

        running = await busy(server, channel)
        full = set(await asyncio.gather(*(answer(channel, accel()) for _ in range(90))))
        assert is_said(QUEUE_FULL, accel()) in full
        assert full <= {(grpc.StatusCode.OK, ""), is_said(QUEUE_FULL, accel()), is_said(QUEUE_TIMEOUT, accel())}
        await asyncio.wait(running)

        await asyncio.to_thread(control, server, "unload")

        async def unloaded() -> bool:
            return await answer(channel, accel()) == is_said(NO_VERSION, accel())

        await until_async(unloaded, "accel is unloaded")
        assert await answer(channel, accel(version="1")) == is_said(UNLOADED, accel(version="1"))
        await asyncio.to_thread(control, server, "load")

        running = await busy(server, channel)
        assert server.run is not None
        server.run.server.signal(signal.SIGTERM, group=False)
        asked: list[asyncio.Task[tuple[Any, str]]] = []

        async def stopping() -> bool:
            # Side by side: one that is let in yet waits behind the one that runs.
            asked.append(asyncio.ensure_future(answer(channel, accel())))
            return is_said(STOPPING, accel()) in [each.result() for each in asked if each.done()]

        await until_async(stopping, "the server says that it stops")
        await asyncio.wait((*running, *asked))
        assert running[0].result() == (grpc.StatusCode.OK, ""), "what runs is finished"
    await asyncio.to_thread(server.stop)
    async with asyncio.timeout(LIMIT_S), grpc.aio.insecure_channel(server.spec.grpc_address) as channel:
        code, text = await answer(channel, accel())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert text.startswith("failed to connect to all addresses"), "the library's words: nobody is there to say any"


async def busy(server: TritonServer, channel: Any) -> list[asyncio.Task[tuple[Any, str]]]:
    """Two long calls, the first of which runs while the second waits: seen by the server's own count. On a machine that
    stands still the first may have ended before that is seen; then they are made anew.
    """
    for _ in range(5):
        long = [asyncio.ensure_future(answer(channel, accel(straggle_ms=2000)))]
        await asyncio.sleep(0.2)
        long.append(asyncio.ensure_future(answer(channel, accel(straggle_ms=2000))))
        if await one_waits(server, long):
            return long
        await asyncio.wait(long)
    raise AssertionError("the machine is too slow to see one call behind another")


async def one_waits(server: TritonServer, long: list[asyncio.Task[tuple[Any, str]]]) -> bool:
    """Wait until the server counts a waiting call; false if one of these has ended before that."""

    def read() -> str:
        with urllib.request.urlopen(server.spec.metrics_url, timeout=10) as response:
            return str(response.read().decode())

    while True:
        page = await asyncio.to_thread(read)
        if any(call.done() for call in long):
            return False
        line = next(line for line in page.splitlines() if line.startswith("nv_inference_pending_request_count{"))
        if float(line.rpartition(" ")[2]) > 0:
            return True
        await asyncio.sleep(0.05)


def _other_input() -> pb.ModelInferRequest:
    message = accel()
    message.inputs[0].name = "other"
    return message


def control(server: TritonServer, what: str) -> None:
    url = f"http://{server.spec.http_address}/v2/repository/models/accel/{what}"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=30) as response:
        assert response.status == 200


async def test_c_a_real_server_that_wants_a_key_is_asked_once_per_call_and_never_left(
    restricted: LocalFleet, tmp_path: Path
) -> None:
    # Without warm-up calls, which it would refuse as well: then it would never get a call (the next test).
    policies = {"accel": {"objective": {"p99_ms": 1000}, "warmup": {"calls": 0}}}
    listen = write_policies(tmp_path, replicas_of(restricted), models=policies)
    with GatewayProcess(tmp_path, listen) as gateway:
        await asyncio.to_thread(gateway.wait_ready)
        async with asyncio.timeout(LIMIT_S), grpc.aio.insecure_channel(gateway.grpc) as channel:
            for _ in range(TIMES):
                code, text = await answer(channel, accel())
                assert code is grpc.StatusCode.INTERNAL
                assert "refused the gateway" in text
        body = b'{"inputs":[{"name":"work","datatype":"FP32","shape":[1,1],"data":[0]}]}'
        for number in range(TIMES):
            name = f"restricted-{number}"
            told = await asyncio.to_thread(ask, gateway.http, "/v2/models/accel/infer", body, {"x-request-id": name})
            assert (told.status, told.headers["x-sluice-reason"]) == (500, "upstream_refused")
            assert "retry-after" not in told.headers
            record = record_of(gateway, name)
            assert (record["outcome"], record["attempt_count"]) == ("refused", 1)
            assert RESTRICTED.text in record["attempts"][0]["text"], "the operator reads what the server wants"
        assert gateway.get("http", "/v2/models/accel/ready")[0] == 200
        assert " is down" not in gateway.log_text()
        assert await asyncio.to_thread(gateway.stop) == 0


async def test_c_a_server_that_refuses_its_warm_up_calls_gets_no_other_and_the_operator_sees_why(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(LIMIT_S), FakeTriton(M, N) as fake:
        fake.acts["m"] = refusing(RESTRICTED)
        async with fleet_of(tmp_path, [fake], {"m": {}, "n": {}}, wait_for=["n"]) as fleet:
            told = await fleet.grpc("m", "warm-1")
            assert (told.code, told.reason) == ("UNAVAILABLE", "no_replica")
            assert not fake.requests()
            shown = (await fleet.replicas())[fake.addresses["grpc"]]
            reasons = [model["reason"] for model in shown["models"] if model["model"] == "m"]
            assert RESTRICTED.text in reasons[0]

            async def counted() -> bool:
                return await fleet.metric("sluice_warmup_calls_total", model="m", outcome="failed") > 0

            await until_async(counted, "the failed warm-up calls are on the metrics page")


# --- twenty times from either protocol -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """What is said upstream, and what must come of it. `retry_after`: HTTP tells when to come back; `pushback`: gRPC
    too.
    """

    said: Said
    status: int
    code: str
    reason: str
    outcome: str
    retry_after: bool = False
    pushback: bool = False
    kept: bool = True
    """The caller gets the server's own text."""


def older(said: Said) -> Said:
    """As servers said it that called everything UNAVAILABLE."""
    return Said(grpc.StatusCode.UNAVAILABLE, said.text)


def gone(said: Said) -> Case:
    return Case(said, 503, "UNAVAILABLE", "upstream_not_loaded", "not_loaded", retry_after=True)


CASES = {
    "a unknown model": gone(UNKNOWN_MODEL),
    "a unknown model, older server": gone(older(UNKNOWN_MODEL)),
    "b unknown version": gone(UNKNOWN_VERSION),
    "b unknown version, older server": gone(older(UNKNOWN_VERSION)),
    "b no version left": gone(NO_VERSION),
    "b version unloaded": gone(UNLOADED),
    "stopping": gone(STOPPING),
    "c restricted": Case(RESTRICTED, 500, "INTERNAL", "upstream_refused", "refused", kept=False),
    "d waited too long": Case(QUEUE_TIMEOUT, 504, "DEADLINE_EXCEEDED", "upstream_queue_timeout", "overload"),
    "e queue full": Case(
        QUEUE_FULL, 503, "RESOURCE_EXHAUSTED", "upstream_queue_full", "overload", retry_after=True, pushback=True
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_each_meaning_keeps_its_class_over_both_protocols_and_blames_no_replica(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M, N) as a,
        FakeTriton(M, N) as b,
        FakeTriton(M, N) as c,
        fleet_of(tmp_path, [a, b, c], {"m": {}, "n": {}}) as fleet,
    ):
        for fake in fleet.fakes:
            fake.acts["m"] = refusing_calls(case.said)
        for protocol in ("http", "grpc"):
            for _ in range(TIMES):
                await told_once(fleet, protocol, case)
        await recorded(fleet, case)
        assert await fleet.metric("sluice_attempts_total", model="m", outcome=case.outcome) == 2 * TIMES
        for protocol in ("http", "grpc"):
            wanted = {"model": "m", "protocol": protocol, "reason": case.reason, "code": case.code}
            assert await fleet.metric("sluice_calls_total", **wanted) == TIMES
        for replica in (await fleet.replicas()).values():
            assert (replica["state"], replica["times_down"]) == ("live", 0)
        everyone = {fake.addresses["grpc"] for fake in fleet.fakes}
        assert await fleet.takers("n") == everyone, "the other model goes on everywhere"
        if case.outcome == "not_loaded":
            assert await fleet.takers("m"), "the last one stays while its readiness says so"
        else:
            assert await fleet.takers("m") == everyone


def refusing_calls(said: Said) -> Act:
    """Says it to callers; the gateway's own test calls, which carry no id, are answered."""

    async def act(exchange: Exchange) -> None:
        if exchange.request.id:
            await exchange.refuse(said)
        else:
            await obey(exchange)

    return act


async def told_once(fleet: FakeFleet, protocol: str, case: Case) -> None:
    request_id = fleet.next_id("case")
    told = await fleet.call(protocol, "m", request_id)
    assert (told.code, told.reason) == (case.status if protocol == "http" else case.code, case.reason)
    assert told.attempts == 1
    assert sum(len(fake.requests(request_id)) for fake in fleet.fakes) == 1
    assert (told.after is not None) == (case.retry_after if protocol == "http" else case.pushback)
    if told.after is not None:
        assert told.after > 0
    sent = pb.ModelInferRequest(model_name="m", model_version="1", id=request_id)
    if case.kept:
        assert told.text == case.said.about(sent)
    else:
        assert case.said.about(sent) not in told.text


async def recorded(fleet: FakeFleet, case: Case) -> None:
    for record in await fleet.records("case", 2 * TIMES):
        assert (record["outcome"], record["reason"], record["status"]) == (case.outcome, case.reason, case.code)
        assert record["attempt_count"] == 1
        attempt = record["attempts"][0]
        assert attempt["outcome"] == case.outcome
        sent = pb.ModelInferRequest(model_name="m", model_version="1", id=record["body_id"])
        assert attempt["text"] == f"{case.said.code.name}: {case.said.about(sent)}"


async def test_f_a_closed_port_is_the_one_case_in_which_a_replica_is_left(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M, N) as a,
        FakeTriton(M, N) as b,
        FakeTriton(M, N) as c,
        fleet_of(tmp_path, [a, b, c], {"m": {}, "n": {}}) as fleet,
    ):
        await a.stop()
        failed = 0
        for protocol in ("http", "grpc"):
            for _ in range(TIMES):
                told = await fleet.call(protocol, "m", fleet.next_id("closed"))
                if told.ok:
                    continue
                failed += 1
                assert told.code in (503, "UNAVAILABLE")
                assert (told.reason, told.attempts) == ("upstream_lost", 1)
                assert (told.after is not None) == (protocol == "http")
                assert a.addresses["grpc"] not in told.text
        records = await fleet.records("closed", 2 * TIMES)
        assert sum(record["outcome"] == "transport" for record in records) == failed
        assert sum(record["outcome"] == "ok" for record in records) == 2 * TIMES - failed

        async def down() -> bool:
            return bool((await fleet.replicas())[a.addresses["grpc"]]["state"] == "down")

        await until_async(down, "the replica whose port is closed is down")
        for fake in (b, c):
            replica = (await fleet.replicas())[fake.addresses["grpc"]]
            assert (replica["state"], replica["times_down"]) == ("live", 0)
        assert fleet.gateway.log_text().count(" is down") == 1
        for protocol in ("http", "grpc"):
            for _ in range(TIMES):
                assert (await fleet.call(protocol, "m", fleet.next_id("left"))).ok, "nothing is sent to it any more"
        await a.start()
        await fleet.serving("m", "n")


# --- what does not exist ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "version", "status", "code", "reason", "outcome"),
    [
        ("nobody-names-me", "", 404, "NOT_FOUND", "unknown_model", "caller_fault"),
        ("m", "7", 404, "NOT_FOUND", "unknown_version", "caller_fault"),
        ("ghost", "", 503, "UNAVAILABLE", "no_replica", "not_loaded"),
        ("ghost", "1", 503, "UNAVAILABLE", "no_replica", "not_loaded"),
    ],
)
async def test_what_no_policy_names_is_not_found_and_what_no_replica_has_is_away(
    model: str, version: str, status: int, code: str, reason: str, outcome: str, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M) as a,
        FakeTriton(M) as b,
        fleet_of(tmp_path, [a, b], {"m": {}, "ghost": {}}, wait_for=["m"]) as fleet,
    ):
        for protocol in ("http", "grpc"):
            for _ in range(TIMES):
                told = await fleet.call(protocol, model, fleet.next_id("absent"), version=version)
                assert (told.code, told.reason) == (status if protocol == "http" else code, reason)
                assert told.attempts == 0
                assert (told.after is not None) == (protocol == "http" and status == 503)
        assert not a.seen
        assert not b.seen
        for record in await fleet.records("absent", 2 * TIMES):
            assert (record["outcome"], record["reason"], record["attempt_count"]) == (outcome, reason, 0)
        assert await fleet.takers("m") == {a.addresses["grpc"], b.addresses["grpc"]}
