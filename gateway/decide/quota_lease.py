"""LeasedQuota: a gateway's part of a quota that all gateways share through a store, without asking it for each call.

A gateway leases tokens in batches, as Doorman does (Google, 2016): it asks for about what it will use in one
lease, before it runs out, and decides each call at once from what it has. No call waits for the store. Three sources,
in this order:

1. leased tokens, until `lease_s` after they were asked for (by this gateway's clock, so never later than the store
   thinks); for a slow rate until the share has made one token, or a gateway with all the traffic would see most of its
   leases lapse between two calls;
2. nothing, where the store just said that there is no more: the call is refused;
3. the gateway's fixed share, where the store has not said how much there is: it was never asked, it has not answered
   yet, what it gave is used up, or it is ill. What is taken so is owed, and told the store with the next question.

The share's bucket also pays for what is spent from leases (never into debt), so a gateway that had its share by lease
does not get it a second time when the store fails.

How far all gateways together may exceed rate R and burst B in any time T; gateway i of n has R_i = R/n and
B_i = max(1, B/n), and l is the life of a lease, max(lease_s, 1/R_i), at most a minute:

- while the store answers in time: B + R (T + l) + sum of B_i. What is taken unasked is paid back.
- whatever the store does: (1 + losses of its data) B + R (T + l) + sum of (B_i + R_i T), about twice the limit. That is
  when half see the store and the others do not; when all have lost it, it is the fixed shares alone.

Slots are leased likewise: a call may start if fewer are under way than the slots held, or, where the store has not said
that there are no more, than the fixed share. Together that is the limit and at most one share a gateway; calls that
outlive a lease that was not renewed come on top until they end.

The layer that does the I/O: after each `take` (and for `Quotas.busy()` from its coarse tick) call `ask`; if there is
one, send it to the store once; then tell `answered` or `lost`. An answer later than `answer_s` counts as lost whether
the layer says so or not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.decide.quota import OK, Bucket, QuotaSettings, QuotaVerdict, checked_cost, checked_share, retry_s
from gateway.decide.quota_cell import Ask, Grant

Word = Literal["cold", "leased", "ill"]
"""The store was never heard; its last answer came; its last answer did not come in time."""

LEASES_MAX = 16
"""Leases alive at a time; no further question until one is used up or lapses."""
SLOW_LEASE_MAX_S = 60.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How a gateway deals with the store. The defaults are chosen here (`quota_lease` says what they cost)."""

    lease_s: float = 1.0
    """The life of a lease: one question a second, tenant and gateway, where things are calm."""
    ahead_s: float = 0.2
    """Ask when what is left lasts for less."""
    answer_s: float = 0.05
    """An answer that takes longer counts as none (reference/libraries 3: socket_timeout at most 50 ms)."""
    gap_s: float = 0.05
    """Between two questions, however many calls are refused meanwhile."""
    probe_s: float = 1.0
    """Between two questions to a store that did not answer."""

    def __post_init__(self) -> None:
        for name in ("lease_s", "ahead_s", "answer_s", "gap_s", "probe_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {value}")
        if self.ahead_s >= self.lease_s:
            raise ValueError(f"ahead_s must be below lease_s, not {self.ahead_s}")


class _Lease:
    __slots__ = ("tokens", "until_s")

    def __init__(self, tokens: float, until_s: float) -> None:
        self.tokens = tokens
        self.until_s = until_s


