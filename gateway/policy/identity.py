"""Who a request's credentials belong to, where several kinds may be shown.

The order, from what is said most deliberately to what comes with the connection: an API key, a token, the trusted
header, the client certificate. The first kind that is configured and shown decides, alone: if it is bad the call is
refused, whatever else was shown. What is not configured is not looked at.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.credentials import Credentials
from gateway.core.criticality import DEFAULT
from gateway.core.errors import GatewayError, Reason
from gateway.policy.identity_jwt import TokenRing
from gateway.policy.identity_subjects import SubjectMap
from gateway.policy.keys import TENANT_TEXT, KeyRing, anonymous

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_ANSWERS_MAX = 4096
_ANSWER_CHARS_MAX = 64


def parse_network(text: str) -> Network:
    """`10.1.0.0/16`, `::1/128`, or one address. Raises ValueError, also for bits behind the prefix."""
    return ipaddress.ip_network(text, strict=True)


class Networks:
    """Whether a peer is in one of some networks. An IPv4 address that comes written as IPv6 counts as IPv4."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(parse_network(network) for network in networks)
        self._answers: dict[str, bool] = {}

    def __contains__(self, address: str) -> bool:
        known = self._answers.get(address)
        if known is not None:
            return known
        answer = self._look(address)
        if len(self._answers) >= _ANSWERS_MAX:
            self._answers.clear()
        if len(address) <= _ANSWER_CHARS_MAX:
            self._answers[address] = answer
        return answer

    def _look(self, text: str) -> bool:
        try:
            address: Address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        address = mapped or address
        return any(address in network for network in self._networks)


class Identifier:
    """Decides by what is configured; None: that kind is not. Immutable but for caches; changed files make a new one."""

    __slots__ = ("_anonymous", "_highest_class", "_keys", "_networks", "_subjects", "_tokens", "_wanted")

    def __init__(
        self,
        *,
        keys: KeyRing | None = None,
        tokens: TokenRing | None = None,
        networks: Networks | None = None,
        subjects: SubjectMap | None = None,
        highest_class: int = DEFAULT,
    ) -> None:
        """`highest_class` is that of tenants whom the trusted header names."""
        self._highest_class = highest_class
        self._anonymous = anonymous(highest_class)
        self._keys = keys
        self._tokens = tokens
        self._networks = networks
        self._subjects = subjects
        kinds = (
            (keys, "an API key"),
            (tokens, "a token"),
            (networks, "a call through a trusted proxy"),
            (subjects, "a client certificate"),
        )
        self._wanted = " or ".join(words for kind, words in kinds if kind is not None)

    def identify(self, credentials: Credentials, wall_s: float) -> Identity:
        """Raises `GatewayError` (UNAUTHENTICATED). `wall_s`: seconds since the epoch."""
        identity = self._by_secret(credentials, wall_s)
        if identity is not None:
            return identity
        if self._networks is not None and credentials.claimed and credentials.peer.address in self._networks:
            return _claimed(credentials.claimed, self._highest_class)
        if self._subjects is not None and credentials.peer.certificate is not None:
            return self._subjects.identify(credentials.peer.certificate, wall_s)
        if not self._wanted:
            return self._anonymous
        raise GatewayError(Reason.UNAUTHENTICATED, f"{self._wanted} is needed and none was sent")

    def _by_secret(self, credentials: Credentials, wall_s: float) -> Identity | None:
        """By key or token; None if none was shown."""
        keys, tokens, bearer = self._keys, self._tokens, credentials.bearer
        if keys is not None and credentials.api_key:
            return keys.identify(credentials.api_key)
        if not bearer:
            return None
        if keys is not None:
            identity = keys.find(bearer)
            if identity is not None:
                return identity
            if tokens is None:
                return keys.identify(bearer)
        return None if tokens is None else tokens.identify(bearer, wall_s)


def _claimed(tenant: str, highest_class: int) -> Identity:
    if not TENANT_TEXT.fullmatch(tenant) or tenant.lower() == ANONYMOUS.tenant:
        raise GatewayError(Reason.UNAUTHENTICATED, "the trusted header names no tenant")
    return Identity(tenant, None, False, highest_class)
