"""A small process between a launcher and one server, so that nothing of the server outlives what started it.

`python -m deploy.local.supervisor JSON`; JSON holds `name`, `argv`, `environment`, `log`, `owner` ([pid, start_ticks]
or null). It prints one JSON line (`supervisor`, `server`, `shm_prefix`) and then waits. What is guaranteed:

* The server leads a session and process group of its own; the Triton stubs are in that group, the supervisor is not,
  so a frozen group never freezes its supervisor.
* Server ends, however: the rest of the group is killed and reaped, and its files in /dev/shm are removed.
* Owner ends, however (SIGKILL included): the same, at once. Without an owner the server runs until it is stopped.
* Supervisor is sent SIGTERM: the same, at once.
* Supervisor is killed with SIGKILL: the kernel kills the server (parent-death signal), and the stubs end by themselves
  when they miss it. Files may stay in /dev/shm then; the next start removes them.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any

from deploy.local.processes import ProcessRef, remove_shm_files, shm_prefix

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_TIMEOUT_S = 10.0
FILE_LIMIT = 65_536


def main() -> int:
    """Run one server to its end. Returns its exit code, or 128 + n if signal n ended it."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    libc = ctypes.CDLL(None, use_errno=True)
    # Stubs whose parent has ended become our children, so we can wait until the last of them is gone.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    this = ProcessRef.of(os.getpid())
    prefix = shm_prefix(this, order["name"])
    owner_fd = _watch(order["owner"])
    if owner_fd == -1:
        return 1

    def in_the_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != this.pid:  # we died before the line above took effect
            os._exit(1)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    argv = [*order["argv"], f"--backend-config=python,shm-region-prefix-name={prefix}"]
    with open(order["log"], "ab") as log:
        server = subprocess.Popen(
            argv,
            env=order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=in_the_child,
        )
    server_fd = os.pidfd_open(server.pid)
    report = {
        "supervisor": [this.pid, this.start_ticks],
        "server": [server.pid, ProcessRef.of(server.pid).start_ticks],
        "shm_prefix": prefix,
    }
    print(json.dumps(report), flush=True)
    _close_standard_output()

    watched = [fd for fd in (server_fd, owner_fd, wake_read) if fd is not None]
    select.select(watched, [], [])
    # The leader is not reaped yet (a zombie at most), so its group id cannot have been given to anyone else.
    os.killpg(server.pid, signal.SIGKILL)
    _reap_all(server)
    remove_shm_files(prefix)
    code = server.returncode
    return code if code >= 0 else 128 - code


def _watch(owner: list[int] | None) -> int | None:
    """A descriptor that becomes readable when the owner ends; None without an owner, -1 if it has ended already."""
    if owner is None:
        return None
    try:
        descriptor = os.pidfd_open(owner[0])
    except ProcessLookupError:
        return -1
    return descriptor if ProcessRef(owner[0], owner[1]).alive() else -1


def _close_standard_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _reap_all(server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + REAP_TIMEOUT_S
    server.wait()
    while time.monotonic() < deadline_s:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
