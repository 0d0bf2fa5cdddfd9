"""A real redis-server on a port of its own, which a test may freeze, kill, start again and fill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.tools import ensure_tool
from tests.support.ports import free_port

START_LIMIT_S = 20.0


class RedisServer:
    """One server. Its data lives in memory alone."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.port = free_port()
        self._directory = directory
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *arguments: str) -> None:
        """Start it, again if need be, and wait until it answers."""
        tool = ensure_tool("redis-server")
        with open(self._directory / "redis.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    str(tool.program), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                    "no", "--dir", str(self._directory), *(arguments or self._arguments),
                ],
                env=tool.variables(), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        until_s = time.monotonic() + START_LIMIT_S
        while not self.say("PING").startswith(("+PONG", "-NOAUTH")):
            assert self._process.poll() is None, (self._directory / "redis.log").read_text()
            assert time.monotonic() < until_s, "redis-server does not answer"
            time.sleep(0.02)

    def say(self, *words: str) -> str:
        """The first line of the answer to a command; "" without a connection."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2.0) as peer:
                data = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in words)
                peer.sendall(data)
                return peer.recv(65536).split(b"\r\n")[0].decode()
        except OSError:
            return ""

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        process = self._process
        if process is not None:
            self._process = None
            process.kill()
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextmanager
def redis_server(directory: Path, *arguments: str) -> Iterator[RedisServer]:
    """A server that runs, and is gone afterwards."""
    server = RedisServer(directory, *arguments)
    server.start()
    try:
        yield server
    finally:
        server.kill()
