"""What the kernel says that processes and the machine have used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far: user and system, all its threads, ended ones included.

    It is the sum that /proc/<pid>/stat shows in ticks of 10 ms, read from the process's CPU clock in nanoseconds.
    Raises ProcessLookupError if there is no such process.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of the process; include/linux/posix-timers.h
    except OSError:
        raise ProcessLookupError(f"no process {pid}") from None


def cpu_s_of(pids: Iterable[int]) -> float:
    """The sum over several processes."""
    return sum(cpu_s(pid) for pid in pids)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, shared pages included."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def forget_peak(pid: int) -> None:
    """Let the peak of a process's resident memory begin anew from what it is now. Raises OSError if the kernel does not
    allow it.
    """
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def peak_rss_bytes(pid: int) -> int:
    """The most resident memory that a process has had since `forget_peak`, or since it began."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status tells no peak")


def machine_busy_s() -> float:
    """CPU seconds that all CPUs together have been busy since boot, time stolen by the host included."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def machine_name() -> str:
    """CPUs and their model, for the head of a table."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} x {model}"
