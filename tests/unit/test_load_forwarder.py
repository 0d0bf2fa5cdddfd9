"""The forwarder, on real sockets of the loopback: it passes bytes and endings both ways, and can be a black hole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.local import Ports, free_ports
from load.blackhole import Blackhole, forwarding
from load.errors import LoadError
from load.forwarder import LOOPBACK, Forwarder

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
PATIENCE_S = 20.0
A_MOMENT_S = 0.3


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Gives back what comes, and after the end of it a last word."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")
    writer.close()


@asynccontextmanager
async def forwarded(serve: Serve = echo) -> AsyncIterator[tuple[Forwarder, int]]:
    server = await asyncio.start_server(serve, LOOPBACK, 0)
    forwarder = Forwarder()
    port = await forwarder.listen(0, server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield forwarder, port
    finally:
        await forwarder.aclose()
        server.close()


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


async def test_bytes_pass_both_ways_many_more_than_fit_in_between() -> None:
    async with forwarded() as (_, port):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        data = bytes(range(256)) * 40_000
        received, _ = await asyncio.gather(reader.readexactly(len(data)), _send(writer, data))
        assert received == data
        writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_what_comes_before_the_other_side_is_there_is_kept() -> None:
    async with forwarded() as (_, port):
        for _ in range(50):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(b"at once")
            writer.write_eof()
            assert await reader.read() == b"at oncebye"
            writer.close()


async def test_the_end_of_one_direction_passes_and_leaves_the_other_open() -> None:
    async with forwarded() as (_, port):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hellobye"
        writer.close()


async def test_a_server_that_ends_first_ends_the_client_after_its_last_words() -> None:
    async def short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no")
        writer.close()

    async with forwarded(short) as (_, port):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        assert await reader.read() == b"no"
        writer.close()


async def test_where_nothing_listens_the_client_is_cut_off() -> None:
    forwarder = Forwarder()
    try:
        port = await forwarder.listen(0, free_ports(1)[0].http)
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            with pytest.raises(ConnectionResetError):
                assert await reader.read() == b"never", "an orderly end would not tell the failure"
            writer.close()
    finally:
        await forwarder.aclose()


async def test_a_black_hole_passes_nothing_resets_nothing_and_afterwards_all_arrives() -> None:
    async with forwarded() as (forwarder, port):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        assert await said(reader, writer, b"before") == b"before"
        forwarder.blackhole()
        writer.write(b"within")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answer := asyncio.ensure_future(reader.readexactly(6))), A_MOMENT_S)
        connecting = asyncio.ensure_future(asyncio.open_connection(LOOPBACK, port))
        await asyncio.sleep(A_MOMENT_S)
        assert not connecting.done(), "a new connection is neither accepted nor refused"
        forwarder.let_pass()
        assert await answer == b"within"
        assert await said(reader, writer, b"after") == b"after"
        late_reader, late_writer = await connecting
        assert await said(late_reader, late_writer, b"late") == b"late"
        for each in (writer, late_writer):
            each.close()


async def test_an_end_within_a_black_hole_is_seen_after_it() -> None:
    ended = asyncio.Event()

    async def until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    async with forwarded(until_the_end) as (forwarder, port):
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(A_MOMENT_S)
        forwarder.blackhole()
        writer.close()
        await asyncio.sleep(A_MOMENT_S)
        assert not ended.is_set()
        forwarder.let_pass()
        await ended.wait()


def test_the_process_takes_commands_until_it_is_gone(tmp_path: Path) -> None:
    front, behind, control = free_ports(3)
    log = tmp_path / "forwarder.log"
    with forwarding("triton-0", control.http, front, behind, log) as blackhole:
        blackhole.begin()
        blackhole.begin()
        blackhole.end()
    with pytest.raises(LoadError, match="the forwarder before triton-0 does not answer"):
        blackhole.begin()


def test_a_forwarder_that_cannot_start_says_why(tmp_path: Path) -> None:
    front, control = free_ports(2)
    taken = Ports(front.http, front.http, front.metrics)
    with (
        pytest.raises(LoadError, match=r"(?s)does not answer.*last words.*in use"),
        forwarding("triton-0", control.http, taken, taken, tmp_path / "forwarder.log"),
    ):
        raise AssertionError("it has started")


def test_a_word_that_means_nothing_is_answered_with_those_there_are(tmp_path: Path) -> None:
    front, behind, control = free_ports(3)
    with (
        forwarding("triton-0", control.http, front, behind, tmp_path / "forwarder.log"),
        pytest.raises(LoadError, match="there are blackhole, pass"),
    ):
        Blackhole("triton-0", control.http)._tell("open sesame")
