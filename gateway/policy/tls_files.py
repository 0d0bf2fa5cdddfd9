"""Certificates and keys in PEM files: what must be right with them before they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from gateway.policy.problems import START, Problems, printable

PEM_BYTES_MAX = 1024 * 1024
EXPIRES_SOON_S = 7 * 86_400.0

NOT_PEM = "write it as PEM, which begins with `-----BEGIN`"


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What one end of TLS shows and believes, each PEM, b"" for what it does not have. `not_after_s`: when the first
    certificate of the chain ends to be good, seconds since the epoch, 0.0 without one.
    """

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    ca: bytes = b""
    not_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file's content with the name to show; `data` is None where there is no such file."""

    name: str
    data: bytes | None


NO_FILE = PemFile("", None)


def tls_material(certificate: PemFile, key: PemFile, ca: PemFile) -> TlsMaterial:
    """The three together. Raises `PolicyError` with every problem found; a certificate that has expired is none."""
    problems = Problems()
    chain = _certificates(certificate, problems)
    private = _private_key(key, problems)
    _certificates(ca, problems)
    if chain and private is not None and _spki(chain[0].public_key()) != _spki(private.public_key()):
        remedy = "name the key that the certificate was made with, and put the gateway's own certificate first"
        problems.add(key.name, START, (), f"the key does not belong to the certificate of {certificate.name}", remedy)
    problems.raise_if_any()
    return TlsMaterial(
        certificate=certificate.data or b"",
        key=key.data or b"",
        ca=ca.data or b"",
        not_after_s=chain[0].not_valid_after_utc.timestamp() if chain else 0.0,
    )


def shown_names(path_of: Callable[[str], str], *names: str) -> tuple[str, ...]:
    """Configured names of files as they are read and shown; "" stays, where none is configured."""
    return tuple(path_of(name) if name else "" for name in names)


def material_of(names: Sequence[str], contents: Sequence[bytes]) -> TlsMaterial:
    """`tls_material` of the contents of certificate, key and authorities; one without a file has the name ""."""
    certificate, key, ca = (
        PemFile(name, data) if name else NO_FILE for name, data in zip(names, contents, strict=True)
    )
    return tls_material(certificate, key, ca)


def expiry_warning(material: TlsMaterial, wall_s: float) -> str:
    """What to say of a certificate that has expired or soon will have, "" if there is nothing. It is used all the same:
    not every client looks, and its renewal is on the way. `wall_s`: seconds since the epoch.
    """
    left_s = material.not_after_s - wall_s
    if not material.certificate or left_s > EXPIRES_SOON_S:
        return ""
    if left_s <= 0:
        return f"expired {-left_s / 86_400:.1f} days ago and is used all the same: renew it"
    return f"expires in {left_s / 86_400:.1f} days: renew it"


def _certificates(file: PemFile, problems: Problems) -> list[x509.Certificate]:
    if file.data is None:
        return []
    try:
        return x509.load_pem_x509_certificates(file.data)
    except ValueError as error:
        if b"-----BEGIN" not in file.data:
            problems.add(file.name, START, (), "it is not PEM", NOT_PEM)
        elif b"CERTIFICATE-----" not in file.data:
            problems.add(file.name, START, (), "there is no certificate in it", "name the file of certificates")
        else:
            message = f"a certificate in it cannot be read: {printable(str(error), 120)}"
            problems.add(file.name, START, (), message, "get it from its authority again")
        return []


def _private_key(file: PemFile, problems: Problems) -> PrivateKeyTypes | None:
    if file.data is None:
        return None
    try:
        return serialization.load_pem_private_key(file.data, password=None)
    except TypeError:
        remedy = "store it decrypted, readable to the gateway alone: nobody is there to type a password"
        problems.add(file.name, START, (), "the key is encrypted", remedy)
    except ValueError as error:
        if b"-----BEGIN" not in file.data:
            problems.add(file.name, START, (), "it is not PEM", NOT_PEM)
        elif b"PRIVATE KEY-----" not in file.data:
            problems.add(file.name, START, (), "there is no private key in it", "name the file of the key")
        else:
            message = f"the key cannot be read: {printable(str(error), 120)}"
            problems.add(file.name, START, (), message, "make the file again")
    except Exception as error:  # cryptography's UnsupportedAlgorithm, by whatever name it has
        problems.add(file.name, START, (), f"the key is of no use: {printable(str(error), 120)}", "use RSA or P-256")
    return None


def _spki(key: PublicKeyTypes) -> bytes:
    """A public key in the one form in which equal keys are equal."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
