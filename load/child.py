"""A proxy as a process of its own, that never outlives the lab."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from load.errors import LoadError

PR_SET_PDEATHSIG = 1
STOP_GRACE_S = 15.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """A running process; the end of the `with` block ends it: SIGTERM, and SIGKILL after a while. If the lab itself is
    killed, the kernel kills the child. Its environment is the lab's, with `variables` over it.
    """

    def __init__(
        self, name: str, argv: Sequence[str], *, log: Path, cwd: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        lab = os.getpid()

        def in_the_child() -> None:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != lab:  # the lab died before the line above took effect
                os._exit(1)

        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is the lab's to act on
                preexec_fn=in_the_child,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, if it has ended by itself."""
        return self._process.poll()

    def wait_ready(self, url: str, timeout_s: float = 30.0) -> None:
        """Return when `url` answers 200. Raises LoadError with the end of the log if the process ends before, or at
        the time-out.
        """
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            code = self._process.poll()
            if code is not None:
                raise LoadError(
                    f"{self.name} ended with {code} before it was ready; its last words:\n{self.last_words()}"
                )
            try:
                with urllib.request.urlopen(url, timeout=2) as response:
                    if response.status == 200:
                        return
            except OSError:  # URLError and a status that is not 200 are ones too
                pass
            time.sleep(0.05)
        raise LoadError(f"{self.name} was not ready after {timeout_s:g} s; its last words:\n{self.last_words()}")

    def stop(self) -> int:
        """End it, if it has not ended. Returns its exit code, negative for the signal that ended it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """End it and what it started at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BaseException:  # a second Ctrl-C
            self.kill()
            raise

    def last_words(self) -> str:
        """The end of what it has printed, indented."""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            return "    " + "    ".join(deque(file, maxlen=12)).rstrip()
