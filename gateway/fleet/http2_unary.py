"""One unary call on our own HTTP/2: a stream of the codec and the future of whoever waits for the answer."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import TYPE_CHECKING

from gateway.core.call import Attempt, Metadata
from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.core.rest import Rest
from gateway.fleet.http2_answer import Block, fresh, read_block
from gateway.fleet.http2_faults import expired, no_status, of_grpc, of_reset
from gateway.fleet.http2_head import request_block
from gateway.fleet.http2_link import Http2Link
from gateway.fleet.replica_calls import LEFT_MAX, RUN_OUT_AGAIN_S, RUN_OUT_S
from gateway.runtime.wheel import NOWHERE, Bucket
from gateway.wire.grpc import PREFIX_BYTES, GrpcFault, MessageReader
from gateway.wire.hpack import HeaderBlock
from gateway.wire.http2 import ErrorCode, Stream

if TYPE_CHECKING:
    from gateway.fleet.http2_channel import Http2Channel
    from gateway.fleet.http2_links import Http2Links

JOIN_BYTES_MAX = 16 * 1024 - PREFIX_BYTES
"""A message up to this size is copied behind its prefix; a larger one is handed over as it is."""
MOVES_MAX = 2
"""So often a call that certainly did not run is sent again."""
NEARLY = 0.99
"""A replica that declares the deadline passed when so much of it has is right."""

_PREFIX = struct.Struct(">BI")
_pack_prefix = _PREFIX.pack
_unpack_prefix = _PREFIX.unpack_from


class UnaryCall(Stream):
    """From the moment in which somebody wants an answer until `future` has it. The usual answer (a head, one message in
    one frame, trailers) costs no object but this, which also waits on the wheel for its time limit.
    """

    __slots__ = (
        "_answer",
        "_attempt",
        "_discarded",
        "_due_s",
        "_limit_s",
        "_link",
        "_links",
        "_message",
        "_metadata",
        "_moves",
        "_path",
        "_reader",
        "_tail",
        "_writes",
        "bucket",
        "channel",
        "compressed",
        "encoding",
        "fresh",
        "future",
    )

    encoding: bytes
    """Of the answer in `future`, where that is `compressed`."""
    _writes: int
    """The link's, when it began."""
    _discarded: int
    """Of a `LeftCall`: bytes that have come for it since."""

    def __init__(
        self,
        links: Http2Links,
        channel: Http2Channel,
        path: str,
        message: bytes,
        tail: bytes,
        metadata: Metadata,
        limit_s: float,
        future: asyncio.Future[bytes],
        attempt: Attempt | None = None,
    ) -> None:
        """To be started on `channel`. What is sent is `message` and then `tail`. `limit_s` is positive; infinite for
        no limit. Without an `attempt` it is always cancelled when it is given up.
        """
        self._links = links
        self._path = path
        self._message = message
        self._tail = tail
        self._metadata = metadata
        self._limit_s = limit_s
        self.future = future
        self._attempt = attempt
        self.channel: Http2Channel | None = channel
        """Where it waits, or began."""
        self.fresh = True
        """No time has passed since it was made."""
        self.compressed = False
        self._answer: bytes | None = None
        self._reader: MessageReader | None = None
        self._link: Http2Link | None = None
        """While it is out."""
        self._moves = 0
        self.bucket: Bucket = NOWHERE
        now_s = links.now_s
        self._due_s = due_s = now_s() + limit_s
        if due_s < math.inf:
            links.wheel.place(self, due_s)

    # -- its begin and its end -----------------------------------------------------------------------------------------

    def begin(self, link: Http2Link) -> None:
        if self.future.done():
            return
        left_s = self._limit_s if self.fresh else self._due_s - self._links.now_s()
        codec, path = link.codec, self._path
        if self._links.restraint.guarded and self._attempt is not None:
            left_s += self._links.restraint.slack_s()
        block = request_block(link.heads.get(path) or link.head(path), self._metadata, left_s)
        message, tail = self._message, self._tail
        size = len(message) + len(tail)
        if size <= JOIN_BYTES_MAX:
            codec.open(self, block, _pack_prefix(0, size) + message + tail, True)
        else:
            codec.open(self, block, _pack_prefix(0, size), False)
            codec.send_data(self, message, not tail)
            if tail:
                codec.send_data(self, tail, True)
        self._writes = link.flushes
        self._link = link

    def fail(self, fault: UpstreamFault) -> None:
        self._settle()
        if not self.future.done():
            self.future.set_exception(fault)

    def abandon(self) -> None:
        """Nobody waits for it any more: the replica is told, if it has it. Nothing if it is over."""
        link, channel = self._link, self.channel
        self._settle()
        if link is not None:
            self._links.tally.cancelled += 1
            link.reset(self, ErrorCode.CANCEL)
        elif channel is not None:
            channel.forget(self)

    def part(self) -> None:
        """As `abandon`; but if the replica has it and it may not be cancelled there, it is left to run out."""
        attempt, links = self._attempt, self._links
        if self._link is None or attempt is None:
            self.abandon()
        elif links.left >= LEFT_MAX:
            links.restraint.cancelled()
            self.abandon()
        elif links.restraint.may_cancel():
            self.abandon()
        else:
            attempt.rest = Rest()
            self.__class__ = LeftCall
            self._stay()

    def _stay(self) -> None:
        raise NotImplementedError

    def fire(self) -> None:
        """Its time limit has passed."""
        sent = self._sent()
        self.part()
        if not self.future.done():
            self.future.set_exception(expired(self._limit_s, sent=sent))

    def _settle(self) -> None:
        """It is over. Lets go of all that holds it, or only the collector of cycles would free it."""
        self.bucket.pop(self, None)
        self._link = self.channel = None
        self._message = b""

    def _sent(self) -> bool:
        """Whether a byte of it may have left."""
        link = self._link
        return link is not None and link.flushes != self._writes

    def _give_up(self, fault: UpstreamFault) -> None:
        """What comes is of no use: the rest is not wanted."""
        link = self._link
        if link is not None:
            link.reset(self, ErrorCode.CANCEL)
        self.fail(fault)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        note = block.note
        said = note if note.__class__ is Block else read_block(block)
        if end:
            self._fail_as(said)
        elif said.fault is not None:
            self._give_up(fresh(said.fault))
        else:
            self.encoding = said.encoding

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        if self._reader is None and self._answer is None and stop - start >= PREFIX_BYTES:
            flag, length = _unpack_prefix(data, start)
            body = start + PREFIX_BYTES
            if length == stop - body and flag <= 1 and length <= self._links.message_max and not end:
                self._answer = data[body:stop]
                self.compressed = flag == 1
                return
        self._assemble(data, start, stop, end)

    def _assemble(self, data: bytes, start: int, stop: int, end: bool) -> None:
        """A message in several frames, or one too many."""
        link, reader = self._link, self._reader
        if link is None:
            return
        link.answers += 1
        if reader is None:
            reader = self._reader = MessageReader(self._links.message_max)
        try:
            for self.compressed, message in reader.feed(data, start, stop):
                if self._answer is not None:
                    raise GrpcFault(Code.INTERNAL, "a unary call was answered with more than one message")
                self._answer = message
        except GrpcFault as fault:
            self._give_up(of_grpc(fault))
            return
        if end:
            self.fail(no_status())
        else:
            link.codec.acknowledge(self, stop - start)

    def place(self, size: int) -> memoryview | None:
        return None if self._reader is None else self._reader.place(size)

    def on_placed(self, size: int) -> None:
        link, reader = self._link, self._reader
        assert link is not None
        assert reader is not None
        link.answers += 1
        reader.placed(size)
        link.codec.acknowledge(self, size)

    def on_trailers(self, block: HeaderBlock) -> None:
        note = block.note
        said = note if note.__class__ is Block else read_block(block)
        link, answer, reader = self._link, self._answer, self._reader
        if link is None or answer is None or not said.good_end or not (reader is None or reader.idle):
            self._fail_as(said)
            return
        link.answers += 1
        # As `_settle`, but that nobody holds it any more who would keep its message.
        self.bucket.pop(self, None)
        self._link = self.channel = None
        future = self.future
        if not future.done():
            future.set_result(answer)

    def _fail_as(self, said: Block) -> None:
        """The end has come, and it is not that of a good answer."""
        link = self._link
        if link is None:
            return
        link.answers += 1
        if said.end is None:
            self.fail(no_status() if said.fault is None else fresh(said.fault))
            return
        code, text = said.end
        if code is not Code.OK:
            late = code is Code.DEADLINE_EXCEEDED and self._is_nearly_due()
            if late and self._attempt is not None:
                self._links.restraint.cancelled()  # by the replica itself
            self.fail(UpstreamFault(code, text, from_peer=not late))
        elif self._answer is None:
            inside = self._reader is not None and not self._reader.idle
            text = "status OK came inside a message" if inside else "status OK came without a message"
            self.fail(UpstreamFault(Code.INTERNAL, text, from_peer=True))
        else:
            self.fail(UpstreamFault(Code.INTERNAL, "status OK came inside a second message", from_peer=True))

    def _is_nearly_due(self) -> bool:
        return self._links.now_s() >= self._due_s - self._limit_s * (1 - NEARLY)

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        link, channel = self._link, self.channel
        if link is None or channel is None:
            return
        sent = self._sent()
        if (unprocessed or not sent) and self._moves < MOVES_MAX:
            self._moves += 1
            self._links.tally.moved += 1
            self.fresh = False
            self._link = self._reader = self._answer = None
            # Not now: the connection is in the midst of its end, or full.
            asyncio.get_running_loop().call_soon(channel.start, self)
            return
        self.fail(of_reset(link.codec, code, text, from_peer=from_peer, unprocessed=unprocessed, sent=sent))


