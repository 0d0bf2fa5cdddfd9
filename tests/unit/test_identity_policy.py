"""What `sluice policy check` says of identities and TLS in fleet.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.call import Identity
from gateway.policy.load import load_policies
from gateway.policy.problems import PolicyProblem
from tests.support.certificates import DAY, Authority, private_pem
from tests.unit.policy_tree import FLEET, problems_of, write
from tests.unit.test_identity_jwt import EC, RSA, jwk, jwks

CA = Authority()
PAIR = CA.server()
OTHER = CA.server()
EXPIRED = CA.server(lasts=-DAY)
JWT = "{keys_file: jwks.json, issuer: i, audience: a}"
LINE = len(FLEET.splitlines()) + 1
"""The first line behind `FLEET`."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with every file that a policy below may name."""
    write(tmp_path)
    PAIR.write(tmp_path)
    OTHER.write(tmp_path, "other")
    EXPIRED.write(tmp_path, "expired")
    CA.write(tmp_path)
    (tmp_path / "jwks.json").write_bytes(jwks(jwk(RSA, "a")))
    (tmp_path / "ec.json").write_bytes(jwks(jwk(EC, "a")))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"not a certificate")
    (tmp_path / "der.pem").write_bytes(b"\x30\x82\x01\x02")
    (tmp_path / "locked.key").write_bytes(private_pem(RSA, b"password"))
    (tmp_path / "cut.pem").write_bytes(PAIR.certificate[:200] + b"\n-----END CERTIFICATE-----\n")
    (tmp_path / "subjects.yaml").write_text("- {subject: 'cn:shop', tenant: shop}\n")
    (tmp_path / "keys.yaml").write_text(f"- {{tenant: shop, sha256: {'ab' * 32}}}\n")
    return tmp_path


def problems(directory: Path, more: str) -> tuple[PolicyProblem, ...]:
    write(directory, fleet=FLEET + more)
    return problems_of(directory)


def listen(keys: str) -> str:
    return f"gateway: {{listen: {{tls: {{{keys}}}}}}}\n"


GOOD = [
    "identity: {mode: jwt, jwt: " + JWT + "}\n",
    "identity: {mode: any, keys_file: keys.yaml, jwt: " + JWT + ", header: {name: x-tenant, networks: [10.0.0.0/8]}}\n",
    "identity: {mode: header, header: {name: x-tenant, networks: ['::1/128', 127.0.0.1]}}\n",
    listen("certificate_file: server.pem, key_file: server.key"),
    listen("certificate_file: expired.pem, key_file: expired.key"),
    "identity: {mode: mtls, mtls: {subjects_file: subjects.yaml}}\n"
    + listen(
        "certificate_file: server.pem, key_file: server.key, client_ca_file: ca.pem, client_certificate: required"
    ),
    "identity: {mode: any, keys_file: keys.yaml, mtls: {subjects_file: subjects.yaml}}\n"
    + listen(
        "certificate_file: server.pem, key_file: server.key, client_ca_file: ca.pem, client_certificate: optional"
    ),
]


@pytest.mark.parametrize("more", GOOD)
def test_a_good_policy_is_taken(more: str, directory: Path) -> None:
    assert problems(directory, more) == ()


