"""The user-space instructions that part of a Python program takes, counted by valgrind's tool callgrind.

The program runs under callgrind from its start, which counts nothing until it is switched on. When the program comes to
the part it asks the lab, over a connection to the loopback, and waits; the lab switches counting on with
`callgrind_control` and lets it go on; at the part's end it asks for the opposite. It cannot switch by itself: starting
another program is much work, and would be counted.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from deploy.local.layout import ROOT
from load.child import Child
from load.errors import LoadError, UsageError

APT_REMEDY = "apt-get install -y valgrind"
LOOK_S = 0.25
"""How often a wait is interrupted, to see whether the program still runs and to say so."""
CONTROL_LIMIT_S = 120.0
"""Switching takes well under a second, on a machine that is very busy some seconds."""

T = TypeVar("T")
Tick = Callable[[float], None]
"""Told now and then the seconds since the program's start."""


def require_valgrind() -> str:
    """Its version, such as `valgrind-3.19.0`. Raises UsageError if it is not installed, LoadError if it fails."""
    for tool in ("valgrind", "callgrind_control"):
        if shutil.which(tool) is None:
            raise UsageError(f"{tool} is not installed, and it does the counting; remedy: {APT_REMEDY}")
    done = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadError(f"valgrind --version ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


class Switch:
    """The program's side. `port` is the lab's, from the program's command line."""

    def __init__(self, port: int) -> None:
        self._link = socket.create_connection(("127.0.0.1", port))

    def turn(self) -> None:
        """Begin to be counted, or cease to be. Returns when that is so. Raises LoadError if the lab has gone."""
        self._link.sendall(b"%d\n" % os.getpid())
        if not self._link.recv(1):
            raise LoadError("the lab that counts has gone")

    def close(self) -> None:
        """Let the lab go."""
        self._link.close()


def count(
    argv_for: Callable[[int], Sequence[str]],
    *,
    name: str,
    folder: Path,
    limit_s: float,
    tick: Tick,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run `argv_for(port)` under callgrind, from the project's directory. Returns the instructions of all its threads
    between the two turns of its `Switch`. What it prints and callgrind's files go to `folder`.

    Raises LoadError, with its last words, if it fails, takes longer than `limit_s`, or was not counted.
    """
    report = folder / "valgrind.log"
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--log-file={report}"]
    valgrind.append(f"--callgrind-out-file={folder / 'callgrind.out'}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [*valgrind, *argv_for(server.getsockname()[1])]
        with Child(name, argv, log=folder / "said.log", cwd=ROOT, variables=variables) as child:
            watch = _Watch(child, limit_s, tick)
            server.settimeout(LOOK_S)
            link, _ = watch.until(server.accept)
            with link:
                link.settimeout(LOOK_S)
                for mode in ("on", "off"):
                    _switch(mode, watch.process_that_asks(link))
                    watch.until(lambda: link.sendall(b"\n"))
            watch.until_the_end()
    return instructions(report.read_text(encoding="utf-8", errors="replace"), name)


class _Watch:
    """Waits for a program, not longer than it runs, and not for ever."""

    def __init__(self, child: Child, limit_s: float, tick: Tick) -> None:
        self._child = child
        self._limit_s = limit_s
        self._tick = tick
        self._begun_s = time.monotonic()

    def until(self, step: Callable[[], T]) -> T:
        """The result of `step`, which raises TimeoutError if there is none yet. Raises LoadError."""
        while True:
            try:
                return step()
            except TimeoutError:
                self._look()
            except ConnectionError:
                self.until_the_end()
            if self._child.ended is not None:
                raise self._failure()

    def process_that_asks(self, link: socket.socket) -> int:
        """Wait until the program asks. Returns the id of its process. Raises LoadError."""
        said = self.until(lambda: link.recv(32))
        if not said:
            self.until_the_end()
            raise self._failure()
        return int(said)

    def until_the_end(self) -> None:
        """Wait until the program ends. Raises LoadError if it fails."""
        while self._child.ended is None:
            time.sleep(LOOK_S / 10)
            self._look()
        if self._child.ended:
            raise self._failure()

    def _look(self) -> None:
        elapsed_s = time.monotonic() - self._begun_s
        if elapsed_s > self._limit_s:
            raise LoadError(f"{self._child.name} did not end within {self._limit_s:g} s; {self._words()}")
        self._tick(elapsed_s)

    def _failure(self) -> LoadError:
        return LoadError(f"{self._child.name} ended with {self._child.ended} before its time; {self._words()}")

    def _words(self) -> str:
        return f"its last words:\n{self._child.last_words()}"


def _switch(mode: str, process: int) -> None:
    argv = ["callgrind_control", "-i", mode, str(process)]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CONTROL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadError(
            f"{' '.join(argv)} did not end within {CONTROL_LIMIT_S:g} s: it must be allowed to trace processes (in a "
            "container, the capability SYS_PTRACE)"
        ) from None
    # Its exit code is 0 even if it finds no such process.
    if done.returncode or not re.search(r"^\s*OK\.\s*$", done.stdout, re.MULTILINE):
        raise LoadError(f"{' '.join(argv)} did not switch counting {mode}; it said:\n    {done.stdout.strip()}")


def instructions(report: str, name: str) -> int:
    """What callgrind's last words say that it counted. Raises LoadError if they say nothing, or that it was nothing."""
    found = re.findall(r"^==\d+== Collected : (\d+)$", report, re.MULTILINE)
    if not found or not int(found[-1]):
        tail = "\n    ".join(report.strip().splitlines()[-8:])
        raise LoadError(f"{name}: callgrind counted nothing; its last words:\n    {tail}")
    return int(found[-1])
