"""Hedging: when a call that is still out deserves a second attempt elsewhere.

A slow attempt is often an unlucky one. So after waiting for as long as nearly all attempts take, a second copy goes to
another replica, and whichever answers first is the answer (Dean and Barroso, "The Tail at Scale", 2013). Here are two
of the three questions: how long to wait (`HedgeDelay`), and whether the place can bear a second attempt now
(`hedge_verdict`). The third, whether there is a token for it, is the budget's, and is asked last, so that none is taken
for nothing.

What is different from the hedging in print (finagle's `BackupRequestFilter`, tower's `hedge`):

- The delay learns from primaries alone, and from those that were cut short as well, as lower bounds. To leave out the
  ones that lost against their hedge would hide just the slow ones: the delay would fall, more would be hedged, more
  left out.
- Chance makes a delay longer, never shorter. It keeps a crowd of calls from asking in the same instant; were it to go
  both ways, half of the calls of a model that always takes the same time would ask before they could have ended.
- A busy pool gets no hedges: duplicates help up to about half load and hurt above (Vulimiri et al., 2013). The load is
  that of some seconds. The instant's would let many through at nine tenths, when a slot happens to be free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gateway.decide.chance import Chance
from gateway.decide.quantiles import QuantileSettings, QuantileWindow


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    """Raises ValueError where a value makes no sense."""

    trigger_quantile: float = 0.97
    """An attempt is slow when it takes longer than this share of them (DESIGN 7). What lies above, 3 %, is less than
    the 5 % that the budget's deposit allows.
    """
    early_quantile: float = 0.95
    """The trigger instead, where the tail begins before `trigger_quantile`: calls that are stuck behind a slow one in
    the same replica make more than 3 % slow, and the trigger would lie far out in what it is to cut off. 5 % above it
    is all that the deposit pays for (notes 2.5); where more are slow, the cause is not the tail.
    """
    early_ratio: float = 2.0
    """The tail begins there if `trigger_quantile` is more than this many times `early_quantile` (our figure: of body
    shapes, from constant to log-normal with a deviation of 2, none comes near).
    """
    delay_min_s: float = 0.002
    """No hedge before this, seconds: below lies the noise of the gateway itself (notes 2.5)."""
    samples_min: int = 100
    """No hedge before this many attempts are known (notes 2.5): three of a hundred is the least that is a tail."""
    refresh_s: float = 1.0
    """The quantiles are read anew at most this often, seconds (notes 2.5)."""
    jitter_share: float = 0.1
    """A delay is made longer by up to this share, by chance (notes 2.5, there in both directions)."""
    remaining_share: float = 0.5
    """No later than at this share of the time that the call has left (notes 2.5)."""
    outstanding_share: float = 0.05
    """At most this share of the attempts in flight are hedges (notes 2.5)."""
    outstanding_min: int = 2
    """So many always may be. With one (notes 2.5) a call that is slow on both replicas shuts out all others for as long
    as it takes, and a small pool keeps a tenth of its tail.
    """
    load_max: float = 0.55
    """No hedge where more of the slots than this are taken, in the mean (Vulimiri et al.: duplicates stop helping
    somewhere between a quarter and half of a pool's capacity; ours are few). Half load is 0.5 at most, where all slots
    can run at once; nine tenths are 0.6 at least, where half of them can and the others wait in the replica.
    """
    load_tau_s: float = 5.0
    """The mean forgets with this time constant, seconds: some hundred attempts of a usual model."""
    window: QuantileSettings = field(default_factory=QuantileSettings)

    def __post_init__(self) -> None:
        for name in ("delay_min_s", "refresh_s", "load_tau_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {value}")
        for name in ("trigger_quantile", "remaining_share", "outstanding_share", "load_max"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {value}")
        if not 0 <= self.jitter_share <= 1:
            raise ValueError(f"jitter_share must lie between 0 and 1, not at {self.jitter_share}")
        if not 0 < self.early_quantile <= self.trigger_quantile:
            raise ValueError(f"early_quantile must be above 0 and at most trigger_quantile, not {self.early_quantile}")
        if not self.early_ratio >= 1:
            raise ValueError(f"early_ratio must be at least 1, not {self.early_ratio}")
        for name in ("samples_min", "outstanding_min"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


NoDelay = Literal["too_few_samples", "deadline_near"]


class HedgeDelay:
    """How long to wait for a primary before asking for a hedge. One for each model (and class of work, if its calls
    differ by far), fed with every primary whose ending `TEACHINGS` lets it learn from.

    The delay is the larger of `delay_min_s` and the upper end of the bucket of the trigger quantile (`early_quantile`
    where the tail begins before it), and up to `jitter_share` more; but not past `remaining_share` of the time left. An
    operator will meet this: at under `samples_min` calls within half a minute nothing is hedged. Memory: that of a
    `QuantileWindow`.
    """

    __slots__ = (
        "_asked",
        "_busy_s",
        "_deadline_near",
        "_mean_in_flight",
        "_median_s",
        "_refresh_at_s",
        "_refreshed_s",
        "_too_few_samples",
        "_trigger_s",
        "_window",
        "settings",
    )

    def __init__(self, settings: HedgeSettings, window: QuantileWindow | None = None) -> None:
        """`window`, if somebody else keeps one of the same primaries: then that one is read."""
        self.settings = settings
        self._window = window or QuantileWindow(settings.window)
        self._trigger_s: float | None = None
        self._median_s = 0.0
        self._refresh_at_s = -math.inf
        self._refreshed_s = -math.inf
        self._busy_s = 0.0
        """Seconds that primaries took, of all that had ended at the last refresh."""
        self._mean_in_flight: float | None = None
        self._asked = 0
        self._too_few_samples = 0
        self._deadline_near = 0

    def observe(self, duration_s: float, now_s: float) -> None:
        """A primary took this long, seconds. O(1). Raises ValueError for NaN."""
        self._window.record(duration_s, now_s)

    def observe_at_least(self, elapsed_s: float, now_s: float) -> None:
        """A primary was cut short after so long, seconds: its hedge won, or its deadline came. O(1). Raises ValueError
        for NaN.
        """
        self._window.record(elapsed_s, now_s, at_least=True)

    def delay_s(self, remaining_s: float, now_s: float, chance: Chance) -> float | None:
        """How long to wait, seconds, for a primary that is sent now by a call that has `remaining_s` left; None for no
        hedge (`why_none`). O(1), once a second O(buckets in use). Never raises.
        """
        if now_s >= self._refresh_at_s:
            self._refresh(now_s)
        self._asked += 1
        if self._trigger_s is None:
            self._too_few_samples += 1
            return None
        settings = self.settings
        delay_s = self._trigger_s * (1.0 + settings.jitter_share * chance.random())
        latest_s = remaining_s * settings.remaining_share
        if delay_s > latest_s:
            delay_s = latest_s
        if delay_s < settings.delay_min_s or remaining_s - delay_s < self._median_s:
            self._deadline_near += 1
            return None
        return delay_s

    def why_none(self) -> NoDelay:
        """Why `delay_s`, asked just now, gave None."""
        return "too_few_samples" if self._trigger_s is None else "deadline_near"

    def again_s(self, elapsed_s: float, remaining_s: float) -> float | None:
        """After a refusal that passes (`PASSING`), when the primary has been out for `elapsed_s`: how much longer to
        wait before asking again, seconds. As long as it has been out already, so that a call asks a handful of times
        at most; None if a hedge would come too late then. O(1). Never raises.
        """
        wait_s = max(elapsed_s, self.settings.delay_min_s)
        return None if remaining_s - wait_s < max(self._median_s, self.settings.delay_min_s) else wait_s

    @property
    def trigger_s(self) -> float | None:
        """When a primary counts as slow, as of the last refresh; None while too few are known."""
        return self._trigger_s

    @property
    def mean_in_flight(self) -> float:
        """Primaries in flight in the mean of the last seconds, as of the last refresh: the time that they took, over
        the time that passed (Little's law).
        """
        return self._mean_in_flight or 0.0

    def _refresh(self, now_s: float) -> None:
        settings = self.settings
        found = None
        if self._window.count(now_s) >= settings.samples_min:
            found = self._window.quantiles((0.5, settings.early_quantile, settings.trigger_quantile), now_s)
        if found is None:
            self._trigger_s = None
        else:
            self._median_s, early_s, late_s = found
            slow_s = early_s if late_s > settings.early_ratio * early_s else late_s
            # The upper end of the bucket: no smaller share than the quantile's was quicker, for certain.
            self._trigger_s = max(settings.delay_min_s, slow_s / (1.0 - settings.window.relative_error))
        self._measure(now_s - self._refreshed_s)
        self._refreshed_s = now_s
        self._refresh_at_s = now_s + settings.refresh_s

    def _measure(self, passed_s: float) -> None:
        if passed_s <= 0:  # the clock stands still: all of it belongs to the next interval
            return
        busy_s = self._window.total_s
        mean, self._busy_s = (busy_s - self._busy_s) / passed_s, busy_s
        if passed_s == math.inf:  # the first refresh: nobody knows how long ago that began which ended before it
            return
        if self._mean_in_flight is not None:
            mean += (self._mean_in_flight - mean) * math.exp(-passed_s / self.settings.load_tau_s)
        self._mean_in_flight = mean

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`trigger_s` is None while nothing is hedged for want of samples; it and the load are as of the last
        refresh.
        """
        return {
            "samples": self._window.count(now_s),
            "trigger_s": self._trigger_s,
            "median_s": self._median_s,
            "mean_in_flight": self.mean_in_flight,
            "asked": self._asked,
            "too_few_samples": self._too_few_samples,
            "deadline_near": self._deadline_near,
        }


HedgeWord = Literal[
    "hedge",
    "answered",
    "not_read_only",
    "not_replayable",
    "no_cancel",
    "cancels_capped",
    "errors_climbing",
    "limit_shrinking",
    "queue",
    "busy",
    "hedges_out",
    "no_other",
    "others_busy",
]
"""`hedge`, or why not, in the order in which the reasons are looked at."""

PASSING: frozenset[HedgeWord] = frozenset(
    (
        "cancels_capped",
        "errors_climbing",
        "limit_shrinking",
        "queue",
        "busy",
        "hedges_out",
        "no_other",
        "others_busy",
    )
)
"""Refusals for the state of the pool at this instant: it is worth asking again while the primary is still out
(`HedgeDelay.again_s`). The others are facts of the call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeView:
    """What was seen when a call asked for its hedge: of the call, of the model's pool, and of its replicas."""

    answered: bool
    """The first byte of an answer is there."""
    read_only: bool
    """The policy says so, and the model keeps no state."""
    replayable: bool
    """The body is held as bytes."""
    cancel_works: bool
    """The loser can be taken back there, in so far as it still waits."""
    cancels_capped: bool
    """As many cancels were sent in this second as may be."""
    errors_climbing: bool
    """The pool's attempts fail more often than they used to."""
    limit_shrinking: bool
    """The adaptive limit went down when it last moved."""
    waiting: int
    """Calls in the gateway's queue for this pool."""
    slots: int
    """The sum of slots, of all replicas."""
    mean_in_flight: float
    """`HedgeDelay.mean_in_flight`, of all that share the slots."""
    in_flight: int
    """Attempts in flight, hedges among them."""
    hedges_out: int
    """Hedges in flight."""
    other_in_flight: int | None
    """Attempts in flight on the least loaded replica that has a free slot and that this call has not tried; None if
    there is no such.
    """
    median_in_flight: float
    """The median of the attempts in flight by replica, over all replicas of the pool."""


def hedge_verdict(view: HedgeView, settings: HedgeSettings) -> HedgeWord:
    """May a second attempt be sent now? `hedge`, or the first reason against it. O(1), pure. Never raises.

    First come facts of the call (no asking again will help), then signs that the pool is in trouble (hedges would feed
    it; the dearest, a crash by cancels, first), then that it is busy, then that there is no good place for a second
    attempt. An idle replica is a good one, and so is one that has less to do than the median.
    """
    word: HedgeWord = "hedge"
    if view.answered:
        word = "answered"
    elif not view.read_only:
        word = "not_read_only"
    elif not view.replayable:
        word = "not_replayable"
    elif not view.cancel_works:
        word = "no_cancel"
    elif view.cancels_capped:
        word = "cancels_capped"
    elif view.errors_climbing:
        word = "errors_climbing"
    elif view.limit_shrinking:
        word = "limit_shrinking"
    elif view.waiting > 0:
        word = "queue"
    elif view.mean_in_flight > settings.load_max * view.slots:
        word = "busy"
    elif view.hedges_out >= max(settings.outstanding_min, int(settings.outstanding_share * view.in_flight)):
        word = "hedges_out"
    elif view.other_in_flight is None:
        word = "no_other"
    elif view.other_in_flight > 0 and view.other_in_flight >= view.median_in_flight:
        word = "others_busy"
    return word


class Troubles(NamedTuple):
    """What speaks against any second attempt: fields of `HedgeView`."""

    cancels_capped: bool
    errors_climbing: bool
    limit_shrinking: bool


class Load(NamedTuple):
    """What a pool has to do: fields of `HedgeView`."""

    waiting: int
    in_flight: int
    hedges_out: int
    mean_in_flight: float


def pool_view(
    in_flight: Mapping[str, int],
    slots: Mapping[str, int],
    tried: Collection[str],
    troubles: Troubles,
    load: Load,
) -> HedgeView:
    """The view of a call that may have a second attempt, of replicas that have `slots` and run `in_flight`."""
    counts = sorted(in_flight.get(replica, 0) for replica in slots)
    others = [
        in_flight.get(replica, 0)
        for replica, each in slots.items()
        if replica not in tried and in_flight.get(replica, 0) < each
    ]
    return HedgeView(
        answered=False,
        read_only=True,
        replayable=True,
        cancel_works=True,
        cancels_capped=troubles.cancels_capped,
        errors_climbing=troubles.errors_climbing,
        limit_shrinking=troubles.limit_shrinking,
        waiting=load.waiting,
        slots=sum(slots.values()),
        mean_in_flight=load.mean_in_flight,
        in_flight=load.in_flight,
        hedges_out=load.hedges_out,
        other_in_flight=min(others, default=None),
        median_in_flight=counts[len(counts) // 2] if counts else 0,
    )
