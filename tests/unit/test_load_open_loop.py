"""The open loop on virtual time: stalls cannot hide, lateness is accounted, and every call is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load import closed_loop
from load.arrivals import Arrivals, Constant, Poisson, schedule
from load.clock import KernelClock
from load.closed_loop import ClosedLoop
from load.connection import NO_ANSWER, WRONG_ANSWER, Done, Part
from load.inputs import Calls, LoadCall
from load.open_loop import LATE_NS, Moment, OpenLoopResult, Traffic, run_open_loop
from tests.simulation.loop import SimulationLoop, simulate

SERVICE_S = 0.002
NS = 1_000_000_000


class LoopClock:
    """The virtual loop's own time and timers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def now_ns(self) -> int:
        return round(self._loop.time() * NS)

    def wake_at(self, when_ns: int, callback: Callable[[], None]) -> None:
        self.close()
        self._handle = self._loop.call_at(when_ns / NS, callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class FakeServer:
    """Answers each call after `SERVICE_S`, and nothing at all while it is frozen: what comes then is answered as soon
    as it has thawed. It is a connection and a sender at once.
    """

    def __init__(self, *, freeze_from_s: float = 1e9, freeze_s: float = 0.0, ending: str = "") -> None:
        self._loop = asyncio.get_running_loop()
        self._born_s = self._loop.time()
        self._freeze = (freeze_from_s, freeze_from_s + freeze_s)
        self._ending = ending
        self.calls: list[LoadCall] = []
        self.sent_s: list[float] = []
        self.checks = 0

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        now_s = self._loop.time() - self._born_s
        self.calls.append(call)
        self.sent_s.append(now_s)
        begin_s, end_s = self._freeze
        answer_s = now_s + SERVICE_S
        if begin_s <= answer_s < end_s:
            answer_s = end_s + SERVICE_S
        self._loop.call_at(self._born_s + answer_s, done, self._ending)

    def check(self, now_s: float) -> None:
        self.checks += 1

    async def aclose(self) -> None:
        return


def drive(
    process: Arrivals,
    make: Callable[[], FakeServer],
    *,
    seconds: float = 10.0,
    warm_up_s: float = 0.0,
    in_flight_max: int = 1000,
    deadline_ms: int = 5000,
    lateness_s: float = 0.0,
    on_second: Callable[[Moment], None] | None = None,
    windows: Sequence[tuple[float, float]] = (),
    fan_out: int = 1,
) -> tuple[OpenLoopResult, FakeServer]:
    """Run on a virtual loop, whose timers come up to `lateness_s` late."""

    async def main(loop: SimulationLoop) -> tuple[OpenLoopResult, FakeServer]:
        server = make()
        result = await run_open_loop(
            schedule([("all", process)], seed=1, warm_up_s=warm_up_s),
            [Traffic("all", server, Calls(1, deadline_ms), fan_out=fan_out)],
            clock=LoopClock(),
            duration_s=seconds,
            in_flight_max=in_flight_max,
            on_second=on_second,
            windows=windows,
        )
        return result, server

    return simulate(main, lateness_s=lateness_s)


def test_a_stalled_server_cannot_hide_its_stall_from_an_open_loop_as_it_does_from_a_closed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A server that answers in 2 ms freezes for 1 s of 10. Of the calls that users meant to make, a tenth waits up to
    # 1 s. One caller who waits for each answer makes a single call in that second, and sees one slow call in thousands.
    result, _ = drive(Constant(200.0), lambda: FakeServer(freeze_from_s=4.0, freeze_s=1.0))
    open_latency = result.traffic[0].latency
    assert open_latency.count == 2000
    assert open_latency.quantile_ns(0.99) > 0.85e9
    assert open_latency.quantile_ns(0.95) > 0.4e9

    async def closed(loop: SimulationLoop) -> float:
        virtual = SimpleNamespace(perf_counter=loop.time, perf_counter_ns=lambda: round(loop.time() * 1e9))
        monkeypatch.setattr(closed_loop, "time", virtual)
        server = FakeServer(freeze_from_s=4.0, freeze_s=1.0)
        measured = await ClosedLoop([server], Calls(1, 5000)).run(0.1, 9.9, lambda: None)
        assert measured.tally.latency.largest_ns > 0.9e9, "it was frozen here too"
        return measured.tally.latency.quantile_ns(0.99)

    assert simulate(closed) < 0.01e9


def test_a_window_counts_the_calls_that_were_meant_to_be_sent_in_it() -> None:
    result, server = drive(
        Constant(100.0),
        lambda: FakeServer(freeze_from_s=3.5, freeze_s=1.0),
        warm_up_s=1.0,
        windows=[(1.0, 2.0), (2.0, 4.0), (0.0, 10.0)],
    )
    quiet, frozen, whole = (window.traffic[0] for window in result.windows)
    assert (quiet.offered, frozen.offered, whole.offered) == (100, 200, 1000)
    assert (quiet.right, frozen.right) == (100, 200), "calls that end after a window belong to it"
    assert quiet.latency.largest_ns < 0.01e9
    assert frozen.latency.largest_ns > 0.9e9
    assert whole.latency.to_json() == result.traffic[0].latency.to_json()
    assert len(result.intended[0]) == len(server.calls) == 1100, "those of the warm-up have numbers too"
    offsets_s = [(at_ns - result.start_ns) / NS for at_ns in result.intended[0]]
    assert -1.0 <= offsets_s[0] < -0.98
    assert offsets_s == sorted(offsets_s)
    assert sum(offset_s >= 0 for offset_s in offsets_s) == 1000


class OneInTen(FakeServer):
    """Answers each tenth call a second later than the others, and with an error if it is told one."""

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        self.calls.append(call)
        slow = call.number % 10 == 0
        self._loop.call_later(SERVICE_S + slow, done, self._ending if slow else "")


def test_a_task_of_ten_calls_is_as_slow_as_the_slowest_of_them() -> None:
    result, server = drive(Constant(20.0), OneInTen, warm_up_s=1.0, windows=[(5.0, 10.0)], fan_out=10)
    tally = result.traffic[0]
    assert (tally.offered, tally.right, len(server.calls)) == (200, 200, 2200)
    assert tally.latency.quantile_ns(0.01) > 0.99e9, "one of ten is slow, and so is every task"
    assert tally.leaf.count == 2000
    assert tally.leaf.quantile_ns(0.89) < 0.01e9, "nine of ten calls are not"
    assert result.windows[0].traffic[0].leaf.count == 1000
    assert len(result.intended[0]) == 2200, "each call has the number of its own that its inputs follow from"
    assert result.intended[0][0] == result.intended[0][9] < result.intended[0][10]
    assert result.in_flight_most % 10 == 0


@pytest.mark.parametrize(("ending", "wrong"), [("status 503", 0), (WRONG_ANSWER, 200)])
def test_a_task_fails_with_one_of_its_calls(ending: str, wrong: int) -> None:
    result, _ = drive(Constant(20.0), lambda: OneInTen(ending=ending), fan_out=10)
    tally = result.traffic[0]
    assert (tally.right, tally.failed, tally.wrong) == (0, 200, wrong)
    assert tally.leaf.count == 1800


def test_the_bound_on_calls_in_flight_counts_the_calls_of_tasks() -> None:
    result, _ = drive(Constant(20.0), OneInTen, in_flight_max=40, fan_out=10)
    assert result.in_flight_most == 40
    assert result.traffic[0].held > 0


def test_the_second_of_the_stall_shows_it_and_the_others_do_not() -> None:
    result, _ = drive(Constant(100.0), lambda: FakeServer(freeze_from_s=4.0, freeze_s=1.0))
    slow = [row.at_s for row in result.seconds.rows if row.max_ms is not None and row.max_ms > 100]
    assert slow in ([3, 4], [4]), "the run begins 50 ms after the server"
    assert [row.offered for row in result.seconds.rows] == [100] * 10
    assert sum(row.ended for row in result.seconds.rows) == 1000


def test_calls_are_sent_at_their_times_whatever_becomes_of_those_before() -> None:
    result, server = drive(Constant(100.0), lambda: FakeServer(freeze_from_s=2.0, freeze_s=3.0), seconds=6.0)
    assert len(server.sent_s) == 600
    gaps = [after - before for before, after in zip(server.sent_s, server.sent_s[1:], strict=False)]
    assert max(gaps) < 0.0101
    assert result.in_flight_most >= 290
    assert (result.late_sends, result.traffic[0].held) == (0, 0)


def test_with_the_bound_reached_calls_are_held_and_their_latency_still_counts_from_their_time() -> None:
    result, server = drive(
        Constant(100.0), lambda: FakeServer(freeze_from_s=2.0, freeze_s=1.0), in_flight_max=10, seconds=6.0
    )
    tally = result.traffic[0]
    assert result.in_flight_most == 10
    assert (tally.offered, tally.right, tally.not_sent) == (600, 600, 0)
    assert 80 <= tally.held <= 100
    assert result.late_sends == 0, "it is not the generator that was late"
    # Each of the 100 calls of the frozen second waited from its own intended time, as without any bound.
    waited = [count for lowest, _, count in tally.latency.buckets() if lowest > 0.1e9]
    assert 85 <= sum(waited) <= 95
    assert min(call.deadline_ms for call in server.calls) < 4200, "what was held has only what is left of its deadline"


def test_a_call_that_is_held_beyond_its_deadline_is_counted_as_not_sent() -> None:
    result, server = drive(
        Constant(100.0),
        lambda: FakeServer(freeze_from_s=1.0, freeze_s=3.0),
        in_flight_max=5,
        deadline_ms=500,
        seconds=6.0,
    )
    tally = result.traffic[0]
    assert tally.offered == 600
    assert len(server.calls) + tally.not_sent == 600
    assert 230 <= tally.not_sent <= 255, "all but the first five of the three seconds, and the last half second"
    assert tally.right == len(server.calls)
    assert tally.failure.count == tally.not_sent
    assert tally.failure.quantile_ns(0.01) >= 0.495e9, "none is given up before its deadline"
    assert tally.failure.largest_ns <= 0.52e9, "and none is left uncounted until the server has thawed"
    assert tally.overdue == 5, "the five that were out while it was frozen"
    assert sum(row.failed for row in result.seconds.rows) == tally.not_sent


@settings(max_examples=30)
@given(
    rps=st.floats(min_value=20.0, max_value=200.0),
    bound=st.integers(min_value=1, max_value=40),
    freeze_s=st.floats(min_value=0.0, max_value=2.0),
    deadline_ms=st.integers(min_value=50, max_value=3000),
    lateness_s=st.sampled_from([0.0, 0.003, 0.02]),
)
def test_every_call_that_was_meant_to_be_sent_is_accounted_for(
    rps: float, bound: int, freeze_s: float, deadline_ms: int, lateness_s: float
) -> None:
    result, server = drive(
        Poisson(rps),
        lambda: FakeServer(freeze_from_s=0.5, freeze_s=freeze_s),
        seconds=2.0,
        in_flight_max=bound,
        deadline_ms=deadline_ms,
        lateness_s=lateness_s,
    )
    tally = result.traffic[0]
    expected = sum(1 for _ in Poisson(rps).offsets("1/all", 2.0))
    assert tally.offered == tally.right + tally.failed == expected
    assert result.sends == len(server.calls) == tally.right
    assert result.send_late.count == result.sends
    assert result.in_flight_most <= bound
    assert sum(row.offered for row in result.seconds.rows) == tally.offered
    assert sum(row.ended for row in result.seconds.rows) == tally.offered
    assert tally.latency.count == tally.right
    if lateness_s <= 0.003:
        assert result.late_sends == 0


def test_the_generators_own_lateness_is_measured_and_counts_in_the_latency() -> None:
    late, _ = drive(Constant(50.0), FakeServer, lateness_s=0.02)
    assert late.send_late.count == 500
    assert 0.1 < late.late_sends / late.sends < 0.95
    assert LATE_NS < late.send_late.largest_ns <= 21_000_000
    assert 1_000_000 < late.timer_late.quantile_ns(0.99) <= 21_000_000
    assert late.traffic[0].latency.quantile_ns(0.99) > SERVICE_S * 1e9 + 5e6
    in_time, _ = drive(Constant(50.0), FakeServer)
    assert (in_time.late_sends, in_time.send_late.largest_ns) == (0, 0)
    assert in_time.traffic[0].latency.largest_ns <= 2_000_001


def test_the_warm_up_is_sent_and_not_counted() -> None:
    result, server = drive(Constant(100.0), FakeServer, seconds=2.0, warm_up_s=1.0)
    assert len(server.calls) == 300
    assert result.traffic[0].offered == result.traffic[0].right == result.sends == 200


@pytest.mark.parametrize("ending", ["status 503", WRONG_ANSWER, NO_ANSWER])
def test_a_call_that_failed_is_counted_by_its_kind_and_not_as_a_latency(ending: str) -> None:
    result, _ = drive(Constant(100.0), lambda: FakeServer(ending=ending), seconds=2.0)
    tally = result.traffic[0]
    assert (tally.right, tally.latency.count, tally.failure.count, tally.failed) == (0, 0, 200, 200)
    assert tally.wrong == (200 if ending == WRONG_ANSWER else 0)
    assert sum(tally.errors.values()) == (0 if ending == WRONG_ANSWER else 200)
    assert all(row.p50_ms is None for row in result.seconds.rows)


def test_each_second_is_reported_from_the_warm_up_to_the_end() -> None:
    moments: list[Moment] = []
    drive(Constant(100.0), FakeServer, seconds=3.0, warm_up_s=2.0, on_second=moments.append)
    assert [round(each.elapsed_s) for each in moments] == [-2, -1, 0, 1, 2, 3]
    assert 195 <= moments[-2].offered <= 205
    assert (moments[-1].offered, moments[-1].ended, moments[-1].failed, moments[-1].in_flight) == (300, 300, 0, 0)
    assert moments[-2].p50_ms == pytest.approx(2.0, rel=0.01)


def test_a_run_without_arrivals_lasts_as_long_as_it_says_and_ends() -> None:
    moments: list[Moment] = []
    result, server = drive(Constant(0.0), FakeServer, seconds=3.0, on_second=moments.append)
    assert (server.calls, result.traffic[0].offered) == ([], 0)
    assert moments[-1].elapsed_s >= 3.0


def test_what_the_callers_report_raises_ends_the_run() -> None:
    def refuse(moment: Moment) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        drive(Constant(10.0), FakeServer, seconds=3.0, on_second=refuse)


def test_a_sender_that_ends_calls_at_once_is_no_trouble() -> None:
    class Refusing(FakeServer):
        def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
            done("connection")

    result, _ = drive(Constant(100.0), Refusing, seconds=2.0, in_flight_max=1)
    assert result.traffic[0].errors == {"connection": 200}


def test_responses_of_streams_are_timed() -> None:
    class Streaming(FakeServer):
        def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
            assert part is not None
            for after_s in (0.010, 0.030, 0.050):
                self._loop.call_later(after_s, part)
            self._loop.call_later(0.050, done, "")

    async def main(loop: SimulationLoop) -> OpenLoopResult:
        return await run_open_loop(
            schedule([("all", Constant(10.0))], seed=1),
            [Traffic("all", Streaming(), Calls(1, 1000), streams=True)],
            clock=LoopClock(),
            duration_s=2.0,
            in_flight_max=100,
        )

    tally = simulate(main).traffic[0]
    assert (tally.first.count, tally.between.count, tally.right) == (20, 40, 20)
    assert tally.first.quantile_ns(0.5) == pytest.approx(10e6, rel=0.01)
    assert tally.between.quantile_ns(0.5) == pytest.approx(20e6, rel=0.01)
    assert tally.latency.quantile_ns(0.5) == pytest.approx(50e6, rel=0.01)


def test_the_same_seed_sends_the_same_inputs_at_the_same_times() -> None:
    one, two = (drive(Poisson(100.0), FakeServer, seconds=2.0)[1] for _ in range(2))
    assert one.sent_s == two.sent_s
    assert [call.row for call in one.calls] == [call.row for call in two.calls]


async def test_the_kernels_clock_rings_once_and_not_before_its_time() -> None:
    clock = KernelClock()
    try:
        async with asyncio.timeout(20):
            for wait_ns in (0, 200_000, 5_000_000):
                rang = asyncio.Event()
                due_ns = clock.now_ns() + wait_ns
                clock.wake_at(clock.now_ns() + 10**12, pytest.fail)  # replaced by the next line
                clock.wake_at(due_ns, rang.set)
                await rang.wait()
                assert clock.now_ns() >= due_ns
    finally:
        clock.close()
        clock.close()
