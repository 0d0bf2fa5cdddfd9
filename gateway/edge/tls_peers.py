"""Who is at the other end of a connection: its address, and its client certificate if one was verified."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict

from cryptography import x509

from gateway.core.credentials import NO_PEER, Peer, PeerCertificate
from gateway.policy.identity_subjects import peer_certificate

_log = logging.getLogger("sluice.edge.tls")

CERTIFICATES_MAX = 1024
"""Certificates that are remembered as they were read: the gRPC library shows one with every call."""


class Certificates:
    """Reads certificates, and remembers what it read. Only for such as the TLS layer has verified."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, PeerCertificate] = OrderedDict()

    def read(self, data: bytes) -> PeerCertificate:
        """One certificate, PEM or DER. One whose names cannot be read has none, and so stands for nobody."""
        digest = hashlib.sha256(data).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known
        try:
            pem = data.startswith(b"-----")
            certificate = x509.load_pem_x509_certificate(data) if pem else x509.load_der_x509_certificate(data)
            known = peer_certificate(certificate)
        except (ValueError, TypeError, x509.DuplicateExtension) as error:
            _log.warning("a verified client certificate cannot be read, and stands for nobody: %s", error)
            known = PeerCertificate()
        self._known[digest] = known
        if len(self._known) > CERTIFICATES_MAX:
            self._known.popitem(last=False)
        return known


class TransportPeers:
    """The peer of a transport, asked once per connection."""

    def __init__(self, *, addresses: bool, certificates: bool) -> None:
        self._addresses = addresses
        self._certificates = Certificates() if certificates else None

    def of(self, transport: asyncio.BaseTransport) -> Peer:
        address = ""
        if self._addresses:
            name = transport.get_extra_info("peername")
            address = str(name[0]) if isinstance(name, tuple) and name else ""
        certificate = None
        if self._certificates is not None:
            tls = transport.get_extra_info("ssl_object")
            shown = None if tls is None else tls.getpeercert(True)
            certificate = None if shown is None else self._certificates.read(shown)
        return Peer(address, certificate) if address or certificate else NO_PEER
