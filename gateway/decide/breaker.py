"""Breaker: does one replica still deserve the calls of one model version? Judged by how its calls end.

Three rules open it: so many failures in a row; too low a share of successes in a ring of one-second buckets; too high
a share of slow calls in the same ring, unless the other replicas have slow calls as well: what is slow is measured by a
median of a second ago, and in the first second of a burst all calls are slow by that. Counts are exact: an average
weighted by time under-weighs a tight burst, and a GPU that answers errors within a millisecond is nothing but that
(linkerd2-proxy, `breaker/unified.rs`, 2026).

While open it asks for no calls, for a pause that doubles with each offence and is drawn with equal jitter. Then it is
half open: one call at a time is let through as a probe. Enough good ones close it; a bad one, or one that never
reports back, opens it for longer. A breaker that has closed takes its share slowly (`weight`).

It says what it thinks; whether the replica is really taken out is for `Ejection`, which sees the whole pool. One that
has to stay goes on getting calls while its breaker is open: a long run of good ones closes it as well.

Only what `TEACHINGS` calls a success or a failure counts. What is neutral (errors of the caller, sheds, cancellations,
deadlines) never does, and neither does a call that began before the last move: it says how things were.

Memory: a fixed number of integers. Every method is O(1); the ring is turned on at most once per bucket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gateway.core.outcome import Verdict
from gateway.decide.chance import Chance
from gateway.decide.ring import Ring

State = Literal["closed", "open", "half_open"]

Why = Literal[
    "failures_in_row",  # closed -> open
    "success_rate",
    "slow_rate",
    "pause_over",  # open -> half_open
    "probe_failed",  # half_open -> open
    "probe_slow",
    "probe_expired",
    "probes_good",  # half_open -> closed
    "traffic_good",  # open or half_open -> closed: it had to stay in use, and works
    "restarted",  # open or half_open -> closed: the server behind it is a new one
]

LEGAL: frozenset[tuple[State, State]] = frozenset(
    {("closed", "open"), ("open", "half_open"), ("half_open", "open"), ("half_open", "closed"), ("open", "closed")}
)

ROUNDING_S = 1e-6
"""The start of a call is computed as end minus duration; this much of it may be lost."""

# Looked up once: on the path of a call an attribute of an enum is dear.
_NEUTRAL, _SUCCESS = Verdict.NEUTRAL, Verdict.SUCCESS


_RANGES = (
    (1, 1000, "failures_in_row requests_min buckets probes_to_close"),
    (0, 1, "success_min slow_max"),
    (1e-3, 1, "weight_min"),
    (1e-3, 1e6, "slow_factor slow_outlier bucket_s open_s open_max_s probe_s"),
    (0, 1e6, "slow_floor_s forgive_s slow_start_s"),
)


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a breaker opens, for how long, and how it closes. Raises ValueError for what makes no sense."""

    failures_in_row: int = 5
    """So many failures without a success between them open it (Envoy, Finagle: 5)."""
    success_min: float = 0.8
    """A lower share of successes in the ring opens it (Finagle: 80 %)."""
    slow_max: float = 0.5
    """A higher share of slow calls in the ring opens it (the idea is resilience4j's; its 100 % never fires)."""
    slow_outlier: float = 2.0
    """But only if the share of slow calls is this many times that of the other replicas at least. Own choice."""
    slow_factor: float = 5.0
    """A call is slow when it takes this many times the pool's median."""
    slow_floor_s: float = 0.01
    """No shorter call is slow: on a model of a millisecond a hiccup of a scheduler is no fault. Own choice."""
    requests_min: int = 10
    """With fewer counted calls in the ring, neither share is looked at. Also how many good calls in a row close the
    breaker of a replica that had to stay in use.
    """
    buckets: int = 10
    """Buckets of the ring (Hystrix and linkerd: 10)."""
    bucket_s: float = 1.0
    open_s: float = 1.0
    """First pause, before jitter. The pause drawn lies between half of this and all of it (equal jitter)."""
    open_max_s: float = 60.0
    """What the doubling ends at (linkerd: 1 to 60 s)."""
    forgive_s: float = 60.0
    """After this long in the state closed, an offender's next pause is the first one again. Own choice: the longest
    pause.
    """
    probe_s: float = 10.0
    """How long a probe may take to report back; longer where `slow_factor` times the median is longer."""
    probes_to_close: int = 3
    slow_start_s: float = 10.0
    """Time from closing to full weight; 0 turns slow start off."""
    weight_min: float = 0.1
    """Weight at the start of slow start (Envoy's slow start: 10 %, linear)."""

    def __post_init__(self) -> None:
        for least, most, names in _RANGES:
            for name in names.split():
                if not least <= getattr(self, name) <= most:
                    raise ValueError(f"{name} must lie between {least} and {most}, not {getattr(self, name)}")
        if self.open_max_s < self.open_s:
            raise ValueError(f"open_max_s ({self.open_max_s}) must be at least open_s ({self.open_s})")


