"""Open-loop load: calls are sent at the times that a schedule says, whatever has become of those before.

Users do not wait for one another, so a server that stalls gets their calls all the same, and each waits from the time
it was meant to be sent. Latency counts from then, always: from the actual send time it would leave out just the waiting
that a stall causes ("coordinated omission"; Tene, How NOT to measure latency, 2013).

    schedule = arrivals.schedule([("reads", Poisson(200.0))], seed=1)
    reads = Traffic("reads", Pool(lambda: HttpConnection(address, inputs)), Calls(run, deadline_ms=1000))
    result = await run_open_loop(schedule, [reads], clock=KernelClock(), duration_s=20.0, in_flight_max=512)
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from load.arrivals import Arrival
from load.clock import Clock
from load.connection import GRACE_S, WRONG_ANSWER, Part, Sender
from load.histogram import Histogram
from load.inputs import Calls
from load.tallies import NS, Seconds, TrafficTally, WindowTally, quantile_ms

TICK_S = 0.01
CHECK_EVERY_TICKS = 10
LATE_NS = 5_000_000
"""A send later than this is a late one."""
_LEAD_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of traffic: what its calls are, and what they are sent through. `Arrival.traffic` is its index."""

    name: str
    sender: Sender
    calls: Calls
    streams: bool = False
    """True if a call may have several responses; then their times are counted too."""
    fan_out: int = 1
    """Calls of one arrival, sent at once: a task, which is over with the last of them. All counts are of tasks then."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a run stands; made once a second. Counts leave the warm-up out, which is at negative `elapsed_s`."""

    elapsed_s: float
    offered: int
    ended: int
    failed: int
    in_flight: int
    p50_ms: float | None
    """Of the right answers of the last second."""
    p99_ms: float | None


@dataclass(slots=True)
class OpenLoopResult:
    """What was measured. `send_late`, `late_sends` and `timer_late` say how well the generator itself kept time."""

    duration_s: float
    traffic: list[TrafficTally]
    seconds: Seconds = field(default_factory=Seconds)
    sends: int = 0
    late_sends: int = 0
    """More than 5 ms late, and not because of `in_flight_max`."""
    send_late: Histogram = field(default_factory=Histogram)
    """Actual minus intended send time, waiting for `in_flight_max` left out."""
    timer_late: Histogram = field(default_factory=Histogram)
    """By how much other timers of the generator's event loop came late."""
    in_flight_most: int = 0
    windows: list[WindowTally] = field(default_factory=list)
    start_ns: int = 0
    """The clock's time at offset 0."""
    intended: list[array[int]] = field(default_factory=list)
    """Of each kind of traffic, the clock's time at which each of its calls was meant to be sent, in the order of their
    numbers, those of one task each by itself; those of the warm-up are among them.
    """


async def run_open_loop(
    schedule: Iterator[Arrival],
    traffic: Sequence[Traffic],
    *,
    clock: Clock,
    duration_s: float,
    in_flight_max: int,
    on_second: Callable[[Moment], None] | None = None,
    windows: Sequence[tuple[float, float]] = (),
) -> OpenLoopResult:
    """Send what `schedule` says up to `duration_s`, wait until all calls have ended, and tell what happened.

    Arrivals before offset 0 are sent and not counted. `on_second` is called at each whole second, 0 included, and when
    all is over, which is not before `duration_s`. With `in_flight_max` calls out, those that follow are held in their
    order, until one ends or their own deadline has passed: `held` and `not_sent` count them. A call that was held has
    only what is left of its deadline, and its latency counts from its intended time. Closes the clock; senders are
    neither opened nor closed. Cancelling it leaves calls out; close the senders then. `windows` (from, to, in seconds)
    are counted apart as well.
    """
    return await _Run(schedule, traffic, clock, duration_s, in_flight_max, on_second, windows).run()


