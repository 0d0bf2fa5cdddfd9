"""Ports of local servers: which, whether they are free, and who holds them."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deploy.local.errors import LocalFleetError

LOOPBACK = "127.0.0.1"
BASE_PORT = 18_000
STRIDE = 10
_SEARCH_FROM, _SEARCH_TO = 20_000, 32_000
"""Below the range that the kernel takes for outgoing connections (from 32768), so that none can get in between."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The three ports of one server, all on loopback."""

    http: int
    grpc: int
    metrics: int

    @staticmethod
    def numbered(index: int, base: int = BASE_PORT) -> Ports:
        """The ports of the server with this index: base, base + 1, base + 2, ten further on for each server."""
        first = base + STRIDE * index
        return Ports(first, first + 1, first + 2)

    def __iter__(self) -> Iterator[int]:
        return iter((self.http, self.grpc, self.metrics))


def is_free(port: int) -> bool:
    """True if a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


_claims: dict[int, int] = {}
"""The ports that this process has claimed, each with the file by which it has."""


def claim(port: int) -> bool:
    """Whether the port is from now on this process's own, until it ends: no other process of this user that asks here
    gets it, and no other part of this one. That somebody listens on it is another matter (`is_free`).

    A port is found before its server listens, seconds later, and processes that share a machine must not find the same
    meanwhile. The claim is a lock on the byte of a file that has the port's number, which the kernel lets go.
    """
    if port in _claims:
        return False
    # One file for all ports, opened once: a process that closes any descriptor of it loses all its locks.
    fd = next(iter(_claims.values()), -1)
    if fd < 0:
        fd = os.open(os.path.join(tempfile.gettempdir(), f"sluice-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # either may say that another process has it
        if fd not in _claims.values():
            os.close(fd)
        return False
    _claims[port] = fd
    return True


def free_ports(servers: int) -> list[Ports]:
    """Ports for so many servers that are free now, and that nobody else is given (`claim`).

    The search begins at a place that depends on this process, far from that of one with the next number.
    """
    span = (_SEARCH_TO - _SEARCH_FROM) // STRIDE
    found: list[Ports] = []
    for step in range(span):
        ports = Ports.numbered((os.getpid() * 487 + step) % span, _SEARCH_FROM)
        if all(is_free(port) and claim(port) for port in ports):
            found.append(ports)
            if len(found) == servers:
                return found
    raise LocalFleetError(
        f"no {servers} free triples of ports between {_SEARCH_FROM} and {_SEARCH_TO}",
        "see what listens there: ss -tlnp",
    )


def require_free(ports: Iterable[int]) -> None:
    """Raise LocalFleetError, naming the first port that is taken and its holder."""
    for port in ports:
        if not is_free(port):
            raise LocalFleetError(f"port {port} is in use by {holder(port)}", remedy_for(port))


def remedy_for(port: int) -> str:
    """The command that helps with a port that is taken."""
    pid = _holder_pid(port)
    if pid is None:
        return f"see who listens there: sudo ss -tlnp 'sport = :{port}'"
    return f"kill {pid}"


def holder(port: int) -> str:
    """Who listens on a port, as well as this user may know."""
    pid = _holder_pid(port)
    if pid is None:
        return "a process of another user, or of another container"
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return f"process {pid} ({file.read().strip()})"


def _holder_pid(port: int) -> int | None:
    links = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not links:
        return None
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                for descriptor in os.listdir(f"/proc/{entry}/fd"):
                    if os.readlink(f"/proc/{entry}/fd/{descriptor}") in links:
                        return int(entry)
            except OSError:  # ended meanwhile, or another user's
                continue
    return None


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        inodes += [row[9] for row in rows if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port]
    return inodes
