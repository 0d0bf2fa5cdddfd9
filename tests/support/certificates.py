"""Certificates for tests: an authority of their own, and what it signs. Elliptic curves, because they are quick."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Pair:
    """A certificate (with its chain) and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str = "server") -> tuple[Path, Path]:
        """`<name>.pem` and `<name>.key` in a directory, each renamed into place."""
        paths = directory / f"{name}.pem", directory / f"{name}.key"
        for path, data in zip(paths, (self.certificate, self.key), strict=True):
            replace(path, data)
        return paths

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate).serial_number


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "Test Authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._certificate = (
            _begun(self._name, self._name, self._key, DAY * 3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._certificate.public_bytes(serialization.Encoding.PEM)

    def write(self, directory: Path, name: str = "ca.pem") -> Path:
        path = directory / name
        replace(path, self.certificate)
        return path

    def pair(
        self,
        common_name: str = "",
        *,
        dns: Sequence[str] = (),
        uris: Sequence[str] = (),
        addresses: Sequence[str] = (),
        lasts: datetime.timedelta = DAY * 30,
        key: PrivateKey | None = None,
    ) -> Pair:
        """A certificate for server and client. `lasts` may be negative: it has expired then."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = _begun(_named(common_name), self._name, key, lasts).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))

    def server(self, *, lasts: datetime.timedelta = DAY * 30) -> Pair:
        """For `localhost` and 127.0.0.1."""
        return self.pair("localhost", dns=("localhost",), addresses=("127.0.0.1",), lasts=lasts)

    def client_context(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority alone; with `pair` it shows a certificate of its own."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


def private_pem(key: PrivateKey, password: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def public_pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def replace(path: Path, data: bytes) -> None:
    """Put a file into place at once, as tools that renew certificates do."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.rename(path)


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, lasts: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lasts) - DAY)
        .not_valid_after(now + lasts)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
