"""Unlucky operators and sick machines, against the whole process: what they did once must not break it again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from deploy.local import LocalFleet
from gateway.edge.grpcio_listener import why_not
from gateway.runtime.files import SystemFiles
from gateway.runtime.workers import ThreadWorkers
from tests.conftest import replicas_of
from tests.support.gateway_process import GatewayProcess, write_policies
from tests.support.waiting import wait_until

WAIT_S = 20.0
BODY = b'{"inputs":[{"name":"work","datatype":"FP32","shape":[1,1],"data":[0]}]}'


def infer(gateway: GatewayProcess) -> None:
    with urllib.request.urlopen(f"http://{gateway.http}/v2/models/accel/infer", data=BODY, timeout=WAIT_S) as answer:
        assert answer.status == 200


def serving_accel(gateway: GatewayProcess) -> bool:
    return gateway.wait_ready().get("http", "/v2/models/accel/ready")[0] == 200


def test_a_hangup_is_an_orderly_end(fleet: LocalFleet, tmp_path: Path) -> None:
    listen = write_policies(tmp_path, replicas_of(fleet))
    with GatewayProcess(tmp_path, listen) as gateway:
        wait_until(lambda: serving_accel(gateway), WAIT_S)
        infer(gateway)
        gateway.signal(signal.SIGHUP)
        gateway.signal(signal.SIGHUP)
        assert gateway.stop() == 0, gateway.log_text()
        assert len(gateway.records()) == 1


def test_records_that_could_not_be_written_show_in_the_exit_code(fleet: LocalFleet, tmp_path: Path) -> None:
    listen = write_policies(tmp_path, replicas_of(fleet))
    records = tmp_path / "records"
    with GatewayProcess(tmp_path, listen) as gateway:
        wait_until(lambda: serving_accel(gateway), WAIT_S)
        shutil.rmtree(records)
        records.write_text("a file stands where the directory was")
        infer(gateway)
        assert gateway.stop() == 1, gateway.log_text()
        assert "could not be written" in gateway.log_text()
        assert "Traceback" not in gateway.log_text()


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
async def test_a_watched_file_that_is_no_file_holds_no_worker(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    workers = ThreadWorkers(1, "test")
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(OSError, match=r"regular|directory"):
            await SystemFiles(workers).read(str(path))
        assert await workers.aclose(WAIT_S)


def test_why_the_grpc_port_cannot_be_had_is_what_the_system_says() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "in use" in str(why_not("127.0.0.1", taken.getsockname()[1]))
    assert "in use" not in str(why_not("192.0.2.1", 9001))
    assert "in use" not in str(why_not("not-a-host.invalid", 9001))
