"""The schema of the policies: every key, its unit, its range, its default and its meaning, in one place.

Two kinds of file: one `fleet.yaml`, and one file per model under `models/`. The loader (`load.py`) decodes them
strictly into these structs, and `docs/policies.md` is rendered from them, so a key exists exactly if it stands here.
Keys of the design that need layers which do not exist yet stand in `later.py` and are refused by name.

All structs are frozen: a policy never changes, it is replaced.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.policy.admission_schema import AdaptiveLimit as AdaptiveLimit
from gateway.policy.admission_schema import Admission as Admission
from gateway.policy.admission_schema import Limits as Limits
from gateway.policy.balance_schema import Affinity as Affinity
from gateway.policy.balance_schema import Ejection as Ejection
from gateway.policy.classes import Classes, default_class
from gateway.policy.identity_schema import IdentityPolicy
from gateway.policy.port_schema import KIB, MIB
from gateway.policy.port_schema import GrpcLimits as GrpcLimits
from gateway.policy.port_schema import HttpLimits as HttpLimits
from gateway.policy.quota_schema import Quotas
from gateway.policy.size_schema import BYTES_MAX, ModelMemory, Work
from gateway.policy.stage_schema import Stages as Stages
from gateway.policy.strict import Strict as Strict
from gateway.policy.tls_schema import ServerTls, UpstreamTls

MODEL_NAME = r"^[^\x00-\x1f\x7f]{1,255}$"
VERSION = r"^[1-9][0-9]{0,18}$"
POOL_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
HOST_PORT = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"
HOST_PORT_OR_EMPTY = r"^((\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5})?$"

ModelName = Annotated[str, Meta(pattern=MODEL_NAME)]
Version = Annotated[str, Meta(pattern=VERSION)]
PoolName = Annotated[str, Meta(pattern=POOL_NAME)]
HostPort = Annotated[str, Meta(pattern=HOST_PORT)]
PortNumber = Annotated[int, Meta(ge=1, le=65535)]


# --- fleet.yaml -----------------------------------------------------------------------------------------------------


class StaticReplica(Strict, frozen=True, kw_only=True):
    grpc: Annotated[HostPort, Meta(description="Address of Triton's gRPC port, `host:port`.")]
    http: Annotated[HostPort, Meta(description="Address of Triton's HTTP port, `host:port`.")]
    metrics: Annotated[
        str, Meta(pattern=HOST_PORT_OR_EMPTY, description="Address of the metrics port; empty: not scraped.")
    ] = ""


class DnsReplicas(Strict, frozen=True, kw_only=True):
    host: Annotated[str, Meta(min_length=1, max_length=253, description="A name whose every address is one replica.")]
    grpc_port: Annotated[PortNumber, Meta(description="gRPC port of each address.")] = 8001
    http_port: Annotated[PortNumber, Meta(description="HTTP port of each address.")] = 8000
    metrics_port: Annotated[int, Meta(ge=0, le=65535, description="Metrics port of each address; 0: not scraped.")] = (
        8002
    )
    refresh_s: Annotated[
        float, Meta(ge=0.2, le=3600, description="Seconds between look-ups; a change is taken up within this time.")
    ] = 5.0


class FileReplicas(Strict, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="A YAML or JSON file with a list of replicas (keys as under `static`), relative to fleet.yaml.",
        ),
    ]
    refresh_s: Annotated[float, Meta(ge=0.2, le=3600, description="Seconds between looks at the file.")] = 1.0


class Replicas(Strict, frozen=True, kw_only=True):
    """Where a pool's replicas are: exactly one of the three."""

    static: Annotated[tuple[StaticReplica, ...] | None, Meta(description="Fixed addresses.")] = None
    dns: Annotated[DnsReplicas | None, Meta(description="The addresses of a DNS name, looked up again and again.")] = (
        None
    )
    file: Annotated[FileReplicas | None, Meta(description="The entries of a watched file.")] = None


class Health(Strict, frozen=True, kw_only=True):
    interval_ms: Annotated[int, Meta(ge=50, le=60_000, description="Milliseconds between two probes of a replica.")] = (
        500
    )
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000, description="A probe not answered in this time has failed.")] = (
        500
    )
    recheck_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="After a failed probe the next comes this soon, in milliseconds.")
    ] = 250
    failures_to_down: Annotated[
        int, Meta(ge=1, le=20, description="Failed liveness probes in a row that make a replica down.")
    ] = 2
    failures_to_unready: Annotated[
        int, Meta(ge=1, le=20, description="Readiness probes in a row that take a model version off a live replica.")
    ] = 2


