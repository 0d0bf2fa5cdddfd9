"""What the commands of the lab stand on: real Tritons and one Sluice, and what that Sluice says of itself."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploy.local import LocalFleet, Ports, ServerSpec, free_ports
from deploy.local.layout import RUN_DIR, Progress, print_progress
from load import accounting, sluice
from load.blackhole import Blackhole, forwarding
from load.child import Child
from load.errors import LoadError

SPARE_FILES = 300
"""Descriptors besides those of client connections: records, replicas, libraries."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Everything is up. Addresses are host:port."""

    http: str
    grpc: str
    metrics: str
    gateway: Child
    fleet: LocalFleet
    directory: Path
    """Policies, records and logs; gone afterwards unless it is kept."""
    grpc_addresses: Sequence[str] = ()
    """Of the replicas, as the gateway knows them."""
    blackholes: Mapping[int, Blackhole] = field(default_factory=dict)
    """The forwarders before replicas, by index."""
    name: str = "sluice"
    """What stands in front of the fleet."""

    @property
    def pid(self) -> int:
        return self.gateway.pid


@contextmanager
def stand(
    replicas: int,
    models: Sequence[str],
    *,
    slots: int | None,
    deadline_ms: int,
    gateway: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    environment: Mapping[str, str] | None = None,
    bytes_max: int | None = None,
    blackholes: Sequence[int] = (),
    keep: bool = False,
    progress: Progress = print_progress,
) -> Iterator[Stand]:
    """Start `replicas` Tritons with all `models`, and Sluice in front of them; every way out stops them. `gateway` has
    more keys for the policy's `gateway`, `overrides` for the policies of models by name; `environment` adds variables
    to the Tritons; `bytes_max` is the largest message that the gateway takes; before the replicas `blackholes` stand
    forwarders, and the gateway knows those alone.
    """
    with ExitStack() as stack:
        base = stack.enter_context(
            footing(replicas, models, environment=environment, blackholes=blackholes, keep=keep, progress=progress)
        )
        work = base.directory
        listen = {
            "http": f"127.0.0.1:{base.ports.http}",
            "grpc": f"127.0.0.1:{base.ports.grpc}",
            "metrics": f"127.0.0.1:{base.ports.metrics}",
            "admin": f"127.0.0.1:{base.more_ports.http}",
        }
        for model in models:
            sluice.write_policies(
                work / "policies",
                model,
                base.specs,
                listen,
                slots=slots,
                deadline_ms=deadline_ms,
                gateway=gateway,
                override=(overrides or {}).get(model),
                bytes_max=bytes_max,
            )
        child = stack.enter_context(sluice.start(work / "policies", work / "sluice.log"))
        child.wait_ready(f"http://{listen['metrics']}/readyz")
        yield Stand(
            listen["http"],
            listen["grpc"],
            listen["metrics"],
            child,
            base.fleet,
            work,
            [spec.grpc_address for spec in base.specs],
            base.blackholes,
        )


@dataclass(frozen=True, slots=True)
class Footing:
    """The part of a stand below what is in front: a fleet that runs, and free ports for a proxy."""

    directory: Path
    fleet: LocalFleet
    specs: list[ServerSpec]
    """Of the replicas, with the addresses that a proxy has to use."""
    blackholes: Mapping[int, Blackhole]
    ports: Ports
    more_ports: Ports


@contextmanager
def footing(
    replicas: int,
    models: Sequence[str],
    *,
    environment: Mapping[str, str] | None,
    blackholes: Sequence[int],
    keep: bool,
    progress: Progress = print_progress,
) -> Iterator[Footing]:
    """Start the fleet, and the forwarders before the replicas `blackholes`; every way out stops them."""
    RUN_DIR.mkdir(exist_ok=True)
    with ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="load-", dir=RUN_DIR))
        if keep:
            progress(f"policies, records and logs stay in {work}")
        else:
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        *others, ports, more = free_ports(replicas + 2 * len(blackholes) + 2)
        triton_ports, fronts, controls = others[:replicas], others[replicas::2], others[replicas + 1 :: 2]
        fleet = stack.enter_context(
            LocalFleet(replicas, models, ports=triton_ports, log_dir=work, environment=environment, progress=progress)
        )
        specs = [server.spec for server in fleet]
        forwarders: dict[int, Blackhole] = {}
        for index, front, control in zip(blackholes, fronts, controls, strict=True):
            spec = specs[index]
            log = work / f"{spec.name}.forwarder.log"
            made = forwarding(spec.name, control.http, front, spec.ports, log)
            forwarders[index] = stack.enter_context(made)
            specs[index] = replace(spec, ports=front)
        yield Footing(work, fleet, specs, forwarders, ports, more)


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """One look at the gateway's process and at its metrics page."""

    rss_bytes: int
    cpu_s: float
    descriptors: int
    threads: int
    tasks: int
    connections: int
    """Open client connections, all protocols."""
    in_flight: int
    queued: int
    calls: int
    """That have ended."""
    records_written: int
    records_dropped: int
    internal_faults: int
    metrics_series: int
    """Lines of the metrics page."""

    @property
    def own_descriptors(self) -> int:
        """Descriptors that are not client connections. (grpcio does not tell of its connections; they count here.)"""
        return self.descriptors - self.connections


def read_gateway(pid: int, metrics: str) -> GatewayReading:
    """Look now; blocks for a few milliseconds. Raises LoadError if the process or its page is not there."""
    try:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
            page = response.read().decode()
        sums = page_sums(page)
        return GatewayReading(
            rss_bytes=accounting.rss_bytes(pid),
            cpu_s=accounting.cpu_s(pid),
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=len(os.listdir(f"/proc/{pid}/task")),
            tasks=int(sums["sluice_event_loop_tasks"]),
            connections=int(sums["sluice_connections_open"]),
            in_flight=int(sums.get("sluice_calls_in_flight", 0)),
            queued=int(sums.get("sluice_calls_queued", 0)),
            calls=int(sums.get("sluice_calls_total", 0)),
            records_written=int(sums["sluice_records_written_total"]),
            records_dropped=int(sums.get("sluice_records_dropped_total", 0)),
            internal_faults=int(sums.get("sluice_internal_faults_total", 0)),
            metrics_series=sum(1 for line in page.splitlines() if line and line[0] != "#"),
        )
    except (OSError, ProcessLookupError) as error:
        raise LoadError(f"the gateway (process {pid}) cannot be read: {error}; see its log with --keep") from error
    except KeyError as error:
        raise LoadError(f"the gateway's metrics page lacks {error}") from error


def page_sums(page: str) -> dict[str, float]:
    """Metric to the sum over its labels, from Prometheus's text format."""
    sums: dict[str, float] = {}
    for line in page.splitlines():
        if line and line[0] != "#":
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def allow_files(count: int) -> None:
    """Let this process, and those that it starts from now on, have `count` files open. Raises LoadError with the remedy
    if the system does not allow that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise LoadError(
            f"{count} open files are needed and the hard limit is {hard}; raise it (`ulimit -Hn {count}` as root, "
            f"`LimitNOFILE={count}` in a systemd unit, `--ulimit nofile={count}` for a container) or open fewer "
            "connections"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else hard, hard))
