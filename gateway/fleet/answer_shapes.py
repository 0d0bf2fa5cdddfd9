"""What the answers of one version of a model look like: so that most of them need not be walked over.

Whether an answer is well formed, and from the version that was asked, is seen by a walk over its fields
(`answered_as`). Where the bytes of its only raw tensor stand last, as servers write them, that walk looks at all that
stands before these bytes and at the length of the whole. So an answer that is equal in both to one that was good is
good, too. An answer with an `id` of its own, or with several raw tensors, is walked over each time.
"""

from __future__ import annotations

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.answered_as import answered_as

SHAPES_MAX = 16
"""Lengths of answers that are remembered of one version; those of others are walked over."""
START_BYTES_MAX = 512
_RAW = 0x32


class AnswerShapes:
    """Of one version. `names` is how its answers begin (`request_view.model_override`)."""

    __slots__ = ("names", "starts")

    def __init__(self, names: bytes) -> None:
        self.names = names
        self.starts: dict[int, bytes | None] = {}
        """By an answer's length: one that begins so is good. None: of these no such thing can be said."""

    def good(self, answer: bytes) -> bool:
        """`answered_as`; and what `starts` says of the next one like it."""
        if not answered_as(answer, self.names):
            return False
        starts = self.starts
        if len(answer) not in starts and len(starts) < SHAPES_MAX:
            starts[len(answer)] = _start(answer, len(self.names))
        return True


def _start(answer: bytes, pos: int) -> bytes | None:
    """A good answer up to its only raw tensor's bytes, if these are the last of it."""
    end = len(answer)
    tag = start = 0
    while pos < end:
        if tag == _RAW:
            return None
        tag = answer[pos]
        size, start = pb.read_varint(answer, pos + 1, end)
        pos = start + size
    return answer[:start] if tag == _RAW and start <= START_BYTES_MAX else None