BAD = {
    "jwt without its key": (
        "identity: {mode: jwt}\n",
        18,
        "`mode: jwt` needs `identity.jwt`; declare it with `keys_file`, `issuer` and `audience`",
    ),
    "mtls without its key": (
        "identity: {mode: mtls}\n",
        18,
        "`mode: mtls` needs `identity.mtls`; declare it with `subjects_file`",
    ),
    "header without its key": (
        "identity: {mode: header}\n",
        18,
        "`mode: header` needs `identity.header`; declare it with `name` and `networks`",
    ),
    "any of one": ("identity: {mode: any, keys_file: keys.yaml}\n", 18, "`any` with 1 kinds to choose from"),
    "any of none": ("identity: {mode: any}\n", 18, "`any` with 0 kinds"),
    "key without its mode": (
        "identity: {jwt: " + JWT + "}\n",
        17,
        "`jwt` is given, but with `mode: none` nobody is asked for it; write `mode: jwt`",
    ),
    "key of another mode": (
        "identity: {mode: api_key, keys_file: keys.yaml, jwt: " + JWT + "}\n",
        54,
        "`jwt` is given, but with `mode: api_key` it is not used; write `mode: any`",
    ),
    "jwt without audience": (
        "identity: {mode: jwt, jwt: {keys_file: jwks.json, issuer: i}}\n",
        28,
        "`audience` is missing",
    ),
    "jwt with a shared secret": (
        "identity: {mode: jwt, jwt: {keys_file: jwks.json, issuer: i, audience: a, algorithms: [HS256]}}\n",
        88,
        "`HS256` is not known; allowed: ES256",
    ),
    "jwt with none": (
        "identity: {mode: jwt, jwt: {keys_file: jwks.json, issuer: i, audience: a, algorithms: [none]}}\n",
        88,
        "`none` is not known",
    ),
    "jwt without algorithms": (
        "identity: {mode: jwt, jwt: {keys_file: jwks.json, issuer: i, audience: a, algorithms: []}}\n",
        87,
        "the list is empty",
    ),
    "no file of token keys": (
        "identity: {mode: jwt, jwt: {keys_file: gone.json, issuer: i, audience: a}}\n",
        40,
        "there is no file",
    ),
    "bad file of token keys": (
        "identity: {mode: jwt, jwt: {keys_file: notes.txt, issuer: i, audience: a}}\n",
        40,
        "notes.txt: it is neither PEM nor JSON",
    ),
    "keys of other algorithms": (
        "identity: {mode: jwt, jwt: {keys_file: ec.json, issuer: i, audience: a, algorithms: [RS256]}}\n",
        40,
        "ec.json: its keys sign with ES256",
    ),
    "header with capitals": (
        "identity: {mode: header, header: {name: X-Tenant, networks: [10.0.0.0/8]}}\n",
        41,
        "`X-Tenant` is not a header's name",
    ),
    "header of another meaning": (
        "identity: {mode: header, header: {name: authorization, networks: [10.0.0.0/8]}}\n",
        41,
        "has a meaning of its own",
    ),
    "header for everybody": (
        "identity: {mode: header, header: {name: x-tenant, networks: []}}\n",
        61,
        "the list is empty",
    ),
    "a network with bits behind": (
        "identity: {mode: header, header: {name: x-tenant, networks: [10.0.0.1/8]}}\n",
        62,
        "`10.0.0.1/8` is no network: 10.0.0.1/8 has host bits set; write as in",
    ),
    "mtls without asking": (
        "identity: {mode: mtls, mtls: {subjects_file: subjects.yaml}}\n",
        24,
        "no client is asked for a certificate; set `gateway.listen.tls.client_certificate`",
    ),
    "certificate without key": (listen("certificate_file: server.pem"), 25, "the key `key_file` is missing"),
    "no certificate file": (
        listen("certificate_file: gone.pem, key_file: server.key"), 44, "gone.pem; paths are relative to fleet.yaml",
    ),
    "a directory": (listen("certificate_file: models, key_file: server.key"), 44, "models cannot be read"),
    "not PEM": (listen("certificate_file: der.pem, key_file: server.key"), 44, "der.pem: it is not PEM; write"),
    "an empty file": (listen("certificate_file: empty, key_file: server.key"), 44, "empty: it is not PEM"),
    "a key for a certificate": (
        listen("certificate_file: server.key, key_file: server.key"), 44, "server.key: there is no certificate in it",
    ),
    "a certificate for a key": (
        listen("certificate_file: server.pem, key_file: server.pem"), 66, "server.pem: there is no private key in it",
    ),
    "a cut certificate": (
        listen("certificate_file: cut.pem, key_file: server.key"), 44, "cut.pem: a certificate in it cannot be read",
    ),
    "another's key": (
        listen("certificate_file: server.pem, key_file: other.key"), 66, "other.key: the key does not belong to the",
    ),
    "an encrypted key": (
        listen("certificate_file: server.pem, key_file: locked.key"), 66, "locked.key: the key is encrypted; store it",
    ),
    "required without authorities": (
        listen("certificate_file: server.pem, key_file: server.key, client_certificate: required"),
        98,
        "`required` needs `client_ca_file`",
    ),
    "authorities for nothing": (
        listen("certificate_file: server.pem, key_file: server.key, client_ca_file: ca.pem"),
        94,
        "`client_ca_file` is given, but no client is asked for a certificate",
    ),
    "bad authorities": (
        listen(
            "certificate_file: server.pem, key_file: server.key, client_ca_file: notes.txt, "
            "client_certificate: required"
        ),
        94,
        "notes.txt: it is not PEM",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "column", "said"), BAD.values(), ids=BAD)
