"""Where a pool's replicas are: one face, three sources (a fixed list, a DNS name, a watched file)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

from gateway.core.faces import Endpoints, Files, Resolver
from gateway.fleet.dns import DnsSource
from gateway.fleet.watched_file import FileSource
from gateway.policy.schema import Pool, StaticReplica
from gateway.runtime.workers import Workers


class AddressSource(Protocol):
    """A list of replicas that may change."""

    @property
    def refresh_s(self) -> float:
        """Seconds after which to ask again; infinite: never."""
        ...

    async def addresses(self) -> tuple[Endpoints, ...]:
        """The replicas now, without duplicates, in a stable order; empty if the source says that there are none.

        Raises OSError (the source cannot be asked) or ValueError (what it says makes no sense); the text says what and
        where.
        """
        ...


class StaticSource:
    """Fixed addresses."""

    refresh_s = math.inf

    def __init__(self, replicas: tuple[StaticReplica, ...]) -> None:
        self._addresses = endpoints_of(replicas)

    async def addresses(self) -> tuple[Endpoints, ...]:
        return self._addresses


def endpoints_of(replicas: tuple[StaticReplica, ...]) -> tuple[Endpoints, ...]:
    """The endpoints of configured replicas; of several with one gRPC address the first counts."""
    found: dict[str, Endpoints] = {}
    for each in replicas:
        found.setdefault(each.grpc, Endpoints(each.grpc, each.http, each.metrics))
    return tuple(found.values())


def source_of(pool: Pool, base_dir: str, resolver: Resolver, files: Files, workers: Workers) -> AddressSource:
    """The source that the pool's policy names. Raises ValueError unless it names exactly one."""
    replicas = pool.replicas
    named = [each for each in (replicas.static, replicas.dns, replicas.file) if each is not None]
    if len(named) != 1:
        raise ValueError(f"a pool's replicas must name exactly one of static, dns and file, not {len(named)} of them")
    if replicas.static is not None:
        return StaticSource(replicas.static)
    if replicas.dns is not None:
        return DnsSource(replicas.dns, resolver)
    assert replicas.file is not None
    return FileSource(str(Path(base_dir, replicas.file.path)), replicas.file.refresh_s, files, workers)
