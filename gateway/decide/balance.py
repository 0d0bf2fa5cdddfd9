"""Balance: which replica of one (pool, model, version) gets the next call, and what the ends of calls teach about it.

Two judges sit together here. The picker (`score.py`) compares: who is least busy, weighed by how long calls take there.
The ejection (`ejection.py`) forbids: who fails, or is many times too slow, gets none, within a cap. A replica whose
breaker waits for a call to prove itself with is served first; the score, which its failures have spoilt, would keep
that call from it.

Both learn by `TEACHINGS` alone, each its own column. While all replicas are well neither the closures nor the
questions to the breakers are made: then a pick is one look at each candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.outcome import TEACHINGS, Latency, Outcome
from gateway.core.permit import Doubt, Permit
from gateway.core.snapshot import Candidate
from gateway.decide.affinity import Affinity, AffinitySettings
from gateway.decide.breaker import Probe
from gateway.decide.chance import Chance
from gateway.decide.ejection import Ejection, EjectionSettings, Unjudged
from gateway.decide.rendezvous import Key
from gateway.decide.score import ScoredPicker, ScoreSettings

_OK, _UNSENT = Outcome.OK, Outcome.GATEWAY_FAULT
_RECORD, _SUCCESS = Latency.RECORD, TEACHINGS[Outcome.OK].breaker

BRIEF_MAX = 64
"""Calls in a row that have less time than calls take, after which one is the one to prove a replica with all the same:
where every call is like that, nobody else ever would. Less than two in a hundred are put at risk.
"""


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    score: ScoreSettings = field(default_factory=ScoreSettings)
    ejection: EjectionSettings = field(default_factory=EjectionSettings)
    affinity: AffinitySettings | None = None
    """None: keys mean nothing."""
    scope: str = ""
    """The model: keeps the keys of two apart."""


class Balance:
    """The two judges over the candidates of the last `update`."""

    __slots__ = ("_brief", "_candidates", "_slots", "affinity", "allowed", "ejection", "picker")

    def __init__(self, chance: Chance, settings: BalanceSettings | None = None) -> None:
        settings = settings or BalanceSettings()
        self.picker = ScoredPicker(chance, settings.score)
        judge = Ejection if settings.ejection.enabled else Unjudged
        self.ejection = judge(settings.ejection, chance)
        self.affinity = None if settings.affinity is None else Affinity(settings.scope, settings.affinity)
        self.allowed: Callable[[str], bool] | None = None
        """What beside the judges must let the call that is asked for go to a replica, whatever it goes there for; None:
        nothing.
        """
        self._brief = 0
        """How many in a row had too little time."""
        self._candidates: tuple[Candidate, ...] = ()
        self._slots: Mapping[str, int] = {}

    def update(
        self,
        candidates: Sequence[Candidate],
        down: Iterable[str],
        now_s: float,
        declared: Sequence[Candidate] = (),
    ) -> None:
        """The fleet changed: these may be sent calls; `down` are those that were there and have been found gone.
        `declared`: the candidates with their own slots, where those that they have now are others: by these, keys have
        their homes.
        """
        self._candidates = tuple(candidates)
        if self.affinity is not None:
            self.affinity.declared = {each.replica: each.slots for each in declared}
        self._slots = {candidate.replica: candidate.slots for candidate in candidates}
        self.ejection.update(self._slots, down, now_s)

    def pick(
        self,
        in_flight: Mapping[str, int],
        now_s: float,
        *,
        waiting: int = 0,
        exclude: Collection[str] = (),
        hold: bool = True,
        brief: bool = False,
        key: Key | None = None,
    ) -> str | None:
        """The replica that the next call is sent to now; None if there is none with a free slot, or waiting for one is
        better. `brief`: the call has less time than calls take, and is not the one to prove a replica with: it might
        have been answered elsewhere; after `BRIEF_MAX` of them one is. `key`: what keeps calls together. The other
        parameters are those of `ScoredPicker.pick`. O(candidates).
        """
        ejection, allowed = self.ejection, self.allowed
        if brief and self._brief < BRIEF_MAX:
            self._brief += 1
        elif not exclude:
            self._brief, brief = 0, False
        if key is not None and self.affinity is not None:
            home = self._home(self.affinity, key, in_flight, now_s, brief)
            if home is not None:
                return home
        if ejection.calm:
            return self.picker.pick(
                self._candidates, in_flight, now_s, waiting, exclude, allowed, None, hold, not brief
            )
        asked = ejection.wants_probe(now_s)
        # Nor is a call that has failed once.
        if asked is not None and not exclude and not brief and self._may_have(asked, in_flight):
            return asked
        proven = self._judged(in_flight, now_s, waiting, exclude, hold, brief, unproven=not (brief or exclude))
        if proven is None and exclude and not brief:
            return self._judged(in_flight, now_s, waiting, exclude, hold, brief, unproven=True)
        return proven

    def _judged(
        self,
        in_flight: Mapping[str, int],
        now_s: float,
        waiting: int,
        exclude: Collection[str],
        hold: bool,
        brief: bool,
        unproven: bool,
    ) -> str | None:
        """By score, of those that are not ejected; `unproven`: or that wait for a probe."""
        ejection, allowed = self.ejection, self.allowed
        return self.picker.pick(
            self._candidates,
            in_flight,
            now_s=now_s,
            waiting=waiting,
            exclude=exclude,
            hold=hold,
            may_try=not brief,
            admissible=lambda replica: (
                ejection.admissible(replica, now_s)
                and (unproven or not ejection.waits_to_prove(replica))
                and (allowed is None or allowed(replica))
            ),
            weight=lambda replica: ejection.weight(replica, now_s),
        )

    def _home(
        self, affinity: Affinity, key: Key, in_flight: Mapping[str, int], now_s: float, brief: bool
    ) -> str | None:
        """Where the key wants its call; None where the score decides. To prove a replica comes first: it takes a few
        calls, and were all calls to carry keys nobody else could do it.
        """
        picker, ejection, allowed = self.picker, self.ejection, self.allowed
        if not brief:
            proves = picker.wants_try(self._candidates, in_flight, now_s, allowed)
            if not ejection.calm:
                asked = ejection.wants_probe(now_s)
                proves = proves or (asked is not None and self._may_have(asked, in_flight))
            if proves:
                affinity.lend()
                return None

        def admissible(replica: str) -> bool:
            return (
                picker.trusted(replica)
                and (ejection.calm or (ejection.admissible(replica, now_s) and not ejection.waits_to_prove(replica)))
                # One that is merely full counts where shares are reckoned.
                and (allowed is None or in_flight.get(replica, 0) >= self._slots[replica] or allowed(replica))
            )

        if ejection.calm and picker.all_trusted and allowed is None:
            return affinity.pick(key, self._candidates, in_flight)
        weight = None if ejection.calm else lambda replica: ejection.weight(replica, now_s)
        return affinity.pick(key, self._candidates, in_flight, admissible=admissible, weight=weight)

    def _may_have(self, replica: str, in_flight: Mapping[str, int]) -> bool:
        """Whether it has a free slot, and the call that is asked for may have it."""
        free = in_flight.get(replica, 0) < self._slots.get(replica, 0)
        return free and (self.allowed is None or self.allowed(replica))

    def begin(self, replica: str, now_s: float) -> tuple[Probe | None, Doubt | None]:
        """A call is sent there: what its permit has to carry, and what is doubtful about it."""
        ejection = self.ejection
        if ejection.calm:
            return None, None
        probe = ejection.begin(replica, now_s, usual_s=self.picker.reference_s)
        return probe, ejection.doubt(replica, probe)

    def answered(self, permit: Permit, now_s: float) -> None:
        """The first response of a stream that is to prove its replica."""
        special, attempt = permit.special, permit.attempt
        if special is not None and special.probe is not None and attempt is not None:
            probe = special.probe
            assert isinstance(probe, Probe)
            permit.special = special._replace(probe=None)
            self.ejection.note(permit.replica, _SUCCESS, attempt.answered_s - attempt.started_s, now_s, probe)

    def ended(self, permit: Permit, now_s: float) -> None:
        """The permit comes back: learn from what its attempt came to. Every permit, also one that was never used."""
        replica, attempt = permit.replica, permit.attempt
        probe = None if permit.special is None else permit.special.probe
        assert probe is None or isinstance(probe, Probe)
        if attempt is None or attempt.outcome is None:
            outcome, duration_s = _UNSENT, 0.0
        else:
            outcome, duration_s = attempt.outcome, (attempt.answered_s or attempt.ended_s) - attempt.started_s
        work = 1.0 if permit.special is None else permit.special.work
        unit_s = duration_s / work if work > 1.0 else duration_s
        if outcome is _OK:
            self.picker.observe(replica, _RECORD, duration_s, now_s, permit.in_flight, work)
            self.ejection.note(replica, _SUCCESS, unit_s, now_s, probe)
            return
        teaching = TEACHINGS[outcome]
        self.picker.observe(replica, teaching.picker, duration_s, now_s, permit.in_flight, work)
        self.ejection.note(replica, teaching.breaker, unit_s, now_s, probe)

    def judgements(self, now_s: float) -> Mapping[str, Any]:
        """What the metrics page shows: a few numbers, whatever the number of replicas. O(replicas)."""
        return {**self.ejection.summary(now_s), "affinity": {} if self.affinity is None else self.affinity.counts}

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        shown = {"picker": self.picker.statistics(now_s), "ejection": self.ejection.statistics(now_s)}
        return shown if self.affinity is None else {**shown, "affinity": self.affinity.statistics(now_s)}