class Scrape(Strict, frozen=True, kw_only=True):
    interval_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Milliseconds between two reads of a replica's metrics.")
    ] = 2000
    shared_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="The same while more calls wait there than are this gateway's own: others use the replica too, "
            "and their calls count for 0.5 s when the next one is chosen.",
        ),
    ] = 250
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000, description="A read not finished in this time is given up.")] = (
        1000
    )
    page_bytes_max: Annotated[int, Meta(ge=4096, le=256 * MIB, description="A larger metrics page is not read.")] = (
        8 * MIB
    )


class Pool(Strict, frozen=True, kw_only=True):
    replicas: Annotated[Replicas, Meta(description="Where the replicas are.")]
    replicas_max: Annotated[
        int, Meta(ge=1, le=1024, description="Addresses beyond this number are not used, with an alarm.")
    ] = 64
    health: Annotated[Health, Meta(description="Probing of liveness and readiness.")] = Health()
    scrape: Annotated[Scrape, Meta(description="Reading of Triton's metrics.")] = Scrape()
    message_bytes_max: Annotated[
        int, Meta(ge=KIB, le=2**31 - 1, description="Largest message to or from a replica, bytes.")
    ] = 64 * MIB
    in_flight_max: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(
            description="Calls that one replica may have in flight over all models and versions; they wait their turn "
            "beyond it. Default: the sum of their slots."
        ),
    ] = None
    memory_bytes: Annotated[
        Annotated[int, Meta(ge=MIB, le=BYTES_MAX)] | None,
        Meta(
            description="What models and calls may take of one replica's memory, by the figures of each model's "
            "`memory`; calls wait beyond it. Leave out what others take there. Default: not counted."
        ),
    ] = None
    transport: Annotated[
        Literal["http2", "grpcio"],
        Meta(
            description="What carries calls to the replicas: `http2`, the gateway's own; `grpcio`, gRPC's library, at "
            "several times the CPU."
        ),
    ] = "http2"
    tls: Annotated[
        UpstreamTls | None,
        Meta(
            description="TLS to the replicas' gRPC ports, over which all calls go. Triton has none on its HTTP and "
            "metrics ports, which are read in the clear."
        ),
    ] = None


class Drain(Strict, frozen=True, kw_only=True):
    announce_s: Annotated[
        float,
        Meta(ge=0, le=600, description="After SIGTERM: not ready, but still serving, for this long (balancers look)."),
    ] = 5.0
    finish_s: Annotated[float, Meta(ge=0, le=3600, description="Then calls in flight get this long to finish.")] = 30.0


class Listeners(Strict, frozen=True, kw_only=True):
    http: Annotated[HostPort, Meta(description="KServe v2 over HTTP.")] = "0.0.0.0:8000"
    grpc: Annotated[HostPort, Meta(description="KServe v2 over gRPC.")] = "0.0.0.0:8001"
    metrics: Annotated[HostPort, Meta(description="`/metrics`, `/healthz`, `/readyz`; no addresses, no tenants.")] = (
        "0.0.0.0:8002"
    )
    admin: Annotated[HostPort, Meta(description="Admin API; a token is always required.")] = "127.0.0.1:8003"
    tls: Annotated[ServerTls | None, Meta(description="TLS on `http` and `grpc`; `metrics` and `admin` have none.")] = (
        None
    )


class GatewayPolicy(Strict, frozen=True, kw_only=True):
    listen: Annotated[Listeners, Meta(description="Addresses of the four ports.")] = Listeners()
    state_dir: Annotated[
        str, Meta(min_length=1, description="Directory for the admin token, relative to fleet.yaml; made if missing.")
    ] = "../.run/state"
    body_memory_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            description="Request bodies, and answers that clients are slow to take, held at one time, over all calls. "
            "Beyond it 503 `body_memory`, and slow takers are cut off.",
        ),
    ] = 512 * MIB
    forward_headers: Annotated[
        tuple[str, ...],
        Meta(
            description="Client headers that go on to Triton: names, prefixes ending in `*`, or `*` for all but "
            "hop-by-hop, content and credential headers."
        ),
    ] = ("*",)
    http: Annotated[HttpLimits, Meta(description="Limits of the HTTP port.")] = HttpLimits()
    grpc: Annotated[GrpcLimits, Meta(description="Limits of the gRPC port.")] = GrpcLimits()
    drain: Annotated[Drain, Meta(description="Orderly shutdown.")] = Drain()


