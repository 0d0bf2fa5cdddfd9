"""Subjects of client certificates, and the tenants they stand for.

A subject is written with its kind, because a DNS name and a common name of the same letters are not the same claim:
`uri:spiffe://cluster/ns/shop`, `dns:shop.example.com`, `cn:shop`. The common name counts only in a certificate that has
no URI and no DNS name (for servers RFC 9525 no longer counts it at all).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cryptography import x509
from cryptography.x509.oid import NameOID
from msgspec import Meta

from gateway.core.call import Identity
from gateway.core.credentials import PeerCertificate
from gateway.core.criticality import DEFAULT, ClassName
from gateway.core.errors import GatewayError, Reason
from gateway.policy.identity_list import ListKind, parse_identities
from gateway.policy.keys import TENANT
from gateway.policy.schema import ModelName, Strict
from gateway.policy.words import name_pattern

SUBJECTS_BYTES_MAX = 1024 * 1024

SUBJECT = name_pattern(
    r"^(uri:|dns:|cn:)[^\x00-\x20\x7f][^\x00-\x1f\x7f]{0,2047}$",
    "a certificate's subject",
    "write it with its kind, as in `uri:spiffe://cluster/ns/shop`, `dns:shop.example.com` or `cn:shop`",
)


class SubjectEntry(Strict, frozen=True, kw_only=True):
    """One subject of the file. A tenant may have several."""

    subject: Annotated[
        str,
        Meta(pattern=SUBJECT, description="A name of the certificate with its kind: `uri:`, `dns:` or `cn:`. A common "
             "name counts only in a certificate without the others."),
    ]  # fmt: skip
    tenant: Annotated[str, Meta(pattern=TENANT, description="Who calls with such a certificate.")]
    models: Annotated[
        tuple[ModelName, ...] | None, Meta(description="Models that the tenant may call with it. Default: all.")
    ] = None
    may_explain: Annotated[bool, Meta(description="May see replica names in `x-sluice-explain`.")] = False
    highest_class: Annotated[
        ClassName | None,
        Meta(description="Highest class of calls with it. Default: `identity.highest_class` of fleet.yaml."),
    ] = None


_SUBJECTS = ListKind(
    entry=SubjectEntry,
    field="subject",
    noun="subject",
    first="subject",
    bytes_max=SUBJECTS_BYTES_MAX,
    empty_remedy="give at least one",
    anonymous_are="callers who show nothing",
)


class SubjectMap:
    """Who a client certificate stands for. Immutable; a changed file makes a new map."""

    __slots__ = ("_by_subject",)

    def __init__(self, by_subject: Mapping[str, Identity]) -> None:
        self._by_subject = dict(by_subject)

    def __len__(self) -> int:
        return len(self._by_subject)

    def identify(self, certificate: PeerCertificate, wall_s: float) -> Identity:
        """Raises `GatewayError` (UNAUTHENTICATED): no name of it is known, its names stand for different tenants, or it
        has expired while the connection lasted. `wall_s`: seconds since the epoch.
        """
        if wall_s > certificate.not_after_s:
            raise GatewayError(Reason.UNAUTHENTICATED, "the client certificate has expired; connect with a new one")
        found = {self._by_subject[name] for name in subjects(certificate) if name in self._by_subject}
        if not found:
            raise GatewayError(Reason.UNAUTHENTICATED, "the subject of the client certificate is not known")
        if len(found) > 1:
            raise GatewayError(Reason.UNAUTHENTICATED, "the client certificate stands for more than one tenant")
        return found.pop()


def subjects(certificate: PeerCertificate) -> tuple[str, ...]:
    """The names that count, with their kinds."""
    names = (
        *(f"uri:{uri}" for uri in certificate.uris),
        *(f"dns:{name.lower()}" for name in certificate.dns),
    )
    return names or ((f"cn:{certificate.common_name}",) if certificate.common_name else ())


def parse_subjects(data: bytes, file_name: str, highest_class: int = DEFAULT) -> SubjectMap:
    """The file's content: a YAML list of `SubjectEntry`; `highest_class` is of those that name none. Raises
    `PolicyError` with every problem found.
    """
    return SubjectMap(parse_identities(data, file_name, _SUBJECTS, highest_class, _canonical))


def _canonical(subject: str) -> str:
    return subject.lower() if subject.startswith("dns:") else subject


def peer_certificate(certificate: x509.Certificate) -> PeerCertificate:
    """What is read of a client certificate that was verified. Raises ValueError if its names cannot be read."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
        dns = tuple(names.get_values_for_type(x509.DNSName))
    except x509.ExtensionNotFound:
        uris = dns = ()
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = common[0].value if len(common) == 1 else ""
    return PeerCertificate(
        uris=uris,
        dns=dns,
        common_name=name if isinstance(name, str) else "",
        not_after_s=certificate.not_valid_after_utc.timestamp(),
    )
