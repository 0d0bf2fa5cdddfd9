"""Addresses to listen on, and the error for one that cannot be had."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""


class ListenError(Exception):
    """A port cannot be opened. The text names the address, the policy key, and what to do."""

    def __init__(self, address: str, key: str, problem: str, remedy: str) -> None:
        """`remedy` has the place that is to be changed as `{place}`."""
        self.address = address
        self.key = key
        self._told = (problem, remedy)
        super().__init__(self._text(f"{key} in fleet.yaml", key))

    def text_for_option(self, option: str) -> str:
        """The same where the address was given as `option` of the command, and not in fleet.yaml."""
        return self._text(f"given as {option}", option)

    def _text(self, where: str, place: str) -> str:
        problem, remedy = self._told
        return f"cannot listen on {self.address} ({where}): {problem}; {remedy.format(place=place)}"


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[host]:port` as the policy has it. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


async def listen_on(address: str, key: str, protocol: Callable[[], asyncio.BaseProtocol]) -> tuple[asyncio.Server, str]:
    """Listen on `address` (`host:port`; port 0 takes a free one), which stands under the policy key `key`, with
    `protocol` for each connection. Returns the server and the address in use. Raises `ListenError`.
    """
    host, port = split_address(address)
    try:
        server = await asyncio.get_running_loop().create_server(protocol, host, port, backlog=BACKLOG)
    except OSError as error:
        raise listen_error(address, key, error) from error
    bound = server.sockets[0].getsockname()
    return server, f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"


def listen_error(address: str, key: str, error: OSError) -> ListenError:
    """What `error` means for `address`, which stands under the policy key `key` in fleet.yaml."""
    if error.errno == errno.EADDRINUSE:
        told = "the port is in use", "stop the process that uses it, or change {place}"
    elif error.errno in (errno.EACCES, errno.EPERM):
        told = "not permitted", "ports below 1024 need a right of their own, or change {place}"
    elif error.errno == errno.EADDRNOTAVAIL:
        told = "this machine has no such address", "change {place}"
    else:
        told = error.strerror or str(error), "change {place} or the machine's settings"
    return ListenError(address, key, *told)
