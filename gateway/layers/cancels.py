"""Cancels: how many attempts were cancelled on each replica of late, over all models: it is the server that suffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.snapshot import FleetSnapshot
from gateway.decide.cancel_cap import CancelCap, CancelCapSettings
from gateway.runtime.clock import Clock

REPLICAS_MAX = 4096
"""Replicas that are remembered; far more than a fleet has. Beyond it the one that was seen first is forgotten."""


class Cancels:
    """A `CancelCap` for each replica that was ever cancelled on, until it leaves the fleet."""

    __slots__ = ("_caps", "_now_s", "settings")

    def __init__(self, clock: Clock, settings: CancelCapSettings | None = None) -> None:
        self.settings = settings or CancelCapSettings()
        self._now_s = clock.now_s
        self._caps: dict[str, CancelCap] = {}

    def of(self, replica: str) -> Restrained:
        """What the client of this replica is to ask. One for each connection; they share the replica's cap."""
        return Restrained(self, replica)

    def may_cancel(self, replica: str, *, again: bool = False) -> bool:
        """Whether an attempt may be cancelled there now; True is one that is made. `again`: as in `Restraint`."""
        return self._cap(replica).may_cancel(self._now_s(), again=again)

    def note(self, replica: str) -> None:
        """An attempt is cancelled there now, and nobody was asked."""
        self._cap(replica).cancelled(self._now_s())

    def guarded(self, replica: str) -> bool:
        """Whether calls should be told a later time limit than their own there."""
        cap = self._caps.get(replica)
        return cap is not None and cap.guarded(self._now_s())

    def capped(self, replica: str, now_s: float) -> bool:
        """Whether no hedge should be sent that may end in a further cancel there."""
        cap = self._caps.get(replica)
        return cap is not None and (cap.climbing(now_s) or cap.capped(now_s))

    def _cap(self, replica: str) -> CancelCap:
        cap = self._caps.get(replica)
        if cap is None:
            if len(self._caps) >= REPLICAS_MAX:
                self._caps.pop(next(iter(self._caps)))
            cap = self._caps[replica] = CancelCap(self.settings)
        return cap

    def on_snapshot(self, snapshot: FleetSnapshot) -> None:
        """Forget replicas that have left."""
        if self._caps:
            here = {replica.id for replica in snapshot.replicas}
            for replica in [each for each in self._caps if each not in here]:
                del self._caps[replica]

    def statistics(self, now_s: float) -> Mapping[str, Mapping[str, Any]]:
        """By replica."""
        return {replica: cap.statistics(now_s) for replica, cap in sorted(self._caps.items())}


class Restrained:
    """Implements `core.restraint.Restraint`."""

    __slots__ = ("_cancels", "_replica", "guarded")

    def __init__(self, cancels: Cancels, replica: str) -> None:
        self._cancels = cancels
        self._replica = replica
        self.guarded = False

    def may_cancel(self, *, again: bool = False) -> bool:
        allowed = self._cancels.may_cancel(self._replica, again=again)
        self.guarded = self._cancels.guarded(self._replica)
        return allowed

    def cancelled(self) -> None:
        self._cancels.note(self._replica)
        self.guarded = self._cancels.guarded(self._replica)

    def slack_s(self) -> float:
        self.guarded = self._cancels.guarded(self._replica)
        return self._cancels.settings.slack_s if self.guarded else 0.0
