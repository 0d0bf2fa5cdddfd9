"""N equal real Triton servers that live as long as a `with` block.

    with LocalFleet(2) as fleet:
        call(fleet["triton-0"].spec.grpc_address)

`async with` works as well and keeps the loop free. Every way out stops all servers: the end of the block, an exception,
Ctrl-C, a cancel; if this process is killed, the supervisors stop them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local.check import preflight
from deploy.local.environment import TritonEnvironment, ensure_environment
from deploy.local.errors import LocalFleetError
from deploy.local.layout import CORE_MODELS, LOG_DIR, MODELS, REPOSITORY_DIR, Progress, print_progress
from deploy.local.ports import BASE_PORT, Ports
from deploy.local.processes import ProcessRef, remove_stale_shm_files
from deploy.local.repository import build_repository
from deploy.local.server import START_TIMEOUT_S, STOP_GRACE_S, ServerSpec, TritonServer
from deploy.local.state import read_state, write_state


class LocalFleet:
    """Servers `triton-0`, `triton-1`, … with the same models (CORE_MODELS if not told). Builds the environment and the
    repository if needed.

    `ports` (one per server) replaces the numbered ones from `base_port`; `environment` adds variables to all servers.
    With a `state_file` the command `python -m deploy.local` can act on the servers while the block runs. `detached`
    servers outlive this process and are never stopped by it other than by `stop`.
    """

    def __init__(
        self,
        replicas: int = 2,
        models: Sequence[str] = CORE_MODELS,
        *,
        base_port: int = BASE_PORT,
        ports: Sequence[Ports] | None = None,
        repository: Path | None = None,
        log_dir: Path = LOG_DIR,
        exit_timeout_s: int = 5,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        state_file: Path | None = None,
        detached: bool = False,
        progress: Progress = print_progress,
    ) -> None:
        if replicas < 1:
            raise ValueError(f"a fleet has at least one server, not {replicas}")
        unknown = sorted(set(models) - set(MODELS)) if repository is None else []
        if unknown or not models:
            raise ValueError(f"unknown models {unknown}; there are {', '.join(MODELS)}")
        if ports is not None and len(ports) != replicas:
            raise ValueError(f"{replicas} servers need as many entries in ports, not {len(ports)}")
        numbered = ports or [Ports.numbered(index, base_port) for index in range(replicas)]
        self.specs = [
            ServerSpec(
                name=f"triton-{index}",
                ports=numbered[index],
                models=tuple(models),
                repository=repository or REPOSITORY_DIR,
                log_dir=log_dir,
                exit_timeout_s=exit_timeout_s,
                environment=dict(environment or {}),
                arguments=tuple(arguments),
            )
            for index in range(replicas)
        ]
        self.servers: dict[str, TritonServer] = {}
        self._own_repository = repository is None
        self._state_file = state_file
        self._detached = detached
        self._progress = progress
        self._abandoned = threading.Event()

    def __getitem__(self, name: str) -> TritonServer:
        return self.servers[name]

    def __iter__(self) -> Iterator[TritonServer]:
        return iter(self.servers.values())

    def __len__(self) -> int:
        return len(self.servers)

    def prepare(self) -> TritonEnvironment:
        """Check the machine, then build the environment and the repository as needed. Raises LocalFleetError."""
        remove_stale_shm_files()
        problems = preflight(len(self.specs), [port for spec in self.specs for port in spec.ports])
        if problems:
            what = "this machine is not ready for the fleet:\n" + "\n".join(f"- {each.what}" for each in problems)
            raise LocalFleetError(what, "\n  remedy: ".join(each.remedy for each in problems))
        environment = ensure_environment(progress=self._progress)
        if self._own_repository:
            build_repository(environment, progress=self._progress)
        return environment

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Prepare, start all servers side by side, and return when all are ready; on any failure stop them all."""
        environment = self.prepare()
        if self._state_file is not None:
            self._refuse_second_fleet(self._state_file, environment)
        owner = None if self._detached else ProcessRef.of(os.getpid())
        try:
            for spec in self.specs:
                self._stop_if_abandoned()
                self.servers[spec.name] = server = TritonServer(spec, environment, owner)
                server.start()
            self._write_state()
            for server in self:
                self._stop_if_abandoned()
                server.wait_ready(timeout_s)
                self._progress(
                    f"{server.spec.name}: ready, http {server.spec.http_address}, grpc {server.spec.grpc_address}"
                )
        except BaseException:  # Ctrl-C included
            self.stop()
            raise

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop all servers, those included that the command restarted meanwhile. Can be called again."""
        try:
            self._adopt_restarted()
            for server in self:
                server.begin_stop()
            for server in self:
                server.finish_stop(grace_s)
        except BaseException:  # a second Ctrl-C, or a server that does not end: no more patience
            for server in self:
                server.kill()
            raise
        finally:
            if self._state_file is not None and self.servers:
                self._state_file.unlink(missing_ok=True)
            self.servers.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._abandoned.set()
            await asyncio.wait([starting])
            if starting.exception() is None:  # asking also marks the exception as seen
                self._progress("the start was cancelled; stopping")
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.stop)))

    def _stop_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise LocalFleetError("the start of the fleet was cancelled", "start it again")

    def _write_state(self) -> None:
        if self._state_file is not None:
            write_state(self._state_file, self)

    def _refuse_second_fleet(self, state_file: Path, environment: TritonEnvironment) -> None:
        alive = [name for name, server in read_state(state_file, environment).items() if server.alive()]
        if alive:
            raise LocalFleetError(
                f"a fleet is up already ({', '.join(alive)}), says {state_file}", "python -m deploy.local down"
            )

    def _adopt_restarted(self) -> None:
        if self._state_file is None or not self.servers:
            return
        environment = next(iter(self)).environment
        for name, written in read_state(self._state_file, environment).items():
            ours = self.servers.get(name)
            if ours is not None and written.run is not None and written.run != ours.run:
                ours.stop()
                self.servers[name] = written
