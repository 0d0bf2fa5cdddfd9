"""Fills in calls from their messages, and knows messages that look like one before.

Requests of one model mostly differ in nothing but the elements of their tensors, of which a call says nothing. So what
a message says of its call is remembered with all its bytes outside of them, and found again by its size.
"""

from __future__ import annotations

from gateway.core.call import Call
from gateway.edge.grpc_call import read_call
from gateway.wire.kserve import protobuf as pb

SIZES_MAX = 256
LIKE_MAX = 4
"""Of one size, say of several models."""
MISSES_MAX = 16
"""So many messages of one size that look otherwise, and what is known of that size is given up."""
CONSTANT_BYTES_MAX = 2048
"""Of one message, outside of its elements: with more it is read each time."""
PIECES_MAX = 32
"""Into so many pieces these may fall: empty tensors make a piece of two bytes each, and to keep one takes a hundred."""
_RAW = 7


class _Known:
    """What is the same in the messages of one kind, and what these say."""

    __slots__ = ("body_id", "classified", "first", "model", "others", "sequence", "unusual", "version", "wants_end")

    def __init__(self, call: Call, pieces: list[tuple[int, bytes]]) -> None:
        """`pieces` are the bytes outside of the elements, and where they stand."""
        self.first = pieces[0][1]
        self.others = tuple(pieces[1:])
        self.model, self.version, self.body_id = call.model, call.version, call.body_id
        self.wants_end, self.classified, self.sequence = call.wants_end, call.classified, call.sequence
        self.unusual = call.wants_end or bool(call.classified) or call.sequence is not None

    def fits(self, message: bytes) -> bool:
        """Whether that, of the size of the first, is of this kind, if it begins with `first`."""
        for at, piece in self.others:  # noqa: SIM110 - a generator costs more than what it would ask
            if not message.startswith(piece, at):
                return False
        return True


class _Size:
    """What is known of the messages of one size."""

    __slots__ = ("kinds", "misses")

    def __init__(self) -> None:
        self.kinds: list[_Known] = []
        self.misses = 0


class CallReader:
    """Shared by all RPCs of a port."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def read(self, call: Call, message: bytes) -> None:
        """Fill in a call from its message. Raises `GatewayError` if the bytes are no message at all."""
        size = self._sizes.get(len(message))
        if size is not None:
            for known in size.kinds:
                if message.startswith(known.first) and (not known.others or known.fits(message)):
                    call.model, call.version, call.body_id = known.model, known.version, known.body_id
                    if known.unusual:
                        call.wants_end, call.classified, call.sequence = (
                            known.wants_end,
                            known.classified,
                            known.sequence,
                        )
                    call.message = message
                    return
        read_call(call, message)
        if call.message is not None:
            self._learn(call, message, size)

    def _learn(self, call: Call, message: bytes, size: _Size | None) -> None:
        """Sizes that come once are not worth it."""
        if size is None:
            if len(self._sizes) >= SIZES_MAX:
                self._sizes.clear()
            self._sizes[len(message)] = _Size()
            return
        if len(size.kinds) >= LIKE_MAX:
            size.misses += 1
            if size.misses < MISSES_MAX:
                return
            size.kinds.clear()
            size.misses = 0
        pieces = _outside(message)
        if pieces is not None:
            size.kinds.append(_Known(call, pieces))


def _outside(message: bytes) -> list[tuple[int, bytes]] | None:
    """The pieces of a good message outside of its tensors' elements, the first one at 0. None if that is too much to be
    kept, which is seen before any of it is copied: elements may stand outside of the raw contents, too.
    """
    pieces: list[tuple[int, bytes]] = []
    at = size = 0
    end = len(message)
    for number, _, start, stop in pb.fields(message, 0, end):
        before = start if number == _RAW else stop
        if size + before - at > CONSTANT_BYTES_MAX or len(pieces) >= PIECES_MAX:
            return None
        if number == _RAW:
            pieces.append((at, message[at:start]))
            size += start - at
            at = stop
    if at < end or not pieces:
        pieces.append((at, message[at:]))
    return pieces
