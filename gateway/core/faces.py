"""The faces through which rooms meet without importing one another. The simulation stands behind each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.core.call import Attempt, Identity, Metadata
from gateway.core.credentials import Credentials
from gateway.core.restraint import Restraint
from gateway.core.snapshot import FleetSnapshot


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of Triton's repository index. A model that was never loaded has no version and no state."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where one replica listens: `host:port` of its gRPC, HTTP and metrics ports. `metrics` may be "" (not scraped)."""

    grpc: str
    http: str
    metrics: str = ""


class ReplicaStream(Protocol):
    """One ModelStreamInfer to one replica. One reader at a time; cancelling a `read` gives the stream up."""

    def write(self, message: bytes) -> None:
        """Send one serialized `ModelInferRequest` after those before it. Never waits: what has not left yet is bounded
        by the callers, who answer for their requests. Does nothing on a stream that has ended; `read` tells.
        """
        ...

    async def read(self) -> bytes | None:
        """The next serialized `ModelStreamInferResponse`; None when the replica ended the stream with OK. Raises
        `core.faults.UpstreamFault`.
        """
        ...

    def half_close(self) -> None:
        """Say that no request follows. What is out is still answered; then the replica ends the stream."""
        ...

    def cancel(self) -> None:
        """Give it up: cancel it on the replica, if it has not ended, and free everything. May be called again."""
        ...


class ReplicaClient(Protocol):
    """A connection to one replica. Every method raises `core.faults.UpstreamFault`, and can be cancelled at any time.

    Cancelling `infer` cancels the request on the replica. A `timeout_s` is relative, in seconds; when it passes the
    fault's code is DEADLINE_EXCEEDED with `from_peer` False.
    """

    async def server_live(self, timeout_s: float) -> bool: ...

    async def server_ready(self, timeout_s: float) -> bool: ...

    async def server_metadata(self, timeout_s: float) -> bytes:
        """The serialized `ServerMetadataResponse`."""
        ...

    async def repository_index(self, timeout_s: float) -> tuple[IndexEntry, ...]: ...

    async def model_statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """The serialized `ModelStatisticsResponse`: of all versions that are ready there, or of what is named."""
        ...

    async def model_ready(self, model: str, version: str, timeout_s: float) -> bool: ...

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        """The serialized `ModelMetadataResponse`."""
        ...

    async def model_config(self, model: str, version: str, timeout_s: float) -> ModelConfigBytes: ...

    async def infer(
        self,
        message: bytes,
        metadata: Metadata,
        timeout_s: float,
        tail: bytes = b"",
        attempt: Attempt | None = None,
    ) -> bytes:
        """One ModelInfer: serialized request in, serialized `ModelInferResponse` out. `tail` goes out behind `message`,
        as a part of it, so that a large one need not be copied to append something.

        With an `attempt`, a call that is cancelled here or whose time is over is cancelled on the replica only if the
        `Restraint` allows it; else it is left to run out there, and what comes is thrown away: then `attempt.rest` is
        set.
        """
        ...

    def restrain(self, restraint: Restraint) -> None:
        """Ask it from now on before an inference that has an attempt is cancelled."""
        ...

    def open_stream(self, metadata: Metadata, timeout_s: float) -> ReplicaStream:
        """Begin a ModelStreamInfer. Returns at once; what is wrong with the connection is told by `read`."""
        ...

    async def scrape(self, timeout_s: float) -> str:
        """The text of the metrics page."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelConfigBytes:
    """A model's effective configuration in both spellings, so that neither has to be made from the other."""

    proto: bytes
    """Serialized `ModelConfigResponse`."""
    json: bytes
    """The body of Triton's HTTP `/config`."""


@dataclass(frozen=True, slots=True)
class StatisticsBytes:
    """Model statistics in both spellings: made once for all callers who ask at the same time."""

    proto: bytes
    """Serialized `ModelStatisticsResponse`."""
    json: bytes
    """The body of Triton's HTTP `/stats`."""


class Connector(Protocol):
    """Makes clients. Does no I/O itself: the first call connects."""

    def connect(self, endpoints: Endpoints) -> ReplicaClient: ...


