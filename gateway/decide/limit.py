"""AdaptiveLimit: how many calls one model version may have in flight over all replicas of a set.

The rule is that of failsafe-go's adaptive limiter (`adaptivelimiter.go`), itself TCP Vegas by way of Netflix's
concurrency-limits and Uber's Cinnamon. Of each window of at least 1 s and 50 samples it takes the 90th percentile of
the time from send to reply (the gateway's own queue excluded, the server's included); `recent` is the median of the
last three. `baseline` is the same where no call waits. Then

    queue = ceil(L * (1 - baseline / recent)),  at most L - floor          (calls that wait at the server)
    queue > beta:   L falls by half of what is too much, at least by log10 L
    queue < alpha:  L may rise
    alpha = max(3 log10 L, 0.9 room),  beta = max(6 log10 L, 1.1 room),  room = start - floor

**Batches.** A server that batches answers later the more calls it is given, by design, and more of them per second: a
latency that rises is no sign of a queue then, and a limiter that takes it for one starves the batches. So the *floor*
n*I*b* is what fills one batch on each instance; no rule and no measurement goes below it. And as that many run at once
by design, no more than L - floor can wait, whatever latency says. Of these, the *room* up to the start 2*n*I*b* is the
batch that fills while another runs. Triton waits for none: without room an instance that is done finds one call and
takes it alone, which costs 10 % of throughput where a tenth of a batch's time is the same for one call, 50 % where all
of it is. Latency therefore moves the limit above its start only. Below, drops do.

**Drops** (time-outs, refusals for load) are samples of unknown, bad latency. When a tenth of a window's endings are
drops the percentile lies among them and has no bound: L falls by a quarter of what is above the floor. When they have
ceased, and half of L is in use, L comes back to its start, by a quarter of what is missing.

**Above the start** a slot must earn its place: where all slots are taken and latency does not object, a `Trial` raises
the limit by an eighth, and takes that back unless throughput rose by half as much. The same downwards: a limit above
its start that does no more work is given up. What is not in use does not grow.

**The baseline** never follows a queue (`limit_baseline`). Under lasting load it is measured at the floor (`Probe`), for
two waves of calls, at jittered times so that gateways do not dip together.

What does not count: anything NEUTRAL (the caller's errors, local rejects, the model's own faults); and successes that
were sent before the window began, under another limit perhaps, teach no latency. An attempt that lost to its hedge took
longer than nearly all others do (`outlasted`): without it, the slowest would be missing from the percentile.

O(1) amortised. Plain successes may be left in `fresh`, and are taken in by `fold`. Memory is fixed: one histogram, a
few numbers, `FRESH_MAX` successes, up to 512 samples in a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, inf, log10
from typing import Any, Literal

from gateway.core.outcome import Verdict
from gateway.decide.latency_histogram import LatencyHistogram
from gateway.decide.limit_baseline import Baseline
from gateway.decide.limit_probe import Probe
from gateway.decide.limit_settings import LimitSettings
from gateway.decide.limit_trial import Trial

LOOKS = 16
"""How often in a window's time it is looked whether one that had too few samples has enough of them."""
FULL = 0.8
"""All slots are taken if those in flight come to this share of the limit on average: a batch that ends leaves a gap."""
FRESH_MAX = 256
"""Successes that may wait to be taken in."""
TRIAL_WAIT_FACTOR_MAX = 16
PATIENCE_MAX_S = 600.0
DEFAULTS = LimitSettings()

Why = Literal[
    "start", "steady", "drops", "queue", "recover", "trial_up", "trial_down", "earned", "spared", "no_gain", "needed",
    "unused", "probe", "measured", "unmeasured", "idle", "fleet",
]  # fmt: skip
"""What moved or held the limit last. `earned`/`no_gain` end a trial upwards, `spared`/`needed` one downwards."""


