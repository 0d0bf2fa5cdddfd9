"""The immutable picture of the fleet over which every choice is made.

The directory publishes a new one whenever something changed; a reader takes the current one once and decides over it,
so that all parts of one decision see the same instant.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


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
    """One model version on one replica. `slots` is how many calls it may have in flight there; `reason` is Triton's
    where it is not ready.
    """

    name: str
    version: str
    state: ModelState
    slots: int = 0
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
    """A replica that may be sent a call of one model version, and how many it may have in flight."""

    replica: str
    slots: int


class FleetSnapshot:
    """All replicas at one instant, indexed for the questions that the request path asks. Never changes after it is
    built.
    """

    __slots__ = (
        "_candidates",
        "_decoupled",
        "_known",
        "_sequence_idle",
        "_text_outputs",
        "_versions",
        "number",
        "replicas",
    )

    def __init__(self, number: int, replicas: tuple[ReplicaView, ...]) -> None:
        self.number = number
        """Counts up with every publication."""
        self.replicas = replicas
        candidates: dict[tuple[str, str, str], list[Candidate]] = {}
        versions: dict[tuple[str, str], set[str]] = {}
        known: dict[tuple[str, str], set[str]] = {}
        decoupled: set[tuple[str, str, str]] = set()
        sequence_idle: dict[tuple[str, str, str], float] = {}
        text_outputs: dict[tuple[str, str, str], frozenset[str]] = {}
        for replica in replicas:
            for (name, version), model in replica.models.items():
                if model.decoupled:
                    decoupled.add((replica.pool, name, version))
                if model.sequence_idle_s is not None:
                    key = (replica.pool, name, version)
                    sequence_idle[key] = max(model.sequence_idle_s, sequence_idle.get(key, 0.0))
                if model.text_outputs:
                    text_outputs[replica.pool, name, version] = model.text_outputs
                known.setdefault((replica.pool, name), set()).add(version)
                if replica.state is ReplicaState.LIVE and model.state is ModelState.WARMED:
                    candidates.setdefault((replica.pool, name, version), []).append(Candidate(replica.id, model.slots))
                    versions.setdefault((replica.pool, name), set()).add(version)
        self._decoupled = frozenset(decoupled)
        self._sequence_idle = sequence_idle
        self._text_outputs = text_outputs
        self._candidates = {key: tuple(value) for key, value in candidates.items()}
        self._versions = {key: tuple(sorted(value, key=_version_key)) for key, value in versions.items()}
        self._known = {key: tuple(sorted(value, key=_version_key)) for key, value in known.items()}

    def candidates(self, pool: str, model: str, version: str) -> tuple[Candidate, ...]:
        """Replicas that take calls of this model version now, in a stable order."""
        return self._candidates.get((pool, model, version), ())

    def ready_versions(self, pool: str, model: str) -> tuple[str, ...]:
        """Versions that at least one replica serves now, numerically ascending."""
        return self._versions.get((pool, model), ())

    def known_versions(self, pool: str, model: str) -> tuple[str, ...]:
        """Versions that some replica has in its index, in whatever state, numerically ascending."""
        return self._known.get((pool, model), ())

    def decoupled(self, pool: str, model: str, version: str) -> bool:
        """Whether this version gives any number of responses per request, as far as any replica has said."""
        return (pool, model, version) in self._decoupled

    def sequence_idle_s(self, pool: str, model: str, version: str) -> float | None:
        """How long replicas keep a silent sequence of this version, as far as any has said; None: it has none."""
        return self._sequence_idle.get((pool, model, version))

    def text_outputs(self, pool: str, model: str, version: str) -> frozenset[str]:
        """The outputs of this version that hold BYTES, as far as any replica has said."""
        return self._text_outputs.get((pool, model, version), frozenset())

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """Every (pool, model, version) that has a candidate."""
        return tuple(self._candidates)


def _version_key(version: str) -> tuple[int, str]:
    return (int(version), version) if version.isdecimal() else (-1, version)
