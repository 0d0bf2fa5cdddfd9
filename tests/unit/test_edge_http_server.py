"""The listener: addresses, errors that help, both event loops, orderly shutdown over real sockets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from gateway.edge.http_server import LISTEN_KEY
from gateway.runtime.listen import ListenError, listen_error, split_address
from tests.unit.edge_clients import Client, get, infer_response, post
from tests.unit.edge_driving import Edge, GatedService, ReceivingService, running


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:8000", ("127.0.0.1", 8000)), ("[::1]:1", ("::1", 1)), ("host-a.b:65535", ("host-a.b", 65535))],
)
def test_an_address_is_split(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "8000", ":8000", "host:", "host:port", "host:70000", "host:-1", "host:１"])
def test_what_is_no_address_is_said_so(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


async def test_a_port_in_use_is_named_with_its_policy_key() -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as (host, port):
        other = Edge(ReceivingService())
        with pytest.raises(ListenError) as caught:
            await other.server.start(f"{host}:{port}")
    text = str(caught.value)
    assert f"{host}:{port}" in text
    assert LISTEN_KEY in text
    assert "in use" in text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EADDRNOTAVAIL, errno.EMFILE])
def test_every_other_failure_names_address_and_key_too(number: int) -> None:
    text = str(listen_error("1.2.3.4:80", LISTEN_KEY, OSError(number, "why")))
    assert "1.2.3.4:80" in text
    assert LISTEN_KEY in text


@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL, errno.EMFILE])
def test_an_address_from_an_option_is_not_looked_for_in_the_file(number: int) -> None:
    text = listen_error("1.2.3.4:80", LISTEN_KEY, OSError(number, "why")).text_for_option("--http")
    assert "1.2.3.4:80 (given as --http)" in text
    assert "change --http" in text
    assert "fleet.yaml" not in text
    assert LISTEN_KEY not in text


async def exchange() -> None:
    """A little of everything over sockets, on whatever loop runs it."""
    service = GatedService()
    edge = Edge(service)
    async with running(edge) as address:
        client = await Client.connect(address)
        client.send(get("/v2/health/live") + post(x_request_id="1"))
        assert (await client.answer()).status == 200
        (await service.next()).answer()
        assert (await client.answer()).headers["x-request-id"] == "1"
        client.send(post(body=b" " * 300_000 + b"{}"))
        assert (await client.answer()).status == 400
        client.send(post(parameters="x", Connection="close"))
        (await service.next()).answer(infer_response(elements=100_000))
        assert len((await client.answer()).body) > 300_000
        assert await client.ended()
        await client.close()

        leaver = await Client.connect(address)
        leaver.send(post() + post())
        calls = [await service.next(), await service.next()]
        await leaver.close()
        for gated in calls:
            async with asyncio.timeout(20):
                await gated.cancelled.wait()
            assert gated.call.abandoned

        refused = await Client.connect(address)
        refused.send(post(body=b"x" * 20_000_000))
        assert (await refused.answer()).status == 413
        await refused.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_both_event_loops_serve(run: Any) -> None:
    work: Coroutine[Any, Any, None] = exchange()
    run(work)


async def drain() -> None:
    service = GatedService()
    edge = Edge(service)
    host, _, port = (await edge.server.start("127.0.0.1:0")).rpartition(":")
    address = (host, int(port))
    idle, busy, stuck = [await Client.connect(address) for _ in range(3)]
    idle.send(get("/v2"))
    await idle.answer()
    busy.send(post())
    gated = await service.next()
    stuck.send(post())
    never = await service.next()
    edge.server.begin_drain()
    assert await idle.ended()
    with pytest.raises(ConnectionError):
        await Client.connect(address)
    gated.answer()
    answer = await busy.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await busy.ended()
    assert not await edge.server.wait_closed(0.05)
    last = await stuck.answer()
    assert (last.status, last.headers["x-sluice-reason"]) == (503, "draining")
    assert await stuck.ended()
    assert never.cancelled.is_set()
    for client in (idle, busy, stuck):
        await client.close()
    edge.nothing_is_left()
    assert edge.server.statistics(0.0)["connections"] == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_draining_ends_idle_busy_and_stuck_connections_each_in_its_way(run: Any) -> None:
    work: Coroutine[Any, Any, None] = drain()
    run(work)