class RecordsPolicy(Strict, frozen=True, kw_only=True):
    dir: Annotated[str, Meta(min_length=1, description="Directory of the record files, relative to fleet.yaml.")] = (
        "../.run/records"
    )
    file_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, description="A file is closed and a new one begun at this size.")
    ] = 64 * MIB
    files_max: Annotated[int, Meta(ge=1, le=100_000, description="Older files beyond this number are deleted.")] = 16
    queue_records_max: Annotated[
        int,
        Meta(
            ge=1, le=10_000_000, description="Records waiting to be written; beyond it they are dropped, and counted."
        ),
    ] = 20_000
    queue_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, description="Bytes of bodies held by waiting records; same at the bound.")
    ] = 64 * MIB
    flush_interval_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="Finished records reach the operating system within this time.")
    ] = 50
    fsync_interval_ms: Annotated[
        int, Meta(ge=0, le=600_000, description="And the disk within this; 0: never forced.")
    ] = 1000


class FleetPolicy(Strict, frozen=True, kw_only=True):
    """`fleet.yaml`: the pools, who may call, the gateway's own ports and bounds."""

    pools: Annotated[dict[PoolName, Pool], Meta(min_length=1, description="Sets of equal replicas, by name.")]
    identity: Annotated[IdentityPolicy, Meta(description="Who may call.")] = IdentityPolicy()
    quotas: Annotated[Quotas, Meta(description="How much each tenant may call.")] = Quotas()
    gateway: Annotated[GatewayPolicy, Meta(description="Ports and bounds of the gateway process.")] = GatewayPolicy()
    records: Annotated[RecordsPolicy, Meta(description="Where prediction records go.")] = RecordsPolicy()


# --- models/*.yaml --------------------------------------------------------------------------------------------------


class Objective(Strict, frozen=True, kw_only=True):
    p99_ms: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600_000,
            description="What callers are promised for 99 of 100 calls, milliseconds. Sets defaults below.",
        ),
    ]


class Deadline(Strict, frozen=True, kw_only=True):
    default_ms: Annotated[
        Annotated[int, Meta(ge=1, le=86_400_000)] | None,
        Meta(
            description="For callers that name none. Default: ten times the objective, at least 1000.",
        ),
    ] = None
    max_ms: Annotated[int, Meta(ge=1, le=86_400_000, description="A caller's longer wish is cut to this.")] = 30_000
    first_response_s: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(
            description="Streams: to the first response, from the call's arrival. Default: `default_ms`. What a caller "
            "names limits the whole stream instead."
        ),
    ] = None
    idle_s: Annotated[float, Meta(gt=0, le=86_400, description="Streams: longest wait for a further response.")] = 60.0
    total_s: Annotated[
        Annotated[float, Meta(gt=0, le=604_800)] | None,
        Meta(description="Streams: limit of the whole, also for callers that wish for more. Default: none."),
    ] = None
    stages: Annotated[
        Stages | None,
        Meta(
            description="The deadline split over the stages of a call. Time that a stage does not use passes on. A "
            "caller's shorter deadline shrinks all in proportion. Default: no split; one budget covers the call."
        ),
    ] = None


class Hedging(Strict, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        Meta(
            description="A call that takes longer than 97 of 100 is sent once more, to an idle replica, while less "
            "than about half of the slots are taken; at most one in twenty. Only where `read_only` is true."
        ),
    ] = True


class Retries(Strict, frozen=True, kw_only=True):
    max: Annotated[
        int,
        Meta(
            ge=0,
            le=1,
            description="How often a call that failed is sent again, to another replica; at most one in twenty (one in "
            "ten, where nothing is hedged). A call whose replica went down is sent again once in any case. Where "
            "`read_only` is false, only what certainly never left.",
        ),
    ] = 1


class Sequences(Strict, frozen=True, kw_only=True):
    live_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="Sequences remembered at one time. Beyond it the one that was silent for longest is forgotten: "
            "its calls still find their replica while the fleet stays the same, and else get Triton's own error.",
        ),
    ] = 100_000
    waiting_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Single calls of one sequence that may wait for the one before them; beyond it 503 "
            "`queue_full`. Those of a stream are bounded by `gateway.grpc.stream_calls_max`.",
        ),
    ] = 64
    idle_ms: Annotated[
        Annotated[int, Meta(ge=1, le=604_800_000)] | None,
        Meta(
            description="How long a silent sequence is remembered, and 1 s more. Default: the model's "
            "`max_sequence_idle_microseconds`; of an ensemble 60 s."
        ),
    ] = None


class Warmup(Strict, frozen=True, kw_only=True):
    calls: Annotated[
        int, Meta(ge=0, le=1000, description="Calls sent to each new (replica, version) before it gets traffic.")
    ] = 3
    timeout_ms: Annotated[int, Meta(ge=10, le=3_600_000, description="Limit of one such call, milliseconds.")] = 60_000
    request_file: Annotated[
        str,
        Meta(
            description="A KServe v2 JSON request to warm with, relative to the policy file. Default: zeros in the "
            "model's shapes."
        ),
    ] = ""


