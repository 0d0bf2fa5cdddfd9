"""`ReplicaStream` on grpcio: one ModelStreamInfer, messages as bytes."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet.grpc_faults import to_fault
from gateway.fleet.replica_calls import STREAM_INFER
from gateway.runtime.clock import Clock


class GrpcioStream:
    """Begun when it is made. The library takes the requests out of `_requests` in a task of its own, so that whoever
    writes never waits and may be cancelled without harm: the library ends a whole stream whose writer is cancelled.
    """

    def __init__(
        self,
        channel: aio.Channel,
        metadata: list[tuple[str, str | bytes]] | None,
        timeout_s: float,
        clock: Clock,
        message_bytes_max: int,
    ) -> None:
        """`message_bytes_max` is told of a message that is too large."""
        self._channel = channel
        self._clock = clock
        self._message_bytes_max = message_bytes_max
        self._started_s = clock.now_s()
        self._limit_s = None if timeout_s == math.inf else max(0.0, timeout_s)
        self._waiting: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._ended = False
        self._said_all = False
        self._call: Any = None
        method = channel.stream_stream(STREAM_INFER, None, None)
        try:
            self._call = method(self._requests(), timeout=self._limit_s, metadata=metadata)
        except aio.UsageError:
            self._ended = True  # the channel is closed: `read` tells

    async def _requests(self) -> AsyncIterator[bytes]:
        while not self._ended:
            while self._waiting:
                yield self._waiting.popleft()
            if self._said_all:
                return
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    def write(self, message: bytes) -> None:
        if not self._ended:
            self._waiting.append(message)
            self._nudge()

    def half_close(self) -> None:
        self._said_all = True
        self._nudge()

    def _nudge(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def read(self) -> bytes | None:
        if self._call is None:
            raise UpstreamFault(
                Code.UNAVAILABLE, "the stream could not be opened: the channel is closed", from_peer=False, sent=False
            )
        try:
            message = await self._call.read()
        except aio.AioRpcError as error:
            self._end()
            raise to_fault(
                error.code().value[0],
                error.details() or "",
                channel_ready=self._channel.get_state() is grpc.ChannelConnectivity.READY,
                timed_out=self._limit_s is not None and self._clock.now_s() - self._started_s >= self._limit_s * 0.99,
                message_bytes_max=self._message_bytes_max,
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            self._end()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled this task: the channel was closed under the stream, which grpcio tells in the same way.
            raise UpstreamFault(Code.UNAVAILABLE, "Channel closed while the stream was open", from_peer=False) from None
        except (aio.UsageError, aio.InternalError) as error:
            self._end()
            raise UpstreamFault(Code.UNAVAILABLE, f"the stream could not be read: {error}", from_peer=False) from error
        if message is aio.EOF:
            self._end()
            return None
        return bytes(message)

    def _end(self) -> None:
        self._ended = True
        self._waiting.clear()
        self._nudge()

    def cancel(self) -> None:
        self._end()
        if self._call is not None:
            self._call.cancel()
