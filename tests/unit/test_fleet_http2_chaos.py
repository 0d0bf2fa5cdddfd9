"""Our own HTTP/2 to a replica in which everything goes wrong at some time, by seed: what must hold all the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.wire.http2 import ErrorCode
from tests.unit.http2_world import ReplicaInMemory, ServerStream, World, run

CALLERS, STEPS = 12, 12
RESETS = (ErrorCode.CANCEL, ErrorCode.INTERNAL_ERROR, ErrorCode.REFUSED_STREAM, ErrorCode.ENHANCE_YOUR_CALM)


class Chaos:
    """A replica whose every call and connection may be answered, refused, dropped, delayed or ended."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(f"chaos/{seed}")
        self.taken: Counter[bytes] = Counter()
        """Calls that the replica took, by what they asked."""
        self.tasks: set[asyncio.Task[None]] = set()
        world.replica.on_end = self._unary
        self.over = False

    def _unary(self, stream: ServerStream) -> None:
        message = stream.messages[0]
        luck = self.chance.random()
        if luck < 0.06:
            stream.reset(ErrorCode.REFUSED_STREAM)
            return
        self.taken[message[:12]] += 1
        if luck < 0.5:
            stream.answer(message)
        elif luck < 0.56:
            stream.refuse(self.chance.choice((5, 13, 14)), "chaos")
        elif luck < 0.62:
            stream.reset(self.chance.choice(RESETS[:2]))
        elif luck < 0.64:
            stream.connection.abort()
        elif luck < 0.66:
            stream.connection.codec.drain()
            self._later(stream)
        else:
            self._later(stream)

    def _later(self, stream: ServerStream) -> None:
        task = asyncio.ensure_future(self._answer(stream, self.chance.random() * 0.05))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, stream: ServerStream, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        message = stream.messages[0]
        if self.chance.random() < 0.3:
            stream.head()
            cut = self.chance.randrange(len(message) + 1)
            whole = len(message).to_bytes(5, "big") + message
            stream.raw(whole[:cut])
            await asyncio.sleep(delay_s / 10)
            stream.raw(whole[cut:])
            stream.end()
        else:
            stream.answer(message)

    async def weather(self) -> None:
        """What befalls the connections and the listener."""
        while not self.over:
            await asyncio.sleep(self.chance.random() * 0.05)
            luck, open_now = self.chance.random(), self.world.replica.open
            if luck < 0.1:
                self.world.replica.mode = self.chance.choice(("refuse", "close", "hang", "mute"))
                await asyncio.sleep(self.chance.random() * 0.1)
                self.world.replica.mode = "serve"
            elif open_now and luck < 0.2:
                self.chance.choice(open_now).codec.drain()
            elif open_now and luck < 0.25:
                self.chance.choice(open_now).abort()
            elif open_now and luck < 0.4:
                connection = self.chance.choice(open_now)
                if connection.transport is not None and not connection.transport.is_closing():
                    connection.transport.pause_reading()
                    await asyncio.sleep(self.chance.random() * 0.02)
                    if connection.transport is not None:
                        connection.transport.resume_reading()