class ModelRecords(Strict, frozen=True, kw_only=True):
    tensors: Annotated[
        Literal["none", "summary", "full"],
        Meta(
            description="What a record says of the tensors: nothing, shapes with a summary of the outputs, or all "
            "values."
        ),
    ] = "summary"
    mandatory: Annotated[
        bool,
        Meta(description="true: a call whose record cannot be kept is refused (503 `record_full`) instead of served."),
    ] = False


class ModelPolicy(Strict, frozen=True, kw_only=True):
    """`models/<name>.yaml`: how one model is served."""

    model: Annotated[ModelName, Meta(description="The model's name, as Triton has it.")]
    pool: Annotated[PoolName, Meta(description="The pool that runs it; must stand in fleet.yaml.")]
    objective: Annotated[Objective, Meta(description="The promise.")]
    ladder: Annotated[
        Literal["none"],
        Meta(description="What happens when the full answer cannot be had. `none`: callers get an error."),
    ]
    impact: Annotated[
        str, Meta(min_length=8, max_length=500, description="What users feel when callers get that error, in words.")
    ]
    regime: Annotated[
        Literal["online"], Meta(description="How calls come: `online`, one at a time with a deadline.")
    ] = "online"
    deadline: Annotated[Deadline, Meta(description="The budget of a call.")] = Deadline()
    limits: Annotated[Limits, Meta(description="What a caller may send.")] = Limits()
    versions: Annotated[
        tuple[Version, ...] | None,
        Meta(description="Versions that callers may reach. Default: every version that the fleet has."),
    ] = None
    split: Annotated[
        dict[Version, Annotated[float, Meta(ge=0, le=1_000_000)]] | None,
        Meta(
            description="Weights over versions for calls that name none; 0 means none at all; they need not add up "
            "to 100. Default: the highest version that is ready."
        ),
    ] = None
    work: Annotated[
        Work | None,
        Meta(description="How the work of a call is measured, in units of a usual call. Default: all calls are 1."),
    ] = None
    memory: Annotated[
        ModelMemory,
        Meta(description="What it takes of a replica's memory, for a pool with `memory_bytes`. Default: nothing."),
    ] = ModelMemory()
    admission: Annotated[Admission, Meta(description="How many calls run and wait.")] = Admission()
    interactive: Annotated[
        bool, Meta(description="false: nobody waits for the answers; calls that name no class are `sheddable_plus`.")
    ] = True
    latency_critical: Annotated[
        bool,
        Meta(
            description="true: calls that name no class are `critical_plus`, of the tenants that may have it. They are "
            "never turned away to spare the model, so a model of which all calls are such has no use for it."
        ),
    ] = False
    classes: Annotated[Classes, Meta(description="Who is served first, and turned away last.")] = Classes()
    read_only: Annotated[
        bool,
        Meta(
            description="true: running a call twice does no harm, so that it may be hedged and sent again. Steps of "
            "sequences and calls to decoupled models never are."
        ),
    ] = False
    hedging: Annotated[Hedging, Meta(description="Second attempts of slow calls.")] = Hedging()
    retries: Annotated[Retries, Meta(description="Second attempts of failed calls.")] = Retries()
    ejection: Annotated[Ejection, Meta(description="When a replica loses its calls for a while.")] = Ejection()
    affinity: Annotated[
        Affinity | None, Meta(description="Which calls stay together on one replica. Default: none.")
    ] = None
    sequences: Annotated[Sequences, Meta(description="Calls to a stateful model that belong together.")] = Sequences()
    warmup: Annotated[Warmup, Meta(description="Calls before traffic.")] = Warmup()
    records: Annotated[ModelRecords, Meta(description="What prediction records hold.")] = ModelRecords()

    @property
    def default_class(self) -> int:
        """The number of the class of a caller that names none."""
        return default_class(self.classes, interactive=self.interactive, latency_critical=self.latency_critical)

    @property
    def default_deadline_s(self) -> float:
        """Seconds for a caller that names no deadline."""
        if self.deadline.default_ms is not None:
            return self.deadline.default_ms / 1000
        return default_deadline_ms(self.deadline.max_ms, self.objective.p99_ms) / 1000


def default_deadline_ms(max_ms: int, p99_ms: float) -> float:
    """Of a policy that names none."""
    return min(max_ms, max(1000.0, 10 * p99_ms))


class PolicySet(Struct, frozen=True, kw_only=True):
    """All policies at one revision. `revision` is the first 12 hex digits of the hash over the whole set's files."""

    revision: str
    base_dir: str
    """Directory of fleet.yaml, absolute: relative paths in the policies start here."""
    fleet: FleetPolicy
    models: dict[str, ModelPolicy]
    warmup_requests: dict[str, bytes] = {}
    """Model to the bytes of its `warmup.request_file`, as they were when the set was loaded: part of the revision."""
