"""The messages of one RPC as its DATA frames bring them: memory is reserved before it is taken, and what there is no
memory for is let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.codes import Code
from gateway.core.faces import BodyBudget
from gateway.edge.grpc_stream_kit import Unkept
from gateway.wire.grpc.errors import GrpcFault, MessageRefused
from gateway.wire.grpc.framing import PREFIX_BYTES, Message, MessageReader

HEAD_BYTES = 4096
"""So much is kept of a message for which there is no memory: the names of model and version stand at its begin."""


class Piece:
    """One message as it came: whether it is compressed, its bytes, and how much is reserved for it. Whoever takes it
    gives that back.
    """

    __slots__ = ("compressed", "message", "reserved")

    def __init__(self, compressed: bool, message: bytes, reserved: int) -> None:
        self.compressed = compressed
        self.message = message
        self.reserved = reserved


class Intake:
    """Takes payloads, gives messages. `begun` is called with the length of each message for which there is memory,
    before a byte of it is kept: the window may grow by it. Of one for which there is none the first bytes are kept if
    `keep_heads`, and the rest passes by.

    What a peer does wrong stands in `fault` afterwards; messages that came before it are good. `close` gives back what
    is reserved for a message that has not come to its end.
    """

    __slots__ = (
        "_begun",
        "_budget",
        "_fed",
        "_head",
        "_keep_heads",
        "_length",
        "_limit_bytes",
        "_reader",
        "_skip",
        "_told",
        "_whole",
        "fault",
        "passed_bytes",
    )

    def __init__(self, limit_bytes: int, budget: BodyBudget, begun: Callable[[int], None], *, keep_heads: bool) -> None:
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._begun = begun
        self._keep_heads = keep_heads
        self._reader = MessageReader(limit_bytes, self._reserve)
        self._fed = 0
        """Bytes that this reader was given, and in `_whole` those of its whole messages: tells where one begins."""
        self._whole = 0
        self._length = 0
        """Of the message that passes by, and in `_skip` how much of it is still to come."""
        self._skip = 0
        self._told = True
        self._head = b""
        self.passed_bytes = 0
        """Of messages that passed by; whoever returns windows sets it back to 0."""
        self.fault: GrpcFault | None = None

    @property
    def idle(self) -> bool:
        """Between two messages."""
        return not self._skip and self._reader.idle

    def feed(self, data: bytes, start: int, stop: int) -> list[Piece | Unkept]:
        """The messages that `data[start:stop]` completes, and those that turn out to pass by."""
        found: list[Piece | Unkept] = []
        while start < stop and self.fault is None:
            start = self._let_pass(data, start, stop, found) if self._skip else self._read(data, start, stop, found)
        return found

    def place(self, size: int) -> memoryview | None:
        """Where some of the next `size` bytes can be received to; None if there is no such place."""
        return None if self._skip or self.fault is not None else self._reader.place(size)

    def placed(self, size: int) -> None:
        """So many bytes have been received to the last place."""
        self._fed += size
        self._reader.placed(size)

    def end(self) -> None:
        """The peer has said its last: if that was inside a message it is a fault."""
        if self.fault is None and not self.idle:
            self.fault = GrpcFault(Code.INTERNAL, "the request ended inside a message")

    def close(self) -> None:
        """Nothing more is taken."""
        reserved = self._reader.reserved_bytes
        if reserved:
            self._budget.release(reserved)
        # Without its ways to the owner: a circle.
        self._reader = MessageReader(self._limit_bytes)
        self._begun = _nothing

    def _read(self, data: bytes, start: int, stop: int, found: list[Piece | Unkept]) -> int:
        try:
            messages = self._reader.feed(data, start, stop)
        except MessageRefused as refused:
            self._keep(refused.before, found)
            # Its prefix ends here: right behind the messages that are whole.
            start += self._whole + PREFIX_BYTES - self._fed
            self._reader = MessageReader(self._limit_bytes, self._reserve)
            self._fed = self._whole = 0
            self._length = self._skip = refused.length
            self._head, self._told = b"", False
            self._tell(found)
            return start
        except GrpcFault as fault:
            self._keep(fault.before, found)
            self.fault = fault
            return stop
        self._fed += stop - start
        self._keep(messages, found)
        return stop

    def _keep(self, messages: Sequence[Message], found: list[Piece | Unkept]) -> None:
        for compressed, message in messages:
            self._whole += PREFIX_BYTES + len(message)
            found.append(Piece(compressed, message, len(message)))

    def _let_pass(self, data: bytes, start: int, stop: int, found: list[Piece | Unkept]) -> int:
        stop = min(stop, start + self._skip)
        self._skip -= stop - start
        self.passed_bytes += stop - start
        if not self._told:
            self._head += data[start : min(stop, start + HEAD_BYTES - len(self._head))]
            self._tell(found)
        return stop

    def _tell(self, found: list[Piece | Unkept]) -> None:
        """Give out what is known of a message that passes by, as soon as that is all that will be."""
        if not self._keep_heads or len(self._head) >= HEAD_BYTES or not self._skip:
            found.append(Unkept(self._length, self._head))
            self._told, self._head = True, b""

    def _reserve(self, length: int) -> bool:
        if not self._budget.try_reserve(length):
            return False
        self._begun(length)
        return True


def _nothing(length: int) -> None:
    return None
