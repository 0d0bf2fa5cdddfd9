"""What a caller shows of itself, and where it comes from: all that an identity is decided from.

Secrets are kept out of every `repr`, so that no log line and no traceback can show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The names in a client certificate that the TLS layer has verified. `not_after_s`: seconds since the epoch."""

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    common_name: str = ""
    not_after_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. `address` is an IP address without a port, "" if it is not known or not asked
    for; `certificate` is None where none was shown.
    """

    address: str = ""
    certificate: PeerCertificate | None = None


NO_PEER = Peer()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What came with one request. None: it did not come."""

    api_key: str | None = field(default=None, repr=False)
    """Of the header `x-api-key`."""
    bearer: str | None = field(default=None, repr=False)
    """Of `authorization: Bearer`: an API key or a JWT."""
    claimed: str | None = field(default=None, repr=False)
    """The value of the header in which trusted peers name the tenant. Anybody can send it."""
    peer: Peer = NO_PEER

    @property
    def secret(self) -> str | None:
        """The key or token, whichever header brought it. Two different ones are refused where headers are read."""
        return self.bearer if self.api_key is None else self.api_key


NO_CREDENTIALS = Credentials()