class AdaptiveLimit:
    """Of one (model, version, replica set). `floor`, `start`, `cap` are calls (`slot_limit.py` has the rule);
    `chance` gives uniform draws from [0, 1), one for each probe and each trial that fails.
    """

    __slots__ = (
        "_baseline", "_chance", "_drops", "_drops_total", "_ended_s", "_full",
        "_idle_s", "_in_flight_sum", "_latency", "_limit", "_next_up", "_outlasted", "_p90s", "_peak", "_probe",
        "_probes", "_queue", "_recent_s", "_settings", "_shrunk_s", "_since_s", "_slowest_s", "_successes", "_trial",
        "_trial_wait", "_wait", "_window_s", "_windows", "cap", "due_s", "floor", "fresh", "limit", "start", "why",
    )  # fmt: skip

    def __init__(
        self,
        floor: int,
        start: int,
        cap: int,
        chance: Callable[[], float],
        now_s: float,
        settings: LimitSettings = DEFAULTS,
    ) -> None:
        """Raises ValueError unless 1 <= floor <= start <= cap."""
        _check(floor, start, cap)
        self.floor, self.start, self.cap = floor, start, cap
        """For reading."""
        self._chance = chance
        self._settings = settings
        self._idle_s = settings.idle_s
        self._limit = float(start)
        self.limit = start
        """Calls that may be in flight now. For reading; floor <= limit <= cap at all times."""
        self.why: Why = "start"
        """For reading."""
        # The window.
        self._latency = LatencyHistogram()
        self._successes = self._drops = self._outlasted = self._peak = self._in_flight_sum = 0
        self._slowest_s = 0.0
        self._since_s = self._ended_s = now_s
        self._window_s = settings.window_s
        self.due_s = now_s + self._window_s
        """From then on `fold` decides something; the past during a probe, which wants to see each ending at once. For
        reading.
        """
        self.fresh: list[tuple[float, float, int]] = []
        """Successes that are not taken in yet, as (started_s, duration_s, in_flight), each as `ended` has it. A hot
        path may append here, and has to call `fold` at `FRESH_MAX` of them, and when `due_s` has come.
        """
        # What windows taught.
        self._p90s: list[float] = []
        self._recent_s = 0.0
        self._queue = 0
        self._shrunk_s: float | None = None
        self._baseline = Baseline(settings, chance, now_s)
        self._probe: Probe | None = None
        # Trials.
        self._trial: Trial | None = None
        self._full: float | None = None
        """The throughput of the window before, if all slots were taken under this same limit."""
        self._next_up = True
        self._wait = 0
        self._trial_wait = settings.trial_wait
        self._windows = self._probes = self._drops_total = 0

    @property
    def baseline_s(self) -> float:
        """Seconds that a call takes when none waits; 0 as long as nothing is known."""
        return self._baseline.value_s

    def ended(self, verdict: Verdict, started_s: float, duration_s: float, in_flight: int, now_s: float) -> None:
        """An attempt ended at `now_s` that was sent at `started_s` and took `duration_s` (of a stream: to its first
        response). `in_flight`: those that were out when it ended, itself included. O(1) amortised. Never raises.
        """
        if verdict is Verdict.SUCCESS:
            self.fresh.append((started_s, duration_s, in_flight))
            if now_s >= self.due_s or len(self.fresh) >= FRESH_MAX:
                self.fold(now_s)
            return
        self.fold(now_s)
        if verdict is Verdict.NEUTRAL:
            if self._probe is not None:
                self._probing(self._probe, verdict, started_s, duration_s, in_flight, now_s)
            return
        self.rest(now_s)
        self._ended_s = now_s
        if self._probe is not None:
            self._probing(self._probe, verdict, started_s, duration_s, in_flight, now_s)
            return
        self._in_flight_sum += in_flight
        self._peak = max(self._peak, in_flight)
        self._drops += 1
        self._drops_total += 1
        if now_s >= self.due_s:
            self._close(now_s)

    def outlasted(self) -> None:
        """An attempt was given up because its hedge had answered: it counts among the slowest of its window."""
        self._outlasted += self._probe is None

    def fold(self, now_s: float) -> None:
        """Take in what is fresh, and close the window if it is due. O(fresh)."""
        fresh = self.fresh
        if fresh:
            started_s, duration_s, _ = fresh[0]
            self.rest(min(now_s, started_s + duration_s))
            started_s, duration_s, _ = fresh[-1]
            self._ended_s = max(self._ended_s, min(now_s, started_s + duration_s))
            if self._probe is None:
                self._take_in(fresh)
            else:
                for started_s, duration_s, in_flight in fresh:
                    # What ended together with the last sample of a probe was sent before the window that it opens.
                    if self._probe is not None:
                        self._probing(self._probe, Verdict.SUCCESS, started_s, duration_s, in_flight, now_s)
            fresh.clear()
        if now_s >= self.due_s and self._probe is None:
            self._close(now_s)

    def _take_in(self, fresh: list[tuple[float, float, int]]) -> None:
        started, durations, in_flight = zip(*fresh, strict=True)
        self._successes += len(fresh)
        self._in_flight_sum += sum(in_flight)
        self._peak = max(self._peak, *in_flight)
        self._slowest_s = max(self._slowest_s, *durations)
        since_s = self._since_s
        if min(started) >= since_s:
            self._latency.add_all(durations)
        else:
            self._latency.add_all([duration_s for started_s, duration_s, _ in fresh if started_s >= since_s])

    def rest(self, now_s: float) -> None:
        """A call comes or ends now: what was learnt before a long silence is forgotten."""
        if now_s - self._ended_s > self._idle_s:
            self._idle(now_s)

    def shrinking(self, now_s: float) -> bool:
        """Whether the limit fell within two windows, or stands at its floor to measure. Hedging asks."""
        shrunk_s = self._shrunk_s
        return self._probe is not None or (shrunk_s is not None and now_s - shrunk_s <= 2 * self._window_s)

    def update(self, floor: int, start: int, cap: int, now_s: float) -> None:
        """Replicas joined or left. The limit is scaled as its start is: what was learnt is how much one replica takes.
        The baseline is the model's and stays. Nothing happens if nothing changed. Raises ValueError unless
        1 <= floor <= start <= cap.
        """
        _check(floor, start, cap)
        if (floor, start, cap) == (self.floor, self.start, self.cap):
            return
        self.fold(now_s)
        self._call_off()
        scaled = self._limit * start / self.start
        self.floor, self.start, self.cap = floor, start, cap
        self._set(scaled, "fleet")
        self._queue = 0
        self._full = None
        self._restart(now_s)

    def _set(self, limit: float, why: Why) -> None:
        limit = min(max(limit, float(self.floor)), float(self.cap))
        if limit != self._limit:
            self._full = None  # what was answered under another limit
        self._limit = limit
        self.limit = int(limit)
        self.why = why

    def _restart(self, now_s: float) -> None:
        """A window begins."""
        settings = self._settings
        self._latency.clear()
        self._successes = self._drops = self._outlasted = self._peak = self._in_flight_sum = 0
        self._slowest_s = 0.0
        self._since_s = now_s
        self._window_s = min(max(3 * self._recent_s, settings.window_s), settings.window_max_s)
        self.due_s = now_s + self._window_s if self._probe is None else -inf

    def _call_off(self) -> None:
        """No trial, no probe."""
        limit = self._limit if self._trial is None else self._trial.before
        self._trial = self._probe = None
        self._set(limit, self.why)

    def _idle(self, now_s: float) -> None:
        self._call_off()
        self._p90s.clear()
        self._full = None
        if self._limit < self.start:
            self._set(self.start, "idle")
        self._restart(now_s)

    def _close(self, now_s: float) -> None:
        """The window is due. One with too few samples goes on, and is thrown away when it has become too old."""
        settings = self._settings
        elapsed_s = now_s - self._since_s
        total = self._successes + self._drops
        dropping = total >= settings.samples_min and self._drops >= settings.drop_share * total
        if not dropping and self._latency.count < settings.samples_min:
            # Slow models: several waves of the slowest calls must fit, or nothing would ever be learnt of them.
            if elapsed_s > min(PATIENCE_MAX_S, settings.window_max_s + 10 * self._slowest_s):
                self._restart(now_s)
            else:
                self.due_s = now_s + self._window_s / LOOKS
            return
        self._windows += 1
        if dropping:
            self._call_off()
            self._queue = self.limit - self.floor
            self._shrink(max(_step(self._limit), (self._limit - self.floor) / 4), "drops", now_s)
        else:
            every = total + self._outlasted
            p90_s = self._latency.quantile(min(1.0, settings.quantile * every / self._successes))
            self._p90s = [*self._p90s[-2:], p90_s]
            self._recent_s = sorted(self._p90s)[(len(self._p90s) - 1) // 2]
            calm = self._in_flight_sum <= self.floor * total
            self._baseline.window(p90_s, self._recent_s, elapsed_s, calm=calm, now_s=now_s)
            full = self._in_flight_sum >= FULL * self.limit * total
            # By Little's law; answers counted would be off by the last batch, which in a slow model is all there is.
            rate = self._in_flight_sum / total / self._latency.mean()
            self._decide(full, rate, now_s)
            if full:
                self._perhaps_probe(self._successes / elapsed_s, now_s)
        self._restart(now_s)

    def _decide(self, full: bool, rate: float, now_s: float) -> None:
        limit, start = self._limit, self.start
        room, scale = start - self.floor, log10(limit)
        waiting = ceil(limit * (1 - self._baseline.value_s / self._recent_s))
        self._queue = queue = max(0, min(waiting, self.limit - self.floor))
        alpha, beta = max(3 * scale, 0.9 * room), max(6 * scale, 1.1 * room)
        if self._trial is not None:
            self._judge(self._trial, full, rate)
        elif queue > beta:  # above the start, that is: below it queue <= limit - floor <= room
            self._shrink(min(limit - start, max(_step(limit), (queue - beta) / 2)), "queue", now_s)
        elif queue < alpha and limit < start:
            if 2 * self._peak >= self.limit:
                self._set(min(start, limit + max(_step(limit), (start - limit) / 4)), "recover")
            else:
                self.why = "unused"
        elif not full:
            self._full = None
            self.why = "unused"
        else:
            self._perhaps_try(queue < alpha and not self._baseline.guessed, rate)

    def _shrink(self, by: float, why: Why, now_s: float) -> None:
        if self._limit > self.floor:
            self._shrunk_s = now_s
        self._set(self._limit - by, why)

    def _perhaps_try(self, may_rise: bool, rate: float) -> None:
        """All slots were taken for one more window, and the queue asks for no change."""
        before, self._full = self._full, rate
        limit, start = self._limit, self.start
        self.why = "steady"
        if self._wait > 0:
            self._wait -= 1
        elif before is not None:
            rate = (before + rate) / 2
            step = max(_step(limit), self._settings.trial_step * limit)
            if may_rise and limit <= self.cap - 1 and (self._next_up or limit < start + 1):
                self._try(min(limit + step, self.cap), rate, "trial_up")
            elif limit >= start + 1:
                self._try(max(limit - step, start), rate, "trial_down")

    def _try(self, limit: float, rate: float, why: Why) -> None:
        self._trial = Trial(self._limit, limit, rate)
        self._set(limit, why)

    def _judge(self, trial: Trial, full: bool, rate: float) -> None:
        upwards = trial.tried > trial.before
        finding = trial.window(rate) if full else "back"
        if finding == "more":
            return
        self._trial = None
        if finding == "keep":
            self._full = rate
            self.why = "earned" if upwards else "spared"
            self._trial_wait = self._settings.trial_wait
        elif full:
            self._set(trial.before, "no_gain" if upwards else "needed")
            self._next_up = not upwards
            self._wait = ceil(self._trial_wait * (0.75 + 0.25 * self._chance()))
            self._trial_wait = min(2 * self._trial_wait, TRIAL_WAIT_FACTOR_MAX * self._settings.trial_wait)
        else:
            self._set(trial.before, "unused")

    def _perhaps_probe(self, rate: float, now_s: float) -> None:
        """All slots were taken, and `rate` calls were answered per second."""
        if self.cap <= self.start:
            return  # latency can move nothing
        if self.limit <= self.floor or self._trial is not None or not self._baseline.due(self.floor / rate, now_s):
            return
        patience_s = min(PATIENCE_MAX_S, max(5.0, 20 * self._recent_s))
        self._probe = Probe(self.floor, now_s, patience_s, self._settings.drop_share)
        self._probes += 1
        self.limit = self.floor
        self.why = "probe"

    def _probing(
        self, probe: Probe, verdict: Verdict, started_s: float, duration_s: float, in_flight: int, now_s: float
    ) -> None:
        self._drops_total += verdict is Verdict.FAILURE
        progress = probe.ended(verdict, started_s, duration_s, in_flight, now_s)
        if progress == "more":
            return
        if progress == "measured":
            self._baseline.measured(probe.latency_s(self._settings.quantile), now_s)
        else:
            self._baseline.not_measured(now_s)
        self._probe = None
        self._set(self._limit, "measured" if progress == "measured" else "unmeasured")
        self._restart(now_s)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Times that are not known yet are 0."""
        return {
            "limit": self.limit,
            "why": self.why,
            "floor": self.floor,
            "start": self.start,
            "cap": self.cap,
            "baseline_s": self._baseline.value_s,
            "baseline_guessed": self._baseline.guessed,
            "baseline_age_s": self._baseline.age_s(now_s),
            "recent_s": self._recent_s,
            "queue": self._queue,
            "shrinking": self.shrinking(now_s),
            "probing": self._probe is not None,
            "probes": self._probes,
            "windows": self._windows,
            "drops": self._drops_total,
        }


def _step(limit: float) -> float:
    return max(1.0, log10(limit))


def _check(floor: int, start: int, cap: int) -> None:
    if not 1 <= floor <= start <= cap:
        raise ValueError(f"1 <= floor <= start <= cap does not hold of {floor}, {start}, {cap}")