class Resolver(Protocol):
    """Names to addresses. Raises OSError if the name cannot be resolved; an empty answer is possible too."""

    async def resolve(self, host: str) -> tuple[str, ...]: ...


class Files(Protocol):
    """Reading small configuration files that may change under us. Raises OSError."""

    async def read(self, path: str) -> bytes: ...


class Authenticator(Protocol):
    """Who shows these credentials. No I/O, never waits."""

    def identify(self, credentials: Credentials) -> Identity:
        """Raises `GatewayError` (UNAUTHENTICATED) if something must be shown and nothing good is, or something bad."""
        ...


class BodyLimits(NamedTuple):
    """What a caller may send to one model, bytes."""

    body: int
    json: int
    """The part of the body that is JSON: it is decoded on the event loop, and holds up everybody else meanwhile."""


class BodyBudget(Protocol):
    """Memory for request bodies, counted over all calls (`decide/bytebudget.py`)."""

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes, all or nothing."""
        ...

    def release(self, size: int) -> None: ...


class SnapshotSource(Protocol):
    """Where the current picture of the fleet comes from."""

    @property
    def snapshot(self) -> FleetSnapshot: ...

    def subscribe(self, listener: Callable[[FleetSnapshot], None]) -> None:
        """Have `listener` called, synchronously and at once, with every new snapshot by which calls are steered
        otherwise than by the one before (`FleetSnapshot.steers_like`).
        """
        ...


class FleetObserver(Protocol):
    """What the fleet reports besides its snapshots. Synchronous, cheap, never raises."""

    def probe_failed(self, replica: str, probe: str) -> None:
        """`probe` is one of `liveness`, `readiness`, `index`, `scrape`."""
        ...

    def warmup_call(self, model: str, *, ok: bool) -> None: ...


class SilentFleetObserver:
    """Counts nothing."""

    def probe_failed(self, replica: str, probe: str) -> None:
        return None

    def warmup_call(self, model: str, *, ok: bool) -> None:
        return None


class Backlog(Protocol):
    """Who makes something of Triton's own count of calls that wait in it. Synchronous, cheap."""

    def held(self, replica: str) -> Mapping[tuple[str, str], int]:
        """The calls of this gateway that are out there now, by (model, version). O(models)."""
        ...

    def told(
        self,
        replica: str,
        pending: Mapping[tuple[str, str], int],
        held: Mapping[tuple[str, str], int],
        now_s: float,
    ) -> bool:
        """At `now_s` so many calls waited there, by (model, version), when it was asked during which `held` were our
        own. Returns whether there are calls of others among them.
        """
        ...


class NoBacklog:
    """Makes nothing of it."""

    def held(self, replica: str) -> Mapping[tuple[str, str], int]:
        return {}

    def told(
        self,
        replica: str,
        pending: Mapping[tuple[str, str], int],
        held: Mapping[tuple[str, str], int],
        now_s: float,
    ) -> bool:
        return False


class Catalogue(Protocol):
    """What the edge answers itself: health, metadata, configuration, statistics, as if the fleet were one server.

    Methods raise `GatewayError` (UNKNOWN_MODEL, UNKNOWN_VERSION, NO_REPLICA). Those that are awaited ask the replicas,
    after they were called, and can be cancelled at any time; all others answer from what is known.
    """

    def server_live(self) -> bool: ...

    def server_ready(self) -> bool:
        """The gateway can serve: it is not draining, and every pool that a policy names has a live replica with a
        ready model.
        """
        ...

    def model_ready(self, model: str, version: str) -> bool:
        """At least one replica serves it now."""
        ...

    def server_metadata(self) -> bytes: ...

    def model_metadata(self, model: str, version: str) -> bytes: ...

    def model_config(self, model: str, version: str) -> ModelConfigBytes: ...

    async def model_statistics(self, model: str, version: str, identity: Identity) -> StatisticsBytes:
        """Of one model that the caller may call, or with "" of all that it may call. The `code` of UNKNOWN_MODEL and
        UNKNOWN_VERSION is INVALID_ARGUMENT here, as on Triton.
        """
        ...

    async def repository_index(self, ready: bool, identity: Identity) -> bytes:
        """A serialized `RepositoryIndexResponse` of what the caller may call; `ready`: only what is READY."""
        ...