def test_a_bad_policy_is_refused_with_place_and_remedy(more: str, column: int, said: str, directory: Path) -> None:
    (problem,) = problems(directory, more)
    assert problem.file.endswith("fleet.yaml")
    assert (problem.line, problem.column) == (LINE, column), str(problem)
    assert said in str(problem)
    assert problem.remedy or problem.allowed


def test_optional_certificates_alone_let_nobody_in_where_the_library_serves_grpc(directory: Path) -> None:
    keys = "certificate_file: server.pem, key_file: server.key, client_ca_file: ca.pem, client_certificate: optional"
    identity = "identity: {mode: mtls, mtls: {subjects_file: subjects.yaml}}\n"
    assert problems(directory, identity + listen(keys)) == ()
    library = f"gateway: {{grpc: {{server: grpcio}}, listen: {{tls: {{{keys}}}}}}}\n"
    (problem,) = problems(directory, identity + library)
    assert "nobody could call there" in problem.message


def test_problems_of_the_file_of_subjects_come_with_the_others(directory: Path) -> None:
    (directory / "subjects.yaml").write_text("- {subject: shop, tenant: shop}\n")
    keys = "certificate_file: server.pem, key_file: server.key, client_ca_file: ca.pem, client_certificate: required"
    (problem,) = problems(directory, "identity: {mode: mtls, mtls: {subjects_file: subjects.yaml}}\n" + listen(keys))
    assert problem.file.endswith("subjects.yaml")
    assert (problem.line, problem.column) == (1, 13)


POOL = "pools:\n  cpu:\n    tls: {%s}\n    replicas: {dns: {host: triton}}\n"


@pytest.mark.parametrize(
    ("keys", "column", "said"),
    [
        ("", 0, ""),
        ("ca_file: ca.pem", 0, ""),
        ("ca_file: ca.pem, server_name: triton, certificate_file: server.pem, key_file: server.key", 0, ""),
        ("certificate_file: server.pem", 29, "`certificate_file` is given without `key_file`"),
        ("key_file: server.key", 21, "`key_file` is given without `certificate_file`"),
        ("ca_file: gone.pem", 20, "there is no file"),
        ("ca_file: notes.txt", 20, "notes.txt: it is not PEM"),
        ("certificate_file: server.pem, key_file: other.key", 51, "other.key: the key does not belong"),
    ],
)
def test_tls_of_a_pool_is_checked_likewise(keys: str, column: int, said: str, directory: Path) -> None:
    write(directory, fleet=POOL % keys)
    found = problems_of(directory)
    assert [(each.line, each.column) for each in found] == ([(3, column)] if said else [])
    assert all(said in str(each) for each in found)


def test_the_files_content_is_no_part_of_the_revision(directory: Path) -> None:
    write(directory, fleet=FLEET + listen("certificate_file: server.pem, key_file: server.key"))
    before = load_policies(str(directory)).revision
    OTHER.write(directory)
    assert load_policies(str(directory)).revision == before


def test_keys_of_the_manual_s_defaults_are_what_the_loader_gives(directory: Path) -> None:
    write(directory, fleet=FLEET + GOOD[0])
    policy = load_policies(str(directory)).fleet.identity.jwt
    assert policy is not None
    assert policy.algorithms == ("RS256", "ES256")
    assert policy.tenant_claim == "sub"
    assert Identity("x").models is None
