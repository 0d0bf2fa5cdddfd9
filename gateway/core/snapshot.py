"""The immutable picture of the fleet over which every choice is made.

The directory publishes a new one whenever something changed; a reader takes the current one once and decides over it,
so that all parts of one decision see the same instant.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple


class ReplicaState(enum.Enum):
    """Where a replica stands, in the order it gets there."""

    SEEN = "seen"
    """Its address is known; nothing has answered there yet."""
    CONNECTED = "connected"
    LIVE = "live"
    """It answers the liveness call; models may still be missing."""
    DOWN = "down"
    """It was there and is not any more: the connection is lost or liveness goes unanswered."""


class ModelState(enum.Enum):
    """Where one model version on one replica stands."""

    UNAVAILABLE = "unavailable"
    LOADING = "loading"
    READY = "ready"
    """Triton says it is ready; it has not been warmed yet and gets no traffic."""
    WARMED = "warmed"
    """It gets traffic."""


@dataclass(frozen=True, slots=True)
class Phases:
    """When a thing reached its start phases: seconds of the monotonic clock, None where not reached yet."""

    seen_s: float | None = None
    connected_s: float | None = None
    live_s: float | None = None
    ready_s: float | None = None
    warmed_s: float | None = None
    first_answer_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model version on one replica. `slots` is how many calls it may have in flight there; `places` how many fill
    one batch on each of its instances, and `batch_max` the largest batch (0: not known, or it does not batch); `reason`
    is Triton's where it is not ready.
    """

    name: str
    version: str
    state: ModelState
    slots: int = 0
    places: int = 0
    batch_max: int = 0
    reason: str = ""
    warmup: str = ""
    """How it was warmed, or why not."""
    phases: Phases = Phases()
    pending: int | None = None
    """Triton's own count of requests that wait there, from the last scrape; None if unknown."""
    queue_us: float | None = None
    """Mean time a request waited in Triton's queue since the scrape before, microseconds."""
    compute_us: float | None = None
    """Mean execution time a request saw since the scrape before, microseconds."""
    batch_fill: float | None = None
    """Mean batch size since the scrape before, batch elements per execution."""
    decoupled: bool = False
    """It gives any number of responses per request."""
    text_outputs: frozenset[str] = frozenset()
    """Outputs of datatype BYTES."""
    sequence_idle_s: float | None = None
    """Its calls may belong to sequences; a silent one is kept this long. None: they do not, or nobody knows yet."""
    batches: bool = True
    """The first dimension of its inputs is the batch (`max_batch_size` above 0); True while nobody knows."""


@dataclass(frozen=True, slots=True)
class GpuView:
    uuid: str
    utilisation: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One server process. `id` is `pool/host:port`; `models` is keyed by (name, version); `times_down` counts how often
    it was found gone after it had been there.
    """

    id: str
    pool: str
    address: str
    state: ReplicaState
    models: Mapping[tuple[str, str], ModelView] = field(default_factory=lambda: MappingProxyType({}))
    phases: Phases = Phases()
    gpus: tuple[GpuView, ...] = ()
    server_version: str = ""
    last_error: str = ""
    times_down: int = 0
    scraped_s: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may be sent a call of one model version, and how many it may have in flight. `places` and
    `batch_max` are those of its `ModelView`.
    """

    replica: str
    slots: int
    places: int = 0
    batch_max: int = 0


class _Version(NamedTuple):
    """What all replicas of a pool together say of one model version."""

    candidates: tuple[Candidate, ...] = ()
    decoupled: bool = False
    sequence_idle_s: float | None = None
    text_outputs: frozenset[str] = frozenset()
    batches: bool = True


class _Model(NamedTuple):
    """The versions of one model in one pool, numerically ascending."""

    ready: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


_VersionKey = tuple[str, str, str]
_NO_VERSION, _NO_MODEL = _Version(), _Model()
_by_replica = attrgetter("replica")


