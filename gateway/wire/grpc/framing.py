"""Length-prefixed messages in the DATA frames of a call.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Length-Prefixed-Message": one byte that says
whether the message is compressed, its length as a big-endian 32-bit number, and its bytes. A message may span frames,
and a frame may hold many.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TypeAlias

from gateway.core.codes import Code
from gateway.wire.grpc.errors import GrpcFault, MessageRefused, MessageTooLarge
from gateway.wire.slab import PLACE_BYTES_LEAST, Slab

PREFIX_BYTES = 5
LENGTH_MAX = 2**32 - 1
SLAB_BYTES_LEAST = 256 * 1024
SLAB_SHARE = 16
"""When so many bytes of a message have come, and one in so many, it gets room for all of it."""

Message: TypeAlias = tuple[bool, bytes]
"""Whether it is compressed, and its bytes as they came."""

_PREFIX = struct.Struct(">BI")
_unpack = _PREFIX.unpack_from


def message_prefix(length: int, compressed: bool = False) -> bytes:
    """The five bytes in front of a message of `length` bytes. Raises struct.error for one that is longer than
    `LENGTH_MAX`.
    """
    return _PREFIX.pack(compressed, length)


class MessageReader:
    """Makes messages of the payloads of one direction of one call.

    A message may have `limit_bytes`, as it comes: what a compressed one grows to is not this class's business.
    `reserve`, if given, is asked once for each message when its length is known, before a byte of it is kept; no is
    `MessageRefused`. What it granted for a message that is not whole stands in `reserved_bytes`, for whoever gives the
    call up.

    Memory grows with the bytes that come and not with the length that was told: a liar costs what he sends, and of
    addresses without memory behind them 16 times that. The bytes of a message are copied once, and the first sixteenth
    of a large one twice; those that are received to a `place` are not copied.
    """

    __slots__ = (
        "_broken",
        "_buffer",
        "_compressed",
        "_length",
        "_limit_bytes",
        "_missing",
        "_prefix",
        "_reserve",
        "_slab",
        "idle",
    )

    def __init__(self, limit_bytes: int, reserve: Callable[[int], bool] | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._reserve = reserve
        self._prefix = b""  # the part of a prefix that has come
        self._buffer: BytesIO | None = None  # the part of a message
        self._slab: Slab | None = None  # the same of a large one, when enough of it has come
        self._compressed = False
        self._length = 0
        self._missing = 0  # bytes of that message that are to come; 0 where none has begun
        self._broken = False
        self.idle = True
        """Between messages: a sender that ends here has cut none in two."""

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the message that has begun are still to come; 0 while its length is not known."""
        return self._missing

    @property
    def reserved_bytes(self) -> int:
        """What `reserve` has granted for a message that is not whole."""
        return self._length if self._missing and self._reserve is not None else 0

    def feed(self, data: bytes, start: int, stop: int) -> Sequence[Message]:
        """Take the payload `data[start:stop]`; return the messages that it completes. Nothing of `data` is kept.

        Raises `GrpcFault`: `MessageTooLarge`, `MessageRefused`, or INTERNAL for a prefix that is none; what was
        complete in front of it is in its `before`. Everything that is fed afterwards is dropped.
        """
        if self.idle:
            body = start + 5
            if body <= stop:
                flag, length = _unpack(data, start)
                # The usual case: one message, whole, and nothing else.
                if length == stop - body and flag <= 1 and length <= self._limit_bytes:
                    if self._reserve is None or self._reserve(length):
                        return ((flag == 1, data[body:stop]),)
                    raise self._break(MessageRefused(length), [])
        return self._assemble(data, start, stop)

    def place(self, size: int) -> memoryview | None:
        """Where some of the next `size` bytes of payload can be received to; None if there is no such place. Say
        `placed` then. The last byte of a message is always fed.
        """
        room = min(size, self._missing - 1)
        slab = self._slab
        return slab.place(room) if slab is not None and room >= PLACE_BYTES_LEAST else None

    def placed(self, size: int) -> None:
        """So many bytes have been received to the last place."""
        assert self._slab is not None
        self._slab.placed(size)
        self._missing -= size

    def end(self) -> None:
        """The sender has ended. Raises `GrpcFault` (INTERNAL) if that was inside a message."""
        if not self.idle and not self._broken:
            raise self._break(GrpcFault(Code.INTERNAL, "the stream ended inside a message"), [])

    def _assemble(self, data: bytes, at: int, stop: int) -> Sequence[Message]:
        """Any number of messages, and parts of others around them."""
        if at == stop or self._broken:
            return ()
        messages: list[Message] = []
        while at < stop:
            if self._missing:
                at = self._take_part(data, at, stop, messages)
                continue
            if self._prefix or stop - at < PREFIX_BYTES:
                end = min(stop, at + PREFIX_BYTES - len(self._prefix))
                self._prefix += data[at:end]
                at = end
                if len(self._prefix) < PREFIX_BYTES:
                    break
                flag, length = _unpack(self._prefix)
                self._prefix = b""
            else:
                flag, length = _unpack(data, at)
                at += PREFIX_BYTES
            self._admit(flag, length, messages)
            end = at + length
            if end <= stop:
                messages.append((flag == 1, data[at:end]))
                at = end
            else:
                self._buffer, self._compressed, self._length, self._missing = BytesIO(), flag == 1, length, length
        self.idle = not self._missing and not self._prefix
        return messages

    def _take_part(self, data: bytes, at: int, stop: int, messages: list[Message]) -> int:
        """Take bytes of the message that has begun; return where they end."""
        end = min(stop, at + self._missing)
        self._missing -= end - at
        slab = self._slab
        if slab is not None:
            slab.put(memoryview(data)[at:end])
            if not self._missing:
                messages.append((self._compressed, slab.take()))
                self._slab = None
            return end
        buffer = self._buffer
        assert buffer is not None
        # BytesIO and not a list: it grows in place, and its bytes become the message without another copy.
        buffer.write(memoryview(data)[at:end])
        if not self._missing:
            messages.append((self._compressed, buffer.getvalue()))
            self._buffer = None
        elif buffer.tell() >= SLAB_BYTES_LEAST and buffer.tell() * SLAB_SHARE >= self._length:
            self._slab = slab = Slab(self._length)
            with buffer.getbuffer() as begun:
                slab.put(begun)
            self._buffer = None
        return end

    def _admit(self, flag: int, length: int, messages: list[Message]) -> None:
        """Judge a prefix."""
        if flag > 1:
            raise self._break(GrpcFault(Code.INTERNAL, "a message begins with neither 0 nor 1"), messages)
        if length > self._limit_bytes:
            raise self._break(MessageTooLarge(length, self._limit_bytes), messages)
        if self._reserve is not None and not self._reserve(length):
            raise self._break(MessageRefused(length), messages)

    def _break(self, fault: GrpcFault, messages: list[Message]) -> GrpcFault:
        fault.before = messages
        self._broken, self.idle = True, False
        self._buffer = self._slab = None
        return fault