class Move(NamedTuple):
    """A change of state; `pause_s` is the pause that begins with it, 0 if none does."""

    at_s: float
    before: State
    after: State
    why: Why
    pause_s: float


class Probe:
    """The one permit of a half-open breaker; given back by the report of its call, and void from `until_s` on."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s


class Breaker:
    """The verdict on one (replica, model, version). Attributes are for reading."""

    __slots__ = (
        "_base_s",
        "_chance",
        "_elsewhere",
        "_failures_in_row",
        "_good_in_row",
        "_probes_good",
        "_settings",
        "changed_s",
        "opened_s",
        "pause_s",
        "plain_since_s",
        "probe",
        "ramp_until_s",
        "retry_s",
        "ring",
        "slow_after_s",
        "state",
        "why",
    )

    def __init__(
        self,
        settings: BreakerSettings,
        chance: Chance,
        now_s: float,
        elsewhere: Callable[[Breaker, float], float] | None = None,
    ) -> None:
        """`elsewhere`: of a breaker and an instant, the share of slow calls that the other replicas have."""
        self._settings = settings
        self._elsewhere = elsewhere
        self._chance = chance
        self.ring = Ring(settings.buckets, settings.bucket_s)
        self._failures_in_row = 0
        self._good_in_row = 0
        """Good ordinary calls since the last bad one, while not closed."""
        self._probes_good = 0
        self._base_s = 0.0
        """The last pause before jitter; 0 for one that has not offended, or is forgiven."""
        self.slow_after_s = math.inf
        """What takes longer is slow."""
        self.plain_since_s = now_s - ROUNDING_S
        """A good, fast call that began since then is counted, and nothing else follows from it; infinity: there is none
        like that.
        """
        self.state: State = "closed"
        self.why: Why | None = None
        """Of the last move."""
        self.changed_s = now_s
        """When the state was entered. Calls that began earlier do not count."""
        self.opened_s = now_s
        """When it last left the state closed (only while it is not closed)."""
        self.pause_s = 0.0
        """The last pause, as drawn."""
        self.retry_s = now_s
        """When that pause ends or ended."""
        self.ramp_until_s = -math.inf
        """When slow start ends or ended."""
        self.probe: Probe | None = None
        """The permit that is out."""

    def expect(self, median_s: float | None) -> None:
        """The pool's median duration of a call, per unit of work; None if unknown: then nothing is slow."""
        if median_s is None or not 0 < median_s < math.inf:
            self.slow_after_s = math.inf
        else:
            self.slow_after_s = max(self._settings.slow_floor_s, self._settings.slow_factor * median_s)

    def note(
        self,
        verdict: Verdict,
        duration_s: float,
        now_s: float,
        probe: Probe | None = None,
        ratio_only: bool = False,
        work: float = 1.0,
    ) -> Move | None:
        """A call of so much `work` (below 1 is 1) ended after `duration_s`. `probe` is what `begin` gave for it. A
        failure that is `ratio_only` counts in the share of successes but not in the row (linkerd's way with overload
        replies). Returns the move that followed, if one did.
        """
        slow = duration_s > self.slow_after_s * max(1.0, work)
        if probe is not None:
            return self._end_probe(probe, verdict, slow, now_s)
        if verdict is _NEUTRAL or now_s - duration_s < self.changed_s - ROUNDING_S:
            return None
        failed = verdict is not _SUCCESS
        if self.state != "closed":
            self._good_in_row = 0 if failed or slow else self._good_in_row + 1
            return self._close("traffic_good", now_s) if self._good_in_row >= self._settings.requests_min else None
        self.ring.add(now_s, failed, slow)
        if failed:
            if not ratio_only:
                self._failures_in_row += 1
                self.plain_since_s = math.inf
        elif self._failures_in_row:
            self._failures_in_row = 0
            self.plain_since_s = self.changed_s - ROUNDING_S
        return self._judge(now_s) if failed or slow else None

    def _judge(self, now_s: float) -> Move | None:
        """After a call that failed or was slow: a good one never opens the breaker, whatever has left the ring."""
        settings, ring = self._settings, self.ring
        if self._failures_in_row >= settings.failures_in_row:
            return self._open("failures_in_row", now_s)
        if ring.calls < settings.requests_min:
            return None
        if (ring.calls - ring.failures) / ring.calls < settings.success_min:
            return self._open("success_rate", now_s)
        slow = ring.slow / ring.calls
        if slow <= settings.slow_max:
            return None
        others = 0.0 if self._elsewhere is None else self._elsewhere(self, now_s)
        return self._open("slow_rate", now_s) if slow >= settings.slow_outlier * others else None

    def half_open(self, now_s: float) -> Move | None:
        """From open, if the pause is over."""
        if self.state != "open" or now_s < self.retry_s:
            return None
        self._probes_good = 0
        return self._move("half_open", "pause_over", now_s)

    def begin(self, now_s: float, work: float = 1.0, usual_s: float = 0.0) -> Probe | None:
        """A call begins; the permit, if this is half open and it is not out. What is returned goes back with `note`.
        `usual_s`: what a call takes as far as anybody knows, where the pool's median is not known: too few calls of a
        slow model are seen for that, and its probes must not run out before they can be answered.
        """
        if self.state != "half_open" or self.probe is not None:
            return None
        slow_after_s = self.slow_after_s * (work if 1.0 < work < math.inf else 1.0)
        if slow_after_s == math.inf:
            slow_after_s = self._settings.slow_factor * usual_s
        self.probe = Probe(now_s + max(self._settings.probe_s, slow_after_s))
        return self.probe

    def lose_probe(self, now_s: float) -> Move | None:
        """If the permit that is out has expired: the probe failed."""
        if self.probe is None or now_s < self.probe.until_s:
            return None
        return self._open("probe_expired", now_s)

    def _end_probe(self, probe: Probe, verdict: Verdict, slow: bool, now_s: float) -> Move | None:
        if probe is not self.probe:
            return None  # it expired, or the breaker has moved on
        if now_s >= probe.until_s:
            return self._open("probe_expired", now_s)
        self.probe = None
        if verdict is _NEUTRAL:
            return None
        if verdict is not _SUCCESS:
            return self._open("probe_failed", now_s)
        if slow:
            return self._open("probe_slow", now_s)
        self._probes_good += 1
        return self._close("probes_good", now_s) if self._probes_good >= self._settings.probes_to_close else None

    def restart(self, now_s: float) -> Move | None:
        """The server behind it is a new one: closed, with a slow start. Offences are remembered (`forgive_s`)."""
        if self.state != "closed":
            return self._close("restarted", now_s)
        self._start_afresh(now_s)
        return None

    def relent(self, now_s: float) -> None:
        """If it is open: let the pause be the first one again, and end no later than that."""
        if self.state == "open":
            self._base_s = self._settings.open_s
            self.retry_s = min(self.retry_s, now_s + self._draw(self._base_s))

    def _draw(self, base_s: float) -> float:
        return base_s / 2 + self._chance.random() * base_s / 2

    def weight(self, now_s: float) -> float:
        """What share of a full replica's load it should get, above 0 and at most 1: below 1 in slow start."""
        settings = self._settings
        left_s = min(self.ramp_until_s - now_s, settings.slow_start_s)
        return 1.0 if left_s <= 0 else max(settings.weight_min, 1.0 - left_s / settings.slow_start_s)

    def _open(self, why: Why, now_s: float) -> Move:
        settings = self._settings
        if self.state == "closed":
            self.opened_s = now_s
            if now_s - self.changed_s >= settings.forgive_s:
                self._base_s = 0.0
        self._base_s = min(settings.open_max_s, max(settings.open_s, 2 * self._base_s))
        self.pause_s = self._draw(self._base_s)
        self.retry_s = now_s + self.pause_s
        self._good_in_row = 0
        return self._move("open", why, now_s, self.pause_s)

    def _close(self, why: Why, now_s: float) -> Move:
        move = self._move("closed", why, now_s)
        self._start_afresh(now_s)
        return move

    def _start_afresh(self, now_s: float) -> None:
        self.ring = Ring(self._settings.buckets, self._settings.bucket_s)
        self._failures_in_row = 0
        self.changed_s = now_s
        self.plain_since_s = now_s - ROUNDING_S
        self.ramp_until_s = now_s + self._settings.slow_start_s

    def _move(self, after: State, why: Why, now_s: float, pause_s: float = 0.0) -> Move:
        before = self.state
        assert (before, after) in LEGAL, f"{before} -> {after}: {why}"
        self.state, self.why, self.changed_s, self.probe = after, why, now_s, None
        self.plain_since_s = math.inf
        return Move(now_s, before, after, why, pause_s)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        calls, failures, slow = self.ring.read(now_s)
        return {
            "state": self.state,
            "why": self.why,
            "for_s": now_s - self.changed_s,
            "failures_in_row": self._failures_in_row,
            "calls": calls,
            "failures": failures,
            "slow": slow,
            "pause_s": self.pause_s,
            "retry_in_s": max(0.0, self.retry_s - now_s) if self.state == "open" else 0.0,
        }
