"""What this machine must have before servers are started: each lack with the one command that mends it."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.local import environment, ports, tools
from deploy.local.errors import LocalFleetError
from deploy.local.layout import ENVIRONMENT_DIR, ROOT
from deploy.local.processes import SHM_DIR

SHM_BYTES_PER_SERVER = 32 * 1024 * 1024
"""One region of 1 MB per model instance, which grows with large tensors."""
MEMORY_BYTES_PER_SERVER = 350 * 1024 * 1024
MEMORY_BYTES_OTHERS = 512 * 1024 * 1024
FILE_LIMIT = 4_096


@dataclass(frozen=True, slots=True)
class Problem:
    """What is missing, and the command that helps."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n  remedy: {self.remedy}"


def preflight(servers: int, wanted_ports: Iterable[int], wanted_tools: Iterable[str] = ()) -> list[Problem]:
    """All that keeps `servers` servers on these ports from running here; empty if nothing does. Changes nothing.

    `wanted_ports` may hold ports of others too, such as the gateway's. `wanted_tools`: of `tools.KINDS`, to be there
    or such that they can be set up.
    """
    problems = [*_python(), *_shared_memory(servers), *_memory(servers), *_files()]
    problems += [
        Problem(f"port {port} is in use by {ports.holder(port)}", ports.remedy_for(port))
        for port in wanted_ports
        if not ports.is_free(port)
    ]
    faults = [fault for name in wanted_tools if (fault := tools.cannot_set_up(name)) is not None]
    problems += [Problem(fault.what, fault.remedy) for fault in faults]
    return problems


def _python() -> list[Problem]:
    try:
        environment.find_python()
    except LocalFleetError as error:
        return [Problem(error.what, error.remedy)]
    if environment.is_ready():
        return []
    problems = []
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        problems.append(Problem("Python's venv module is not complete on this machine", environment.VENV_REMEDY))
    free = shutil.disk_usage(ROOT).free
    if free < environment.NEEDED_DISK_BYTES:
        problems.append(
            Problem(
                f"{free // 2**20} MB of disk are free for {ENVIRONMENT_DIR}; "
                f"its build needs {environment.NEEDED_DISK_BYTES // 2**20} MB",
                "find what is large: du -xh --max-depth=2 . | sort -h | tail",
            )
        )
    return problems


def _shared_memory(servers: int) -> list[Problem]:
    if not SHM_DIR.is_dir() or not os.access(SHM_DIR, os.W_OK):
        return [
            Problem(
                f"{SHM_DIR} is not there or not writable; Triton's Python models need it",
                "sudo mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm",
            )
        ]
    needed, free = servers * SHM_BYTES_PER_SERVER, shutil.disk_usage(SHM_DIR).free
    if free >= needed:
        return []
    return [
        Problem(
            f"{SHM_DIR} has {free // 2**20} MB free; {servers} servers need {needed // 2**20} MB",
            "sudo mount -o remount,size=1g /dev/shm (in a container: start it with --shm-size=1g)",
        )
    ]


def _memory(servers: int) -> list[Problem]:
    needed = servers * MEMORY_BYTES_PER_SERVER + MEMORY_BYTES_OTHERS
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if available >= needed:
        return []
    return [
        Problem(
            f"{available // 2**20} MB of memory are available; {servers} servers need {needed // 2**20} MB",
            "use fewer servers (--replicas 1), or end what is large: ps aux --sort=-rss | head",
        )
    ]


def _files() -> list[Problem]:
    # Servers raise their own soft limit up to the hard one, so only the hard one can be in the way.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= FILE_LIMIT:
        return []
    return [
        Problem(
            f"at most {hard} files may be open per process; {FILE_LIMIT} are needed",
            f"sudo prlimit --pid $$ --nofile={FILE_LIMIT}:65536",
        )
    ]
