"""Which failed attempts may be tried again elsewhere: one pure function over what is known of the call.

At most one retry, on another replica, with a slot that is free now, and only if the time left is likely to be enough.
What an outcome means was decided before (`core.outcome.TEACHINGS`, `elsewhere`): a caller's own fault, an answer's
deadline, a refusal of the gateway itself are never tried again (field case FH-08: one code, four meanings). A full
queue is, once: it is one replica's, and the picker chose it without knowing. The rules are those of gRPC's A6 (what
was answered in part is committed, pushback is obeyed, what was not processed may go again) and of Google's SRE book,
chapter 22 (retry at one layer only, few times, out of a budget); the back-off is full jitter, which does the least work
in total (AWS, "Exponential Backoff and Jitter").

A replica that goes down takes its attempts with it. Those are sent again once, even if the call has had its retry, but
alone: while another attempt of the call is out, that one is awaited instead. If a second replica dies of the same input
(`decide.quarantine`), the call is not sent again.

Payment is the caller's, and comes last: a retry draws from `AttemptBudget`, the re-send after a death (`died`) from
`DownAllowance`. Neither is asked before the verdict is `retry`, because what is drawn cannot be given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.decide.chance import Chance
from gateway.decide.quarantine import DEATHS_MAX

RetryWord = Literal[
    "retry",
    "answered",
    "final",
    "quarantined",
    "stateful",
    "decoupled",
    "not_replayable",
    "not_read_only",
    "rival_out",
    "resent",
    "attempts",
    "pushback",
    "no_replica",
    "same_replica",
    "deadline",
]
"""`retry`, or the first of the reasons against it, in the order in which they are looked at:

- `answered`: the caller has been given something of an answer already;
- `final`: the outcome is not one that another replica might better;
- `quarantined`: the input has killed `DEATHS_MAX` replicas;
- `stateful`, `decoupled`: such models' calls are never sent again, whatever a policy says;
- `not_replayable`: the body is gone, it was larger than what is kept;
- `not_read_only`: it may have run, and running twice may do harm;
- `rival_out`: another attempt of the call is still out, and is awaited;
- `resent`: it was sent again for a death once;
- `attempts`: it has had its retry, or its hedge;
- `pushback`: the replica asked that it be not tried again;
- `no_replica`: no other admissible replica has a free slot;
- `same_replica`: the one that is offered has had an attempt of this call;
- `deadline`: what is left is not more than the wait and the usual time of an answer.
"""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Raises ValueError for more than one retry, and for times that are negative, not finite, or out of order."""

    retries_max: int = 1
    """Attempts after the first, hedges included: 0 or 1 (notes 3: at most one, here and nowhere below)."""
    backoff_base_s: float = 0.010
    """The first wait is drawn from zero to this (notes 3)."""
    backoff_cap_s: float = 0.200
    """No wait is longer (notes 3)."""

    def __post_init__(self) -> None:
        if self.retries_max not in (0, 1):
            raise ValueError(f"retries_max must be 0 or 1, not {self.retries_max}")
        if not 0 <= self.backoff_base_s <= self.backoff_cap_s < float("inf"):
            raise ValueError(
                f"backoff_base_s ({self.backoff_base_s}) must be from 0 to backoff_cap_s ({self.backoff_cap_s}), finite"
            )


DEFAULTS = RetrySettings()


class RetryView(NamedTuple):
    """What is known when an attempt has failed. Times are in seconds."""

    elsewhere: bool
    """Of the outcome's teaching: another replica might answer."""
    answered: bool
    """A response, or a part of one, has gone to the caller."""
    sent: bool
    """Bytes of the request may have reached the replica. False means that it certainly did not run; then `read_only` is
    not asked for, because the call is sent for the first time.
    """
    read_only: bool
    """The policy says that running twice does no harm."""
    replayable: bool
    """The body is still whole in memory."""
    stateful: bool
    """A step of a sequence, or a model that keeps state."""
    decoupled: bool
    """The model gives any number of responses."""
    tried: tuple[str, ...]
    """The replica of every attempt of the call so far, hedges and this one included."""
    target: str
    """An admissible replica with a free slot, not one of `tried`; "" if there is none."""
    remaining_s: float
    """Until the call's deadline."""
    delay_s: float
    """The wait before the retry: `backoff_s`."""
    p50_s: float
    """The median time of the model's primaries, 0.0 where it is not known yet."""
    pushback_s: float | None = None
    """The replica's own word on when to try again (`grpc-retry-pushback-ms`), None if it gave none. Negative, or not a
    number: not at all (A6).
    """
    rival_out: bool = False
    """Another attempt of the call is out."""
    died: bool = False
    """The replica of this attempt, or of an earlier one that was not sent again for it, went down meanwhile."""
    resent: bool = False
    """The call was sent again for a death before."""
    deaths: int = 0
    """Replicas that died with this input, as far as the quarantine remembers, this death included."""

    @property
    def wait_s(self) -> float:
        """How long the retry waits: `delay_s`, or the replica's pushback where that is longer. It is asked of the whole
        service, not of the one replica (A6).
        """
        pushback_s = self.pushback_s
        return pushback_s if pushback_s is not None and pushback_s > self.delay_s else self.delay_s


def retry_verdict(view: RetryView, settings: RetrySettings = DEFAULTS) -> RetryWord:
    """Whether the call may be sent once more, now or after `view.wait_s`, to `view.target`. O(1). Never raises.

    A call has at most three attempts: the first, a retry or a hedge, and one for a death.
    """
    return _of_the_call(view) or _of_the_attempts(view, settings) or _of_the_next(view) or "retry"


def _of_the_call(view: RetryView) -> RetryWord | None:
    """What speaks against any further attempt of such a call."""
    if view.answered:
        return "answered"
    if not view.elsewhere:
        return "final"
    if view.deaths >= DEATHS_MAX:
        return "quarantined"
    if view.stateful:
        return "stateful"
    if view.decoupled:
        return "decoupled"
    if not view.replayable:
        return "not_replayable"
    if view.sent and not view.read_only:
        return "not_read_only"
    return None


def _of_the_attempts(view: RetryView, settings: RetrySettings) -> RetryWord | None:
    """What the attempts so far leave."""
    if view.rival_out:
        return "rival_out"
    if view.died:
        return "resent" if view.resent else None
    return "attempts" if len(view.tried) > settings.retries_max else None


def _of_the_next(view: RetryView) -> RetryWord | None:
    """Whether there is a place and time for another."""
    if view.pushback_s is not None and not view.pushback_s >= 0:
        return "pushback"
    if not view.target:
        return "no_replica"
    if view.target in view.tried:
        return "same_replica"
    # In this form a value that is no number says no.
    return None if view.remaining_s > view.wait_s + view.p50_s else "deadline"


_DOUBLINGS_MAX = 30
"""Long past any cap, and far from what a float can hold."""


def backoff_s(number: int, chance: Chance, *, sent: bool = True, settings: RetrySettings = DEFAULTS) -> float:
    """The wait before retry `number` (from 1), seconds: a uniform draw from zero to the base, doubled for each retry
    before it, capped. Calls that failed together so do not come back together. Nothing was `sent`: zero, and nothing is
    drawn; a refused connection put no load on anybody.
    """
    if not sent:
        return 0.0
    most_s = settings.backoff_base_s * (1 << min(max(number - 1, 0), _DOUBLINGS_MAX))
    return min(most_s, settings.backoff_cap_s) * chance.random()
