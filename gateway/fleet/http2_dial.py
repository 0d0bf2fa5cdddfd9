"""How a connection to a replica is made: the addresses behind its name, one after the other, and TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.core.faces import Resolver
from gateway.fleet.tls import PoolTls
from gateway.policy.tls_files import TlsMaterial
from gateway.runtime.tls import client_context

ALPN = "h2"

_KEEPALIVE_IDLE_S = 20
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_COUNT = 4
UNACKNOWLEDGED_MS = 30_000
"""Bytes that the other machine's kernel has not acknowledged for so long end the connection."""


@dataclass(frozen=True, slots=True)
class DialTls:
    """What a TLS handshake needs; `server_name` is what the certificate must carry."""

    context: ssl.SSLContext
    server_name: str


Dial = Callable[[str, int, DialTls | None, Callable[[], asyncio.BaseProtocol]], Awaitable[None]]
"""The network: connect to an address (no name) and a port, shake hands, and give the connection to the protocol that
the factory makes. Raises OSError (`ssl.SSLError` is one).
"""


async def dial(address: str, port: int, tls: DialTls | None, make: Callable[[], asyncio.BaseProtocol]) -> None:
    """A `Dial` on the machine's network."""
    loop = asyncio.get_running_loop()
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        _watch_over(sock)
        await loop.sock_connect(sock, where)
        context, name = (None, None) if tls is None else (tls.context, tls.server_name)
        await loop.create_connection(make, sock=sock, ssl=context, server_hostname=name)
    except BaseException:
        sock.close()
        raise


def _watch_over(sock: socket.socket) -> None:
    """The kernel finds out by itself when the other machine is gone. That is not seen by the replica, which would
    count pings of HTTP/2 on a silent connection as abuse.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
    ):
        option = getattr(socket, name, None)
        if option is not None:  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class LoopResolver:
    """A `Resolver` on the event loop's own threads."""

    async def resolve(self, host: str) -> tuple[str, ...]:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


class Contexts:
    """TLS contexts for a pool. To make one takes milliseconds, so the replicas share it, until the files change."""

    def __init__(self) -> None:
        self._made: tuple[TlsMaterial, ssl.SSLContext] | None = None

    def of(self, material: TlsMaterial) -> ssl.SSLContext:
        """Raises ValueError for files that are of no use."""
        if self._made is None or self._made[0] is not material:
            context = client_context(material.ca, material.certificate, material.key, (ALPN,))
            self._made = (material, context)
        return self._made[1]


class Dialler:
    """Connects to one replica, again and again. `target` is `host:port`, an IPv6 address in brackets.

    A name is looked up at each attempt, and all its addresses are tried in turn. An attempt that hung on one of them
    until its time was over is followed by one that begins with the next.
    """

    def __init__(self, target: str, tls: PoolTls | None, contexts: Contexts, resolver: Resolver, network: Dial) -> None:
        self.target = target
        host, _, port = target.rpartition(":")
        self._host = host.strip("[]")
        self._port = int(port)
        self._contexts = contexts
        self._resolver = resolver
        self._network = network
        self._turn = 0
        # As they are now: changed files need a new client.
        self._material = None if tls is None else tls.material
        self._server_name = (tls.server_name if tls is not None else "") or self._host.partition("%")[0]
        self._tls: DialTls | None = None
        bare = f"[{self._host.partition('%')[0]}]:{port}" if "%" in self._host else target
        self.authority = (tls.server_name if tls is not None and tls.server_name else bare).encode("ascii")
        """What requests say of whom they ask."""
        self.scheme = b"http" if tls is None else b"https"

    async def connect(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Raises OSError, of the last address that was tried; ValueError for a name or TLS files that are of no use."""
        tls = self._tls
        if tls is None and self._material is not None:
            tls = self._tls = DialTls(self._contexts.of(self._material), self._server_name)
        addresses = await self._addresses()
        first, count = self._turn, len(addresses)
        for step in range(count):
            index = (first + step) % count
            self._turn = index + 1
            try:
                await self._network(addresses[index], self._port, tls, make)
            except OSError:
                if step == count - 1:
                    raise
            else:
                self._turn = index
                return

    async def _addresses(self) -> tuple[str, ...]:
        if _is_address(self._host):
            return (self._host,)
        found = await self._resolver.resolve(self._host)
        if not found:
            raise OSError(f"the name {self._host} has no address")
        return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
