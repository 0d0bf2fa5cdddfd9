"""Connections to replicas over TLS: made from files that change, and replaced without a gap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet.tls import PoolTls
from gateway.policy.tls_schema import UpstreamTls
from gateway.runtime.clock import SystemClock
from gateway.runtime.files import SystemFiles
from gateway.runtime.workers import InlineWorkers
from tests.support.certificates import DAY, Authority, replace
from tests.unit.fleet_world import FleetWorld, run

A, B = "10.0.0.1", "10.0.0.2"


class Dead:
    """A client that no replica answers."""

    closed = False

    async def server_live(self, timeout_s: float) -> bool:
        raise UpstreamFault(Code.UNAVAILABLE, "no common ground", from_peer=False)

    async def aclose(self) -> None:
        self.closed = True


def test_connections_are_renewed_each_once_its_successor_has_answered() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        old = {client.address: client for client in world.network.clients}
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m", timeout_s=20.0)))
        world.directory.renew("gpu")
        await world.until(lambda: len(world.network.clients) == 4, 1)
        await out
        await world.until(lambda: all(client.closed for client in old.values()), 1)
        assert world.takers("m") == {A, B}, "at no moment is a replica out of service for it"
        before = {id(client) for client in old.values()}
        assert not before & {id(member.connection.client) for member in world.directory.everyone()}

    run(main)


def test_a_connection_whose_successor_does_not_answer_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        member = world.directory._members[f"gpu/{A}:8001"]
        old, dead = member.connection, Dead()
        member._connect = lambda: dead  # type: ignore[assignment,return-value]
        await member.renew()
        assert member.connection is old
        assert dead.closed
        assert world.takers("m") == {A, B}

    run(main)
    assert "the old one stays in use" in caplog.text


def pool_tls(directory: Path, changes: list[Any], **policy: str) -> PoolTls:
    workers = InlineWorkers()
    return PoolTls(
        "gpu",
        UpstreamTls(**policy),  # type: ignore[arg-type]
        lambda name: str(directory / name),
        files=SystemFiles(workers),
        workers=workers,
        clock=SystemClock(),
        changed=lambda: changes.append(None),
    )


async def test_the_files_of_a_pool_are_watched_and_each_change_is_told(tmp_path: Path) -> None:
    authority, changes = Authority(), list[Any]()
    authority.write(tmp_path)
    authority.pair("gateway").write(tmp_path, "gateway")
    tls = pool_tls(tmp_path, changes, ca_file="ca.pem", certificate_file="gateway.pem", key_file="gateway.key")
    await tls.watched.load()
    assert tls.material.ca == authority.certificate
    assert changes == []
    replace(tmp_path / "ca.pem", Authority().certificate)
    await tls.watched.look()
    assert len(changes) == 1
    assert tls.material.ca != authority.certificate
    replace(tmp_path / "gateway.pem", b"rubbish")
    await tls.watched.look()
    assert len(changes) == 1
    assert tls.material.key, "what was good stays in force"


async def test_a_pool_s_certificate_that_has_expired_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Authority().pair("gateway", lasts=-DAY).write(tmp_path, "gateway")
    await pool_tls(tmp_path, [], certificate_file="gateway.pem", key_file="gateway.key").watched.load()
    assert "the certificate for pool gpu" in caplog.text
    assert "expired 1.0 days ago" in caplog.text


async def test_without_files_the_library_s_own_authorities_are_believed(tmp_path: Path) -> None:
    tls = pool_tls(tmp_path, [])
    await tls.watched.load()
    assert tls.material.ca == b""
