"""What the picker knows of each candidate: its service time next to the pool's, whether it is suspect, and how many
calls of other gateways it has.

**The reference** is the lower median of what the candidates took for calls that they answered: of two, the faster
one's; where most are slow, slow is what the pool is. Penalties are no part of it: in a pool that fails they would feed
on themselves. Service times within `even_ratio` of the reference count as the reference.

**In doubt** is a candidate whose service time, by its last evidence, penalties included, is above `suspect_ratio` times
the reference. That may have been one straggler or one failure, which with batching many calls share, and whose end is
when they are seen: the replica is well by then. So it counts as `suspect_ratio` times the reference, no more, and the
calls that are sent from now on decide: good ones take three quarters of the difference away each, from 5 s over 10 ms
four do, then the penalty is forgotten; a bad one makes it a **suspect**. Calls that were sent before say nothing.

A suspect gets tries, one at a time (`score.py`). One is *due* at once, again after every try that came back good, and
otherwise when the reading, which drifts to the reference while nobody looks, has come down to the ratio, at the latest
after `retry_s`. From 10 times the reference one or two good ones clear it, from 5 s over 10 ms four. So a replica that
has recovered is found within `retry_s` (15 s) and cleared by a few tries; one that stays ten times slower gets a call
every 15 s.

**Other gateways' calls** are told by Triton's pending count. A load is max(own calls, pending then + own sends - own
completions since), and own sends - completions is the difference of two in-flight counts: so a report leaves behind
how many calls are not ours, and is ignored when it is older than `report_age_s`.

Memory: one row for each candidate of the last `adopt`; what is told of others is ignored. Everything is O(1) but
`adopt` and `refresh`, which sorts the estimates, at most every `refresh_s`, and once more when somebody falls into
doubt: where a burst makes all slower, the first to answer stands out until the others have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.outcome import Latency
from gateway.core.snapshot import Candidate
from gateway.decide.service_time import (
    COST_MAX_S,
    COST_MIN_S,
    KEEP_MAX,
    KEEP_TRY,
    STILL,
    PeakEwma,
    ServiceTimeSettings,
    per_unit,
)

DEFAULT_S = 0.1
"""The reference while nothing at all is known. Of equal unknowns any number would do; with this one a first call that
fails costs `penalty_s`.
"""

ROUNDING_S = 1e-6
"""The start of a call is computed as end minus duration; this much of it may be lost."""

_SKIP, _PENALTY, _RECORD = Latency.SKIP, Latency.PENALTY, Latency.RECORD

_RANGES = (
    ("even_ratio", 1.0, 100.0),
    ("suspect_ratio", 1.0, 1e6),
    ("retry_s", 1e-3, COST_MAX_S),
    ("retry_min_s", 0.0, COST_MAX_S),
    ("report_age_s", 0.0, COST_MAX_S),
    ("refresh_s", 0.0, 10.0),
)


@dataclass(frozen=True, slots=True)
class StandingSettings:
    """How candidates are judged. Raises ValueError for what makes no sense."""

    even_ratio: float = 1.5
    """Service times within this factor of the reference count as equal. Own choice: batches of different size."""
    suspect_ratio: float = 3.0
    """Above this many times the reference a replica is suspect. Own choice: well below the breaker's 5."""
    retry_s: float = 15.0
    """A suspect is tried again after this at the latest. Own choice: what a tenfold estimate needs to drift to three
    times the pool's, with tau 10 s.
    """
    retry_min_s: float = 1.0
    """And not before this, if the last try taught nothing. Own choice."""
    report_age_s: float = 0.5
    """Pending counts older than this are ignored (Prequal's probes expire after about 1 s; half of it, because a count
    of requests moves faster than a latency).
    """
    refresh_s: float = 0.1
    """How old the reference and the drifting readings may get: a hundredth of tau."""
    service_time: ServiceTimeSettings = field(default_factory=ServiceTimeSettings)

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must lie between {least} and {most}, not {getattr(self, name)}")
        if self.even_ratio > self.suspect_ratio:
            raise ValueError(f"even_ratio ({self.even_ratio}) must be at most suspect_ratio ({self.suspect_ratio})")


