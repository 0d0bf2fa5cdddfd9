"""The gateway as its users run it: `sluice serve` in a process of its own, over policies written for the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0
PORTS = ("http", "grpc", "metrics", "admin")

PATIENCE: Mapping[str, int] = {"default_ms": 20_000}
"""The deadline of calls that name none: a machine that stands still for a moment must fail none of them."""
PROBES: Mapping[str, int] = {"interval_ms": 300, "timeout_ms": 2000}
"""A server that is busy for a moment must not be taken for one that is down."""

MODEL_POLICIES: Mapping[str, Mapping[str, Any]] = {
    "fraud": {"objective": {"p99_ms": 200}, "deadline": PATIENCE, "versions": ["1", "2"], "split": {"2": 100}},
    "fraud-lite": {"objective": {"p99_ms": 200}, "deadline": PATIENCE},
    "identity": {"objective": {"p99_ms": 200}, "deadline": PATIENCE},
    "accel": {"objective": {"p99_ms": 1000}, "deadline": PATIENCE},
}


def write_policies(
    directory: Path,
    replicas: Sequence[Mapping[str, str]],
    *,
    models: Mapping[str, Mapping[str, Any]] = MODEL_POLICIES,
    fleet: Mapping[str, Any] | None = None,
    pool: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Write a policy directory (JSON is YAML). Returns the four addresses to listen on."""
    listen = {name: f"127.0.0.1:{free_port()}" for name in PORTS}
    more = dict(fleet or {})
    gateway = {
        "listen": listen,
        "state_dir": "state",
        "drain": {"announce_s": 0.2, "finish_s": 10},
        **more.pop("gateway", {}),
    }
    document = {
        "pools": {"cpu": {"replicas": {"static": list(replicas)}, "health": PROBES, **(pool or {})}},
        "gateway": gateway,
        "records": {"dir": "records"},
        **more,
    }
    (directory / "models").mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(json.dumps(document, indent=1))
    for name, policy in models.items():
        body = {
            "model": name,
            "pool": "cpu",
            "ladder": "none",
            "impact": "A test sees an error and says so.",
            "warmup": {"calls": 1},
            **policy,
        }
        file_name = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        (directory / "models" / f"{file_name}.yaml").write_text(json.dumps(body, indent=1))
    return listen


class GatewayProcess:
    """A running gateway. `stop` is SIGTERM, unless a signal was sent already, and returns the exit code."""

    def __init__(
        self, directory: Path, listen: Mapping[str, str], arguments: Sequence[str] = (), *, module: str = "gateway"
    ) -> None:
        self.directory = directory
        self.listen = dict(listen)
        self.log = directory / "gateway.log"
        self._signalled = False
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "serve", str(directory), *arguments],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def http(self) -> str:
        return self.listen["http"]

    @property
    def grpc(self) -> str:
        return self.listen["grpc"]

    def get(self, port: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """GET from one of the four ports; the status and the body, whatever the status."""
        request = urllib.request.Request(f"http://{self.listen[port]}{path}", headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def wait_ready(self, timeout_s: float = READY_S) -> GatewayProcess:
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise AssertionError(f"the gateway ended with {self.process.returncode}:\n{self.log_text()}")
            try:
                if self.get("metrics", "/readyz")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the gateway was not ready within {timeout_s} s:\n{self.log_text()}")

    def wait_models(self, *names: str, timeout_s: float = READY_S) -> GatewayProcess:
        """Wait until each of the models is ready: the gateway says that it is as soon as one of them is."""
        end_s = time.monotonic() + timeout_s
        for name in names:
            while self.get("http", f"/v2/models/{name}/ready")[0] != 200:
                assert time.monotonic() < end_s, f"{name} was not ready within {timeout_s} s:\n{self.log_text()}"
                time.sleep(0.05)
        return self

    def wait_warmed(self, *names: str, timeout_s: float = READY_S) -> GatewayProcess:
        """Wait until every replica has been warmed for every version of these models: ready they are when one is. From
        then on the gateway makes no calls of its own.
        """
        end_s = time.monotonic() + timeout_s
        token = (self.directory / "state" / "admin-token").read_text().strip()
        while True:
            status, body = self.get("admin", "/v1/fleet", {"authorization": f"Bearer {token}"})
            assert status == 200
            replicas = [each for pool in json.loads(body)["pools"].values() for each in pool["replicas"]]
            if all(_warmed(replica, names) for replica in replicas):
                return self
            assert time.monotonic() < end_s, f"not all is warmed within {timeout_s} s: {replicas}"
            time.sleep(0.05)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")[-20_000:]

    def records(self) -> list[dict[str, Any]]:
        """All prediction records written so far, without the lines that count drops. What a running gateway is writing
        just now may be seen by halves: such a line is left for the next look.
        """
        found = []
        running = self.process.poll() is None
        for file in sorted((self.directory / "records").glob("*.jsonl")):
            data = file.read_bytes()
            for line in (data[: data.rfind(b"\n") + 1] if running else data).splitlines():
                record = json.loads(line)
                if "request_id" in record:
                    found.append(record)
        return found

    def signal(self, number: signal.Signals) -> None:
        self._signalled = True
        self.process.send_signal(number)

    def stop(self, timeout_s: float = 30.0) -> int:
        if self.process.poll() is None and not self._signalled:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"the gateway did not end within {timeout_s} s of SIGTERM:\n{self.log_text()}"
            ) from None

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def _warmed(replica: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether it is live and has all of these models in service, in every version that it has."""
    states = {name: {each["state"] for each in replica["models"] if each["model"] == name} for name in names}
    return replica["state"] == "live" and all(found == {"warmed"} for found in states.values())