@pytest.mark.parametrize("seed", range(12))
def test_each_call_ends_once_with_its_own_answer_or_a_fault_and_ran_at_most_once(seed: int) -> None:
    async def main(world: World) -> None:
        chaos = Chaos(world, seed)
        weather = asyncio.ensure_future(chaos.weather())
        endings: Counter[str] = Counter()

        async def caller(number: int) -> None:
            chance = random.Random(f"caller/{seed}/{number}")
            for step in range(STEPS):
                name = b"%05d/%05d " % (number, step)
                message = name + bytes(chance.choice((0, 0, 0, 100, 20_000, 300_000)))
                timeout_s = chance.choice((0.001, 0.02, 1.0, float("inf")))
                begin_s = world.now_s()
                ended_s: list[float] = []
                task = asyncio.ensure_future(world.infer(message, timeout_s))
                task.add_done_callback(lambda _, ended_s=ended_s: ended_s.append(world.now_s()))  # type: ignore[misc]
                if chance.random() < 0.15:
                    await asyncio.sleep(chance.random() * 0.01)
                    task.cancel()
                await asyncio.wait((task,))
                assert ended_s[0] - begin_s <= timeout_s + 0.0025, "nothing comes after its deadline"
                if task.cancelled():
                    endings["cancelled"] += 1
                elif task.exception() is None:
                    assert task.result() == message
                    endings["answered"] += 1
                else:
                    fault = task.exception()
                    assert isinstance(fault, UpstreamFault), fault
                    if not fault.sent and fault.code is not Code.DEADLINE_EXCEEDED:
                        assert not chaos.taken[name[:12]], "what was said not to have run has run"
                    endings["fault"] += 1
                if chance.random() < (0.2 if task.cancelled() or task.exception() is None else 1.0):
                    await asyncio.sleep(chance.random() * 0.05)

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        assert endings.total() == CALLERS * STEPS
        assert endings["answered"], endings
        assert max(chaos.taken.values()) == 1, "a call ran twice"
        chaos.over = True
        await weather
        while chaos.tasks:
            await asyncio.wait(chaos.tasks)
        for channel in (world.client._links.main, world.client._links.bulk):
            assert not channel._waiting
            assert not any(link.codec.streams_open for link in (*channel._links, *channel._leaving))

    run(main, seed=seed, replica=ReplicaInMemory(streams_max=4 + seed), lateness_s=0.0005 * (seed % 3))


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_gives_the_beginning_of_what_is_owed_in_order_and_then_its_end_or_a_fault(seed: int) -> None:
    async def main(world: World) -> None:
        chaos = Chaos(world, seed)
        begun: Counter[bytes] = Counter()
        ended: set[ServerStream] = set()

        def on_message(stream: ServerStream, message: bytes) -> None:
            luck = chaos.chance.random()
            if stream in ended:
                return
            if len(stream.messages) == 1:
                if luck < 0.1:
                    stream.reset(ErrorCode.REFUSED_STREAM)
                    return
                begun[message[:5]] += 1
                stream.head()
            if luck > 0.98:
                ended.add(stream)
                stream.end(13, "chaos")
            elif luck > 0.978:
                stream.connection.abort()
            else:
                stream.send(message)

        world.replica.on_message = on_message
        world.replica.on_end = lambda stream: None if stream in ended or stream.is_over else stream.end()
        weather = asyncio.ensure_future(chaos.weather())
        endings: Counter[bool | None] = Counter()

        async def caller(number: int) -> None:
            chance = random.Random(f"stream/{seed}/{number}")
            stream = world.client.open_stream((), chance.choice((0.05, 5.0, float("inf"))))
            owed = [b"%05d/%d" % (number, step) + bytes(chance.choice((0, 50_000))) for step in range(10)]
            found: list[bytes] = []
            try:
                for message in owed:
                    stream.write(message)
                    if chance.random() < 0.5:
                        await asyncio.sleep(chance.random() * 0.01)
                    if chance.random() < 0.05:
                        stream.cancel()
                stream.half_close()
                while (message_back := await stream.read()) is not None:
                    found.append(message_back)
                assert found == owed
                endings[None] += 1
            except UpstreamFault as fault:
                endings[fault.sent] += 1
                if not fault.sent:
                    assert not found
                assert found == owed[: len(found)]
            stream.cancel()

        for turn in range(4):
            await asyncio.sleep(2.5)
            await asyncio.gather(*(caller(turn * 100 + number) for number in range(20)))
        assert endings[None], endings
        assert max(begun.values()) == 1, "a stream ran twice"
        chaos.over = True
        await weather
        channel = world.client._links.main
        assert not channel._waiting
        assert not any(link.codec.streams_open for link in (*channel._links, *channel._leaving))

    run(main, seed=seed, replica=ReplicaInMemory(streams_max=30))
