"""Lanes: the upstream streams of one client stream, one per replica, each shared by the calls that went there.

Responses find their call by request id, so ids must differ among the calls that are out on a lane: where a caller used
one twice, or gave none to several, the replica sees another id, and the caller gets its own back. A call cannot be
taken back from a shared stream; if its caller gives up while others are out there, what still comes for it is thrown
away. If it was the last one, the whole stream is cancelled, and with it the work on the replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from gateway.core.call import Metadata
from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faces import ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.wire.kserve.stream_message import StreamedResponse, read_streamed, with_id

_log = logging.getLogger("sluice.fleet")

_NO_ID = "<id_unknown>"
"""How Triton's error texts name a request without an id."""
BUFFERED_MAX = 16
"""Responses that may wait for one call. At the bound nothing more is read from the replica, which then waits too."""
BUFFERED_BYTES_MAX = 1024 * 1024
"""And so many bytes, once there are two: the only response of a call is never waited with, for other calls' may be
behind it, and theirs must be taken first. (Each response bears its request's id, which may be as long as a request.)
"""
END_S = 0.5
"""A replica that does not end a stream on which it owes nothing within this time is not waited for."""
DROPPED_MAX = 64
"""Calls given up on a lane whose end has not come. Beyond it the lane is cancelled, and whoever is still out on it: the
replica works for nobody.
"""


class Flow:
    """The responses to one request, in the order in which they came."""

    __slots__ = ("_bytes", "_fault", "_lane", "_responses", "_waiter", "dropped", "ended", "id", "wire_id")

    def __init__(self, lane: Lane, request_id: str, wire_id: str) -> None:
        self._lane = lane
        self.id = request_id
        self.wire_id = wire_id
        self.ended = False
        """No response will come any more."""
        self.dropped = False
        """Nobody wants the responses any more."""
        self._responses: deque[StreamedResponse] = deque()
        self._bytes = 0
        self._fault: UpstreamFault | GatewayError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        waiting = len(self._responses)
        return (waiting >= BUFFERED_MAX or (waiting > 1 and self._bytes >= BUFFERED_BYTES_MAX)) and not self.dropped

    @property
    def complete(self) -> bool:
        """The orderly end has come, and no response waits."""
        return self.ended and self._fault is None and not self._responses

    def put(self, response: StreamedResponse) -> None:
        self._responses.append(response)
        self._bytes += len(response.message)
        self._wake()

    def end(self, fault: UpstreamFault | GatewayError | None) -> None:
        """No more will come; `fault` says why, if that was not the orderly end."""
        if not self.ended:
            self.ended = True
            self._fault = fault
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> StreamedResponse | None:
        """The next response; None at the orderly end. Raises `UpstreamFault`, or `GatewayError` for an answer that
        cannot be read.
        """
        while not self._responses:
            if self.ended:
                if self._fault is not None:
                    raise self._fault
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        response = self._responses.popleft()
        self._bytes -= len(response.message)
        self._lane.room()
        return response

    def release(self) -> None:
        """The call is done with it, at the end or before. Once."""
        self.dropped = True
        self._responses.clear()
        self._lane.released(self)
        self._fault = None  # whose traceback holds this flow


