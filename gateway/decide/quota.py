"""Quotas of tenants: so many calls a second, so many at a time, for each tenant over all models and on each model.

The rate is a token bucket (Turner, 1986; the meter of RFC 2697): it fills with `rate_per_s` up to `burst`, and a call
takes what it costs. A call dearer than the whole bucket needs a full one and leaves a debt, so that it can be served at
all and the rate still holds in the long run. Concurrency is a count. A refused call costs nothing.

A limit is meant for all gateways together. One that stands alone, or that has no shared store, keeps to its `share` of
it (1 / gateways): that share of the rate, of the burst (one call at least), and of the slots (one at least, rounded
down). So the gateways together may exceed the limit only where it is smaller than their number: the burst by less than
one call a gateway, the slots likewise. Leases from a shared store are `quota_lease`.

Pure: `now_s` is monotonic, may stand still, never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

QuotaWhy = Literal["ok", "rate", "concurrency", "table_full"]

RATE_MIN_PER_S = 1e-6
SHARE_MIN = 1e-6
COST_MAX = 1e9
"""No call costs more: a figure beyond it is a mistake of ours, and raises."""
RETRY_MIN_S = 0.001
RETRY_MAX_S = 86_400.0
"""What a caller is told lies between these, however the limit is set."""
_ROUNDING = 1e-9
"""Tokens. What is missing of a token by rounding alone refuses nobody; it is owed, so it does not add up."""


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Limits of one tenant, over all gateways. None: not limited (the default: a quota is declared, never assumed)."""

    rate_per_s: float | None = None
    """Calls (or what they cost) per second."""
    burst: float | None = None
    """Calls that may come at once after a pause. None: one second of the rate, at least one call."""
    concurrency_max: int | None = None
    """Calls under way at a time."""
    busy_retry_s: float = 1.0
    """What a caller over `concurrency_max` is told to wait: when a call will end, nobody knows, and `retry-after`
    counts whole seconds.
    """

    def __post_init__(self) -> None:
        rate, burst, slots = self.rate_per_s, self.burst, self.concurrency_max
        if rate is not None and not RATE_MIN_PER_S <= rate < math.inf:
            raise ValueError(f"rate_per_s must be at least {RATE_MIN_PER_S:g} and finite, not {rate}")
        if burst is not None and not 1 <= burst < math.inf:
            raise ValueError(f"burst must be at least 1 and finite, not {burst}")
        if slots is not None and slots < 1:
            raise ValueError(f"concurrency_max must be at least 1, not {slots}")
        if not RETRY_MIN_S <= self.busy_retry_s <= RETRY_MAX_S:
            raise ValueError(f"busy_retry_s must be in [{RETRY_MIN_S}, {RETRY_MAX_S}], not {self.busy_retry_s}")

    @property
    def unlimited(self) -> bool:
        return self.rate_per_s is None and self.concurrency_max is None

    def burst_tokens(self) -> float:
        """The burst over all gateways; 0.0 without a rate."""
        if self.rate_per_s is None:
            return 0.0
        return max(1.0, self.rate_per_s) if self.burst is None else self.burst

    def share_slots(self, share: float) -> int | None:
        """The slots of a gateway that keeps to its share."""
        return None if self.concurrency_max is None else max(1, int(self.concurrency_max * share + _ROUNDING))


class QuotaVerdict(NamedTuple):
    """`retry_after_s` is 0.0 for `ok`, else in [`RETRY_MIN_S`, `RETRY_MAX_S`], without jitter."""

    why: QuotaWhy
    retry_after_s: float = 0.0


OK = QuotaVerdict("ok")


class Bucket:
    """A token bucket, full at first. Below zero it is in debt."""

    __slots__ = ("burst", "rate_per_s", "stamp_s", "tokens")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self.tokens = burst
        self.stamp_s = 0.0

    @classmethod
    def of(cls, settings: QuotaSettings, share: float) -> Bucket | None:
        """A gateway's share; None without a rate."""
        rate = settings.rate_per_s
        return None if rate is None else cls(rate * share, max(1.0, settings.burst_tokens() * share))

    def level(self, now_s: float) -> float:
        """The tokens at `now_s`; reading changes nothing."""
        elapsed_s = now_s - self.stamp_s
        tokens = self.tokens + elapsed_s * self.rate_per_s if elapsed_s > 0 else self.tokens
        return tokens if tokens < self.burst else self.burst

    def fill(self, now_s: float) -> None:
        self.tokens = self.level(now_s)
        if now_s > self.stamp_s:
            self.stamp_s = now_s

    def wait_s(self, cost: float) -> float:
        """0.0 if a call of this cost may go now (after `fill`), else how long until it may."""
        missing = (cost if cost < self.burst else self.burst) - self.tokens
        return 0.0 if missing <= _ROUNDING else retry_s(missing / self.rate_per_s)

    def settled(self, old: Bucket | None, now_s: float) -> Bucket:
        """Self, in the place of `old`: the tokens stay, as far as they fit. A higher burst fills with time, so that
        changing the settings to and fro gives nobody anything.
        """
        if old is not None:
            self.tokens = min(old.level(now_s), self.burst)
            self.stamp_s = max(old.stamp_s, now_s)
        return self


