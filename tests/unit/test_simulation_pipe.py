"""The in-memory connection behaves as a TCP socket under asyncio does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.pipe import PipeTransport, connect


class Log(asyncio.Protocol):
    """Notes everything it is told."""

    def __init__(self, *, keep_half_open: bool = False) -> None:
        self.pieces: list[bytes] = []
        self.told: list[str] = []
        self.lost = asyncio.Event()
        self.error: Exception | None = None
        self._keep_half_open = keep_half_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self._keep_half_open

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.error = exc
        self.lost.set()

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


Body = Callable[[PipeTransport, PipeTransport, Log, Log], Awaitable[None]]


def piped(body: Body, seed: int = 0, *, keep_half_open: bool = False) -> None:
    async def main(loop: SimulationLoop) -> None:
        client, server = Log(), Log(keep_half_open=keep_half_open)
        near, far = connect(loop, random.Random(seed), client, server, 0.001)
        await body(near, far, client, server)

    simulate(main, seed=seed)


def test_bytes_arrive_in_order_and_in_pieces_that_the_seed_cuts() -> None:
    cuts: set[tuple[int, ...]] = set()

    async def body(near: PipeTransport, far: PipeTransport, client: Log, server: Log) -> None:
        for number in range(50):
            near.write(b"%03d" % number)
        near.writelines([b"end", b"."])
        await asyncio.sleep(1)
        assert server.data == b"".join(b"%03d" % number for number in range(50)) + b"end."
        cuts.add(tuple(map(len, server.pieces)))
        near.abort()
        await asyncio.gather(client.lost.wait(), server.lost.wait())

    for seed in range(5):
        piped(body, seed)
    assert len(cuts) == 5


def test_close_delivers_what_was_written_and_both_sides_end() -> None:
    async def body(near: PipeTransport, far: PipeTransport, client: Log, server: Log) -> None:
        near.write(b"x" * 100_000)
        near.close()
        near.write(b"too late")
        await asyncio.gather(client.lost.wait(), server.lost.wait())
        assert server.data == b"x" * 100_000
        assert server.told == ["made", "eof", "lost"]
        assert client.error is server.error is None
        assert near.is_closing()
        assert far.is_closing()

    piped(body)


def test_abort_loses_what_was_written_and_the_other_side_sees_a_reset() -> None:
    async def body(near: PipeTransport, far: PipeTransport, client: Log, server: Log) -> None:
        near.write(b"x" * 1000)
        near.abort()
        await asyncio.gather(client.lost.wait(), server.lost.wait())
        assert client.error is None
        assert isinstance(server.error, ConnectionResetError)

    piped(body)


def test_a_half_close_leaves_the_other_direction_open() -> None:
    async def body(near: PipeTransport, far: PipeTransport, client: Log, server: Log) -> None:
        near.write(b"question")
        near.write_eof()
        await asyncio.sleep(1)
        assert "eof" in server.told
        assert not far.is_closing()
        far.write(b"answer")
        far.close()
        await asyncio.gather(client.lost.wait(), server.lost.wait())
        assert client.data == b"answer"

    piped(body, keep_half_open=True)


def test_a_reader_that_pauses_pauses_the_writer_and_gets_everything_later() -> None:
    async def body(near: PipeTransport, far: PipeTransport, client: Log, server: Log) -> None:
        far.pause_reading()
        near.write(b"a" * 60_000)
        assert client.told == ["made"]
        near.write(b"b" * 60_000)
        assert client.told == ["made", "pause"]
        await asyncio.sleep(1)
        assert server.data == b""
        far.resume_reading()
        await asyncio.sleep(1)
        assert len(server.data) == 120_000
        assert client.told == ["made", "pause", "resume"]
        assert near.get_write_buffer_size() == 0
        near.close()
        await asyncio.gather(client.lost.wait(), server.lost.wait())

    piped(body)


def test_a_close_by_the_reader_does_not_leave_the_writer_waiting() -> None:
    async def body(near: PipeTransport, far: PipeTransport, client: Log, server: Log) -> None:
        far.pause_reading()
        near.write(b"a" * 100_000)
        await asyncio.sleep(1)
        far.close()
        await asyncio.gather(client.lost.wait(), server.lost.wait())
        assert client.told == ["made", "pause", "resume", "eof", "lost"]

    piped(body)
