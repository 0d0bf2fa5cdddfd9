"""What a soak sends: several models over both protocols, mistakes, clients that leave, connections that come and go.

A soak looks for what grows, so its traffic has every kind of ending, not only the good one. Each kind says which
endings are right for it; anything else is an unexpected ending.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import grpc
from grpc import aio

from load.arrivals import Arrivals, Poisson
from load.connection import Connection, Done, Part, Sender
from load.grpc_connection import METHOD, GrpcConnection
from load.http_connection import HttpConnection
from load.inputs import AccelInputs, Calls, IdentityInputs, Inputs, LoadCall
from load.open_loop import Traffic
from load.senders import Multiplexed, Pool
from load.streams import LEFT, STREAM_ERROR, EventStreams, GrpcStreams, Row, Sum, Tokens
from load.tasks import CallTasks

MODELS = ("identity", "fraud-lite", "accel", "streamer", "accumulator")
LEAVES_AFTER_S = 0.003
"""`accel` takes at least 5 ms, so a client that leaves after this has no answer yet."""
GRPC_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of traffic: its share of the rate, its sender, and the endings besides a right answer that are right for
    it.
    """

    name: str
    share: float
    make: Callable[[str, str], Sender]
    """From the HTTP and the gRPC address."""
    endings: frozenset[str] = field(default_factory=frozenset)


def kinds() -> tuple[Kind, ...]:
    """All kinds; their shares add up to 1."""
    return (
        Kind("http-json", 0.20, lambda http, _: Pool(partial(HttpConnection, http, IdentityInputs()))),
        Kind("http-binary", 0.12, lambda http, _: Pool(partial(HttpConnection, http, IdentityInputs("binary")))),
        Kind("http-scores", 0.10, lambda http, _: Pool(partial(HttpConnection, http, ScoreInputs()))),
        Kind("http-slow", 0.05, lambda http, _: Pool(partial(HttpConnection, http, AccelInputs("binary")))),
        Kind("http-fresh", 0.06, lambda http, _: Fresh(partial(HttpConnection, http, IdentityInputs()))),
        Kind("http-bad", 0.06, lambda http, _: Pool(partial(HttpConnection, http, BadInputs())), _only("status 400")),
        Kind("http-nowhere", 0.03, lambda http, _: Pool(partial(HttpConnection, http, Nowhere())), _only("status 404")),
        Kind("http-leaves", 0.04, lambda http, _: Leaving(partial(HttpConnection, http, AccelInputs())), _only(LEFT)),
        Kind("grpc", 0.12, lambda _, at: Multiplexed(partial(GrpcConnection, at, IdentityInputs()), GRPC_CONNECTIONS)),
        Kind("grpc-slow", 0.04, lambda _, at: Multiplexed(partial(GrpcConnection, at, AccelInputs()), 1)),
        Kind("grpc-fresh", 0.02, lambda _, at: Fresh(partial(GrpcConnection, at, IdentityInputs()))),
        Kind("grpc-bad", 0.03, lambda _, at: Multiplexed(partial(GrpcConnection, at, BadInputs()), 1),
             _only("code INVALID_ARGUMENT")),
        Kind("grpc-nowhere", 0.02, lambda _, at: Multiplexed(partial(GrpcConnection, at, Nowhere()), 1),
             _only("code NOT_FOUND")),
        Kind("grpc-leaves", 0.03, lambda _, at: Cancelling(at, AccelInputs()), _only(LEFT)),
        Kind("stream", 0.02, lambda _, at: GrpcStreams(at, Tokens())),
        Kind("stream-session", 0.015, lambda _, at: GrpcStreams(at, Row())),
        Kind("stream-sequence", 0.01, lambda _, at: GrpcStreams(at, Sum(1))),
        Kind("stream-fails", 0.005, lambda _, at: GrpcStreams(at, Tokens(fails=True)), _only(STREAM_ERROR)),
        Kind("stream-leaves", 0.01, lambda _, at: GrpcStreams(at, Tokens(delay_ms=20), leaves=True), _only(LEFT)),
        Kind("http-events", 0.02, lambda http, _: EventStreams(http)),
    )  # fmt: skip


def traffic_of(kind: Kind, http: str, grpc_address: str, run: int, deadline_ms: int) -> Traffic:
    """A kind as the open loop wants it."""
    return Traffic(kind.name, kind.make(http, grpc_address), Calls(run, deadline_ms))


def arrivals_of(kind: Kind, rps: float) -> tuple[str, Arrivals]:
    """A kind's arrivals: independent ones, as of many users."""
    return kind.name, Poisson(rps * kind.share)


def _only(*endings: str) -> frozenset[str]:
    return frozenset(endings)