def retry_s(wait_s: float) -> float:
    return min(max(wait_s, RETRY_MIN_S), RETRY_MAX_S)


def checked_cost(cost: float) -> float:
    if not 0.0 <= cost <= COST_MAX:
        raise ValueError(f"a call costs between 0 and {COST_MAX:g}, not {cost}")
    return cost


def checked_share(share: float) -> float:
    if not SHARE_MIN <= share <= 1.0:
        raise ValueError(f"a gateway's share must be in [{SHARE_MIN:g}, 1], not {share}")
    return share


class Quota(Protocol):
    """What the table holds: a fixed share, or leases."""

    @property
    def in_flight(self) -> int: ...

    def would(self, cost: float, now_s: float) -> QuotaVerdict:
        """What `take` would say; takes nothing and counts nothing."""
        ...

    def take(self, cost: float, now_s: float) -> QuotaVerdict:
        """A call asks. If `ok`, `give_back` must follow. Raises ValueError for an impossible cost."""
        ...

    def give_back(self) -> None:
        """A call ended. Raises ValueError if none was under way."""
        ...

    def replace(self, settings: QuotaSettings, share: float, now_s: float) -> None:
        """Other settings; calls under way and tokens spent stay counted."""
        ...

    def full(self, now_s: float) -> bool:
        """Whether a new one would say the same: forgetting this one loses nothing."""
        ...

    def statistics(self, now_s: float) -> Mapping[str, Any]: ...


class TenantQuota:
    """A gateway's fixed share of a tenant's limits. Every method is O(1)."""

    __slots__ = ("_bucket", "_granted", "_in_flight", "_refused", "_settings", "_share", "_slots")

    def __init__(self, settings: QuotaSettings, share: float = 1.0) -> None:
        self._settings = settings
        self._share = checked_share(share)
        self._bucket = Bucket.of(settings, share)
        self._slots = settings.share_slots(share)
        self._in_flight = 0
        self._granted = 0
        self._refused = {"rate": 0, "concurrency": 0}

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def would(self, cost: float, now_s: float) -> QuotaVerdict:
        checked_cost(cost)
        if self._slots is not None and self._in_flight >= self._slots:
            return QuotaVerdict("concurrency", self._settings.busy_retry_s)
        bucket = self._bucket
        if bucket is not None:
            bucket.fill(now_s)
            wait_s = bucket.wait_s(cost)
            if wait_s:
                return QuotaVerdict("rate", wait_s)
        return OK

    def take(self, cost: float, now_s: float) -> QuotaVerdict:
        verdict = self.would(cost, now_s)
        if verdict is not OK:
            self._refused[verdict.why] += 1
            return verdict
        if self._bucket is not None:
            self._bucket.tokens -= cost
        self._in_flight += 1
        self._granted += 1
        return OK

    def give_back(self) -> None:
        if not self._in_flight:
            raise ValueError("a call was given back to a quota that has none under way")
        self._in_flight -= 1

    def replace(self, settings: QuotaSettings, share: float, now_s: float) -> None:
        bucket = Bucket.of(settings, checked_share(share))
        self._bucket = None if bucket is None else bucket.settled(self._bucket, now_s)
        self._settings, self._share = settings, share
        self._slots = settings.share_slots(share)

    def full(self, now_s: float) -> bool:
        bucket = self._bucket
        return not self._in_flight and (bucket is None or bucket.level(now_s) >= bucket.burst)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Figures of limits that are not set are left out."""
        figures: dict[str, Any] = {"share": self._share, "in_flight": self._in_flight, "granted": self._granted}
        if self._slots is not None:
            figures["slots"] = self._slots
        if self._bucket is not None:
            figures["rate_per_s"] = self._bucket.rate_per_s
            figures["burst"] = self._bucket.burst
            figures["tokens"] = self._bucket.level(now_s)
        figures["refused"] = dict(self._refused)
        return figures
