"""TLS between a socket and a protocol of ours: the handshake, and then a transport like any other.

asyncio and uvloop have this too, and do not serve here. They show a connection to us only after its handshake, so that
connections in the middle of one are not counted; they cannot end one side of a connection and go on reading (which is
what brings an early refusal to a client that is still sending); and they say nothing to a client that speaks plain
HTTP. The work itself is the TLS library's, through `ssl.SSLObject`.

A connection ends with a `close_notify` of ours and does not wait for the client's: HTTP says itself where a message
ends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

from gateway.runtime.wheel import Timer, TimerWheel

_log = logging.getLogger("sluice.edge.tls")

READ_BYTES = 256 * 1024
_HANDSHAKE_RECORD = 0x16
"""The first byte of whatever begins TLS (RFC 8446 section 5.1)."""
PLAIN_TEXT = b'{"error":"this port speaks TLS; use https"}'
PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"x-sluice-reason: bad_request\r\nConnection: close\r\n\r\n%b"
) % (len(PLAIN_TEXT), PLAIN_TEXT)


def http_plain_answer(data: bytes) -> bytes:
    """To a client that speaks plain HTTP/1.1."""
    return PLAIN_ANSWER if data[:1].isalpha() else b""


class PlainText(Protocol):
    """What gets the plain text: the methods of `asyncio.Protocol`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class TlsDoor(Protocol):
    """What a connection needs of its port."""

    wheel: TimerWheel
    handshake_timeout_s: float
    context: Callable[[], ssl.SSLContext]
    """For a handshake that begins now."""

    plain_answer: Callable[[bytes], bytes]
    """What a client is told whose first bytes are these and no TLS; b"" for nothing."""

    def begin(self, connection: TlsConnection) -> bool:
        """Whether there is room for one more connection."""
        ...

    def ended(self, connection: TlsConnection) -> None:
        """The handshake is over, or the connection."""
        ...

    def fault(self, kind: str) -> None:
        """The handshake failed: `tls_handshake`, `tls_slow` or `tls_plaintext`."""
        ...


class TlsConnection(asyncio.Protocol):
    """What the event loop talks to. `make` gives the protocol that gets the plain text, once the handshake is done."""

    __slots__ = (
        "_door",
        "_inner",
        "_loop_transport",
        "_make",
        "_shut",
        "_timer",
        "incoming",
        "outgoing",
        "tls",
    )

    def __init__(self, door: TlsDoor, make: Callable[[], PlainText]) -> None:
        self._door = door
        self._make = make
        self._inner: PlainText | None = None
        self._loop_transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._shut = False
        """Our side is closed: nothing is written any more, and nothing read is looked into."""
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None

    # ------------------------------------------------------ the loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop_transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it
        door = self._door
        if not door.begin(self):
            self._loop_transport.abort()
            return
        self._timer = door.wheel.call_later(door.handshake_timeout_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        inner = self._inner
        if inner is None:
            self._shake(data)
            return
        if self._shut:
            inner.data_received(data)  # it is only counted: deciphering what nobody reads would be work for nothing
            return
        self.incoming.write(data)
        self._deliver(inner)

    def eof_received(self) -> bool:
        """An end without `close_notify` is taken for one: HTTP knows whether a message is whole."""
        inner = self._inner
        if inner is None:
            return False
        if inner.eof_received():
            return True
        self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        inner = self._inner
        self._loop_transport = None
        if inner is None:
            self._settle()
            return
        inner.connection_lost(exc)
        self._inner = None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    # ------------------------------------------------------------- the handshake

    def _shake(self, data: bytes) -> None:
        transport = self._loop_transport
        if transport is None or transport.is_closing():
            return
        if self.tls is None:
            if data[0] != _HANDSHAKE_RECORD:
                self._door.fault("tls_plaintext")
                answer = self._door.plain_answer(data)
                if answer:
                    transport.write(answer)
                self._give_up()
                return
            self.tls = self._door.context().wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.incoming.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            return
        except ssl.SSLError as error:
            # Often a port scanner's doing; a line for each would let strangers fill the log.
            _log.debug("a handshake failed: %s", error.reason or error)
            self._door.fault("tls_handshake")
            self.flush()  # the alert that tells the client why
            self._give_up()
            return
        self.flush()
        self._settle()
        self._inner = inner = self._make()
        inner.connection_made(TlsTransport(self, transport))
        self._deliver(inner)

    def _settle(self) -> None:
        """No handshake of this connection is going on any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._door.ended(self)

    def _too_slow(self) -> None:
        self._door.fault("tls_slow")
        self.abort()

    def _give_up(self) -> None:
        if self._loop_transport is not None:
            self._loop_transport.close()

    # ------------------------------------------------------------- open for data

    def _deliver(self, inner: PlainText) -> None:
        """Hand on whatever can be deciphered."""
        tls = self.tls
        assert tls is not None
        chunks: list[bytes] = []
        ended = False
        try:
            while True:
                chunk = tls.read(READ_BYTES)
                if not chunk:
                    ended = True
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            _log.debug("a record could not be read: %s", error.reason or error)
            self._door.fault("tls_record")
            self.flush()
            self.abort()
            return
        if self.outgoing.pending:
            self.flush()  # an answer to a change of keys
        if chunks:
            inner.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if ended and not self._shut and not inner.eof_received():
            self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        tls = self.tls
        assert tls is not None
        if self._shut or self._loop_transport is None:
            return
        try:
            left = memoryview(data).cast("B") if not isinstance(data, bytes) else data
            while left:
                left = left[tls.write(left) :]
        except ssl.SSLError as error:
            _log.debug("a record could not be written: %s", error.reason or error)
            self.abort()
            return
        self.flush()

    def flush(self) -> None:
        if self.outgoing.pending and self._loop_transport is not None:
            self._loop_transport.write(self.outgoing.read())

    def shut(self) -> None:
        """Say that nothing more comes from us."""
        tls = self.tls
        if self._shut or tls is None:
            return
        self._shut = True
        try:
            tls.unwrap()
        except ssl.SSLError:  # it would wait for the client's word, which we do not
            _log.debug("closed without the client's close_notify")
        self.flush()

    def close(self) -> None:
        self.shut()
        if self._loop_transport is not None:
            self._loop_transport.close()

    def abort(self) -> None:
        if self._loop_transport is not None:
            self._loop_transport.abort()


class TlsTransport(asyncio.Transport):
    """The transport that the inner protocol gets."""

    __slots__ = ("_connection", "_under")

    def __init__(self, connection: TlsConnection, under: asyncio.Transport) -> None:
        super().__init__()
        self._connection = connection
        self._under = under

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.write(data)

    def writelines(self, list_of_data: Any) -> None:
        self._connection.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._connection.shut()
        self._under.write_eof()

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    def is_closing(self) -> bool:
        return self._under.is_closing()

    def pause_reading(self) -> None:
        self._under.pause_reading()

    def resume_reading(self) -> None:
        self._under.resume_reading()

    def is_reading(self) -> bool:
        return self._under.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._under.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._under.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._under.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.tls if name == "ssl_object" else self._under.get_extra_info(name, default)