class Lane:
    """One ModelStreamInfer to one replica, and the calls that are out on it."""

    def __init__(self, client: ReplicaClient, metadata: Metadata, timeout_s: float) -> None:
        self.client = client
        self._stream = client.open_stream(metadata, timeout_s)
        self._flows: dict[str, Flow] = {}
        self._room: asyncio.Future[None] | None = None
        self._number = 0
        self._dropped = 0
        self._fault: UpstreamFault | GatewayError = UpstreamFault(
            Code.UNAVAILABLE, "the stream to the model server was closed", from_peer=False
        )
        self.dead = False
        """Nothing can be sent on it any more."""
        self._task: asyncio.Task[None] | None
        self._task = task = asyncio.get_running_loop().create_task(self._read(), name="stream-lane")
        task.add_done_callback(self._over)

    def send(self, message: bytes, request_id: str) -> Flow:
        """Write one request. `message` must already ask for the empty final response where the end could not be seen
        otherwise.
        """
        # Triton cuts an id off at its first NUL, and would answer under what is left.
        wire_id = told = request_id.replace("\0", "?")
        while wire_id in self._flows:
            self._number += 1
            wire_id = f"{told}~{self._number}"
        flow = self._flows[wire_id] = Flow(self, request_id, wire_id)
        self._stream.write(message if wire_id == request_id else with_id(message, wire_id))
        return flow

    def released(self, flow: Flow) -> None:
        """Nobody waits for `flow` any more, at its end or before."""
        if not flow.ended:
            self._dropped += 1
        self._look_who_waits()
        self.room()

    def _look_who_waits(self) -> None:
        """Give the stream up if all that is out on it is for nobody."""
        if self._dropped and (self._dropped == len(self._flows) or self._dropped > DROPPED_MAX):
            self.abort()

    def abort(self) -> None:
        """Cancel the stream; whoever still waits is told."""
        self.dead = True
        if self._task is not None:
            self._task.cancel()

    def on_over(self, callback: Callable[[asyncio.Task[None]], None]) -> asyncio.Task[None]:
        """Have `callback` called with the task that reads, when it is over. The task. Only for a lane that was just
        begun.
        """
        assert self._task is not None
        self._task.add_done_callback(callback)
        return self._task

    def finish(self) -> None:
        """Nobody will send on it any more. Where nobody is out on it either the stream ends in good order: a
        cancellation costs the replica more than an end, and Triton 2.51 has crashed over many of them.
        """
        if self._flows:
            self.abort()
        elif not self.dead:
            self.dead = True
            self._stream.half_close()

    def room(self) -> None:
        """Somebody took a response, or left."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _read(self) -> None:
        try:
            while True:
                message = await self._stream.read()
                if message is None:
                    self._fault = UpstreamFault(
                        Code.UNAVAILABLE,
                        "the model server ended the stream before its last response",
                        from_peer=False,
                    )
                    return
                flow = self._deliver(read_streamed(message))
                while flow is not None and flow.full:
                    self._room = asyncio.get_running_loop().create_future()
                    try:
                        await self._room
                    finally:
                        self._room = None
        except (UpstreamFault, GatewayError) as raised:
            self._fault = raised
        except Exception as error:
            _log.exception("reading a stream of responses failed")
            self._fault = UpstreamFault(
                Code.INTERNAL, f"reading the stream failed: {type(error).__name__}", from_peer=False
            )
        finally:
            self.dead = True

    def _over(self, task: asyncio.Task[None]) -> None:
        # Here and not in the task, whose first step never comes if it is cancelled at once.
        self.dead = True
        flows, self._flows = self._flows, {}
        for flow in flows.values():
            flow.end(self._fault)
        # Both hold tracebacks, and these what holds this lane: nothing but the garbage collector could free them.
        del self._fault
        self._task = None
        self._stream.cancel()

    def _deliver(self, response: StreamedResponse) -> Flow | None:
        flow = self._flows.get(response.id)
        if flow is None:
            # Triton names the request in every response; without an id there is still no doubt if only one is out.
            if response.id or len(self._flows) != 1:
                _log.warning("a response for request id %r, which is not out on this stream, is dropped", response.id)
                return None
            flow = next(iter(self._flows.values()))
        if flow.wire_id != flow.id:
            if response.message:
                response.message = with_id(response.message, flow.id)
            if response.error:
                named = f"[request id: {flow.id or _NO_ID}]"
                response.error = response.error.replace(f"[request id: {flow.wire_id}]", named)
        over = response.final is True or (response.final is None and bool(response.error))
        if over:
            # Before anybody is woken: the id is free again, and the next call may use it.
            del self._flows[flow.wire_id]
            if flow.dropped:
                self._dropped -= 1
        if not flow.dropped:
            flow.put(response)
        if over:
            flow.end(None)
            self._look_who_waits()  # it may have been the last that somebody waited for
        return flow


class Lanes:
    """All lanes of one session (`core.session.Part`)."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._tasks: dict[asyncio.Task[None], Lane] = {}

    def lane(self, replica: str, client: ReplicaClient, metadata: Metadata, timeout_s: float) -> Lane:
        """The living lane to `replica`; begun if there is none, or if another client has taken its place."""
        lane = self._lanes.get(replica)
        if lane is None or lane.dead or lane.client is not client:
            lane = self._lanes[replica] = Lane(client, metadata, timeout_s)
            self._tasks[lane.on_over(lambda task: self._over(task, replica))] = lane
        return lane

    def __len__(self) -> int:
        """Lanes that are open."""
        return len(self._lanes)

    def _over(self, task: asyncio.Task[None], replica: str) -> None:
        lane = self._tasks.pop(task)
        if self._lanes.get(replica) is lane:
            del self._lanes[replica]  # a stream may outlive many replicas

    async def aclose(self) -> None:
        self._lanes.clear()
        for lane in self._tasks.values():
            lane.finish()
        try:
            if self._tasks:
                await asyncio.wait(tuple(self._tasks), timeout=END_S)
        finally:
            for lane in self._tasks.values():
                lane.abort()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
