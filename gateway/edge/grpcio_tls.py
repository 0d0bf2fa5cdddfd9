"""TLS and peers where the gRPC port stands on grpcio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import grpc

from gateway.core.credentials import NO_PEER, Peer
from gateway.edge.tls_peers import Certificates
from gateway.policy.tls_files import TlsMaterial


class GrpcioTls:
    """Server credentials whose certificate can be changed: connections from then on get the new one. The library has
    TLS 1.2 as its least, `h2` by ALPN, and cannot ask for a client certificate without insisting on it.
    """

    def __init__(self, material: Callable[[], TlsMaterial], *, client_certificate_required: bool) -> None:
        """`material` is asked at the begin of each handshake, from a thread of the library's."""
        self._material = material
        self._required = client_certificate_required

    def credentials(self) -> Any:
        """For one server."""
        given = self._material()

        def fetch() -> Any:
            nonlocal given
            current = self._material()
            if current is given:
                return None  # as before
            given = current
            return _configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given), fetch, require_client_authentication=self._required
        )


def _configuration(material: TlsMaterial) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.ca or None
    )


class GrpcioPeers:
    """The peer of a call. The library tells it anew with each one, so only what matters is asked for."""

    def __init__(self, *, addresses: bool, certificates: bool) -> None:
        self._addresses = addresses
        self._certificates = Certificates() if certificates else None

    def of(self, context: Any) -> Peer:
        address = address_of(context.peer()) if self._addresses else ""
        certificate = None
        if self._certificates is not None:
            shown = context.auth_context().get("x509_pem_cert")
            certificate = self._certificates.read(bytes(shown[0])) if shown else None
        return Peer(address, certificate) if address or certificate else NO_PEER


def address_of(peer: str) -> str:
    """The IP address in the library's `ipv4:10.0.0.7:55000` or `ipv6:%5B::1%5D:55000`, "" if it is none."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]")