class Row:
    """One candidate. For reading."""

    __slots__ = (
        "cost_s",
        "doubt_s",
        "doubted",
        "due",
        "failures",
        "fault",
        "foreign",
        "foreign_until_s",
        "plain_since_s",
        "replica",
        "rounds",
        "scale",
        "served",
        "since_s",
        "slots",
        "suspect",
        "tried_s",
        "tries",
    )

    def __init__(self, replica: str, settings: ServiceTimeSettings, cost_s: float, since_s: float) -> None:
        self.replica = replica
        self.since_s = since_s
        """Calls that were sent before say nothing: they went to a former server of that name."""
        self.plain_since_s = since_s
        """The same for the short way, which is not for a candidate in doubt: infinity then."""
        self.slots = 0
        self.rounds: tuple[float, ...] = (1.0,)
        """By its number among the calls in flight: for how many rounds of work a call is out."""
        self.scale = 0.0
        """What one call in flight here is as a load on an average replica."""
        self.foreign = 0
        """Calls in flight here that are not ours."""
        self.cost_s = cost_s
        """Service time as it is compared."""
        self.doubted = False
        self.suspect = False
        """In doubt, and a call that was sent since was bad."""
        self.due = False
        """A try is due."""
        self.served = PeakEwma(settings.tau_s, settings.seed_s)
        """The estimate, of calls that were answered."""
        self.fault: PeakEwma | None = None
        """The estimate with penalties, from a failure on until no doubt is left."""
        self.failures = 0
        """Penalties since the last answer."""
        self.foreign_until_s = -math.inf
        self.doubt_s = self.tried_s = -math.inf
        """When doubt arose, or became suspicion; when the last call was sent in spite of that."""
        self.tries = 0

    @property
    def estimate(self) -> PeakEwma:
        return self.fault or self.served


