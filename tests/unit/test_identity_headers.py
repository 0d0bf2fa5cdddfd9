"""Credentials in headers: read, handed on to the authenticator, and to nobody else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.core.credentials import NO_CREDENTIALS, NO_PEER, Credentials, Peer
from gateway.core.errors import Reason
from gateway.edge.headers import ClientHeaders, HeaderReader

PEER = Peer("10.0.0.7")


def read(*pairs: tuple[str, str], header: str = "x-tenant", peer: Peer = PEER) -> ClientHeaders:
    reader = HeaderReader(("*",), random.Random(3), header)
    as_text = reader.read(pairs, peer)
    as_bytes = reader.read_bytes([(name.encode(), value.encode("latin-1")) for name, value in pairs], peer)
    assert as_text.credentials == as_bytes.credentials
    return as_text


def test_each_credential_has_its_place() -> None:
    found = read(("x-api-key", "k"), ("x-tenant", "shop"), ("other", "o"))
    assert found.credentials == Credentials("k", None, "shop", PEER)
    assert read(("authorization", "Bearer t")).credentials == Credentials(None, "t", None, PEER)
    assert read(("authorization", "bearer   t  ")).credentials.bearer == "t"
    assert read(("authorization", "Basic dDp0")).credentials == Credentials(peer=PEER)
    assert read(("authorization", "Bearer")).credentials == Credentials(peer=PEER)
    assert read(("x-api-key", "")).credentials == Credentials(peer=PEER)


def test_who_shows_nothing_shows_the_peer_alone() -> None:
    assert read().credentials == Credentials(peer=PEER)
    assert read(("other", "o")).credentials == Credentials(peer=PEER)
    assert read(peer=NO_PEER).credentials is NO_CREDENTIALS, "nothing is made for a call that needs nothing"


def test_credentials_never_go_on_whatever_the_policy_forwards() -> None:
    found = read(
        ("x-api-key", "k"), ("authorization", "Basic dDp0"), ("x-tenant", "shop"), ("cookie", "c"), ("x-a", "1")
    )
    assert found.metadata == (("x-a", "1"),)
    assert read(("x-tenant", "shop"), header="").metadata == (("x-tenant", "shop"),), "an ordinary header elsewhere"
    assert read(("x-tenant", "shop"), header="").credentials.claimed is None


def test_a_trusted_header_with_two_values_is_refused() -> None:
    found = read(("x-tenant", "shop"), ("x-tenant", "other"))
    assert found.fault is not None
    assert found.fault.reason is Reason.BAD_REQUEST
    assert read(("x-tenant", "shop"), ("x-tenant", "shop")).credentials.claimed == "shop"


def test_two_different_keys_are_refused_without_being_shown() -> None:
    found = read(("x-api-key", "hunter2"), ("authorization", "Bearer hunter3"))
    assert found.fault is not None
    assert "hunter" not in found.fault.message
    assert read(("x-api-key", "k"), ("authorization", "Bearer k")).fault is None


def test_who_has_another_header_wrong_is_known_all_the_same() -> None:
    found = read(("x-request-timeout-ms", "soon"), ("x-api-key", "k"))
    assert found.fault is not None
    assert found.credentials.api_key == "k"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tls-ca", "ca.pem"], "want --url to begin with https://"),
        (["--url", "ftp://x"], "is not an address like"),
        (["--url", "https://localhost:1", "--tls-ca", "/nowhere/ca.pem"], "--tls-ca: /nowhere/ca.pem holds no"),
        (["--url", "https://localhost:1", "--tls-key", "k.pem"], "of no use without --tls-cert"),
        (["--url", "https://localhost:1", "--tls-cert", "/nowhere/c.pem"], "not a certificate and its key"),
        (["--bearer", "/nowhere/token"], "--bearer: /nowhere/token holds no token"),
        (["--bearer", "TWO"], "does not hold one token"),
        (["--bearer", "EMPTY"], "does not hold one token"),
    ],
)
def test_the_command_line_says_what_is_wrong_with_credentials(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "TWO").write_text("one two\n")
    (tmp_path / "EMPTY").write_text("\n")
    placed = [str(tmp_path / word) if word in ("TWO", "EMPTY") else word for word in words]
    assert main(["infer", "fraud", *placed]) == 2
    assert said in capsys.readouterr().err
