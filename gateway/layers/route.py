"""route: (model, version as asked) to (version, pool, the model's own stack), from one snapshot.

Three things that look alike get three answers: a model that no policy names (the gate has refused it already), a
version that the model does not have, and a model or version that is known but that no replica can run now. Only the
last is worth another try.

A sequence keeps the version that it began with, whatever the weights or the newest version are meanwhile; its calls go
to the sequence layer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits, SnapshotSource
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.decide.split import Split, newest
from gateway.layers.deadline import StreamLimits
from gateway.layers.gate import shown
from gateway.runtime.clock import Clock


class Sequences(Service, Protocol):
    """What the sequence layer tells."""

    def version(self, asked: str, sequence_id: int | str) -> str:
        """The version that holds a live sequence, "" if it is not known here."""
        ...

    def draw(self, sequence_id: int | str) -> float:
        """What stands for chance where the version of a new sequence is drawn: the same in every gateway."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """Where calls of one model go. `allowed` None: every version that the fleet has."""

    model: str
    pool: str
    service: Service
    default_deadline_s: float
    max_deadline_s: float
    limits: BodyLimits
    stream: StreamLimits
    allowed: frozenset[str] | None = None
    split: Split | None = None
    artifact_hashes: Mapping[str, str] | None = None
    sequences: Sequences | None = None
    """Where calls go that belong to a sequence."""
    reserve_record: Callable[[], object] | None = None
    """Claims room for the call's record, or raises RECORD_FULL; None where records are not mandatory."""


class RouteTable:
    """All models' routes at one policy revision: what route, gate and deadline read. Replaced as a whole."""

    __slots__ = ("_routes", "revision")

    def __init__(self, revision: str, routes: Mapping[str, ModelRoute]) -> None:
        self.revision = revision
        self._routes = dict(routes)

    def get(self, model: str) -> ModelRoute | None:
        return self._routes.get(model)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._routes)


class CurrentRoutes:
    """The table in force. One assignment replaces it for all new calls; calls under way keep what they were given."""

    __slots__ = ("table",)

    def __init__(self, table: RouteTable) -> None:
        self.table = table

    @property
    def revision(self) -> str:
        return self.table.revision

    def body_bytes_max(self, model: str) -> int | None:
        route = self.table.get(model)
        return None if route is None else route.limits.body

    def body_limits(self, model: str) -> BodyLimits | None:
        """For the edge, which reads the body: None if no policy names the model."""
        route = self.table.get(model)
        return None if route is None else route.limits

    def deadline_s(self, model: str) -> tuple[float, float]:
        route = self._passed(model)
        return route.default_deadline_s, route.max_deadline_s

    def stream_limits(self, model: str) -> StreamLimits:
        return self._passed(model).stream

    def _passed(self, model: str) -> ModelRoute:
        route = self.table.get(model)
        if route is None:
            raise RuntimeError(f"the gate let {model!r} through, and no policy names it")
        return route


class RouteLayer:
    """Chooses the version, writes the choice on the trail, and hands the call to the model's stack."""

    __slots__ = ("_chance", "_clock", "_fleet", "_routes")

    def __init__(self, routes: CurrentRoutes, fleet: SnapshotSource, clock: Clock, chance: random.Random) -> None:
        self._routes = routes
        self._fleet = fleet
        self._clock = clock
        self._chance = chance

    async def send(self, call: Call) -> Reply:
        table = self._routes.table
        route = table.get(call.model)
        trail = call.trail
        trail.policy_revision = table.revision
        if route is None:
            # A reload took the model away between the gate and here.
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{shown(call.model)}' is not found")
        trail.pool = route.pool
        service = route.service
        sequence, sequences = call.sequence, route.sequences
        if sequence is None or sequences is None:
            version = self._version(call, route, None)
        else:
            version = sequences.version(call.version, sequence.id)
            live = bool(version)
            if live and (call.version or not sequence.start):
                trail.routed_by = "asked" if call.version else "sequence"
            else:
                version = self._version(call, route, sequences.draw(sequence.id))
            # A model without sequences takes the id for a parameter like any other, as Triton does.
            if live or self._fleet.snapshot.sequence_idle_s(route.pool, route.model, version) is not None:
                service = sequences
        trail.version_routed = version
        call.decoupled = self._fleet.snapshot.decoupled(route.pool, route.model, version)
        if call.classified:
            self._check_classes(call, route, version)
        trail.routed_s = self._clock.now_s()
        if route.artifact_hashes is not None:
            trail.artifact_hash = route.artifact_hashes.get(version, "")
        if route.reserve_record is not None:
            call.reservation = route.reserve_record()
        return await service.send(call)

    def _check_classes(self, call: Call, route: ModelRoute, version: str) -> None:
        """Texts have no classes, and Triton 2.51 ends as a whole (a division by zero) when it is asked for them."""
        texts = self._fleet.snapshot.text_outputs(route.pool, route.model, version)
        for name in call.classified:
            if name in texts:
                raise GatewayError(
                    Reason.BAD_REQUEST,
                    f"output '{shown(name)}' of model '{shown(route.model)}' holds BYTES, which have no classes; leave "
                    "its 'classification' out",
                )

    def _version(self, call: Call, route: ModelRoute, draw: float | None) -> str:
        snapshot = self._fleet.snapshot
        asked = call.version
        if asked:
            call.trail.routed_by = "asked"
            if route.allowed is not None:
                known = asked in route.allowed
            else:
                versions = snapshot.known_versions(route.pool, route.model)
                # With no replica heard of yet nobody can say which versions there are; that is "not now", not "never".
                known = not versions or asked in versions
            if not known:
                raise GatewayError(
                    Reason.UNKNOWN_VERSION,
                    f"Request for unknown model: '{shown(call.model)}' version {shown(asked)} is not found",
                )
            return asked
        if route.split is not None:
            call.trail.routed_by = "split"
            return route.split.draw(self._chance.random() if draw is None else draw)
        call.trail.routed_by = "newest"
        version = newest(snapshot.ready_versions(route.pool, route.model), route.allowed)
        if version is None:
            raise no_replica(call.model, "")
        return version


def no_replica(model: str, version: str) -> GatewayError:
    """The error for a known model that nobody can run now."""
    named = f"'{shown(model)}' version {shown(version)}" if version else f"'{shown(model)}'"
    return GatewayError(Reason.NO_REPLICA, f"no replica is ready for model {named}; try again later", retry_after_s=1.0)
