"""route: (model, version as asked) to (version, pool, the model's own stack), from one snapshot.

Three things that look alike get three answers: a model that no policy names (the gate has refused it already), a
version that the model does not have, and a model or version that is known but that no replica can run now. Only the
last is worth another try.

A sequence keeps the version that it began with, whatever the weights or the newest version are meanwhile; its calls go
to the sequence layer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gateway.core.call import Call, SequenceStep
from gateway.core.criticality import DEFAULT
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits, SnapshotSource
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.core.snapshot import FleetSnapshot
from gateway.decide.split import Split, newest
from gateway.layers.deadline import StreamLimits, unknown
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
    default_class: int = DEFAULT
    """Of calls that name none."""
    never_routed: Callable[[Call], None] | None = None
    """To be told of a call whose deadline passed before it was routed; None where nobody wants to know."""
    measure: Callable[[Call, FleetSnapshot, str], None] | None = None
    """Refuses what is too large, and writes down the call's work; None where the policy says nothing of sizes."""
    reserve_record: Callable[[], object] | None = None
    """Claims room for the call's record, or raises RECORD_FULL; None where records are not mandatory."""


class RouteTable:
    """All models' routes at one policy revision: what route, gate and deadline read. Replaced as a whole."""

    __slots__ = ("deadlines_s", "gate", "get", "models", "revision")

    def __init__(self, revision: str, routes: Mapping[str, ModelRoute]) -> None:
        self.revision = revision
        self.models = tuple(routes)
        self.get: Callable[[str], ModelRoute | None] = dict(routes).get
        """The route of a model, None if no policy names it."""
        self.gate: Callable[[str], tuple[int, int] | None] = {
            model: (route.limits.body, route.default_class) for model, route in routes.items()
        }.get
        """For the gate: what the body of a call to a model may come to, and the class of calls that name none; None if
        no policy names the model.
        """
        self.deadlines_s: Callable[[str], tuple[float, float] | None] = {
            model: (route.default_deadline_s, route.max_deadline_s) for model, route in routes.items()
        }.get
        """For the deadline layer: (default, maximum), seconds, of a model; None if no policy names it."""


class CurrentRoutes:
    """The table in force. One assignment replaces it for all new calls; calls under way keep what they were given."""

    __slots__ = ("table",)

    def __init__(self, table: RouteTable) -> None:
        self.table = table

    def body_limits(self, model: str) -> BodyLimits | None:
        """For the edge, which reads the body: None if no policy names the model."""
        route = self.table.get(model)
        return None if route is None else route.limits

    def stream_limits(self, model: str) -> StreamLimits:
        route = self.table.get(model)
        if route is None:
            raise unknown(model)
        return route.stream

    def never_routed(self, call: Call) -> None:
        route = self.table.get(call.model)
        if route is not None and route.never_routed is not None:
            route.never_routed(call)


class Choice(NamedTuple):
    """A version, why it was chosen, and what is known of it."""

    version: str
    by: str
    decoupled: bool
    artifact_hash: str


_CHOICES_MAX = 4096


