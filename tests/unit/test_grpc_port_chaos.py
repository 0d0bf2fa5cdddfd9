"""Our own gRPC server between clients that reset, leave, stall and cut their bytes anywhere, and a service that
answers, fails, hangs, cancels itself or swallows its cancellation, by seed: what must hold all the same.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import random
from typing import Any, NamedTuple

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.edge.grpc_kit import cut_short
from gateway.edge.grpc_unary import ServedRpc
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    RST_STREAM,
    Bench,
    HandClient,
    frame,
    head_block,
    infer_message,
    prefixed,
)

STEPS = 80


class Sent(NamedTuple):
    """What a call said, and must find in its answer."""

    model: str
    request_id: str
    body_id: str
    elements: bytes


class Chaos:
    """A service of which one never knows."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: list[asyncio.Future[None]] = []
        self.replies: list[Reply] = []
        self.seen = 0

    async def send(self, call: Call) -> Reply:
        self.seen += 1
        if call.receive is not None:
            await call.receive()
        luck = self._chance.random()
        if luck < 0.3:
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)
        elif luck < 0.45:
            await self._hold()
        elif luck < 0.55:
            try:
                await self._hold()
            except asyncio.CancelledError:
                pass  # as a service must not
        elif luck < 0.6:
            raise GatewayError(Reason.QUEUE_FULL, "full", retry_after_s=1.0)
        elif luck < 0.65:
            raise ValueError("a bug")
        elif luck < 0.68:
            raise asyncio.CancelledError("its own")
        message = call.message or b""
        parts = (call.model.encode(), call.request_id.encode(), call.body_id.encode(), message[-8:])
        reply = Reply(b"|".join(parts) + bytes(self._chance.choice((0, 0, 0, 0, 100_000))))
        self.replies.append(reply)
        return reply

    async def _hold(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._held.append(future)
        try:
            await future
        finally:
            del future

    def let_go(self, most: int = 1) -> None:
        """Of those that are held, so many go on."""
        while self._held and most:
            future = self._held.pop(self._chance.randrange(len(self._held)))
            if not future.done():
                future.set_result(None)
                most -= 1


class Caller:
    """One client, and what it has asked."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self._bench = bench
        self._chance = chance
        self.client: HandClient = bench.connect()
        self.client.greet(window=chance.choice((100, 65_535, 1_000_000)))
        self.sent: dict[int, Sent] = {}
        self.given_up: set[int] = set()

    def step(self) -> None:
        client, chance = self.client, self._chance
        if client.closing:
            return
        luck = chance.random()
        if luck < 0.7 and client.reads():
            self._call()
        elif luck < 0.85 and self.sent:
            self._reset(chance.choice(list(self.sent)))
        elif luck < 0.92:
            if client.connection.write_paused:
                client.take_again()
            else:
                client.stop_taking(chance.choice((10, 100_000)))
        elif luck < 0.94:
            self.given_up.update(self.sent)
            client.leave()

    def _call(self) -> None:
        chance, stream = self._chance, 2 * len(self.sent) + 1
        elements = b"%08d" % chance.randrange(10**8)
        said = Sent(
            chance.choice(("one", "two", "six")),
            chance.choice(("", f"id-{chance.randrange(10**4):04}")),
            chance.choice(("", f"b{chance.randrange(100):02}")),
            elements,
        )
        self.sent[stream] = said
        message = infer_message(said.model, id=said.body_id, raw_input_contents=[elements])
        more = [(b"x-request-id", said.request_id.encode())] if said.request_id else []
        if chance.random() < 0.3:
            more.append((b"grpc-timeout", b"%dS" % chance.choice((1, 2, 9))))
        body = prefixed(message)
        if chance.random() < 0.1:
            more.append((b"grpc-encoding", b"gzip"))
            body = prefixed(gzip.compress(message), 1)
        data = frame(HEADERS, END_HEADERS, stream, head_block(INFER, *more))
        data += frame(DATA, END_STREAM, stream, body)
        if chance.random() < 0.15:
            self.given_up.add(stream)
            data += frame(RST_STREAM, 0, stream, CANCEL)
        cuts = sorted(chance.randrange(len(data)) for _ in range(chance.choice((0, 0, 1, 4))))
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < stop and not self.client.closing:
                self.client.feed(data[start:stop])

    def _reset(self, stream: int) -> None:
        self.given_up.add(stream)
        self.client.reset(stream)

    def check(self) -> int:
        """Look at all that has come. Returns how many calls had a good answer."""
        heads: dict[int, dict[str, str]] = {}
        bodies: dict[int, bytes] = {}
        ends: dict[int, str] = {}
        for got in self.client.frames(HEADERS, DATA, RST_STREAM):
            if got.kind == RST_STREAM:
                ends.setdefault(got.stream, "reset")
                continue
            assert got.stream not in ends, "something came behind the end"
            if got.kind == DATA:
                bodies[got.stream] = bodies.get(got.stream, b"") + got.payload
            elif got.flags & END_STREAM:
                ends[got.stream] = got.fields["grpc-status"]
            else:
                heads[got.stream] = got.fields
        for stream, said in self.sent.items():
            if ends.get(stream) == "0":
                model, request_id, body_id, elements = bodies[stream][5:].rstrip(b"\0").decode().split("|")
                assert (model, body_id, elements.encode()) == (said.model, said.body_id, said.elements)
                assert request_id == heads[stream]["x-request-id"]
                assert request_id == said.request_id or not said.request_id
                assert heads[stream]["x-sluice-model"] == model
            elif stream not in self.given_up and not self.client.closing:
                # An answer that the client has given no room for waits.
                assert stream in ends or self.client.connection.codec.streams_open
        return sum(status == "0" for status in ends.values())


async def _run(seed: int) -> int:
    chance = random.Random(seed)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    service = Chaos(chance)
    bench = Bench(service, memory_bytes=chance.choice((3_000, 1 << 20, 1 << 26)))
    callers = [Caller(bench, chance) for _ in range(chance.choice((1, 2, 3)))]
    for _ in range(STEPS):
        chance.choice(callers).step()
        luck = chance.random()
        if luck < 0.15:
            service.let_go()
        elif luck < 0.3:
            await asyncio.sleep(0)
        elif luck < 0.4:
            await turns()
        elif luck < 0.45:
            bench.advance(chance.choice((0.05, 0.5, 1.5)))
        elif luck < 0.455:
            for rpc in tuple(bench.port.rpcs):
                rpc.cut(cut_short())
    for caller in callers:
        if caller.client.connection.write_paused and not caller.client.closing:
            caller.client.take_again()
    for _ in range(6):
        service.let_go(most=1000)
        await turns()
    good = sum(caller.check() for caller in callers)
    for caller in callers:
        caller.client.stuck_bytes = 0
        caller.client.abort()
    await turns()
    await bench.nothing_is_left()
    bench.forget_clients()
    assert all(reply.closed for reply in service.replies)
    assert not faults, faults
    # What the service sees leaves a record, and what it does not see is counted.
    assert service.seen + len(bench.events.requests) == sum(len(caller.sent) for caller in callers)
    return good


def _served() -> list[ServedRpc | Call]:
    return [each for each in gc.get_objects() if isinstance(each, ServedRpc | Call)]


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_every_call_ends_once_with_what_is_its_own_and_nothing_is_left(
    first: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sluice.edge.grpc")  # what is logged keeps the frames of its fault
    gc.collect()
    others = _served()  # what tests before this one keep; held, so that none of their addresses is given away again
    gc.disable()
    try:
        good = sum(asyncio.run(_run(seed)) for seed in range(first, first + 10))
        known = set(map(id, others))
        assert not [each for each in _served() if id(each) not in known], "a circle holds it"
    finally:
        gc.enable()
    assert good > 20
