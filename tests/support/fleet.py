"""A fleet whose snapshots the test publishes by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.core.snapshot import FleetSnapshot, ModelState, ModelView, Phases, ReplicaState, ReplicaView


def replica(
    name: str,
    models: Mapping[tuple[str, str], int],
    *,
    pool: str = "gpu",
    state: ReplicaState = ReplicaState.LIVE,
    sequence_idle_s: float | None = None,
) -> ReplicaView:
    """A replica that serves `models`: (name, version) to slots."""
    views = {
        key: ModelView(
            name=key[0], version=key[1], state=ModelState.WARMED, slots=slots, sequence_idle_s=sequence_idle_s
        )
        for key, slots in models.items()
    }
    return ReplicaView(id=f"{pool}/{name}", pool=pool, address=name, state=state, models=views, phases=Phases())


class HandFleet:
    """A `SnapshotSource` driven by the test."""

    def __init__(self, *replicas: ReplicaView) -> None:
        self._number = 0
        self.snapshot = FleetSnapshot(0, replicas)
        self._listeners: list[Callable[[FleetSnapshot], None]] = []

    def publish(self, *replicas: ReplicaView) -> None:
        self._number += 1
        self.snapshot = FleetSnapshot(self._number, replicas, self.snapshot)
        for listener in self._listeners:
            listener(self.snapshot)

    def subscribe(self, listener: Callable[[FleetSnapshot], None]) -> None:
        self._listeners.append(listener)
