"""API keys: the key file, and who a presented key belongs to.

The file holds hashes only, so reading it gives nobody a key. A key is looked up by the SHA-256 of what was presented:
how far a wrong key agrees with a right one cannot show in the time that takes, because the hash of a near miss agrees
with nothing. A slow password hash would add nothing, since keys are random and not chosen by people.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.credentials import Credentials
from gateway.core.criticality import DEFAULT, ClassName
from gateway.core.errors import GatewayError, Reason
from gateway.policy.files import KEYS_BYTES_MAX
from gateway.policy.identity_list import ListKind, parse_identities
from gateway.policy.schema import ModelName, Strict
from gateway.policy.words import name_pattern

KEY_BYTES_MAX = 512
"""A longer key is refused unread: hashing must not be a way to burn the gateway's time."""

SECRET_BYTES_MIN = 16

TENANT = name_pattern(
    r"^[A-Za-z0-9]([A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?$",
    "a tenant's name",
    "use letters, digits and inner `.`, `_`, `@`, `-`, at most 64 characters",
)
TENANT_TEXT = re.compile(TENANT)
SHA256 = name_pattern(
    r"^[0-9a-f]{64}$", "the SHA-256 of a key", "write 64 lower-case hexadecimal digits in quotes, never the key itself"
)


class KeyEntry(Strict, frozen=True, kw_only=True):
    """One key of the key file. A tenant may have several, so that keys can be changed without a gap."""

    tenant: Annotated[str, Meta(pattern=TENANT, description="Who calls with this key.")]
    sha256: Annotated[str, Meta(pattern=SHA256, description="SHA-256 of the key, 64 lower-case hexadecimal digits.")]
    models: Annotated[
        tuple[ModelName, ...] | None, Meta(description="Models that the tenant may call with it. Default: all.")
    ] = None
    may_explain: Annotated[bool, Meta(description="May see replica names in `x-sluice-explain`.")] = False
    highest_class: Annotated[
        ClassName | None,
        Meta(description="Highest class of calls with it. Default: `identity.highest_class` of fleet.yaml."),
    ] = None


_KEYS = ListKind(
    entry=KeyEntry,
    field="sha256",
    noun="key",
    first="tenant",
    bytes_max=KEYS_BYTES_MAX,
    empty_remedy="give at least one, or write `mode: none`",
    anonymous_are="callers without a key",
)


class AnonymousAuthenticator:
    """`mode: none`: everybody is the one tenant `anonymous`, whatever they show."""

    __slots__ = ("_identity",)

    def __init__(self, highest_class: int = DEFAULT) -> None:
        self._identity = anonymous(highest_class)

    def identify(self, credentials: Credentials) -> Identity:
        return self._identity


def anonymous(highest_class: int) -> Identity:
    """The tenant of callers who are asked for nothing."""
    return ANONYMOUS if highest_class == ANONYMOUS.highest_class else Identity("anonymous", None, False, highest_class)


class KeyRing:
    """The keys of one key file. Immutable; a changed file makes a new ring."""

    __slots__ = ("_by_digest",)

    def __init__(self, by_digest: Mapping[bytes, Identity]) -> None:
        self._by_digest = dict(by_digest)

    def __len__(self) -> int:
        return len(self._by_digest)

    def identify(self, api_key: str | None) -> Identity:
        """Raises `GatewayError` (UNAUTHENTICATED); the text does not tell an unknown key from an impossible one."""
        if not api_key:
            raise GatewayError(Reason.UNAUTHENTICATED, "an API key is needed and none was sent")
        identity = self.find(api_key)
        if identity is None:
            raise GatewayError(Reason.UNAUTHENTICATED, "the API key is not known")
        return identity

    def find(self, api_key: str) -> Identity | None:
        """The same without an error: None if the key is not known."""
        # isascii first: it is a flag of the string, and makes characters and bytes the same number.
        if not api_key.isascii() or len(api_key) > KEY_BYTES_MAX:
            return None
        return self._by_digest.get(hashlib.sha256(api_key.encode("ascii")).digest())


def parse_keys(data: bytes, file_name: str, highest_class: int = DEFAULT) -> KeyRing:
    """A key file's content: a YAML list of `KeyEntry`; `highest_class` is of those that name none. Raises `PolicyError`
    with every problem found.
    """
    by_digest = parse_identities(data, file_name, _KEYS, highest_class)
    return KeyRing({bytes.fromhex(sha256): identity for sha256, identity in by_digest.items()})


def new_key(secret: bytes) -> tuple[str, str]:
    """A key to hand out, made from random bytes that are passed in, and the SHA-256 to put into the key file."""
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(f"a key needs at least {SECRET_BYTES_MIN} random bytes, {len(secret)} were given")
    key = "slk_" + base64.urlsafe_b64encode(secret).decode("ascii").rstrip("=")
    return key, hashlib.sha256(key.encode("ascii")).hexdigest()
