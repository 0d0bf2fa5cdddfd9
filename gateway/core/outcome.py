"""How an attempt ended, and what each ending teaches whom: one closed list, one table.

An attempt is one send of a call to one replica. Every place that learns from attempts (the picker's latency estimate,
the concurrency limit, the breaker, the hedge delay, the replica's health) reads its lesson from `TEACHINGS`; none
decides for itself. The division follows concurrency-limits' three endings and Finagle's response classes; rows for
learners that do not exist yet are already fixed here, so that a new learner cannot disagree with the old ones.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class Outcome(enum.Enum):
    """The closed list of endings."""

    OK = "ok"
    CALLER_FAULT = "caller_fault"
    """The replica says that the request itself is wrong; any replica would."""
    OVERLOAD = "overload"
    """The replica is alive and refuses for load: its queue is full, or the request waited there too long."""
    NOT_LOADED = "not_loaded"
    """The replica does not have the model or version (any more)."""
    REFUSED = "refused"
    """The replica wants something of the gateway that callers cannot give: a restricted API's key, say."""
    BROKEN = "broken"
    """The model or the server failed while working, or gave an answer that cannot be true."""
    TRANSPORT = "transport"
    """The connection failed before an answer: refused, reset, closed, unparseable."""
    EXPIRED = "expired"
    """The call's deadline passed while the attempt was out."""
    ABANDONED = "abandoned"
    """The caller left, or the gateway stops and cuts the call off."""
    SUPERSEDED = "superseded"
    """Another attempt of the same call won."""
    GATEWAY_FAULT = "gateway_fault"
    """The gateway itself failed; says nothing about the replica."""


class Latency(enum.Enum):
    """What a latency estimate does with the attempt's duration."""

    RECORD = "record"
    LOWER_BOUND = "lower_bound"
    """The true latency is at least this long (the attempt was cut short)."""
    PENALTY = "penalty"
    """Record as a bad latency, whatever it was: a fast failure must not look like a fast replica."""
    SKIP = "skip"


class Verdict(enum.Enum):
    """What a breaker or a limit counts."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Teaching:
    """What one outcome teaches each learner, and whether another replica may be asked."""

    picker: Latency
    limit: Verdict
    breaker: Verdict
    hedge: Latency
    recheck_model: bool
    """The directory should ask this replica again about this model, before the next probe is due."""
    recheck_replica: bool
    """The directory should ask whether this replica is alive, before the next probe is due."""
    elsewhere: bool
    """Another replica might answer (whether one is asked is the retry decider's business)."""


def _t(
    picker: Latency,
    limit: Verdict,
    breaker: Verdict,
    hedge: Latency,
    *,
    model: bool = False,
    replica: bool = False,
    elsewhere: bool = False,
) -> Teaching:
    return Teaching(picker, limit, breaker, hedge, model, replica, elsewhere)


_L, _V = Latency, Verdict

TEACHINGS: Mapping[Outcome, Teaching] = MappingProxyType(
    {
        Outcome.OK: _t(_L.RECORD, _V.SUCCESS, _V.SUCCESS, _L.RECORD),
        Outcome.CALLER_FAULT: _t(_L.SKIP, _V.NEUTRAL, _V.NEUTRAL, _L.SKIP),
        Outcome.OVERLOAD: _t(_L.PENALTY, _V.FAILURE, _V.NEUTRAL, _L.SKIP, elsewhere=True),
        Outcome.NOT_LOADED: _t(_L.SKIP, _V.NEUTRAL, _V.NEUTRAL, _L.SKIP, model=True, elsewhere=True),
        Outcome.REFUSED: _t(_L.SKIP, _V.NEUTRAL, _V.NEUTRAL, _L.SKIP),
        Outcome.BROKEN: _t(_L.PENALTY, _V.NEUTRAL, _V.FAILURE, _L.SKIP, model=True, elsewhere=True),
        Outcome.TRANSPORT: _t(_L.PENALTY, _V.NEUTRAL, _V.FAILURE, _L.SKIP, replica=True, elsewhere=True),
        Outcome.EXPIRED: _t(_L.LOWER_BOUND, _V.FAILURE, _V.NEUTRAL, _L.LOWER_BOUND),
        Outcome.ABANDONED: _t(_L.LOWER_BOUND, _V.NEUTRAL, _V.NEUTRAL, _L.SKIP),
        Outcome.SUPERSEDED: _t(_L.LOWER_BOUND, _V.NEUTRAL, _V.NEUTRAL, _L.LOWER_BOUND),
        Outcome.GATEWAY_FAULT: _t(_L.SKIP, _V.NEUTRAL, _V.NEUTRAL, _L.SKIP),
    }
)
