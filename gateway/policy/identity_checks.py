"""What must hold between the keys of identities and of TLS, and with the files that they name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from gateway.core.header_names import EXPLAIN, PEERS_OWN_PREFIXES, REQUEST_ID, never_forwarded
from gateway.policy.decode import Document
from gateway.policy.identity import parse_network
from gateway.policy.identity_jwt import KEYS_BYTES_MAX as JWT_KEYS_BYTES_MAX
from gateway.policy.identity_jwt import check_jwt_keys
from gateway.policy.identity_schema import ALGORITHMS, HeaderPolicy, JwtPolicy, MtlsPolicy
from gateway.policy.identity_subjects import SUBJECTS_BYTES_MAX, parse_subjects
from gateway.policy.problems import Path, PolicyError, Problems, printable
from gateway.policy.schema import FleetPolicy
from gateway.policy.tls_files import NO_FILE, PEM_BYTES_MAX, PemFile, tls_material

Fleet = Document[FleetPolicy]
ReadFile = Callable[[Any, Path, str, int, Problems], bytes | None]
"""Reads a file that a key names; None after it has added a problem at that key."""

_KINDS = {"api_key": "keys_file", "jwt": "jwt", "mtls": "mtls", "header": "header"}
"""Mode to the key that declares what it needs."""
_DECLARED: dict[str, type[Struct]] = {"jwt": JwtPolicy, "mtls": MtlsPolicy, "header": HeaderPolicy}
_LISTEN: Path = ("gateway", "listen", "tls")


def check_identity(fleet: Fleet, problems: Problems) -> None:
    """The mode and what it needs."""

    def add(path: Path, message: str, remedy: str) -> None:
        problems.add(fleet.file, fleet.where(*path), path, message, remedy)

    mode = fleet.get("identity", "mode")
    given = [kind for kind, key in _KINDS.items() if fleet.get("identity", key) not in (None, "")]
    if mode == "any" and len(given) < 2:
        names = ", ".join(f"`{key}`" for key in _KINDS.values())
        add(("identity", "mode"), f"`any` with {len(given)} kinds to choose from", f"declare two or more of {names}")
    elif mode in _KINDS and mode not in given and not fleet.given("identity", _KINDS[mode]):
        add(("identity", "mode"), f"`mode: {mode}` needs `identity.{_KINDS[mode]}`", _declare(mode))
    for kind in given:
        if mode in ("any", kind, None):
            continue
        path: Path = ("identity", _KINDS[kind])
        nobody = f"nobody is asked for {'a key' if kind == 'api_key' else 'it'}" if mode == "none" else "it is not used"
        remedy = f"write `mode: {kind if mode == 'none' else 'any'}`, or remove `{_KINDS[kind]}`"
        add(path, f"`{_KINDS[kind]}` is given, but with `mode: {mode}` {nobody}", remedy)
    _header(fleet, problems)
    _client_certificates(fleet, "mtls" in given, mode, problems)


def _declare(mode: str) -> str:
    """What to write for a mode whose key is missing."""
    policy = _DECLARED.get(mode)
    if policy is None:
        return "name the file of key hashes there"
    needed = [f"`{field.encode_name}`" for field in structs.fields(policy) if field.required]
    return f"declare it with {' and '.join(filter(None, (', '.join(needed[:-1]), needed[-1])))}"


def _header(fleet: Fleet, problems: Problems) -> None:
    path: Path = ("identity", "header", "name")
    name = fleet.get(*path)
    if name is not None:
        shown = f"`{printable(name)}`"
        if name != name.lower() or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            remedy = "write a name like `x-tenant`: lower-case letters, digits, dashes"
            problems.add(fleet.file, fleet.where(*path), path, f"{shown} is not a header's name", remedy)
        elif never_forwarded(name) or name in (REQUEST_ID, EXPLAIN) or name.startswith(PEERS_OWN_PREFIXES):
            message = f"{shown} has a meaning of its own"
            problems.add(fleet.file, fleet.where(*path), path, message, "choose another name, `x-tenant` say")
    for i, text in enumerate(fleet.get("identity", "header", "networks") or ()):
        if text is None:
            continue
        try:
            parse_network(text)
        except ValueError as error:
            here: Path = ("identity", "header", "networks", i)
            message = f"`{printable(text)}` is no network: {printable(str(error), 120)}"
            problems.add(fleet.file, fleet.where(*here), here, message, "write as in `10.1.0.0/16` or `::1/128`")


def _client_certificates(fleet: Fleet, mtls: bool, mode: str | None, problems: Problems) -> None:
    asked = fleet.get(*_LISTEN, "client_certificate") if fleet.get(*_LISTEN) is not None else "none"
    authorities = fleet.get(*_LISTEN, "client_ca_file") if fleet.get(*_LISTEN) is not None else ""
    path: Path = (*_LISTEN, "client_certificate")
    where = fleet.where(*path)
    if asked in ("optional", "required") and authorities == "":
        message = f"`{asked}` needs `client_ca_file`"
        problems.add(fleet.file, where, path, message, "name the authorities whose certificates are believed")
    if asked == "none" and authorities:
        path = (*_LISTEN, "client_ca_file")
        message = "`client_ca_file` is given, but no client is asked for a certificate"
        remedy = "write `client_certificate: required`, or remove `client_ca_file`"
        problems.add(fleet.file, fleet.where(*path), path, message, remedy)
    if mtls and mode in ("mtls", "any") and asked == "none":
        path = ("identity", "mtls")
        message = "no client is asked for a certificate"
        remedy = "set `gateway.listen.tls.client_certificate` to `required`"
        problems.add(fleet.file, fleet.where(*path, of_key=True), path, message, remedy)
    if mode == "mtls" and asked == "optional" and fleet.get("gateway", "grpc", "server") == "grpcio":
        path = (*_LISTEN, "client_certificate")
        message = "with `gateway.grpc.server: grpcio` the gRPC port asks for no certificate at `optional`, and with "
        message += "`identity.mode: mtls` nobody could call there"
        problems.add(fleet.file, where, path, message, "write `required`")


def check_upstream_tls(fleet: Fleet, problems: Problems) -> None:
    """A certificate and its key go together."""
    pools = fleet.get("pools")
    for pool in pools if isinstance(pools, dict) else ():
        path: Path = ("pools", pool, "tls")
        certificate, key = fleet.get(*path, "certificate_file"), fleet.get(*path, "key_file")
        if bool(certificate) != bool(key) and certificate is not None and key is not None:
            given, missing = ("certificate_file", "key_file") if certificate else ("key_file", "certificate_file")
            here = (*path, given)
            message = f"`{given}` is given without `{missing}`"
            problems.add(fleet.file, fleet.where(*here), here, message, "give both, or neither")


def check_identity_files(fleet: Fleet, directory: str, read: ReadFile, problems: Problems) -> None:
    """The files of tokens' keys and of certificates' subjects are there and good. Their content is no part of the
    revision: they are reloaded by themselves.
    """
    mode = fleet.get("identity", "mode")
    if mode in ("jwt", "any") and fleet.get("identity", "jwt") is not None:
        path: Path = ("identity", "jwt", "keys_file")
        file = _read(fleet, path, directory, JWT_KEYS_BYTES_MAX, read, problems)
        if file.data is not None:
            algorithms = fleet.get("identity", "jwt", "algorithms") or ()
            if None in algorithms or not algorithms:
                algorithms = ALGORITHMS  # what is wrong with them has been said
            _blamed(fleet, path, problems, lambda: check_jwt_keys(file.data or b"", file.name, algorithms))
    if mode in ("mtls", "any") and fleet.get("identity", "mtls") is not None:
        path = ("identity", "mtls", "subjects_file")
        file = _read(fleet, path, directory, SUBJECTS_BYTES_MAX, read, problems)
        if file.data is not None:
            try:
                parse_subjects(file.data, file.name)
            except PolicyError as error:
                problems.take(error)


def check_tls_files(fleet: Fleet, directory: str, read: ReadFile, problems: Problems) -> None:
    """The certificates and keys of the client ports and of the pools are there and good, as far as it can be told
    without a clock: an expired one is no reason not to start, and is logged.
    """
    if fleet.get(*_LISTEN) is not None:
        _check_material(fleet, _LISTEN, "client_ca_file", directory, read, problems)
    pools = fleet.get("pools")
    for pool in pools if isinstance(pools, dict) else ():
        if fleet.get("pools", pool, "tls") is not None:
            _check_material(fleet, ("pools", pool, "tls"), "ca_file", directory, read, problems)


def _check_material(fleet: Fleet, path: Path, ca: str, directory: str, read: ReadFile, problems: Problems) -> None:
    files = {
        name: _read(fleet, (*path, name), directory, PEM_BYTES_MAX, read, problems)
        for name in ("certificate_file", "key_file", ca)
    }
    # Under the names of the keys, and not of the files: two keys may name one file.
    certificate, key, authorities = (PemFile(name, files[name].data) for name in ("certificate_file", "key_file", ca))
    try:
        tls_material(certificate, key, authorities)
    except PolicyError as error:
        for problem in error.problems:
            here = (*path, problem.file)
            _blame(fleet, here, files[problem.file].name, problem.message, problem.remedy, problems)


def _read(fleet: Fleet, path: Path, directory: str, bytes_max: int, read: ReadFile, problems: Problems) -> PemFile:
    name = fleet.get(*path)
    if not name:
        return NO_FILE
    shown = os.path.normpath(os.path.join(directory, name))
    return PemFile(shown, read(fleet, path, shown, bytes_max, problems))


def _blamed(fleet: Fleet, path: Path, problems: Problems, check: Callable[[], None]) -> None:
    try:
        check()
    except PolicyError as error:
        for problem in error.problems:
            _blame(fleet, path, problem.file, problem.message, problem.remedy, problems)


def _blame(fleet: Fleet, path: Path, file: str, message: str, remedy: str, problems: Problems) -> None:
    """A file that has no lines to point at: the key that names it is pointed at."""
    problems.add(fleet.file, fleet.where(*path), path, f"{printable(file, 200)}: {message}", remedy)