class FleetSnapshot:
    """All replicas at one instant, indexed for the questions that the request path asks. Never changes after it is
    built.

    It is made from the one `before`: what no replica says otherwise is not looked at again, and an index in which
    nothing has changed is shared. With many models on many replicas, of which one changes at a time, making all of it
    anew would hold up every call.
    """

    __slots__ = ("_models", "_versions", "number", "replicas")

    def __init__(self, number: int, replicas: tuple[ReplicaView, ...], before: FleetSnapshot | None = None) -> None:
        self.number = number
        """Counts up with every publication."""
        self.replicas = replicas
        self._versions: Mapping[_VersionKey, _Version] = {} if before is None else before._versions
        """Every version that some replica has in its index."""
        self._models: Mapping[tuple[str, str], _Model] = {} if before is None else before._models
        changes = _Changes(() if before is None else before.replicas, replicas)
        if changes.takers or changes.traits:
            self._index(changes)

    def _index(self, changes: _Changes) -> None:
        versions, models = dict(self._versions), dict(self._models)
        pools: dict[str, list[ReplicaView]] = {}
        for replica in self.replicas:
            pools.setdefault(replica.pool, []).append(replica)
        moved: dict[tuple[str, str], set[str]] = {}
        for key in changes.traits | dict.fromkeys(changes.takers):
            last = versions.get(key, _NO_VERSION)
            entry = _with_traits(last, key, pools.get(key[0], ())) if key in changes.traits else last
            if entry is None:
                versions.pop(key, None)
            else:
                if key in changes.takers:
                    candidates = _with_takers(entry.candidates, changes.takers[key])
                    entry = entry._replace(candidates=candidates)
                versions[key] = entry
            moved.setdefault(key[:2], set()).add(key[2])
        for model, some in moved.items():
            every = sorted(some.union(models.get(model, _NO_MODEL).known), key=_version_key)
            known = tuple(version for version in every if (*model, version) in versions)
            if known:
                models[model] = _Model(tuple(each for each in known if versions[*model, each].candidates), known)
            else:
                models.pop(model, None)
        self._versions, self._models = versions, models

    def steers_like(self, other: FleetSnapshot) -> bool:
        """Whether every question of the request path has the same answer here as in `other`, which this one was made
        from, and the replicas are the same: only what is shown of them has changed. O(replicas).
        """
        return self._versions is other._versions and {each.id for each in self.replicas} == {
            each.id for each in other.replicas
        }

    def candidates(self, pool: str, model: str, version: str) -> tuple[Candidate, ...]:
        """Replicas that take calls of this model version now, in the order of their ids."""
        return self._versions.get((pool, model, version), _NO_VERSION).candidates

    def ready_versions(self, pool: str, model: str) -> tuple[str, ...]:
        """Versions that at least one replica serves now, numerically ascending."""
        return self._models.get((pool, model), _NO_MODEL).ready

    def known_versions(self, pool: str, model: str) -> tuple[str, ...]:
        """Versions that some replica has in its index, in whatever state, numerically ascending."""
        return self._models.get((pool, model), _NO_MODEL).known

    def decoupled(self, pool: str, model: str, version: str) -> bool:
        """Whether this version gives any number of responses per request, as far as any replica has said."""
        return self._versions.get((pool, model, version), _NO_VERSION).decoupled

    def sequence_idle_s(self, pool: str, model: str, version: str) -> float | None:
        """How long replicas keep a silent sequence of this version, as far as any has said; None: it has none."""
        return self._versions.get((pool, model, version), _NO_VERSION).sequence_idle_s

    def text_outputs(self, pool: str, model: str, version: str) -> frozenset[str]:
        """The outputs of this version that hold BYTES, as far as any replica has said."""
        return self._versions.get((pool, model, version), _NO_VERSION).text_outputs

    def batches(self, pool: str, model: str, version: str) -> bool:
        """Whether the first dimension of this version's inputs is the batch, as far as any replica has said."""
        return self._versions.get((pool, model, version), _NO_VERSION).batches

    @property
    def known(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Every model of each pool, with the versions that some replica has in its index."""
        return ((name, each.known) for (_, name), each in self._models.items())

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """Every (pool, model, version) that has a candidate."""
        return tuple(key for key, each in self._versions.items() if each.candidates)


class _Changes:
    """What replicas say otherwise than before, as far as calls are steered by it. A replica whose view is the same
    object as before costs one look.
    """

    __slots__ = ("takers", "traits")

    def __init__(self, before: Iterable[ReplicaView], now: Iterable[ReplicaView]) -> None:
        self.takers: dict[_VersionKey, dict[str, Candidate | None]] = {}
        """By version and replica: what it takes now, None if it does not take calls any more."""
        self.traits: dict[_VersionKey, None] = {}
        """Versions of which a replica says something else than before, or for the first or the last time."""
        old = {replica.id: replica for replica in before}
        for replica in now:
            was = old.pop(replica.id, None)
            if was is not replica:
                self._compare(replica, was, replica)
        for gone in old.values():
            self._compare(gone, gone, None)

    def _compare(self, replica: ReplicaView, was: ReplicaView | None, now: ReplicaView | None) -> None:
        old: Mapping[tuple[str, str], ModelView] = {} if was is None else was.models
        new: Mapping[tuple[str, str], ModelView] = {} if now is None else now.models
        lived = was is not None and was.state is ReplicaState.LIVE
        lives = now is not None and now.state is ReplicaState.LIVE
        for what, model in new.items():
            last = old.get(what)
            if last is not model or lived is not lives:
                taker = _taker(replica.id, lives, model)
                if taker != _taker(replica.id, lived, last):
                    self.takers.setdefault((replica.pool, *what), {})[replica.id] = taker
                if last is None or (last is not model and _traits(last) != _traits(model)):
                    self.traits[replica.pool, *what] = None
        for what, last in old.items():
            if what not in new:
                if _taker(replica.id, lived, last) is not None:
                    self.takers.setdefault((replica.pool, *what), {})[replica.id] = None
                self.traits[replica.pool, *what] = None


def _taker(replica: str, lives: bool, model: ModelView | None) -> Candidate | None:
    """None if it takes no calls."""
    if not lives or model is None or model.state is not ModelState.WARMED:
        return None
    return Candidate(replica, model.slots, model.places, model.batch_max)


def _traits(model: ModelView) -> tuple[bool, float | None, frozenset[str], bool]:
    return model.decoupled, model.sequence_idle_s, model.text_outputs, model.batches


def _with_traits(entry: _Version, key: _VersionKey, replicas: Iterable[ReplicaView]) -> _Version | None:
    """What the replicas of its pool say of it now; None if none has it in its index. O(replicas)."""
    known = decoupled = False
    batches = True
    idle_s: float | None = None
    texts: frozenset[str] = frozenset()
    for replica in replicas:
        model = replica.models.get(key[1:])
        if model is not None:
            known = True
            decoupled = decoupled or model.decoupled
            if model.sequence_idle_s is not None:
                idle_s = max(model.sequence_idle_s, idle_s or 0.0)
            texts = model.text_outputs or texts
            batches = batches and model.batches
    return _Version(entry.candidates, decoupled, idle_s, texts, batches) if known else None


def _with_takers(candidates: Iterable[Candidate], changes: Mapping[str, Candidate | None]) -> tuple[Candidate, ...]:
    kept = [each for each in candidates if each.replica not in changes]
    kept += [each for each in changes.values() if each is not None]
    kept.sort(key=_by_replica)
    return tuple(kept)


def _version_key(version: str) -> tuple[int, str]:
    return (int(version), version) if version.isdecimal() else (-1, version)