class LeasedQuota:
    """A `Quota`. Every method is O(1): at most `LEASES_MAX` leases."""

    __slots__ = (
        "_asked",
        "_asked_s",
        "_bucket",
        "_burst",
        "_counts",
        "_demand",
        "_demand_s",
        "_dry_until_s",
        "_in_flight",
        "_lease",
        "_leases",
        "_number",
        "_owed",
        "_owed_s",
        "_peak",
        "_refused",
        "_settings",
        "_share",
        "_share_slots",
        "_slots",
        "_slots_dry_until_s",
        "_slots_until_s",
        "_token_lease_s",
        "_word",
    )

    def __init__(self, settings: QuotaSettings, share: float, lease: LeaseSettings | None = None) -> None:
        self._lease = lease or LeaseSettings()
        self._settings = settings
        self._share = checked_share(share)
        self._bucket = Bucket.of(settings, share)
        self._burst = settings.burst_tokens()
        self._share_slots = settings.share_slots(share)
        self._token_lease_s = self._life_s(settings)
        self._in_flight = 0
        self._leases: deque[_Lease] = deque()
        self._word: Word = "cold"
        self._number = 0
        self._asked: Ask | None = None
        """The question that is out."""
        self._asked_s = 0.0
        self._dry_until_s = 0.0
        """Until then the store's word holds that there is no more."""
        self._owed = 0.0
        self._owed_s = 0.0
        self._demand = 0.0
        """Tokens wanted, decaying over one lease: about what the next one will need."""
        self._demand_s = 0.0
        self._slots = 0
        self._slots_until_s = 0.0
        self._slots_dry_until_s = 0.0
        self._peak = 0
        """The most calls under way, had none been refused, since the last question."""
        self._refused = {"rate": 0, "concurrency": 0}
        self._counts = dict.fromkeys(("granted", "asks", "losses", "late"), 0)

    def _life_s(self, settings: QuotaSettings) -> float:
        rate = settings.rate_per_s
        if rate is None:
            return self._lease.lease_s
        return max(self._lease.lease_s, min(1.0 / (rate * self._share), SLOW_LEASE_MAX_S))

    @property
    def in_flight(self) -> int:
        return self._in_flight

    # --- calls --------------------------------------------------------------------------------------------------------

    def would(self, cost: float, now_s: float) -> QuotaVerdict:
        checked_cost(cost)
        if self._asked is not None:
            self._expect_answer(now_s)
        slots = self._slots_now(now_s)
        if slots is not None and self._in_flight >= slots:
            return QuotaVerdict("concurrency", self._settings.busy_retry_s)
        bucket = self._bucket
        if bucket is None or self._covers(cost, now_s):
            return OK
        if now_s < self._dry_until_s:
            rate = self._settings.rate_per_s or 1.0
            return QuotaVerdict("rate", retry_s(max(self._lease.gap_s, cost / rate)))
        bucket.fill(now_s)
        wait_s = bucket.wait_s(cost)
        return QuotaVerdict("rate", wait_s) if wait_s else OK

    def take(self, cost: float, now_s: float) -> QuotaVerdict:
        verdict = self.would(cost, now_s)
        self._demand = self._expected(now_s) + cost
        if now_s > self._demand_s:
            self._demand_s = now_s
        if self._in_flight >= self._peak:
            self._peak = self._in_flight + 1
        if verdict is not OK:
            self._refused[verdict.why] += 1
            return verdict
        if self._bucket is not None:
            self._spend(self._bucket, cost, now_s)
        self._in_flight += 1
        self._counts["granted"] += 1
        return OK

    def _covers(self, cost: float, now_s: float) -> bool:
        """Whether leases pay for it. A call dearer than the burst is paid by that much, and owes the rest."""
        needed = cost if cost < self._burst else self._burst
        return self._leased(now_s) + _ROUNDING >= needed

    def _spend(self, bucket: Bucket, cost: float, now_s: float) -> None:
        rest = cost
        bucket.fill(now_s)
        if self._covers(cost, now_s):
            for lease in self._leases:
                used = min(lease.tokens, rest)
                lease.tokens -= used
                rest -= used
            while self._leases and self._leases[0].tokens <= 0.0:
                self._leases.popleft()
            bucket.tokens = max(bucket.tokens - (cost - rest), min(bucket.tokens, 0.0))
        if rest > 0.0:
            bucket.tokens -= rest
            self._owed += rest
            self._owed_s = now_s

    def give_back(self) -> None:
        if not self._in_flight:
            raise ValueError("a call was given back to a quota that has none under way")
        self._in_flight -= 1

    def _leased(self, now_s: float) -> float:
        leases = self._leases
        while leases and leases[0].until_s <= now_s:
            leases.popleft()
        if len(leases) < 2:
            return leases[0].tokens if leases else 0.0
        return sum(lease.tokens for lease in leases)

    def _slots_now(self, now_s: float) -> int | None:
        share = self._share_slots
        if share is None:
            return None
        held = self._slots if now_s < self._slots_until_s else 0
        return held if now_s < self._slots_dry_until_s else max(held, share)

    def _expected(self, now_s: float) -> float:
        elapsed_s = now_s - self._demand_s
        return self._demand * math.exp(-elapsed_s / self._token_lease_s) if elapsed_s > 0 else self._demand

    # --- the store ----------------------------------------------------------------------------------------------------

    def ask(self, now_s: float) -> Ask | None:
        """The question to send now, if any."""
        self._expect_answer(now_s)
        lease = self._lease
        if self._asked is not None:
            return None
        ill = self._word == "ill"
        if self._number and now_s - self._asked_s < (lease.probe_s if ill else lease.gap_s):
            return None
        tokens, slots = self._wanted_tokens(now_s), self._wanted_slots(now_s)
        if not tokens and not slots:
            return None
        if ill:
            # A probe: if the answer is lost again, so are the tokens, for everybody.
            tokens = min(tokens, 1)
        bucket = self._bucket
        if bucket is not None and (ill or now_s - self._owed_s > self._token_lease_s):
            # What the share has made up for since is not owed: while the store was ill, the share was the account.
            self._owed = min(self._owed, bucket.burst - bucket.level(now_s))
        self._number += 1
        self._counts["asks"] += 1
        self._asked_s = now_s
        self._peak = self._in_flight
        self._asked = Ask(self._number, tokens, self._owed, slots, self._in_flight)
        return self._asked

    def _wanted_tokens(self, now_s: float) -> int:
        if self._bucket is None or len(self._leases) >= LEASES_MAX:
            return 0
        expected = self._expected(now_s)
        if expected < 0.1:
            return 0
        # Of calls that come seldom the next one counts: what lapses before it is of no use.
        life_s = self._token_lease_s
        ahead_s = max(self._lease.ahead_s, min(1.25 * life_s / max(expected - 0.5, 0.5), 0.75 * life_s))
        left = self._leased(now_s)
        lasting = sum(lease.tokens for lease in self._leases if lease.until_s > now_s + ahead_s)
        if lasting >= max(1.0, expected * ahead_s / life_s):
            return 0
        return min(max(1, math.ceil(1.25 * expected - left)), max(1, int(self._burst)))

    def _wanted_slots(self, now_s: float) -> int:
        limit = self._settings.concurrency_max
        peak = max(self._peak, self._in_flight)
        if limit is None or not peak:
            return 0
        if peak < self._slots and now_s + self._lease.ahead_s < self._slots_until_s:
            return 0
        return min(limit, peak + max(2, peak // 2))

    def answered(self, number: int, grant: Grant, now_s: float) -> bool:
        """The store's answer to the question of this number. False if it came too late: what it grants lapses. Figures
        beyond what was asked for count as what was asked for, negative ones as none.
        """
        self._expect_answer(now_s)
        asked = self._asked
        if asked is None or asked.number != number:
            self._counts["late"] += 1
            return False
        self._asked = None
        self._word = "leased"
        self._owed = max(0.0, self._owed - asked.owed)
        said_until_s = now_s + 2 * (self._lease.gap_s + self._lease.answer_s)
        if asked.tokens:
            tokens = max(0, min(grant.tokens, asked.tokens))
            if tokens:
                self._leases.append(_Lease(float(tokens), self._asked_s + self._token_lease_s))
            self._dry_until_s = said_until_s if tokens < asked.tokens else 0.0
        if asked.slots:
            self._slots = max(0, min(grant.slots, asked.slots))
            self._slots_until_s = self._asked_s + self._lease.lease_s
            self._slots_dry_until_s = said_until_s if self._slots < asked.slots else 0.0
        return True

    def lost(self, number: int) -> None:
        """The question of this number failed, or its answer did not come in time."""
        if self._asked is not None and self._asked.number == number:
            self._asked = None
            self._word = "ill"
            self._dry_until_s = self._slots_dry_until_s = 0.0
            self._counts["losses"] += 1

    def _expect_answer(self, now_s: float) -> None:
        if self._asked is not None and now_s - self._asked_s > self._lease.answer_s:
            self.lost(self._asked.number)

    # --- settings and figures -----------------------------------------------------------------------------------------

    def replace(self, settings: QuotaSettings, share: float, now_s: float) -> None:
        """Other settings. Leases were made under the old ones: they lapse, and the share serves until the next."""
        bucket = Bucket.of(settings, checked_share(share))
        self._bucket = None if bucket is None else bucket.settled(self._bucket, now_s)
        self._settings, self._share = settings, share
        self._burst, self._share_slots = settings.burst_tokens(), settings.share_slots(share)
        self._token_lease_s = self._life_s(settings)
        self._leases.clear()
        self._asked = None
        self._slots_until_s = self._dry_until_s = self._slots_dry_until_s = 0.0
        self._owed = min(self._owed, self._burst)

    def full(self, now_s: float) -> bool:
        bucket = self._bucket
        if self._in_flight or self._leased(now_s) or (bucket is not None and bucket.level(now_s) < bucket.burst):
            return False
        return self._owed == 0.0 or now_s - self._owed_s > self._token_lease_s

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Figures of limits that are not set are left out."""
        figures: dict[str, Any] = {"share": self._share, "store": self._word, "in_flight": self._in_flight}
        slots = self._slots_now(now_s)
        if slots is not None:
            figures["slots"] = slots
        if self._bucket is not None:
            figures["leased"] = sum(lease.tokens for lease in self._leases if lease.until_s > now_s)
            figures["share_tokens"] = self._bucket.level(now_s)
            figures["owed"] = self._owed
        return {**figures, **self._counts, "refused": dict(self._refused)}
