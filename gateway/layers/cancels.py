"""Cancels: how many attempts were cancelled on each replica of late, over all models: it is the server that suffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.snapshot import FleetSnapshot
from gateway.decide.cancel_cap import CancelCap, CancelCapSettings

REPLICAS_MAX = 4096
"""Replicas that are remembered; far more than a fleet has. Beyond it the one that was seen first is forgotten."""


class Cancels:
    """A `CancelCap` for each replica that was ever cancelled on, until it leaves the fleet."""

    __slots__ = ("_caps", "_settings")

    def __init__(self, settings: CancelCapSettings | None = None) -> None:
        self._settings = settings or CancelCapSettings()
        self._caps: dict[str, CancelCap] = {}

    def note(self, replica: str, now_s: float) -> None:
        """An attempt is cancelled there now."""
        cap = self._caps.get(replica)
        if cap is None:
            if len(self._caps) >= REPLICAS_MAX:
                self._caps.pop(next(iter(self._caps)))
            cap = self._caps[replica] = CancelCap(self._settings)
        cap.may_cancel(now_s)

    def capped(self, replica: str, now_s: float) -> bool:
        """Whether no hedge should be sent that may end in a further cancel there."""
        cap = self._caps.get(replica)
        return cap is not None and cap.climbing(now_s)

    def on_snapshot(self, snapshot: FleetSnapshot) -> None:
        """Forget replicas that have left."""
        if self._caps:
            here = {replica.id for replica in snapshot.replicas}
            for replica in [each for each in self._caps if each not in here]:
                del self._caps[replica]

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {replica: cap.statistics(now_s) for replica, cap in sorted(self._caps.items())}
