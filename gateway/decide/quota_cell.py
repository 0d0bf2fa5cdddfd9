"""What a shared store does for one quota: it hands out leases of tokens and slots to gateways.

The same arithmetic whoever keeps the cell: the store in memory calls it, the script in Redis must do as it does (with
the clock of Redis, never a gateway's), and the simulation and the tests run gateways against it.

- Tokens: a token bucket of the whole limit, full at first. What gateways took without asking (`owed`) is taken off
  first; that may leave a debt, of one burst at most. Then whole tokens, as many as are there. A lease is never taken
  back: what is not used lapses at the gateway.
- Slots: each gateway holds some until `lease_s` after it last asked, and no more than the limit are held together. A
  gateway that wants its share has a right to it: one that holds more gets less at its next renewal, and until its calls
  have ended they count as held. So a gateway with all the slots gives way within a lease, and the sum stays exact.

A store that forgot the cell begins with a full one: each loss is worth one burst, and the slots that are then in use.
Its clock is a wall clock and may be set: forwards, that is worth one burst at most; backwards, the bucket fills on from
the new time, and no lease of slots outlives one from now. (Waiting until the old time comes round again would mean
refusing everybody for as long as the clock was wrong.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.decide.quota import QuotaSettings, checked_share

_ROUNDING = 1e-9


class Ask(NamedTuple):
    """What a gateway asks of the store. Sent once, never again: a repetition would be paid twice."""

    number: int
    """The gateway's own, to tell a late answer from the one that it waits for."""
    tokens: int
    """How many more it wants."""
    owed: float
    """Tokens that it took without asking since it was last answered."""
    slots: int
    """How many it wants to hold in all; 0: leave them as they are."""
    in_flight: int
    """How many are in use."""


class Grant(NamedTuple):
    """The store's answer. Less than what was asked for means: that is all there is."""

    tokens: int
    slots: int
    """How many the gateway holds now; meaningless if it did not ask."""


class _Holding:
    __slots__ = ("held", "until_s", "wanted")

    def __init__(self) -> None:
        self.held = 0
        self.wanted = 0
        self.until_s = 0.0


class QuotaCell:
    """One quota in a shared store. `share`: of each gateway. At most `gateways_max` hold slots at a time; one more gets
    none. O(gateways).
    """

    __slots__ = ("_burst", "_gateways_max", "_holdings", "_lease_s", "_level", "_share_slots", "_stamp_s", "settings")

    def __init__(self, settings: QuotaSettings, share: float, lease_s: float, *, gateways_max: int = 64) -> None:
        self.settings = settings
        self._share_slots = settings.share_slots(checked_share(share)) or 0
        self._lease_s = lease_s
        self._gateways_max = gateways_max
        self._burst = self._level = settings.burst_tokens()
        self._stamp_s: float | None = None
        self._holdings: dict[str, _Holding] = {}

    def replace(self, settings: QuotaSettings, share: float) -> None:
        """Each question is judged by the limits of who asks. What was taken stays taken; a higher burst fills with
        time.
        """
        self.settings = settings
        self._share_slots = settings.share_slots(checked_share(share)) or 0
        self._burst = settings.burst_tokens()

    def answer(self, gateway: str, ask: Ask, now_s: float) -> Grant:
        """`now_s` is the store's clock."""
        return Grant(self._tokens(ask, now_s), self._slots(gateway, ask, now_s))

    def _tokens(self, ask: Ask, now_s: float) -> int:
        rate = self.settings.rate_per_s
        if rate is None:
            return 0
        level = self._projected(rate, now_s)
        self._stamp_s = now_s
        level = max(level - ask.owed, -self._burst)
        tokens = max(0, min(ask.tokens, int(level + _ROUNDING)))
        self._level = level - tokens
        return tokens

    def _projected(self, rate: float, now_s: float) -> float:
        if self._stamp_s is None:
            return self._burst
        return min(self._burst, self._level + max(0.0, now_s - self._stamp_s) * rate)

    def _slots(self, gateway: str, ask: Ask, now_s: float) -> int:
        limit = self.settings.concurrency_max
        if limit is None or not ask.slots:
            return 0
        others = 0
        for name, holding in tuple(self._holdings.items()):
            holding.until_s = min(holding.until_s, now_s + self._lease_s)
            if holding.until_s <= now_s:
                del self._holdings[name]
            elif name != gateway:
                others += max(holding.held, min(holding.wanted, self._share_slots))
        own = self._holdings.get(gateway)
        if own is None:
            if len(self._holdings) >= self._gateways_max:
                return 0
            own = self._holdings[gateway] = _Holding()
        slots = max(0, min(ask.slots, limit - others))
        own.held = max(slots, min(own.held, ask.in_flight))
        own.wanted = ask.slots
        own.until_s = now_s + self._lease_s
        return slots

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        figures: dict[str, Any] = {}
        if self.settings.rate_per_s is not None:
            figures["tokens"] = self._projected(self.settings.rate_per_s, now_s)
        if self.settings.concurrency_max is not None:
            alive = [holding for holding in self._holdings.values() if holding.until_s > now_s]
            figures["held"] = sum(holding.held for holding in alive)
            figures["gateways"] = len(alive)
        return figures
