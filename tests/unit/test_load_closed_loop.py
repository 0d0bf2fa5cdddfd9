"""The closed loop: what counts, and that it always ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from load import accounting, closed_loop
from load.closed_loop import ClosedLoop, Measured, answers
from load.connection import NO_ANSWER, Done
from load.figures import Reading
from load.http_connection import HttpConnection
from load.inputs import Calls, IdentityInputs, LoadCall
from tests.simulation.loop import SimulationLoop, simulate
from tests.unit.test_load_inputs import _http_answer

LIMIT_S = 20.0
Drive = Callable[..., Measured[Any]]


class HandConnection:
    """A caller whose calls end as `ending` says: at once on the next turn, or never until it is checked."""

    def __init__(self, ending: Callable[[LoadCall], str | None]) -> None:
        self._ending = ending
        self._stuck: Done | None = None
        self.numbers: list[int] = []

    def send(self, call: LoadCall, done: Done) -> None:
        self.numbers.append(call.number)
        error = self._ending(call)
        if error is None:
            self._stuck = done
        else:
            asyncio.get_running_loop().call_later(0.001, done, error)

    def check(self, now_s: float) -> None:
        stuck, self._stuck = self._stuck, None
        if stuck is not None:
            stuck(NO_ANSWER)

    async def aclose(self) -> None:
        self.check(0.0)


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Drive:
    """Runs on a virtual loop, where a busy machine cannot stop a window of 50 ms from having a call in it."""

    def drive(connections: list[HandConnection], *args: Any) -> Measured[Any]:
        async def main(loop: SimulationLoop) -> Measured[Any]:
            virtual = SimpleNamespace(perf_counter=loop.time, perf_counter_ns=lambda: round(loop.time() * 1e9))
            monkeypatch.setattr(closed_loop, "time", virtual)
            return await ClosedLoop(connections, Calls(1, 1000)).run(*args)

        return simulate(main)

    return drive


def test_only_what_ends_within_the_window_counts(drive: Drive) -> None:
    connections = [HandConnection(lambda call: "") for _ in range(3)]
    measured = drive(connections, 0.05, 0.1, lambda: None)
    sent = sum(len(connection.numbers) for connection in connections)
    assert 290 <= measured.tally.calls <= 303
    assert sent >= measured.tally.calls + 140
    assert measured.tally.latency.count == measured.tally.calls
    assert measured.seconds >= 0.1
    assert measured.tally.timer_late.count > 0


def test_each_call_is_another_and_a_caller_has_one_out_at_a_time(drive: Drive) -> None:
    connections = [HandConnection(lambda call: "") for _ in range(4)]
    drive(connections, 0.01, 0.05, lambda: None)
    numbers = [number for connection in connections for number in connection.numbers]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_failed_call_counts_as_an_error_and_not_as_a_latency(drive: Drive) -> None:
    connection = HandConnection(lambda call: "status 503" if call.number % 2 else "")
    tally = drive([connection], 0.01, 0.5, lambda: None).tally
    assert tally.errors["status 503"] > 0
    assert tally.latency.count == tally.calls - tally.errors["status 503"] > 0


def test_a_server_that_falls_silent_in_the_window_is_seen_and_does_not_hang_the_loop(drive: Drive) -> None:
    connection = HandConnection(lambda call: "" if call.number < 3 else None)
    assert drive([connection], 0.01, 0.05, lambda: None).tally.errors == {NO_ANSWER: 1}


def test_samples_are_taken_at_both_edges(drive: Drive) -> None:
    taken: list[int] = []

    def sample() -> int:
        taken.append(len(taken))
        return taken[-1]

    measured = drive([HandConnection(lambda call: "")], 0.01, 0.05, sample)
    assert (measured.before, measured.after) == (0, 1)


async def test_a_window_in_real_time_has_calls_and_ends() -> None:
    connections = [HandConnection(lambda call: "") for _ in range(3)]
    async with asyncio.timeout(LIMIT_S):
        measured = await ClosedLoop(connections, Calls(1, 1000)).run(0.05, 0.1, lambda: None)
    assert 0 < measured.tally.calls < sum(len(connection.numbers) for connection in connections)
    assert measured.seconds >= 0.1


async def test_waiting_for_a_right_answer_ends_with_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loop, "PAUSE_AFTER_ERROR_S", 0.001)
    async with asyncio.timeout(LIMIT_S):
        assert await answers(HandConnection(lambda call: "status 503"), Calls(1, 1000), 0.05) == "status 503"
        late = HandConnection(lambda call: "" if call.number == 3 else "status 503")
        assert await answers(late, Calls(1, 1000), LIMIT_S) == ""


async def test_the_http_caller_tells_right_answers_wrong_ones_refusals_and_lost_connections_apart() -> None:
    heads: list[bytes] = []
    right = _http_answer(1)
    replies = [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(right) + right,
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(right) + right,  # not the answer to call 2
        b"HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"",
        b"this is not HTTP\r\n\r\n",
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                heads.append(head)
                reply = replies[len(heads) - 1]
                if not reply:
                    return
                writer.write(reply)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    async with asyncio.timeout(LIMIT_S), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = HttpConnection(f"127.0.0.1:{port}", IdentityInputs())
        calls = Calls(1, 2000)
        ends = []
        for _ in replies:
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            connection.send(calls.next(), ended.set_result)
            ends.append(await ended)
        await connection.aclose()
    assert ends == ["", "wrong answer", "status 503", "connection", "connection"]
    for head in heads:
        assert b"x-request-timeout-ms: 2000\r\n" in head
        assert b"x-request-id: load-" in head
        assert b"traceparent: 00-" in head


async def test_the_http_caller_gives_up_and_says_so() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with asyncio.timeout(LIMIT_S), await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        connection = HttpConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", IdentityInputs())
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection.send(Calls(1, 1).next(), ended.set_result)
        connection.check(asyncio.get_running_loop().time())
        assert not ended.done()
        connection.check(asyncio.get_running_loop().time() + 60)
        assert await ended == NO_ANSWER
        await connection.aclose()


def test_the_kernel_counts_the_same_cpu_in_ticks_and_in_nanoseconds() -> None:
    import os
    from pathlib import Path

    pid = os.getpid()
    before_s = accounting.cpu_s(pid)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    in_ticks_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert before_s - 0.03 <= in_ticks_s <= accounting.cpu_s(pid) + 0.03
    assert accounting.rss_bytes(pid) > 1_000_000
    assert accounting.machine_busy_s() > in_ticks_s


def test_a_process_that_is_gone_has_no_figures() -> None:
    import subprocess

    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        accounting.cpu_s(ended.pid)


def test_figures_of_a_window_without_right_answers_are_absent_and_not_zero() -> None:
    from load.closed_loop import Measured, Tally
    from load.compare import Sample, reading

    edge = Sample(proxy_s=1.0, triton_s=1.0, generator_s=1.0, all_ours_s=3.0, machine_s=5.0, at_s=1.0)
    later = Sample(proxy_s=2.0, triton_s=2.0, generator_s=1.5, all_ours_s=5.5, machine_s=8.5, at_s=5.0)
    tally = Tally(calls=10, errors={"status 503": 10})
    got: Reading = reading(Measured(4.0, tally, edge, later, 3), 50_000_000, True)
    assert (got.p50_ms, got.p99_ms, got.rps, got.errors) == (None, None, 0.0, 10)
    assert (got.cpu_us_per_call, got.triton_cpu_us_per_call, got.generator_cpu_us_per_call) == (1e5, 1e5, 5e4)
    assert (got.rss_mb, got.others_cores) == (50.0, 0.25)
    assert got.disturbed, "no timer of the window was seen, so nothing is known about it"