class _Run:
    def __init__(
        self,
        schedule: Iterator[Arrival],
        traffic: Sequence[Traffic],
        clock: Clock,
        duration_s: float,
        in_flight_max: int,
        on_second: Callable[[Moment], None] | None,
        windows: Sequence[tuple[float, float]],
    ) -> None:
        self._schedule = schedule
        self._traffic = traffic
        self._clock = clock
        self._duration_s = duration_s
        self._in_flight_max = in_flight_max
        self._on_second = on_second
        self._result = OpenLoopResult(
            duration_s,
            self._tallies(),
            windows=[WindowTally(from_s, to_s, self._tallies()) for from_s, to_s in windows],
            intended=[array("q") for _ in traffic],
        )
        self._patience_ns = int((GRACE_S + 1 + max(each.calls.deadline_ms for each in traffic) / 1000) * NS)
        self._next: Arrival | None = None
        self._start_ns = self._end_ns = 0
        self._in_flight = 0
        self._bound = _Bound()
        self._pumping = False
        self._over = asyncio.Event()
        self._offered = self._ended_count = self._failed = 0
        self._recent = Histogram()

    def _tallies(self) -> list[TrafficTally]:
        return [TrafficTally(each.name) for each in self._traffic]

    def _counting(self, index: int, intended_ns: int) -> list[TrafficTally]:
        """In which a call of this traffic that is meant to be sent then counts: the whole run's, and its windows'."""
        result, offset_ns = self._result, intended_ns - self._start_ns
        return [result.traffic[index], *(each.traffic[index] for each in result.windows if each.holds(offset_ns))]

    async def run(self) -> OpenLoopResult:
        self._pull()
        earliest_s = 0.0 if self._next is None else min(0.0, self._next.offset_s)
        self._start_ns = self._clock.now_ns() + _LEAD_NS - int(earliest_s * NS)
        self._result.start_ns = self._start_ns
        self._end_ns = self._start_ns + int(self._duration_s * NS)
        ticking = asyncio.ensure_future(self._tick())
        over = asyncio.ensure_future(self._over.wait())
        try:
            self._pump()
            await asyncio.wait((over, ticking), return_when=asyncio.FIRST_COMPLETED)
            if ticking.done():
                ticking.result()  # raises what `on_second` raised
            self._report(self._clock.now_ns())
        finally:
            self._clock.close()
            for task in (ticking, over):
                task.cancel()
            await asyncio.wait((ticking, over))
        self._result.seconds.settle(1 << 62)
        return self._result

    def _pull(self) -> None:
        arrival = next(self._schedule, None)
        self._next = None if arrival is None or arrival.offset_s >= self._duration_s else arrival

    def _pump(self) -> None:
        """Send everything that is due, and set the alarm for what comes next."""
        if self._pumping:  # a sender ended a call at once
            return
        self._pumping = True
        try:
            while (arrival := self._next) is not None:
                intended_ns = self._start_ns + int(arrival.offset_s * NS)
                now_ns = self._clock.now_ns()
                if intended_ns > now_ns:
                    self._clock.wake_at(intended_ns, self._pump)
                    break
                if self._in_flight >= self._in_flight_max:
                    self._bound.hit(intended_ns, now_ns)
                    if now_ns - intended_ns < self._traffic[arrival.traffic].calls.deadline_ms * 1_000_000:
                        break
                else:
                    self._bound.clear(now_ns)
                self._leave(arrival, intended_ns, now_ns)
                self._pull()
        finally:
            self._pumping = False
        if self._next is None:
            if self._clock.now_ns() < self._end_ns:
                self._clock.wake_at(self._end_ns, self._pump)
            elif not self._in_flight:
                self._over.set()

    def _leave(self, arrival: Arrival, intended_ns: int, now_ns: int) -> None:
        """A call leaves the schedule: it is sent, or counted as not sent."""
        traffic = self._traffic[arrival.traffic]
        counted = arrival.offset_s >= 0
        tallies = self._counting(arrival.traffic, intended_ns) if counted else []
        held = self._bound.held(intended_ns)
        waited_ns = now_ns - intended_ns
        left_ns = traffic.calls.deadline_ms * 1_000_000 - (waited_ns if held else 0)
        if counted:
            self._offered += 1
            for tally in tallies:
                tally.offered += 1
            self._result.seconds.row(intended_ns - self._start_ns).offered += 1
        if left_ns <= 0:
            if counted:
                for tally in tallies:
                    tally.not_sent += 1
                    tally.failure.record(waited_ns)
                self._count_end(now_ns, failed=True)
            return
        if counted:
            result, late_ns = self._result, self._bound.own_lateness_ns(intended_ns) if held else waited_ns
            for tally in tallies:
                tally.held += held
            result.sends += 1
            result.late_sends += late_ns > LATE_NS
            result.send_late.record(late_ns)
        self._in_flight += traffic.fan_out
        self._result.in_flight_most = max(self._result.in_flight_most, self._in_flight)
        ended = partial(self._ended, arrival.traffic, intended_ns, counted)
        left_ms = max(1, left_ns // 1_000_000)
        if traffic.fan_out > 1:
            self._send_task(traffic, arrival, left_ms, _Task(traffic.fan_out, ended, self._leaf(tallies, intended_ns)))
            return
        call = traffic.calls.next(arrival.row, left_ms)
        self._result.intended[arrival.traffic].append(intended_ns)
        part = self._parts(tallies[0], intended_ns) if traffic.streams and counted else None
        traffic.sender.send(call, ended, part)

    def _send_task(self, traffic: Traffic, arrival: Arrival, left_ms: int, task: _Task) -> None:
        intended = self._result.intended[arrival.traffic]
        intended_ns = self._start_ns + int(arrival.offset_s * NS)
        for _ in range(traffic.fan_out):
            intended.append(intended_ns)
            traffic.sender.send(traffic.calls.next(arrival.row, left_ms), task.ended)

    def _leaf(self, tallies: list[TrafficTally], intended_ns: int) -> Callable[[], None]:
        def leaf() -> None:
            now_ns = self._clock.now_ns()
            for tally in tallies:
                tally.leaf.record(now_ns - intended_ns)

        return leaf

    def _parts(self, tally: TrafficTally, intended_ns: int) -> Part:
        last_ns = 0

        def part() -> None:
            nonlocal last_ns
            now_ns = self._clock.now_ns()
            if last_ns:
                tally.between.record(now_ns - last_ns)
            else:
                tally.first.record(now_ns - intended_ns)
            last_ns = now_ns

        return part

    def _ended(self, index: int, intended_ns: int, counted: bool, error: str) -> None:
        now_ns = self._clock.now_ns()
        self._in_flight -= self._traffic[index].fan_out
        if counted:
            latency_ns = now_ns - intended_ns
            deadline_ns = self._traffic[index].calls.deadline_ms * 1_000_000
            for tally in self._counting(index, intended_ns):
                tally.ended(error, latency_ns, deadline_ns)
            self._count_end(now_ns, failed=bool(error))
            if not error:
                self._recent.record(latency_ns)
                self._result.seconds.answered(intended_ns - self._start_ns, latency_ns)
        if self._bound.in_force or self._next is None:
            self._pump()

    def _count_end(self, now_ns: int, *, failed: bool) -> None:
        row = self._result.seconds.row(now_ns - self._start_ns)
        self._ended_count += 1
        row.ended += 1
        if failed:
            self._failed += 1
            row.failed += 1

    async def _tick(self) -> None:
        """Measure this process's timers, give up what is out for too long, and report each second."""
        loop = asyncio.get_running_loop()
        ticks = 0
        report_ns = self._start_ns - (self._start_ns - self._clock.now_ns()) // NS * NS
        while True:
            due_ns = self._clock.now_ns() + int(TICK_S * NS)
            await asyncio.sleep(TICK_S)
            now_ns = self._clock.now_ns()
            if now_ns >= self._start_ns:
                self._result.timer_late.record(now_ns - due_ns)
            if self._bound.in_force:
                self._pump()
            ticks += 1
            if ticks % CHECK_EVERY_TICKS == 0:
                for each in self._traffic:
                    each.sender.check(loop.time())
            if now_ns >= report_ns:
                self._report(now_ns)
                report_ns += NS

    def _report(self, now_ns: int) -> None:
        self._result.seconds.settle(now_ns - self._start_ns - self._patience_ns)
        recent, self._recent = self._recent, Histogram()
        if self._on_second is not None:
            self._on_second(
                Moment(
                    elapsed_s=(now_ns - self._start_ns) / NS,
                    offered=self._offered,
                    ended=self._ended_count,
                    failed=self._failed,
                    in_flight=self._in_flight,
                    p50_ms=quantile_ms(recent, 0.5),
                    p99_ms=quantile_ms(recent, 0.99),
                )
            )


class _Task:
    """Calls that one arrival sent at once. It ends with the last of them, and wrongly if one of them did."""

    __slots__ = ("_done", "_error", "_leaf", "_out")

    def __init__(self, calls: int, done: Callable[[str], None], leaf: Callable[[], None]) -> None:
        self._out = calls
        self._done = done
        self._leaf = leaf
        self._error = ""

    def ended(self, error: str) -> None:
        """One of its calls has ended."""
        self._out -= 1
        if not error:
            self._leaf()
        elif not self._error or error == WRONG_ANSWER:
            self._error = error
        if not self._out:
            self._done(self._error)


class _Bound:
    """`in_flight_max` as it was in force: it tells calls that it held from calls that the generator sent late."""

    __slots__ = ("_began_ns", "_ended_ns", "in_force")

    def __init__(self) -> None:
        self.in_force = False
        self._began_ns = self._ended_ns = -1

    def hit(self, intended_ns: int, now_ns: int) -> None:
        """A call that was meant to be sent at `intended_ns` finds the bound reached."""
        if not self.in_force and intended_ns > self._ended_ns:
            self._began_ns = now_ns  # otherwise the calls behind the one that just left are still the same hold's
        self.in_force = True

    def clear(self, now_ns: int) -> None:
        """A call can be sent."""
        if self.in_force:
            self.in_force = False
            self._ended_ns = now_ns

    def held(self, intended_ns: int) -> bool:
        """Whether a call that leaves now was held."""
        return self.in_force or intended_ns <= self._ended_ns

    def own_lateness_ns(self, intended_ns: int) -> int:
        """How late the generator was with a held call before the bound was reached."""
        return max(0, self._began_ns - intended_ns)