class Fresh:
    """A `Sender` that makes a connection for each call and closes it afterwards."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._open: dict[Connection, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        connection = self._make()
        self._open[connection] = None
        connection.send(call, partial(self._ended, connection, done))

    def _ended(self, connection: Connection, done: Done, error: str) -> None:
        if connection in self._open:
            del self._open[connection]
            task = asyncio.ensure_future(connection.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        done(error)

    def check(self, now_s: float) -> None:
        for connection in tuple(self._open):
            connection.check(now_s)

    async def aclose(self) -> None:
        for connection in tuple(self._open):
            await connection.aclose()
        if self._closing:
            await asyncio.wait(tuple(self._closing))


class Leaving:
    """A `Sender` whose clients close their connection `after_s` after they have sent a call, answered or not."""

    def __init__(self, make: Callable[[], Connection], after_s: float = LEAVES_AFTER_S) -> None:
        self._make = make
        self._after_s = after_s
        self._tasks = CallTasks()

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        self._tasks.begin(self._send(call, done))

    async def _send(self, call: LoadCall, done: Done) -> None:
        connection = self._make()
        endings: list[str] = []
        connection.send(call, endings.append)
        try:
            await asyncio.sleep(self._after_s)
        finally:
            early = bool(endings)
            await connection.aclose()
            done(endings[0] if early else LEFT)

    def check(self, now_s: float) -> None:
        pass  # nobody waits for an answer

    async def aclose(self) -> None:
        await self._tasks.end()


class Cancelling:
    """A `Sender` over one gRPC connection that stays, whose callers cancel their call after `after_s`."""

    def __init__(self, address: str, inputs: Inputs, after_s: float = LEAVES_AFTER_S) -> None:
        self._inputs = inputs
        self._after_s = after_s
        self._channel = aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._method = self._channel.unary_unary(METHOD, None, None)
        self._tasks = CallTasks()

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        self._tasks.begin(self._send(call, done))

    async def _send(self, call: LoadCall, done: Done) -> None:
        metadata = (("x-request-id", call.request_id), ("traceparent", call.traceparent))
        out = self._method(self._inputs.grpc_message(call.row), timeout=call.deadline_ms / 1000, metadata=metadata)
        asyncio.get_running_loop().call_later(self._after_s, out.cancel)
        code: grpc.StatusCode = await out.code()
        if code is grpc.StatusCode.CANCELLED:
            done(LEFT)
        else:
            done("" if code is grpc.StatusCode.OK else f"code {code.name}")

    def check(self, now_s: float) -> None:
        pass  # the library ends every call in time

    async def aclose(self) -> None:
        await self._channel.close()
        await self._tasks.end()


class ScoreInputs:
    """Twelve features for `fraud-lite`; right is an answer with a probability and its label."""

    model = "fraud-lite"
    http_headers = "content-type: application/json\r\n"

    def features(self, row: int) -> list[float]:
        """Different for each row below 2**20, and plausible enough."""
        return [float(row % 1024) / 8, float(row // 1024 % 1024) / 16, *([0.5] * 10)]

    def http_body(self, row: int) -> bytes:
        tensor = {"name": "features", "datatype": "FP32", "shape": [1, 12], "data": self.features(row)}
        return json.dumps({"inputs": [tensor]}).encode()

    def grpc_message(self, row: int) -> bytes:
        raise NotImplementedError("a soak sends these over HTTP")

    def http_right(self, body: bytes, row: int) -> bool:
        try:
            found: Mapping[str, list[float]] = {each["name"]: each["data"] for each in json.loads(body)["outputs"]}
            (probability,), (label,) = found["probability"], found["label"]
        except (ValueError, KeyError, TypeError):
            return False
        return 0.0 <= probability <= 1.0 and label in (0, 1) and math.isfinite(probability)

    def grpc_right(self, message: bytes, row: int) -> bool:
        raise NotImplementedError("a soak sends these over HTTP")


class BadInputs(IdentityInputs):
    """Callers' mistakes, another one for each row: broken JSON, too few values, an unknown datatype; over gRPC raw
    contents that are too short.
    """

    def http_body(self, row: int) -> bytes:
        good = super().http_body(row)
        broken = (
            good[:-9],
            good.replace(b'"shape":[12]', b'"shape":[13]'),
            good.replace(b'FP32","shape', b'FP31","shape'),
        )
        return broken[row % len(broken)]

    def grpc_message(self, row: int) -> bytes:
        short = struct.pack("<f", float(row))
        good = super().grpc_message(row)
        at = good.rindex(bytes((7 << 3 | 2,)), 0, len(good) - 48)
        return good[:at] + bytes((7 << 3 | 2, len(short))) + short


class Nowhere(IdentityInputs):
    """Calls of a model that is not there."""

    model = "no-such-model"