class LeftCall(UnaryCall):
    """One that was given up and not cancelled. What comes for it is thrown away, until the replica has ended it."""

    __slots__ = ()

    def _stay(self) -> None:
        links = self._links
        self.bucket.pop(self, None)
        links.wheel.place(self, links.now_s() + RUN_OUT_S)
        links.left += 1
        links.tally.left += 1
        self._message = self._tail = b""  # the codec has them
        self._reader = self._answer = None
        self._discarded = 0

    def part(self) -> None:
        """Its time was over, and then its caller gave it up as well, in one turn of the loop."""

    def _over(self) -> None:
        link, attempt = self._link, self._attempt
        self._settle()
        if link is None:
            return
        link.answers += 1
        self._links.left -= 1
        assert attempt is not None
        assert attempt.rest is not None
        attempt.rest.end()

    def fire(self) -> None:
        """It has had its time."""
        links = self._links
        if links.restraint.may_cancel(again=True):
            self._cancel()
        else:
            links.wheel.place(self, links.now_s() + RUN_OUT_AGAIN_S)

    def _cancel(self) -> None:
        link = self._link
        if link is not None:
            self._links.tally.cancelled += 1
            link.reset(self, ErrorCode.CANCEL)
        self._over()

    def _discard(self, size: int) -> None:
        link = self._link
        if link is None:
            return
        link.answers += 1
        self._discarded += size
        if self._discarded > self._links.message_max + PREFIX_BYTES:
            self._links.restraint.cancelled()
            self._cancel()
        else:
            link.codec.acknowledge(self, size)

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        if end:
            self.on_trailers(block)

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        if end:
            self._over()
        else:
            self._discard(stop - start)

    def place(self, size: int) -> memoryview | None:
        return None

    def on_placed(self, size: int) -> None:
        self._discard(size)

    def on_trailers(self, block: HeaderBlock) -> None:
        said = block.note if block.note.__class__ is Block else read_block(block)
        if said.end is not None and said.end[0] is Code.DEADLINE_EXCEEDED and self._is_nearly_due():
            self._links.restraint.cancelled()  # by the replica itself, which was told no later limit
        self._over()

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        self._over()