class Standings:
    """The candidates of one (pool, model, version). Attributes are for reading."""

    __slots__ = (
        "_alone",
        "_by_replica",
        "_even_max_s",
        "_even_min_s",
        "_plain_max_s",
        "_settings",
        "_slots_each",
        "_still_s",
        "due_s",
        "level",
        "now_s",
        "reference_s",
        "replicas",
        "rows",
        "seen",
    )

    def __init__(self, settings: StandingSettings) -> None:
        self._settings = settings
        self._still_s = STILL * settings.service_time.tau_s
        self.seen: tuple[Candidate, ...] | None = None
        self._by_replica: dict[str, Row] = {}
        self.rows: list[Row] = []
        self.replicas: tuple[str, ...] = ()
        self._slots_each = 0
        """If all have the same; else 0."""
        self._alone = 0
        """The slots of the only candidate; 0 if there are others, or none."""
        self.level = 0
        """The slots of each candidate where nothing but the calls in flight tells one from another: all count as the
        reference, none is suspect, no foreign calls; or where there is only one, and that no suspect. 0 where they
        differ, and after a change, until `refresh` has seen that they are equal again.
        """
        self.now_s = 0.0
        """The latest instant that was told."""
        self.due_s = -math.inf
        """When `refresh` is due."""
        self.reference_s = 0.0
        """The pool's service time, seconds per unit of work."""
        self._refer(settings.service_time.seed_s or DEFAULT_S)

    def _refer(self, reference_s: float) -> None:
        settings = self._settings
        self.reference_s = reference_s
        self._even_min_s = reference_s / settings.even_ratio
        self._even_max_s = min(reference_s * settings.even_ratio, COST_MAX_S)
        self._plain_max_s = min(settings.suspect_ratio * reference_s, COST_MAX_S)

    def of(self, replica: str) -> Row | None:
        return self._by_replica.get(replica)

    def adopt(self, candidates: Sequence[Candidate]) -> None:
        """From now on these are the candidates; what is known of those that stay is kept. O(1) for the same tuple as
        before; a list may change under our hands, and is looked at every time.
        """
        if candidates is self.seen:
            return
        known = self._by_replica
        self._by_replica = {}
        self.rows = []
        average = sum(candidate.slots for candidate in candidates) / max(1, len(candidates))
        since_s = self.now_s if self.now_s > 0.0 else -math.inf  # before the first instant that was told
        for candidate in candidates:
            row = known.get(candidate.replica)
            if row is None:
                row = Row(candidate.replica, self._settings.service_time, self.reference_s, since_s)
            if row.slots != candidate.slots:
                row.slots = candidate.slots
                row.rounds = (1.0, *(1.0 + number / row.slots for number in range(row.slots)))
            row.scale = average / candidate.slots if candidate.slots > 0 else 0.0
            self._by_replica[candidate.replica] = row
            self.rows.append(row)
        self.replicas = tuple(self._by_replica)
        each = {row.slots for row in self.rows}
        self._slots_each = each.pop() if len(each) == 1 else 0
        self._alone = self._slots_each if len(self.rows) == 1 else 0
        self.seen = candidates if isinstance(candidates, tuple) else None
        self.due_s = -math.inf

    def observe(
        self,
        replica: str,
        lesson: Latency,
        elapsed_s: float,
        now_s: float,
        in_flight: int = 1,
        work: float = 1.0,
        hint_s: float = 0.0,
    ) -> None:
        """An attempt ended after `elapsed_s`; `lesson` is its outcome's in `TEACHINGS`. `in_flight`: calls on the
        replica, this one included, when it was sent. `hint_s`: after what time the replica asked to be asked again.
        """
        row = self._by_replica.get(replica)
        if row is None or now_s - elapsed_s < row.since_s - ROUNDING_S:
            return
        if lesson is _RECORD and work == 1.0 and self.answered(replica, elapsed_s, now_s, in_flight):
            return
        if now_s > self.now_s:
            self.now_s = now_s
        if lesson is not _SKIP:
            self._learn(row, lesson, elapsed_s, in_flight, work, hint_s)

    def answered(self, replica: str, elapsed_s: float, now_s: float, in_flight: int) -> float:
        """Nearly every call: answered, by one of which there is no doubt before and after, and so soon after the last
        that nothing has faded. The same as `observe` in a fifth of the steps (a test holds them equal). Returns what
        the call took per unit of work; 0.0 if it is not like that, and nothing was learnt: ask `observe`.
        """
        row = self._by_replica.get(replica)
        if row is None or now_s - elapsed_s < row.plain_since_s or in_flight > row.slots:
            return 0.0
        if now_s > self.now_s:
            self.now_s = now_s
        else:
            now_s = self.now_s
        served = row.served
        if now_s - served.stamp_s >= self._still_s:
            return 0.0
        last_s = served.cost_s
        assert last_s is not None, "there is a stamp"
        cost_s = unit_s = elapsed_s / row.rounds[in_flight]
        if unit_s < last_s:
            if unit_s <= COST_MIN_S:
                return 0.0
            cost_s += (last_s - unit_s) * KEEP_MAX
        if self._even_min_s <= cost_s <= self._even_max_s:
            row.cost_s = self.reference_s
        elif cost_s <= self._plain_max_s:
            row.cost_s = cost_s
            self._tell_apart()
        else:
            return 0.0
        served.cost_s = cost_s
        served.stamp_s = now_s
        row.failures = 0
        return unit_s

    def _tell_apart(self) -> None:
        """A candidate is not like the others any more; one that is alone stays what it is."""
        self.level = min(self.level, self._alone)

    def _learn(self, row: Row, lesson: Latency, elapsed_s: float, in_flight: int, work: float, hint_s: float) -> None:
        now_s, reference_s, served, fault = self.now_s, self.reference_s, row.served, row.fault
        doubted, first = row.doubted, served.cost_s is None
        fresh = doubted and now_s - elapsed_s >= row.doubt_s - ROUNDING_S
        if lesson is _PENALTY:
            if fault is None:
                fault = row.fault = PeakEwma(self._settings.service_time.tau_s)
                fault.raise_to(served.at(now_s, reference_s) or 0.0, now_s)
            fault.raise_to(self._settings.service_time.penalty(reference_s, hint_s), now_s, toward_s=reference_s)
            row.failures += 1
            good = False
        else:
            cost_s = per_unit(elapsed_s, work=work, in_flight=in_flight, slots=row.slots)
            good = cost_s <= self._settings.suspect_ratio * reference_s
            if lesson is _RECORD:
                keep_max = KEEP_TRY if good and fresh else KEEP_MAX
                served.observe(cost_s, now_s, toward_s=reference_s, keep_max=keep_max)
                if fault is not None:
                    fault.observe(cost_s, now_s, toward_s=reference_s, keep_max=keep_max)
                row.failures = 0
            elif not first or cost_s > reference_s:  # the unknown counts as the reference; less would be no news
                served.raise_to(cost_s, now_s, toward_s=reference_s)
                if fault is not None:
                    fault.raise_to(cost_s, now_s, toward_s=reference_s)
                fresh = fresh and not good  # cut short so early, it says nothing
        if fresh:
            row.due = good or not row.suspect
            if not good and not row.suspect:
                row.suspect = True
                row.doubt_s = now_s
        self._judge(row)
        if first or (row.doubted and not doubted):
            self.refresh()

    def report(self, replica: str, pending: int, in_flight: int, now_s: float) -> None:
        """Triton counted `pending` calls on the replica at `now_s`, when `in_flight` were our own."""
        row = self._by_replica.get(replica)
        if row is not None and now_s + self._settings.report_age_s >= row.foreign_until_s:  # no later one was first
            row.foreign = max(0, pending - in_flight)
            row.foreign_until_s = now_s + self._settings.report_age_s
            if row.foreign:
                self._tell_apart()
                self.due_s = min(self.due_s, row.foreign_until_s)

    def forget(self, replica: str) -> None:
        """The server behind it is a new one: what was seen of the old one says nothing."""
        row = self._by_replica.get(replica)
        if row is not None:
            settings = self._settings.service_time
            row.served, row.fault, row.failures = PeakEwma(settings.tau_s, settings.seed_s), None, 0
            row.since_s = self.now_s
            self._judge(row)

    def tried(self, row: Row) -> None:
        """A call goes there although it is suspect."""
        row.due = False
        row.tried_s = self.now_s
        row.tries += 1

    def refresh(self) -> None:
        """Reference, readings, tries and reports as of `now_s`."""
        settings, now_s = self._settings, self.now_s
        costs = sorted(row.served.cost_s for row in self.rows if row.served.cost_s is not None)
        if costs:
            self._refer(costs[(len(costs) - 1) // 2])
        due_s = now_s + settings.refresh_s
        self.level = self._slots_each
        for row in self.rows:
            if row.foreign:
                if now_s >= row.foreign_until_s:
                    row.foreign = 0
                else:
                    due_s = min(due_s, row.foreign_until_s)
                    self._tell_apart()
            self._judge(row)
            if row.suspect and not row.due:
                since_s = now_s - max(row.doubt_s, row.tried_s)
                drifted = row.cost_s <= settings.suspect_ratio * self.reference_s
                row.due = since_s >= settings.retry_s or (drifted and since_s >= settings.retry_min_s)
        self.due_s = due_s

    def _judge(self, row: Row) -> None:
        """What the evidence makes of a replica, next to the reference as of the last refresh."""
        reference_s = self.reference_s
        ratio_s = self._settings.suspect_ratio * reference_s
        evidence_s = row.estimate.cost_s
        if evidence_s is None or evidence_s <= ratio_s:
            row.doubted = row.suspect = False
            row.fault = None
        elif not row.doubted:
            row.doubted = True
            row.doubt_s = self.now_s
        cost_s = row.estimate.at(self.now_s, reference_s)
        if cost_s is None or self._even_min_s <= cost_s <= self._even_max_s:
            cost_s = reference_s
        row.plain_since_s = math.inf if row.doubted else row.since_s
        row.cost_s = cost_s if row.suspect else min(cost_s, ratio_s)
        if row.suspect:
            self.level = 0
        elif row.cost_s != reference_s:
            self._tell_apart()
