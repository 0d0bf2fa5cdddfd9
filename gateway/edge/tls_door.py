"""The TLS side of a client port: the context in force, and the connections that are in their handshake."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from gateway.edge.observer import EdgeObserver
from gateway.edge.tls_connection import PlainText, TlsConnection, http_plain_answer
from gateway.runtime.wheel import TimerWheel


class PortDoor:
    """A `TlsDoor`. A handshake takes a place among `connections_max` like an open connection."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        *,
        handshake_timeout_s: float,
        wheel: TimerWheel,
        observer: EdgeObserver,
        protocol: str = "http",
        plain_answer: Callable[[bytes], bytes] = http_plain_answer,
    ) -> None:
        """`context` is asked at the begin of each handshake; what is open stays as it is. `plain_answer` makes of the
        first bytes of a client that does not speak TLS what it is told, b"" for nothing.
        """
        self.plain_answer = plain_answer
        self.wheel = wheel
        self.handshake_timeout_s = handshake_timeout_s
        self.has_room: Callable[[], bool] = lambda: True
        """Whether the port takes one more connection; set by its owner."""
        self.context = context
        self._observer = observer
        self._protocol = protocol
        self._handshakes: dict[TlsConnection, None] = {}
        self._faults = 0

    def protocol(self, make: Callable[[], PlainText]) -> TlsConnection:
        """For a connection that was accepted; `make` gives what gets the plain text."""
        return TlsConnection(self, make)

    @property
    def handshakes(self) -> int:
        """Connections that have not finished their handshake."""
        return len(self._handshakes)

    @property
    def faults(self) -> int:
        """Connections that ended because of their TLS, in all."""
        return self._faults

    def abort_handshakes(self) -> None:
        """The port closes: who is not in yet does not come in."""
        for connection in tuple(self._handshakes):
            connection.abort()

    # -- the door ---------------------------------------------------------------------------------------------------

    def begin(self, connection: TlsConnection) -> bool:
        if not self.has_room():
            return False
        self._handshakes[connection] = None
        return True

    def ended(self, connection: TlsConnection) -> None:
        self._handshakes.pop(connection, None)

    def fault(self, kind: str) -> None:
        self._faults += 1
        self._observer.protocol_fault(self._protocol, kind)
