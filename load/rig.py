"""What a comparison has besides its stand: a peer of Sluice in front of the same Triton."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.local import TritonServer, free_ports
from deploy.local.layout import Progress, print_progress
from deploy.local.processes import group_members
from load import envoy
from load.environment import ensure_envoy
from load.errors import LoadError
from load.stand import stand

COUNTS_STILL_S = 0.05
COUNTS_SETTLE_S = 10.0

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
    metrics: str
    """host:port of Sluice's metrics page."""
    directory: Path
    """Logs and the like; gone afterwards unless it is kept."""

    def ways(self) -> dict[str, Side]:
        """Every way to the Triton by its name; the direct one is always there."""
        spec = self.triton.spec
        direct = Side("direct", spec.http_address, spec.grpc_address, None)
        return {"direct": direct} | {side.name: side for side in self.sides}

    def triton_pids(self) -> list[int]:
        """Triton's own process and its Python stubs."""
        if self.triton.run is None:
            raise LoadError(f"{self.triton.spec.name} has ended; see {self.triton.spec.log}")
        return group_members(self.triton.run.server.pid)

    def executed(self, model: str) -> tuple[int, int]:
        """How many inferences of a model Triton has counted, and in how many executions. For when no call is out.

        Triton counts a call some time after it was answered, so this waits until the counts stand still. Raises
        LoadError if they do not.
        """
        until_s = time.monotonic() + COUNTS_SETTLE_S
        found = self._executed(model)
        while time.monotonic() < until_s:
            time.sleep(COUNTS_STILL_S)
            before, found = found, self._executed(model)
            if found == before:
                return found
        raise LoadError(f"Triton goes on executing {model}, though nothing was sent to it for {COUNTS_SETTLE_S:g} s")

    def _executed(self, model: str) -> tuple[int, int]:
        url = f"http://{self.triton.spec.http_address}/v2/models/{model}/stats"
        with urllib.request.urlopen(url, timeout=10) as response:
            stats = json.load(response)["model_stats"]
        return sum(each["inference_count"] for each in stats), sum(each["execution_count"] for each in stats)

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
    bytes_max: int | None = None,
    keep: bool = False,
    progress: Progress = print_progress,
) -> Iterator[Rig]:
    """Start all parts; every way out stops them. `bytes_max` is `stand`'s. With `keep` the folder of policies, records
    and logs stays.
    """
    envoy_binary = ensure_envoy(progress=progress) if peer == "envoy" else None
    with ExitStack() as stack:
        up = stack.enter_context(
            stand(1, [model], slots=slots, deadline_ms=deadline_ms, bytes_max=bytes_max, keep=keep, progress=progress)
        )
        (triton,) = up.fleet
        sluice = Side("sluice", up.http, up.grpc, up.pid)
        if envoy_binary is None:
            beside = Side("direct", triton.spec.http_address, triton.spec.grpc_address, None)
        else:
            (ports,) = free_ports(1)
            child = stack.enter_context(
                envoy.start(
                    envoy_binary,
                    up.directory,
                    ports,
                    triton_http=triton.spec.http_address,
                    triton_grpc=triton.spec.grpc_address,
                    deadline_ms=deadline_ms,
                    workers=envoy_workers,
                )
            )
            child.wait_ready(f"http://127.0.0.1:{ports.metrics}/ready")
            beside = Side("envoy", f"127.0.0.1:{ports.http}", f"127.0.0.1:{ports.grpc}", child.pid)
        yield Rig((sluice, beside), triton, up.metrics, up.directory)
