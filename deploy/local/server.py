"""One real Triton server on this machine: start, wait, stop, kill, freeze, thaw.

Methods block and start no threads; from asyncio call them with `asyncio.to_thread`. One caller at a time per server.
A server is a process group of its own (Triton and its stubs); signals go to the group. What happens when something dies
unexpectedly is written in `supervisor.py`.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from deploy.local.environment import TritonEnvironment
from deploy.local.errors import LocalFleetError
from deploy.local.layout import CORE_MODELS, LOG_DIR, REPOSITORY_DIR, ROOT
from deploy.local.ports import LOOPBACK, Ports, free_ports, require_free
from deploy.local.processes import ProcessRef, group_members, group_memory_bytes, remove_shm_files

__all__ = ["Ports", "ServerSpec", "TritonServer", "free_ports"]

State = Literal["running", "frozen", "stopped"]

START_TIMEOUT_S = 60.0
STOP_GRACE_S = 15.0
KILL_TIMEOUT_S = 15.0
FREEZE_TIMEOUT_S = 2.0
STUB_TELLS_S = 0.5
"""In so long a stub of a Python model has told Triton that it is there."""
OWN_FLAGS = frozenset(
    [
        "--id",
        "--model-repository",
        "--model-store",
        "--model-control-mode",
        "--load-model",
        "--backend-directory",
        "--allow-http",
        "--http-address",
        "--http-port",
        "--allow-grpc",
        "--grpc-address",
        "--grpc-port",
        "--allow-metrics",
        "--metrics-address",
        "--metrics-port",
    ]
)
"""Flags of Triton without which the fleet would not find its servers, or other servers would be hit."""
SERVER = "the server itself"
"""What is not ready where no model is to blame."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What one server is. `environment` adds variables, for example SLUICE_ACCEL_S0_MS; `arguments` adds Triton flags.

    `exit_timeout_s` is how long a stopping Triton waits for running calls and open HTTP connections. Raises ValueError
    for arguments that are no flags, or flags that the fleet sets itself.
    """

    name: str
    ports: Ports
    models: tuple[str, ...] = CORE_MODELS
    repository: Path = REPOSITORY_DIR
    log_dir: Path = LOG_DIR
    exit_timeout_s: int = 5
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for argument in self.arguments:
            check_argument(argument)

    @property
    def log(self) -> Path:
        """Where the server writes what it has to say; appended to at every start."""
        return self.log_dir / f"{self.name}.log"

    @property
    def execution_log(self) -> Path:
        """Where `accel` writes a JSON line for each call that it executed."""
        return self.log_dir / f"{self.name}.accel.jsonl"

    @property
    def accel_control(self) -> Path:
        """A file by which `accel` is made slower while it runs (its `Control`); it need not be there."""
        return self.log_dir / f"{self.name}.accel-control.json"

    @property
    def stream_log(self) -> Path:
        """Where `streamer` writes a JSON line at the start and at the end of each request."""
        return self.log_dir / f"{self.name}.streamer.jsonl"

    @property
    def http_address(self) -> str:
        """host:port of HTTP."""
        return f"{LOOPBACK}:{self.ports.http}"

    @property
    def grpc_address(self) -> str:
        """host:port of gRPC."""
        return f"{LOOPBACK}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """The page of Triton's metrics."""
        return f"http://{LOOPBACK}:{self.ports.metrics}/metrics"

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can hold."""
        return {
            **asdict(self),
            "repository": str(self.repository),
            "log_dir": str(self.log_dir),
            "environment": dict(self.environment),
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> ServerSpec:
        """The inverse of `to_json`."""
        return ServerSpec(
            **{
                **stored,
                "ports": Ports(**stored["ports"]),
                "models": tuple(stored["models"]),
                "repository": Path(stored["repository"]),
                "log_dir": Path(stored["log_dir"]),
                "arguments": tuple(stored["arguments"]),
            }
        )


def check_argument(argument: str) -> None:
    """Raises ValueError for what cannot be one of a server's `arguments`."""
    flag = argument.partition("=")[0]
    if not re.fullmatch(r"--[a-z][a-z-]*", flag):
        raise ValueError(f"{argument!r} is no flag of Triton; write --flag=value")
    if flag in OWN_FLAGS:
        raise ValueError(f"{flag} is set by the fleet itself")


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a server: its supervisor, its Triton process, the prefix of its shared-memory files."""

    supervisor: ProcessRef
    server: ProcessRef
    shm_prefix: str


class TritonServer:
    """A server by its spec. `owner` is the process with which it dies; None lets it run until it is stopped."""

    def __init__(self, spec: ServerSpec, environment: TritonEnvironment, owner: ProcessRef | None = None) -> None:
        self.spec = spec
        self.environment = environment
        self.owner = owner
        self.run: Run | None = None
        self._supervisor: subprocess.Popen[str] | None = None  # ours to reap, if we started it

    def start(self, *, wait: bool = False, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server; with `wait` return only when it is ready. Raises LocalFleetError.

        A port in use is refused before anything is started. A server that is alive already is an error.
        """
        if self.alive():
            raise LocalFleetError(
                f"{self.spec.name} is running already", f"python -m deploy.local stop {self.spec.name}"
            )
        if self.run is not None:  # it ended by itself
            self.finish_stop()
        require_free(self.spec.ports)
        self.spec.log_dir.mkdir(parents=True, exist_ok=True)
        order = {
            "name": self.spec.name,
            "argv": self._argv(),
            "environment": {
                **self.environment.variables(),
                "SLUICE_ACCEL_LOG": str(self.spec.execution_log),
                "SLUICE_ACCEL_CONTROL": str(self.spec.accel_control),
                "SLUICE_STREAMER_LOG": str(self.spec.stream_log),
                **self.spec.environment,
            },
            "log": str(self.spec.log),
            "owner": None if self.owner is None else [self.owner.pid, self.owner.start_ticks],
        }
        with open(self.spec.log, "ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "deploy.local.supervisor", json.dumps(order)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self.run = self._read_report(supervisor)
        except BaseException:  # Ctrl-C included: a server that we cannot name must not stay
            supervisor.terminate()
            supervisor.wait()
            raise
        self._supervisor = supervisor
        if wait:
            self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when the server answers that it and each of its models are ready.

        Raises LocalFleetError with the end of the log if the server ends before, or at the time-out.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.ready():
            if not self.alive():
                raise LocalFleetError(
                    f"{self.spec.name} ended before it was ready; the end of its log:\n    {self._log_tail()}",
                    f"read {self.spec.log}",
                )
            if time.monotonic() >= deadline_s:
                missing = ", ".join(self.unready())
                raise LocalFleetError(
                    f"{self.spec.name} was not ready after {timeout_s:g} s (not ready: {missing}); "
                    f"the end of its log:\n    {self._log_tail()}",
                    f"read {self.spec.log}",
                )
            time.sleep(0.05)

    def ready(self, timeout_s: float = 1.0) -> bool:
        """True if the server and each of its models answer ready now."""
        return self.state() == "running" and next(self._unready(timeout_s), None) is None

    def unready(self, timeout_s: float = 1.0) -> list[str]:
        """The models that do not answer ready now; `SERVER` alone if none of them is to blame, or nothing answers."""
        if self.state() != "running":
            return [SERVER]
        found = list(self._unready(timeout_s))
        return [name for name in found if name != SERVER] or found

    def _unready(self, timeout_s: float) -> Iterator[str]:
        paths = {SERVER: "/v2/health/ready"} | {model: f"/v2/models/{model}/ready" for model in self.spec.models}
        connection = http.client.HTTPConnection(LOOPBACK, self.spec.ports.http, timeout=timeout_s)
        try:
            for name, path in paths.items():
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    yield name
        except (OSError, http.client.HTTPException):
            yield SERVER
        finally:
            connection.close()

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask Triton to end (SIGTERM), wait so long, then kill. Returns when the group and its files are gone."""
        self.begin_stop()
        self.finish_stop(grace_s)

    def begin_stop(self) -> None:
        """The first half of `stop`, which does not wait: for stopping several servers at once."""
        if self.run is not None:
            self.run.server.signal(signal.SIGTERM, group=False)
            self.run.server.signal(signal.SIGCONT, group=True)  # a frozen server cannot act on a signal

    def finish_stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """The second half of `stop`."""
        if not self._wait_supervisor(grace_s):
            self.kill()
        self._clean_up()

    def kill(self) -> None:
        """Kill the whole group (SIGKILL). Returns when the group and its files are gone."""
        if self.run is not None:
            self.run.server.signal(signal.SIGKILL, group=True)
            if not self._wait_supervisor(KILL_TIMEOUT_S):
                raise LocalFleetError(
                    f"{self.spec.name} (process group {self.run.server.pid}) did not end after SIGKILL",
                    f"see what holds it: cat /proc/{self.run.server.pid}/stack",
                )
        self._clean_up()

    def freeze(self) -> None:
        """Stop the group in its tracks (SIGSTOP): connections stay open, nothing answers. Raises if it is not alive."""
        self._signal_alive(signal.SIGSTOP, "frozen")

    def thaw(self) -> None:
        """Let a frozen group go on (SIGCONT). Raises if it is not alive.

        The stubs go on first, which takes half a second: a Triton 2.51 that was frozen within an execution asks at once
        whether its stub has told of itself since (a stub does every 300 ms), and crashes (SIGSEGV) if it has not.
        """
        if self.run is not None and self.state() == "frozen":
            for pid in group_members(self.run.server.pid):
                if pid != self.run.server.pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            time.sleep(STUB_TELLS_S)
        self._signal_alive(signal.SIGCONT, "running")

    def alive(self) -> bool:
        """True from start until the server ends; a frozen server is alive."""
        return self.run is not None and self.run.server.alive()

    def state(self) -> State:
        """running (which is not yet ready), frozen or stopped."""
        letter = None if self.run is None else self.run.server.state()
        if letter is None:
            return "stopped"
        return "frozen" if letter in "Tt" else "running"

    def memory_bytes(self) -> int:
        """Memory of Triton and its stubs together (proportional set size)."""
        return 0 if self.run is None else group_memory_bytes(self.run.server.pid)

    def to_json(self) -> dict[str, Any]:
        """What another process needs to act on this server."""
        return {
            "spec": self.spec.to_json(),
            "owner": None if self.owner is None else asdict(self.owner),
            "run": None if self.run is None else asdict(self.run),
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any], environment: TritonEnvironment) -> TritonServer:
        """The server that another process started and wrote down."""
        owner, run = stored["owner"], stored["run"]
        spec = ServerSpec.from_json(stored["spec"])
        server = TritonServer(spec, environment, None if owner is None else ProcessRef(**owner))
        if run is not None:
            server.run = Run(
                supervisor=ProcessRef(**run["supervisor"]),
                server=ProcessRef(**run["server"]),
                shm_prefix=run["shm_prefix"],
            )
        return server

    def _argv(self) -> list[str]:
        spec, ports = self.spec, self.spec.ports
        return [
            str(self.environment.server),
            f"--id={spec.name}",
            f"--model-repository={spec.repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in spec.models),
            f"--backend-directory={self.environment.backends}",
            f"--cache-directory={self.environment.caches}",
            f"--http-address={LOOPBACK}",
            f"--http-port={ports.http}",
            f"--grpc-address={LOOPBACK}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-address={LOOPBACK}",
            f"--metrics-port={ports.metrics}",
            "--allow-gpu-metrics=false",
            "--pinned-memory-pool-byte-size=0",
            "--http-thread-count=4",
            f"--model-load-thread-count={max(2, os.cpu_count() or 2)}",
            f"--exit-timeout-secs={spec.exit_timeout_s}",
            "--log-format=ISO8601",
            "--backend-config=python,shm-default-byte-size=1048576",
            *spec.arguments,
        ]

    def _read_report(self, supervisor: subprocess.Popen[str]) -> Run:
        assert supervisor.stdout is not None
        with supervisor.stdout as stdout:
            line = stdout.readline()
        if not line:
            raise LocalFleetError(
                f"{self.spec.name} could not be started; the end of its log:\n    {self._log_tail()}",
                f"read {self.spec.log}",
            )
        report = json.loads(line)
        return Run(
            supervisor=ProcessRef(*report["supervisor"]),
            server=ProcessRef(*report["server"]),
            shm_prefix=report["shm_prefix"],
        )

    def _signal_alive(self, number: signal.Signals, until: State) -> None:
        if self.run is None or not self.run.server.signal(number, group=True):
            raise LocalFleetError(f"{self.spec.name} is not running", f"python -m deploy.local start {self.spec.name}")
        deadline_s = time.monotonic() + FREEZE_TIMEOUT_S
        while self.state() not in (until, "stopped") and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def _wait_supervisor(self, timeout_s: float) -> bool:
        """The supervisor ends last, when group and files are gone; true if it has."""
        if self.run is None:
            return True
        if self._supervisor is not None and self._supervisor.pid == self.run.supervisor.pid:
            try:
                self._supervisor.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        return self.run.supervisor.wait_gone(timeout_s)

    def _clean_up(self) -> None:
        """Do what the supervisor would have done, for the case that it was killed itself."""
        if self.run is None:
            return
        self.run.server.signal(signal.SIGKILL, group=True)
        self.run.server.wait_gone(KILL_TIMEOUT_S)
        remove_shm_files(self.run.shm_prefix)
        self.run = None
        self._supervisor = None

    def _log_tail(self) -> str:
        try:
            with open(self.spec.log, encoding="utf-8", errors="replace") as file:
                lines = deque((line.rstrip() for line in file), maxlen=12)
        except FileNotFoundError:
            return "(no log)"
        return "\n    ".join(lines)
