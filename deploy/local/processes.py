"""Processes named so that a recycled pid is never signalled, process groups, and their files in /dev/shm."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

SHM_DIR = Path("/dev/shm")
SHM_PREFIX = "sluice-triton"


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process: its pid and its start time in clock ticks since boot. Together they are unique until the next boot."""

    pid: int
    start_ticks: int

    @staticmethod
    def of(pid: int) -> ProcessRef:
        """The process that has this pid now. Raises ProcessLookupError if there is none."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(f"no process {pid}")
        return ProcessRef(pid, int(fields[19]))

    def state(self) -> str | None:
        """The kernel's state letter (R, S, D, T for stopped, …), or None if it has ended (zombies have)."""
        fields = _stat(self.pid)
        if fields is None or int(fields[19]) != self.start_ticks or fields[0] in "ZX":
            return None
        return fields[0]

    def alive(self) -> bool:
        """True until it has ended; a frozen process is alive."""
        return self.state() is not None

    def signal(self, number: signal.Signals, *, group: bool) -> bool:
        """Signal it, or the group that it leads; false if it has ended already."""
        if not self.alive():
            return False
        try:
            if group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until it has ended; false at the time-out."""
        deadline_s = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.02)
        return True


def group_members(pgid: int) -> list[int]:
    """The pids in a process group that have not ended."""
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None and int(fields[2]) == pgid and fields[0] not in "ZX":
                members.append(int(entry))
    return members


def group_memory_bytes(pgid: int) -> int:
    """Memory of a process group: the sum of proportional set sizes, so that shared pages count once."""
    total = 0
    for pid in group_members(pgid):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def shm_prefix(owner: ProcessRef, name: str) -> str:
    """The prefix of all shared-memory files of the server `name` whose supervisor is `owner`."""
    return f"{SHM_PREFIX}-{owner.pid}-{owner.start_ticks}-{name}-"


def remove_shm_files(prefix: str) -> list[str]:
    """Remove the files in /dev/shm whose names begin with `prefix`; returns their names."""
    if not prefix.startswith(SHM_PREFIX):
        raise ValueError(f"refusing to remove shared memory that is not ours: {prefix!r}")
    removed = []
    for name in os.listdir(SHM_DIR):
        if name.startswith(prefix):
            (SHM_DIR / name).unlink(missing_ok=True)
            removed.append(name)
    return sorted(removed)


def remove_stale_shm_files() -> list[str]:
    """Remove files of servers whose supervisor is gone (it was killed itself, or the machine lost power)."""
    removed = []
    for name in os.listdir(SHM_DIR):
        parts = name.removeprefix(SHM_PREFIX + "-").split("-", 2)
        ours = name.startswith(SHM_PREFIX + "-") and len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit()
        if ours and not ProcessRef(int(parts[0]), int(parts[1])).alive():
            (SHM_DIR / name).unlink(missing_ok=True)
            removed.append(name)
    return sorted(removed)


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()
