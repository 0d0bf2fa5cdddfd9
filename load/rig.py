"""What a comparison stands on: one real Triton, Sluice, and the peer, for as long as a `with` block."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.local import LocalFleet, Ports, TritonServer, free_ports
from deploy.local.layout import RUN_DIR, Progress, print_progress
from deploy.local.processes import group_members
from load import envoy, sluice
from load.environment import ensure_envoy
from load.errors import LoadError

Peer = Literal["envoy", "direct"]
Protocol = Literal["http", "grpc"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two ways to Triton. `pid` is the proxy's process; None where there is no proxy."""

    name: str
    http: str
    grpc: str
    pid: int | None

    def address(self, protocol: Protocol) -> str:
        """host:port of one protocol."""
        return self.http if protocol == "http" else self.grpc


@dataclass(frozen=True, slots=True)
class Rig:
    """Everything is up. `sides`: Sluice, then the peer."""

    sides: tuple[Side, Side]
    triton: TritonServer

    def triton_pids(self) -> list[int]:
        """Triton's own process and its Python stubs."""
        if self.triton.run is None:
            raise LoadError(f"{self.triton.spec.name} has ended; see {self.triton.spec.log}")
        return group_members(self.triton.run.server.pid)

    def proxy_pids(self) -> list[int]:
        """The processes of all proxies."""
        return [side.pid for side in self.sides if side.pid is not None]


@contextmanager
def rig(
    peer: Peer,
    model: str,
    *,
    slots: int,
    deadline_ms: int,
    envoy_workers: int,
    keep: bool = False,
    progress: Progress = print_progress,
) -> Iterator[Rig]:
    """Start all parts; every way out stops them. With `keep` the folder of policies, records and logs stays."""
    envoy_binary = ensure_envoy(progress=progress) if peer == "envoy" else None
    RUN_DIR.mkdir(exist_ok=True)
    with ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="load-", dir=RUN_DIR))
        if keep:
            progress(f"policies, records and logs stay in {work}")
        else:
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        triton_ports, sluice_ports, more_ports, envoy_ports = free_ports(4)
        fleet = stack.enter_context(LocalFleet(1, [model], ports=[triton_ports], log_dir=work, progress=progress))
        (triton,) = fleet
        sides = [_start_sluice(stack, work, triton, sluice_ports, more_ports.http, slots, deadline_ms)]
        if envoy_binary is None:
            sides.append(Side("direct", triton.spec.http_address, triton.spec.grpc_address, None))
        else:
            child = stack.enter_context(
                envoy.start(
                    envoy_binary,
                    work,
                    envoy_ports,
                    triton_http=triton.spec.http_address,
                    triton_grpc=triton.spec.grpc_address,
                    deadline_ms=deadline_ms,
                    workers=envoy_workers,
                )
            )
            child.wait_ready(f"http://127.0.0.1:{envoy_ports.metrics}/ready")
            sides.append(_side("envoy", envoy_ports, child.pid))
        yield Rig((sides[0], sides[1]), triton)


def _start_sluice(
    stack: ExitStack, work: Path, triton: TritonServer, ports: Ports, admin: int, slots: int, deadline_ms: int
) -> Side:
    listen = {
        "http": f"127.0.0.1:{ports.http}",
        "grpc": f"127.0.0.1:{ports.grpc}",
        "metrics": f"127.0.0.1:{ports.metrics}",
        "admin": f"127.0.0.1:{admin}",
    }
    policies = work / "policies"
    (model,) = triton.spec.models
    sluice.write_policies(policies, model, [triton.spec], listen, slots=slots, deadline_ms=deadline_ms)
    child = stack.enter_context(sluice.start(policies, work / "sluice.log"))
    child.wait_ready(f"http://{listen['metrics']}/readyz")
    return _side("sluice", ports, child.pid)


def _side(name: str, ports: Ports, pid: int) -> Side:
    return Side(name, f"127.0.0.1:{ports.http}", f"127.0.0.1:{ports.grpc}", pid)
