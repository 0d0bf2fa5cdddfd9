"""`ReplicaStream` on our own HTTP/2: one ModelStreamInfer, a stream of the codec.

What the replica sends ahead of the reader is bounded by the stream's window (`UNREAD_BYTES_MAX`): a message opens it
again by its size when it is read, and a message that is larger than the window, when somebody waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

from gateway.core.call import Metadata
from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_answer import Block, fresh, read_block
from gateway.fleet.http2_faults import expired, lost, no_status, of_grpc, of_reset, too_large
from gateway.fleet.http2_head import request_block
from gateway.fleet.http2_link import Http2Link
from gateway.fleet.http2_unary import JOIN_BYTES_MAX, MOVES_MAX, NEARLY
from gateway.fleet.replica_calls import ROUTED_NAMES_BYTES, STREAM_INFER
from gateway.runtime.wheel import Timer
from gateway.wire.content_coding import IDENTITY
from gateway.wire.grpc import PREFIX_BYTES, GrpcFault, Message, MessageReader, message_prefix
from gateway.wire.hpack import HeaderBlock
from gateway.wire.http2 import ErrorCode, Stream

if TYPE_CHECKING:
    from gateway.fleet.http2_channel import Http2Channel
    from gateway.fleet.http2_links import Http2Links

KEPT_BYTES_MAX = 256 * 1024
"""What was written is kept up to this size until the replica has answered, to be sent again if it says that it has not
taken the stream.
"""


class Http2ReplicaStream(Stream):
    """Begun when it is made, or when there is a connection."""

    __slots__ = (
        "_due_s",
        "_encoding",
        "_fault",
        "_kept",
        "_kept_bytes",
        "_limit_s",
        "_link",
        "_links",
        "_messages",
        "_metadata",
        "_moves",
        "_over",
        "_reader",
        "_said_all",
        "_timer",
        "_unread_bytes",
        "_waiter",
        "_writes",
        "channel",
    )

    def __init__(self, links: Http2Links, metadata: Metadata, timeout_s: float) -> None:
        self._links = links
        self._metadata = metadata
        self._limit_s = timeout_s
        self.channel: Http2Channel | None = None
        self._link: Http2Link | None = None
        """While it is open there."""
        self._over = False
        """Nothing more will come."""
        self._fault: UpstreamFault | None = None
        """Why, if that was not the orderly end."""
        self._said_all = False
        self._kept: list[bytes] | None = []
        """What was written so far: all of it, or None."""
        self._kept_bytes = 0
        self._messages: deque[Message] = deque()
        self._reader = MessageReader(links.message_max)
        self._encoding = IDENTITY
        self._unread_bytes = 0
        """Of the window: what has come and was not read."""
        self._waiter: asyncio.Future[None] | None = None
        self._writes = 0
        self._moves = 0
        self._timer: Timer | None = None
        self._due_s = links.now_s() + timeout_s
        if timeout_s <= 0:
            self._end(expired(timeout_s, sent=False))
            return
        if timeout_s != math.inf:
            self._timer = links.wheel.call_at(self._due_s, self._expire)
        self.channel = links.main
        self.channel.start(self)

    # -- its begin -----------------------------------------------------------------------------------------------------

    def begin(self, link: Http2Link) -> None:
        if self._over:
            return
        head = link.heads.get(STREAM_INFER) or link.head(STREAM_INFER)
        block = request_block(head, self._metadata, self._due_s - self._links.now_s())
        link.codec.open(self, block, b"", False)
        self._link = link
        self._writes = link.flushes
        for message in self._kept or ():
            self._send(link, message)
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._kept = None
        if self._said_all:
            link.codec.send_data(self, b"", True)

    def fail(self, fault: UpstreamFault) -> None:
        self._end(fault)

    # -- the face ------------------------------------------------------------------------------------------------------

    def write(self, message: bytes) -> None:
        if self._over or self._said_all:
            return
        size, link = len(message), self._link
        if size > self._links.message_max + ROUTED_NAMES_BYTES:
            self._give_up(too_large(size, self._links.message_max))
            return
        kept = self._kept
        if kept is not None:
            kept.append(message)
            self._kept_bytes += size
            if link is not None and self._kept_bytes > KEPT_BYTES_MAX:
                self._kept = None
        if link is not None:
            self._send(link, message)

    def half_close(self) -> None:
        if not self._said_all and not self._over:
            self._said_all = True
            if self._link is not None:
                self._link.codec.send_data(self, b"", True)

    async def read(self) -> bytes | None:
        while not self._messages:
            if self._over:
                if self._fault is not None:
                    raise fresh(self._fault)
                return None
            self._return_window(self._unread_bytes)  # of a message whose rest may not fit into the window
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._waiter = None
        compressed, message = self._messages.popleft()
        self._return_window(len(message) + PREFIX_BYTES)
        if not compressed:
            return message
        try:
            return await self._links.unpacker.unpack(message, self._encoding)
        except UpstreamFault as fault:
            self._messages.clear()
            self._give_up(fresh(fault))
            raise
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        self._messages.clear()
        if not self._over:
            if self._link is not None:
                self._links.tally.cancelled += 1
                self._links.restraint.cancelled()
            self._give_up(lost("the stream was given up", sent=self._sent()))

    # -- its end -------------------------------------------------------------------------------------------------------

    def _end(self, fault: UpstreamFault | None) -> None:
        """Nothing more will come; what has come can still be read."""
        if not self._over:
            self._over = True
            self._fault = fault
            self._link = self._kept = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._wake()

    def _give_up(self, fault: UpstreamFault) -> None:
        """End it from here, and tell the replica if it has it."""
        link, channel = self._link, self.channel
        if link is not None:
            link.reset(self, ErrorCode.CANCEL)
        elif channel is not None:
            channel.forget(self)
        self._end(fault)

    def _expire(self) -> None:
        self._messages.clear()  # no answer after its deadline
        if self._link is not None:
            self._links.restraint.cancelled()
        self._give_up(expired(self._limit_s, sent=self._sent()))

    def _sent(self) -> bool:
        link = self._link
        return link is not None and link.flushes != self._writes

    # -- what goes -----------------------------------------------------------------------------------------------------

    def _send(self, link: Http2Link, message: bytes) -> None:
        prefix = message_prefix(len(message))
        if len(message) <= JOIN_BYTES_MAX:
            link.codec.send_data(self, prefix + message, False)
        else:
            link.codec.send_data(self, prefix, False)
            link.codec.send_data(self, message, False)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        self._kept = None
        said = read_block(block)
        if end:
            self._end_as(said)
        elif said.fault is not None:
            self._give_up(fresh(said.fault))
        else:
            self._encoding = said.encoding

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        link = self._link
        if link is None:
            return
        link.answers += 1
        self._unread_bytes += stop - start
        try:
            self._messages.extend(self._reader.feed(data, start, stop))
        except GrpcFault as fault:
            self._messages.extend(fault.before)
            self._give_up(of_grpc(fault))
            return
        if end:
            self._end(no_status())
        elif self._messages:
            self._wake()
        elif self._waiter is not None:
            self._return_window(self._unread_bytes)

    def on_trailers(self, block: HeaderBlock) -> None:
        self._end_as(read_block(block))

    def _end_as(self, said: Block) -> None:
        if said.end is None:
            self._end(no_status() if said.fault is None else fresh(said.fault))
            return
        code, text = said.end
        if code is not Code.OK:
            late = code is Code.DEADLINE_EXCEEDED and self._is_nearly_due()
            self._end(UpstreamFault(code, text, from_peer=not late))
        elif not self._reader.idle:
            self._end(UpstreamFault(Code.INTERNAL, "status OK came inside a message", from_peer=True))
        else:
            self._end(None)

    def _is_nearly_due(self) -> bool:
        return self._links.now_s() >= self._due_s - self._limit_s * (1 - NEARLY)

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        link, channel = self._link, self.channel
        if link is None or channel is None:
            return
        sent = self._sent()
        if (unprocessed or not sent) and self._kept is not None and self._moves < MOVES_MAX:
            self._moves += 1
            self._links.tally.moved += 1
            self._link = None
            asyncio.get_running_loop().call_soon(channel.start, self)
            return
        self._end(of_reset(link.codec, code, text, from_peer=from_peer, unprocessed=unprocessed, sent=sent))

    def _return_window(self, size: int) -> None:
        """The reader has taken `size` bytes, or waits for what is behind them."""
        size = min(size, self._unread_bytes)
        self._unread_bytes -= size
        if size and self._link is not None:
            self._link.codec.acknowledge(self, size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