class RouteLayer:
    """Chooses the version, writes the choice on the trail, and hands the call to the model's stack.

    Never waits, and has nothing to do afterwards: so `send` is no coroutine of its own, but hands out that of the
    model's stack. A choice that neither chance nor a sequence has a part in is the same for every call, until the
    policies or the fleet change; it is kept.
    """

    __slots__ = ("_chance", "_choices", "_fleet", "_now_s", "_routes", "_snapshot", "_table")

    def __init__(self, routes: CurrentRoutes, fleet: SnapshotSource, clock: Clock, chance: random.Random) -> None:
        self._routes = routes
        self._fleet = fleet
        self._now_s = clock.now_s
        self._chance = chance
        self._table = routes.table
        self._snapshot = fleet.snapshot
        self._choices: dict[tuple[str, str], Choice] = {}
        """By (model, version as asked), over this table and this snapshot. What is refused is not kept."""

    def send(self, call: Call) -> Coroutine[Any, Any, Reply]:
        table, snapshot = self._routes.table, self._fleet.snapshot
        if table is not self._table or snapshot is not self._snapshot:
            self._table, self._snapshot, self._choices = table, snapshot, {}
        route_of, clock_s = table.get, self._now_s
        route = route_of(call.model)
        trail = call.trail
        trail.policy_revision = table.revision
        if route is None:
            # A reload took the model away between the gate and here.
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{shown(call.model)}' is not found")
        trail.pool = route.pool
        service = route.service
        sequence, sequences = call.sequence, route.sequences
        if sequence is not None and sequences is not None:
            choice, belongs = self._of_sequence(call, route, snapshot, sequences, sequence)
            if belongs:
                service = sequences
        elif route.split is None or call.version:
            key = (call.model, call.version)
            choice = self._choices.get(key) or self._remember(key, _version(call, route, snapshot))
        else:
            choice = _choice(route.split.draw(self._chance.random()), "split", route, snapshot)
        trail.version_routed, trail.routed_by, call.decoupled, trail.artifact_hash = choice
        if call.classified:
            _check_classes(call, route, snapshot, choice.version)
        if route.measure is not None:
            route.measure(call, snapshot, choice.version)
        trail.routed_s = clock_s()
        if route.reserve_record is not None:
            call.reservation = route.reserve_record()
        return service.send(call)

    def _remember(self, key: tuple[str, str], choice: Choice) -> Choice:
        if len(self._choices) >= _CHOICES_MAX:
            # Before any replica is heard of, every version that a caller names may be right.
            self._choices.clear()
        self._choices[key] = choice
        return choice

    @staticmethod
    def _of_sequence(
        call: Call, route: ModelRoute, snapshot: FleetSnapshot, sequences: Sequences, step: SequenceStep
    ) -> tuple[Choice, bool]:
        """The choice, and whether the call goes to the sequence layer."""
        version = sequences.version(call.version, step.id)
        live = bool(version)
        if live and (call.version or not step.start):
            choice = _choice(version, "asked" if call.version else "sequence", route, snapshot)
        elif call.version or route.split is None:
            choice = _version(call, route, snapshot)
        else:
            choice = _choice(route.split.draw(sequences.draw(step.id)), "split", route, snapshot)
        # A model without sequences takes the id for a parameter like any other, as Triton does.
        belongs = live or snapshot.sequence_idle_s(route.pool, route.model, choice.version) is not None
        return choice, belongs


def _version(call: Call, route: ModelRoute, snapshot: FleetSnapshot) -> Choice:
    """The version that is asked for, or the newest one. Raises `GatewayError`."""
    asked = call.version
    if not asked:
        call.trail.routed_by = "newest"
        version = newest(snapshot.ready_versions(route.pool, route.model), route.allowed)
        if version is None:
            raise no_replica(call.model, "")
        return _choice(version, "newest", route, snapshot)
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
    return _choice(asked, "asked", route, snapshot)


def _choice(version: str, by: str, route: ModelRoute, snapshot: FleetSnapshot) -> Choice:
    hashes = route.artifact_hashes
    return Choice(
        version,
        by,
        snapshot.decoupled(route.pool, route.model, version),
        "" if hashes is None else hashes.get(version, ""),
    )


def _check_classes(call: Call, route: ModelRoute, snapshot: FleetSnapshot, version: str) -> None:
    """Texts have no classes, and Triton 2.51 ends as a whole (a division by zero) when it is asked for them."""
    texts = snapshot.text_outputs(route.pool, route.model, version)
    for name in call.classified:
        if name in texts:
            raise GatewayError(
                Reason.BAD_REQUEST,
                f"output '{shown(name)}' of model '{shown(route.model)}' holds BYTES, which have no classes; leave "
                "its 'classification' out",
            )


def no_replica(model: str, version: str) -> GatewayError:
    """The error for a known model that nobody can run now."""
    named = f"'{shown(model)}' version {shown(version)}" if version else f"'{shown(model)}'"
    return GatewayError(Reason.NO_REPLICA, f"no replica is ready for model {named}; try again later", retry_after_s=1.0)
