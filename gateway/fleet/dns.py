"""Replicas behind a DNS name: every address that it resolves to is one."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from gateway.core.faces import Endpoints, Resolver
from gateway.policy.schema import DnsReplicas
from gateway.runtime.workers import Workers

LOOKUP_TIMEOUT_S = 5.0


class DnsSource:
    """Looks the name up at each asking: the resolver's own cache is the only one, and no failure is needed for a
    change to be seen (gRPC's own channels ask again only after one).
    """

    def __init__(self, policy: DnsReplicas, resolver: Resolver, lookup_timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
        self._policy = policy
        self._resolver = resolver
        self._lookup_timeout_s = lookup_timeout_s
        self.refresh_s = policy.refresh_s

    async def addresses(self) -> tuple[Endpoints, ...]:
        policy = self._policy
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                answer = await self._resolver.resolve(policy.host)
        except TimeoutError:
            raise OSError(f"{policy.host}: no answer from the resolver in {self._lookup_timeout_s:g} s") from None
        except OSError as error:
            raise OSError(
                f"{policy.host}: {error.strerror or error}; check `replicas.dns.host`, or the resolver"
            ) from None
        except UnicodeError as error:
            raise ValueError(f"{policy.host}: not a name that can be looked up: {error}") from None
        hosts = sorted({_host(address) for address in answer})
        return tuple(
            Endpoints(
                f"{host}:{policy.grpc_port}",
                f"{host}:{policy.http_port}",
                f"{host}:{policy.metrics_port}" if policy.metrics_port else "",
            )
            for host in hosts
        )


def _host(address: str) -> str:
    """An address as it stands before a port: IPv6 in brackets, in its shortest spelling."""
    bare, _, zone = address.partition("%")
    parsed = ipaddress.ip_address(bare)
    return f"[{parsed}{'%' + zone if zone else ''}]" if parsed.version == 6 else str(parsed)


class SystemResolver:
    """The operating system's resolver, on worker threads.

    A look-up cannot be interrupted, so a second question for a name that is still being looked up waits for the first:
    a resolver that hangs costs one thread per name, not one per refresh.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._running: dict[str, asyncio.Task[tuple[str, ...]]] = {}

    async def resolve(self, host: str) -> tuple[str, ...]:
        task = self._running.get(host)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._workers.run(lambda: _look_up(host)))
            self._running[host] = task
            task.add_done_callback(lambda done: self._finished(host, done))
        return await asyncio.shield(task)

    def _finished(self, host: str, task: asyncio.Task[tuple[str, ...]]) -> None:
        self._running.pop(host, None)
        if not task.cancelled():
            task.exception()  # Seen: whoever waited has it too, and nobody may be waiting any more.


def _look_up(host: str) -> tuple[str, ...]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
