"""TLS contexts of the standard library, made from PEM that is in memory already."""

from __future__ import annotations

import os
import ssl
from typing import Literal

ClientCertificate = Literal["none", "optional", "required"]

_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(
    certificate: bytes, key: bytes, client_ca: bytes, client_certificate: ClientCertificate, protocols: tuple[str, ...]
) -> ssl.SSLContext:
    """A server's side: TLS 1.2 or later, no renegotiation, `protocols` by ALPN. Raises ValueError.

    Each set of files makes a context of its own. Certificates could be put into an old one, but authorities could never
    be taken out of it again, and its session tickets would go on vouching for clients that they had admitted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    try:
        _load_chain(context, certificate, key)
        if client_ca:
            context.load_verify_locations(cadata=client_ca.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ValueError(f"the TLS library does not take the certificate or its key: {error}") from error
    context.verify_mode = _VERIFY[client_certificate]
    return context


def client_context(ca: bytes, certificate: bytes, key: bytes, protocols: tuple[str, ...]) -> ssl.SSLContext:
    """A client's side: TLS 1.2 or later, `protocols` by ALPN; without `ca` the operating system's authorities are
    believed. What is in `ca` is believed as it stands, be it an authority below another or a server's own certificate.
    Raises ValueError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(list(protocols))
    try:
        if ca:
            context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if certificate:
            _load_chain(context, certificate, key)
    except ssl.SSLError as error:
        raise ValueError(
            f"the TLS library does not take the authorities, the certificate or its key: {error}"
        ) from error
    return context


def _load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The library reads names of files and nothing else. A file in memory: the key never reaches a disk, and what is
    used is what was checked, whatever happens to the files meanwhile.
    """
    descriptor = os.memfd_create("sluice-tls", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + b"\n" + certificate)
        file.flush()
        # An encrypted key would have the library ask for a password on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)


def _no_password() -> bytes:
    raise ValueError("the key is encrypted; store it decrypted, readable to the gateway alone")
