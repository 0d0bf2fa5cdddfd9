"""The forwarder before a replica, as the lab sees it: started, told what to do, stopped."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local import Ports
from deploy.local.layout import ROOT
from load.child import Child
from load.errors import LoadError
from load.forwarder import LOOPBACK

START_S = 15.0
ANSWER_S = 5.0


class Blackhole:
    """A forwarder that runs. Methods block for a few milliseconds."""

    def __init__(self, name: str, control_port: int) -> None:
        self.name = name
        self._port = control_port

    def begin(self) -> None:
        """Let packets vanish. Raises LoadError."""
        self._tell("blackhole")

    def end(self) -> None:
        """Let them pass again. Raises LoadError."""
        self._tell("pass")

    def wait_ready(self, child: Child) -> None:
        """Return when it answers. Raises LoadError with the end of its log if it does not."""
        end_s = time.monotonic() + START_S
        while True:
            try:
                return self.end()
            except LoadError as error:
                if time.monotonic() > end_s or child.ended is not None:
                    words = child.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                    raise LoadError(f"{error}; its last words: {' / '.join(words)}") from error
            time.sleep(0.05)

    def _tell(self, word: str) -> None:
        try:
            with socket.create_connection((LOOPBACK, self._port), timeout=ANSWER_S) as control:
                control.sendall(f"{word}\n".encode("ascii"))
                with control.makefile("r", encoding="utf-8") as answers:
                    answer = answers.readline().strip()
        except OSError as error:
            raise LoadError(f"the forwarder before {self.name} does not answer: {error}") from error
        if answer != "ok":
            raise LoadError(f"the forwarder before {self.name} does not {word}: {answer}")


@contextmanager
def forwarding(name: str, control_port: int, front: Ports, behind: Ports, log: Path) -> Iterator[Blackhole]:
    """Have a forwarder from each port of `front` to the same of `behind`, for as long as the block runs."""
    routes = [f"{a}={b}" for a, b in zip(front, behind, strict=True)]
    argv = [sys.executable, "-m", "load.forwarder", str(control_port), *routes]
    with Child(f"the forwarder before {name}", argv, log=log, cwd=ROOT) as child:
        made = Blackhole(name, control_port)
        made.wait_ready(child)
        yield made
