"""Who a request belongs to where several kinds of credentials are taken; networks; subjects of certificates."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cryptography import x509

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.credentials import NO_CREDENTIALS, Credentials, Peer, PeerCertificate
from gateway.core.errors import GatewayError, Reason
from gateway.policy.document import SUBJECTS_EXAMPLE
from gateway.policy.identity import Identifier, Networks, parse_network
from gateway.policy.identity_jwt import TokenRing, parse_jwt_keys
from gateway.policy.identity_subjects import SubjectMap, parse_subjects, peer_certificate, subjects
from gateway.policy.keys import KeyRing, new_key, parse_keys
from gateway.policy.problems import PolicyError
from tests.support.certificates import Authority
from tests.unit.test_identity_jwt import NOW_S, POLICY, RSA, token
from tests.unit.test_identity_jwt import jwk as jwk_of
from tests.unit.test_identity_jwt import jwks as jwks_of

KEY, HASH = new_key(bytes(range(32)))
KEYS = parse_keys(f"- {{tenant: by-key, sha256: '{HASH}'}}\n".encode(), "keys.yaml")
SUBJECTS = parse_subjects(b"- {subject: 'cn:shop', tenant: by-certificate}\n", "subjects.yaml")
NETWORKS = Networks(["10.0.0.0/8", "::1/128"])
PROXY, STRANGER = "10.1.2.3", "192.0.2.7"
SHOP = PeerCertificate(common_name="shop")


def tokens() -> TokenRing:
    return TokenRing(POLICY, parse_jwt_keys(jwks_of(jwk_of(RSA, "rsa-1")), "keys.json"))


def everything() -> Identifier:
    return Identifier(keys=KEYS, tokens=tokens(), networks=NETWORKS, subjects=SUBJECTS)


def credentials(
    *,
    api_key: str | None = None,
    bearer: str | None = None,
    claimed: str | None = None,
    address: str = STRANGER,
    certificate: PeerCertificate | None = None,
) -> Credentials:
    return Credentials(api_key, bearer, claimed, Peer(address, certificate))


def refusal(identifier: Identifier, shown: Credentials, wall_s: float = NOW_S) -> str:
    with pytest.raises(GatewayError) as caught:
        identifier.identify(shown, wall_s)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    return caught.value.message


GOOD: dict[str, dict[str, Any]] = {
    "by-key": {"api_key": KEY},
    "by-token": {"bearer": token(sub="by-token")},
    "by-header": {"claimed": "by-header", "address": PROXY},
    "by-certificate": {"certificate": SHOP},
}
BAD: dict[str, dict[str, Any]] = {
    "by-key": {"api_key": "slk_wrong"},
    "by-token": {"bearer": token(exp=NOW_S - 100)},
    "by-header": {"claimed": "no tenant!", "address": PROXY},
    "by-certificate": {"certificate": PeerCertificate(common_name="nobody")},
}
"""In the order in which they decide."""


@pytest.mark.parametrize("kind", GOOD)
def test_each_kind_alone_names_its_tenant(kind: str) -> None:
    assert everything().identify(credentials(**GOOD[kind]), NOW_S) == Identity(kind)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(GOOD, 2)))
def test_of_two_kinds_the_earlier_decides_and_a_bad_one_is_never_passed_over(first: str, second: str) -> None:
    subject = everything()
    assert subject.identify(credentials(**{**GOOD[second], **GOOD[first]}), NOW_S).tenant == first
    assert subject.identify(credentials(**{**BAD[second], **GOOD[first]}), NOW_S).tenant == first
    assert refusal(subject, credentials(**{**GOOD[second], **BAD[first]}))


def test_nothing_shown_is_refused_in_words_of_what_is_taken() -> None:
    assert refusal(everything(), NO_CREDENTIALS) == (
        "an API key or a token or a call through a trusted proxy or a client certificate is needed and none was sent"
    )
    assert refusal(Identifier(keys=KEYS), NO_CREDENTIALS) == "an API key is needed and none was sent"
    assert Identifier().identify(credentials(api_key="x"), NOW_S) is ANONYMOUS


@pytest.mark.parametrize("kind", GOOD)
def test_what_is_not_configured_is_not_looked_at(kind: str) -> None:
    parts: dict[str, Any] = {"keys": KEYS, "tokens": tokens(), "networks": NETWORKS, "subjects": SUBJECTS}
    del parts[{"by-key": "keys", "by-token": "tokens", "by-header": "networks", "by-certificate": "subjects"}[kind]]
    assert refusal(Identifier(**parts), credentials(**GOOD[kind]))


def test_a_bearer_may_be_a_key_or_a_token_and_a_bad_one_is_refused() -> None:
    subject = everything()
    assert subject.identify(credentials(bearer=KEY), NOW_S).tenant == "by-key"
    assert "no token" in refusal(subject, credentials(bearer="slk_wrong", certificate=SHOP))
    only = Identifier(keys=KEYS, subjects=SUBJECTS)
    assert only.identify(credentials(bearer=KEY), NOW_S).tenant == "by-key"
    assert "not known" in refusal(only, credentials(bearer="wrong", certificate=SHOP))
    assert Identifier(subjects=SUBJECTS).identify(credentials(bearer="x", certificate=SHOP), NOW_S).tenant


def test_the_header_is_believed_from_listed_networks_alone() -> None:
    subject = Identifier(networks=NETWORKS)
    for address in ("10.0.0.0", "10.255.255.255", "::1", "::ffff:10.1.2.3", "0:0:0:0:0:0:0:1"):
        assert subject.identify(credentials(claimed="shop", address=address), NOW_S) == Identity("shop")
    for address in (
        "11.0.0.0",
        "9.255.255.255",
        "::2",
        "::ffff:11.0.0.1",
        "",
        "unix:",
        "10.1.2.3:80",
        "localhost",
        "10",
    ):
        assert "needed and none was sent" in refusal(subject, credentials(claimed="shop", address=address))
    assert "needed" in refusal(subject, credentials(claimed="", address=PROXY))
    for tenant in ("anonymous", "ANONYMOUS", "a b", "x" * 65, "-a", "ü"):
        assert "names no tenant" in refusal(subject, credentials(claimed=tenant, address=PROXY))


def test_a_scoped_address_counts_without_its_scope() -> None:
    assert "fe80::1%eth0" in Networks(["fe80::/10"])


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0", "10.0.0.0/33", "", "::/129", "all", "10.0.0.0/-1"])
def test_what_is_no_network_is_said_so(text: str) -> None:
    with pytest.raises(ValueError):
        parse_network(text)


def test_answers_about_addresses_are_remembered_within_bounds() -> None:
    networks = Networks(["10.0.0.0/8"])
    for i in range(10_000):
        assert (f"10.0.{i >> 8}.{i & 255}" in networks) is True
        assert ("x" * 65 + str(i)) not in networks
    assert len(networks._answers) <= 4096


# --- subjects ---------------------------------------------------------------------------------------------------------


def subject_map(text: str) -> SubjectMap:
    return parse_subjects(text.encode(), "subjects.yaml")


def by(subject: SubjectMap, certificate: PeerCertificate, wall_s: float = NOW_S) -> Identity | str:
    try:
        return subject.identify(certificate, wall_s)
    except GatewayError as error:
        return f"{error.reason.label}: {error.message}"


def test_a_subject_is_matched_with_its_kind() -> None:
    subject = subject_map(
        "- {subject: 'uri:spiffe://c/ns/shop', tenant: u, models: [fraud], may_explain: true}\n"
        "- {subject: 'dns:Shop.Example.com', tenant: d}\n"
        "- {subject: 'cn:shop', tenant: c}\n"
    )
    assert by(subject, PeerCertificate(uris=("spiffe://c/ns/shop",))) == Identity("u", frozenset({"fraud"}), True)
    assert by(subject, PeerCertificate(dns=("SHOP.example.COM",))) == Identity("d")
    assert by(subject, PeerCertificate(common_name="shop")) == Identity("c")
    for other in (
        PeerCertificate(),
        PeerCertificate(common_name="shop.example.com"),
        PeerCertificate(dns=("shop",)),
        PeerCertificate(uris=("SPIFFE://c/ns/shop",)),
        PeerCertificate(uris=("spiffe://c/ns/shop/",)),
        PeerCertificate(common_name="Shop"),
        PeerCertificate(common_name="uri:spiffe://c/ns/shop"),
    ):
        assert by(subject, other) == "unauthenticated: the subject of the client certificate is not known"


def test_a_common_name_counts_only_alone() -> None:
    subject = subject_map("- {subject: 'cn:shop', tenant: c}\n")
    assert "not known" in str(by(subject, PeerCertificate(dns=("other.example",), common_name="shop")))
    assert "not known" in str(by(subject, PeerCertificate(uris=("spiffe://x",), common_name="shop")))


def test_a_certificate_of_two_tenants_is_nobody_s() -> None:
    subject = subject_map(
        "- {subject: 'dns:a', tenant: one}\n- {subject: 'dns:b', tenant: two}\n- {subject: 'dns:c', tenant: one}\n"
    )
    assert by(subject, PeerCertificate(dns=("a", "c", "unknown"))) == Identity("one")
    assert "more than one tenant" in str(by(subject, PeerCertificate(dns=("a", "b"))))


def test_a_certificate_that_expires_on_an_open_connection_is_refused_from_then_on() -> None:
    subject = subject_map("- {subject: 'cn:shop', tenant: c}\n")
    certificate = PeerCertificate(common_name="shop", not_after_s=NOW_S)
    assert by(subject, certificate, NOW_S) == Identity("c")
    assert "has expired" in str(by(subject, certificate, NOW_S + 1))


def test_names_are_read_from_a_certificate() -> None:
    pair = Authority().pair("shop", uris=("spiffe://c/ns/shop",), dns=("a.example", "b.example"))
    read = peer_certificate(x509.load_pem_x509_certificate(pair.certificate))
    assert (read.uris, read.dns, read.common_name) == (("spiffe://c/ns/shop",), ("a.example", "b.example"), "shop")
    assert subjects(read) == ("uri:spiffe://c/ns/shop", "dns:a.example", "dns:b.example")
    bare = peer_certificate(x509.load_pem_x509_certificate(Authority().pair("shop").certificate))
    assert subjects(bare) == ("cn:shop",)
    nameless = peer_certificate(x509.load_pem_x509_certificate(Authority().pair("").certificate))
    assert subjects(nameless) == ()


def test_the_example_of_the_manual_is_a_good_file_of_subjects() -> None:
    assert len(subject_map(SUBJECTS_EXAMPLE)) == 2


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("", 1, 1, "the file is empty"),
        ("subject: x\n", 1, 1, "a mapping stands where a list of subjects is wanted"),
        ("[]\n", 1, 1, "there is no subject in it"),
        ("- {subject: shop, tenant: a}\n", 1, 13, "`shop` is not a certificate's subject"),
        ("- {subject: 'CN=shop', tenant: a}\n", 1, 13, "is not a certificate's subject"),
        ("- {subject: 'cn:', tenant: a}\n", 1, 13, "is not a certificate's subject"),
        ("- {tenant: a}\n", 1, 3, "the key `subject` is missing"),
        ("- {subject: 'cn:a', tenant: anonymous}\n", 1, 29, "`anonymous` is reserved"),
        ("- {subject: 'cn:a', tenant: a, models: []}\n", 1, 40, "the list is empty"),
        ("- {subject: 'cn:a', tenant: a}\n- {subject: 'cn:a', tenant: b}\n", 2, 13, "stands already in line 1"),
        ("- {subject: 'dns:a.b', tenant: a}\n- {subject: 'dns:A.B', tenant: b}\n", 2, 13, "already in line 1"),
    ],
)
def test_a_bad_file_of_subjects_is_refused_with_its_place(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        subject_map(text)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (line, column)
    assert said in problem.message


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_no_secret_shows_in_a_repr() -> None:
    shown = Credentials("key-secret", "token-secret", "claimed-secret", Peer("10.0.0.1"))
    assert "secret" not in repr(shown)
    assert isinstance(KEYS, KeyRing)
    assert HASH not in repr(KEYS)
