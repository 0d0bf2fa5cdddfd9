"""What the edges report besides calls. `observe/` counts it; here stands only the face and the one that counts nothing.

A call has its prediction record. These are the events of bytes that never became a call, and of the edge itself.
"""

from __future__ import annotations

from typing import Protocol


class EdgeObserver(Protocol):
    """Synchronous, cheap, never raises. Every argument is one of a closed set and fit for a metrics label."""

    def connection_opened(self, protocol: str) -> None: ...

    def connection_closed(self, protocol: str) -> None: ...

    def connection_refused(self, protocol: str) -> None:
        """Accepted and closed at once: there are as many connections as the policy allows."""
        ...

    def protocol_fault(self, protocol: str, kind: str) -> None:
        """A client broke the protocol, or was too slow for it. `kind` is one of `observe.labels.PROTOCOL_FAULTS`."""
        ...

    def request_without_call(self, protocol: str, route: str, status: str) -> None:
        """A request that was answered without a call: control queries, and what names no route or is no request.
        `route` is a template or a method's name, "" where there is none; `status` is the HTTP status or the name of
        the gRPC code.
        """
        ...

    def internal_fault(self, protocol: str) -> None:
        """The gateway itself failed while it answered: always logged with its traceback as well."""
        ...


class SilentObserver:
    """Counts nothing."""

    def connection_opened(self, protocol: str) -> None:
        return None

    def connection_closed(self, protocol: str) -> None:
        return None

    def connection_refused(self, protocol: str) -> None:
        return None

    def protocol_fault(self, protocol: str, kind: str) -> None:
        return None

    def request_without_call(self, protocol: str, route: str, status: str) -> None:
        return None

    def internal_fault(self, protocol: str) -> None:
        return None
