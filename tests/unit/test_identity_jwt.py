"""Tokens: which are taken, and every way in which one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Identity
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.policy.identity_jwt import (
    CANDIDATES_MAX,
    KEYS_MAX,
    REFUSED_MAX,
    TOKEN_CHARS_MAX,
    TokenRing,
    check_jwt_keys,
    parse_jwt_keys,
)
from gateway.policy.identity_schema import JwtPolicy
from gateway.policy.problems import PolicyError
from tests.support.certificates import private_pem, public_pem

NOW_S = 1_800_000_000.0
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
POLICY = JwtPolicy(
    keys_file="keys.json",
    issuer="https://issuer.example",
    audience="sluice",
    algorithms=("RS256", "PS256", "ES256", "EdDSA"),
)
CLAIMS: Mapping[str, Any] = {
    "iss": "https://issuer.example",
    "aud": "sluice",
    "sub": "shop",
    "exp": NOW_S + 600,
    "nbf": NOW_S - 600,
    "iat": NOW_S - 600,
}


def jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """A private key's public half as a JWK."""
    algorithm: Any = (
        jwt.algorithms.RSAAlgorithm
        if isinstance(key, rsa.RSAPrivateKey)
        else jwt.algorithms.ECAlgorithm
        if isinstance(key, ec.EllipticCurvePrivateKey)
        else jwt.algorithms.OKPAlgorithm
    )
    made: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    made.pop("key_ops", None)
    return {**made, **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def ring(data: bytes | None = None, policy: JwtPolicy = POLICY, **changes: Any) -> TokenRing:
    data = jwks(jwk(RSA, "rsa-1"), jwk(EC, "ec-1"), jwk(ED, "ed-1")) if data is None else data
    return TokenRing(msgspec.structs.replace(policy, **changes), parse_jwt_keys(data, "keys.json"))


RING = ring()


def token(
    key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa-1", header: Any = None, **claims: Any
) -> str:
    body = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    named = {} if kid is None else {"kid": kid}
    return jwt.encode(body, key, algorithm, headers={**named, **(header or {})})


def refusal(subject: TokenRing, presented: str, wall_s: float = NOW_S) -> str:
    with pytest.raises(GatewayError) as caught:
        subject.identify(presented, wall_s)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert caught.value.code is Code.UNAUTHENTICATED
    return caught.value.message


def segment(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA, "RS256", "rsa-1"), (RSA, "PS256", "rsa-1"), (EC, "ES256", "ec-1"), (ED, "EdDSA", "ed-1")],
)
def test_a_good_token_names_its_tenant(key: Any, algorithm: str, kid: str) -> None:
    assert ring().identify(token(key, algorithm, kid), NOW_S) == Identity("shop")


def test_the_audience_may_be_one_of_several() -> None:
    assert ring().identify(token(aud=["other", "sluice"]), NOW_S).tenant == "shop"


def test_other_claims_may_be_named_by_the_policy() -> None:
    subject = ring(tenant_claim="https://shop.example/tenant", models_claim="models", explain_claim="ops")
    many: dict[str, Any] = {"https://shop.example/tenant": "acme", "models": ["fraud", "ranker", 7], "ops": True}
    assert subject.identify(token(**many), NOW_S) == Identity("acme", frozenset({"fraud", "ranker"}), True)
    words: dict[str, Any] = {**many, "models": "fraud ranker", "ops": "true"}
    assert subject.identify(token(**words), NOW_S) == Identity("acme", frozenset({"fraud", "ranker"}), False)
    assert subject.identify(token(**words | {"models": ["*"]}), NOW_S).models is None


def test_a_token_without_the_claim_for_models_may_call_none() -> None:
    identity = ring(models_claim="models").identify(token(), NOW_S)
    assert identity.models == frozenset()
    assert not identity.may_call("fraud")


def test_pem_keys_have_no_kid_and_are_all_tried() -> None:
    subject = ring(public_pem(OTHER_RSA) + public_pem(RSA))
    assert subject.identify(token(kid=None), NOW_S).tenant == "shop"
    assert subject.identify(token(kid="whatever the issuer says"), NOW_S).tenant == "shop"


def test_a_key_without_a_kid_checks_tokens_that_name_none() -> None:
    subject = ring(jwks(jwk(RSA, None), jwk(OTHER_RSA, "b")))
    assert subject.identify(token(kid=None), NOW_S).tenant == "shop"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": NOW_S - 11}, "expired"),
        ({"exp": None}, "no end"),
        ({"exp": "soon"}, "`exp` is no time"),
        ({"exp": True}, "`exp` is no time"),
        ({"exp": 1e300}, "`exp` is no time"),
        ({"nbf": NOW_S + 11}, "not valid yet (`nbf`)"),
        ({"nbf": []}, "`nbf` is no time"),
        ({"iat": NOW_S + 11}, "not valid yet (`iat`)"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "another"}, "another audience"),
        ({"aud": ["a", "b"]}, "another audience"),
        ({"aud": {"sluice": 1}}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"sub": None}, "no tenant"),
        ({"sub": ""}, "no tenant"),
        ({"sub": "a b"}, "no tenant"),
        ({"sub": "line\nbreak"}, "no tenant"),
        ({"sub": "anonymous"}, "no tenant"),
        ({"sub": "Anonymous"}, "no tenant"),
    ],
)
def test_claims_that_do_not_fit_are_refused(claims: dict[str, Any], said: str) -> None:
    # PyJWT will not write some of these; the signature is over whatever bytes are there.
    body = json.dumps({k: v for k, v in {**CLAIMS, **claims}.items() if v is not None}).encode()
    presented = jwt.PyJWS().encode(body, RSA, "RS256", headers={"kid": "rsa-1"})
    assert said in refusal(ring(), presented)


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
def test_clocks_may_differ_by_the_leeway_and_no_more(name: str) -> None:
    def off_by(seconds: int) -> str:
        claims: dict[str, Any] = {name: NOW_S + (-seconds if name == "exp" else seconds)}
        return token(**claims)

    assert ring(leeway_s=10.0).identify(off_by(9), NOW_S).tenant == "shop"
    assert refusal(ring(leeway_s=10.0), off_by(11))
    assert refusal(ring(leeway_s=0.0), off_by(1))


def test_none_is_no_signature() -> None:
    unsigned = f"{segment({'alg': 'none', 'typ': 'JWT'})}.{segment(CLAIMS)}."
    assert "no token" in refusal(ring(), unsigned)
    for spelled in ("none", "None", "NONE", "nOnE", ""):
        for signature in ("AA", token().rpartition(".")[2]):
            header = segment({"alg": spelled, "kid": "rsa-1"})
            assert "not signed in a way" in refusal(ring(), f"{header}.{segment(CLAIMS)}.{signature}")


@pytest.mark.parametrize("secret", [public_pem(RSA), public_pem(RSA).strip(), b"", b"secret"])
def test_a_public_key_is_never_a_shared_secret(secret: bytes) -> None:
    """The token is signed with HMAC, the bytes of the public key as the secret."""
    head = f"{segment({'alg': 'HS256', 'kid': 'rsa-1'})}.{segment(CLAIMS)}"
    forged = f"{head}.{segment(hmac.new(secret, head.encode(), hashlib.sha256).digest())}"
    assert "not signed in a way" in refusal(ring(), forged)
    relabelled = head.replace(segment({"alg": "HS256", "kid": "rsa-1"}), segment({"alg": "RS256", "kid": "rsa-1"}))
    forged = f"{relabelled}.{segment(hmac.new(secret, relabelled.encode(), hashlib.sha256).digest())}"
    assert "signature is not good" in refusal(ring(), forged)


def test_an_algorithm_that_the_policy_does_not_list_is_refused() -> None:
    assert "not signed in a way" in refusal(ring(algorithms=("ES256",)), token())


def test_an_algorithm_of_another_kind_of_key_is_refused() -> None:
    assert "not known here" in refusal(ring(), token(RSA, "RS256", "ec-1"))
    assert "not known here" in refusal(ring(), token(EC, "ES256", "rsa-1"))


def test_a_key_that_says_its_algorithm_has_no_other() -> None:
    subject = ring(jwks(jwk(RSA, "rsa-1", alg="PS256")))
    assert "not known here" in refusal(subject, token())
    assert subject.identify(token(algorithm="PS256"), NOW_S).tenant == "shop"


def test_an_unknown_kid_is_refused_without_a_verification() -> None:
    subject = ring()
    assert "not known here" in refusal(subject, token(kid="rsa-2"))
    assert "not known here" in refusal(subject, _kid(7))
    assert subject.tally.verifications == 0


def _kid(value: Any) -> str:
    head = f"{segment({'alg': 'RS256', 'kid': value})}.{segment(CLAIMS)}"
    return f"{head}.{segment(b'x' * 256)}"


def test_another_key_s_signature_under_a_known_kid_is_refused() -> None:
    assert "signature is not good" in refusal(ring(), token(OTHER_RSA))


def test_a_token_that_names_no_key_must_leave_few_to_try() -> None:
    few = ring(jwks(*(jwk(RSA, f"k{i}") for i in range(CANDIDATES_MAX))))
    assert few.identify(token(kid=None), NOW_S).tenant == "shop"
    many = ring(jwks(*(jwk(RSA, f"k{i}") for i in range(CANDIDATES_MAX + 1))))
    assert "which key" in refusal(many, token(kid=None))
    assert many.tally.verifications == 0


@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"b64": False}, {"crit": ["b64"], "b64": False}, {"crit": []}])
def test_extensions_that_must_be_understood_are_refused(extra: dict[str, Any]) -> None:
    head = segment({"alg": "RS256", "kid": "rsa-1", **extra})
    assert "extensions" in refusal(ring(), f"{head}.{segment(CLAIMS)}.AAAA")


@given(
    st.binary(min_size=1, max_size=600),
    st.sampled_from([("RS256", "rsa-1"), ("PS256", "rsa-1"), ("ES256", "ec-1"), ("EdDSA", "ed-1")]),
)
def test_no_bytes_are_a_signature_by_chance_or_fail_otherwise(signature: bytes, how: tuple[str, str]) -> None:
    head = segment({"alg": how[0], "kid": how[1]})
    assert "signature is not good" in refusal(RING, f"{head}.{segment(CLAIMS)}.{segment(signature)}")


def test_keys_in_the_token_itself_are_not_looked_at() -> None:
    own = {"jwk": jwk(OTHER_RSA, "rsa-1"), "jku": "http://127.0.0.1:9/keys", "x5u": "http://127.0.0.1:9/"}
    assert "signature is not good" in refusal(ring(), token(OTHER_RSA, header=own))
    assert ring().identify(token(header=own), NOW_S).tenant == "shop", "nor minded"


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_changed_anywhere_is_refused(part: int) -> None:
    parts = token().split(".")
    for place in range(0, len(parts[part]), 13):
        was = parts[part][place]
        changed = parts[part][:place] + ("A" if was != "A" else "B") + parts[part][place + 1 :]
        assert refusal(ring(), ".".join(changed if i == part else each for i, each in enumerate(parts)))


@pytest.mark.parametrize(
    "presented",
    [
        "", ".", "..", "a.b", "a.b.c.d", "x" * 100, "slk_abcdefg", "ü.ü.ü", "\ud800.a.b", "a" * (TOKEN_CHARS_MAX + 1),
        f"{segment([])}.{segment(CLAIMS)}.AAAA", f"{segment(b'{')}.e30.AAAA", f"{segment(b'[' * 3000)}.e30.AAAA",
        f"{segment({'alg': 7})}.e30.AAAA", f"{segment({'alg': ['RS256'], 'kid': 'rsa-1'})}.e30.AAAA",
        f"{segment({'alg': 'RS256', 'kid': 'rsa-1'})}=.e30.AAAA", token() + "\n", " " + token(), token() + "=",
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused(presented: str) -> None:
    assert refusal(ring(), presented)


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}"))
def test_no_text_fails_in_any_other_way(presented: str) -> None:
    assert refusal(ring(), presented)


@pytest.mark.parametrize("payload", [b"", b"[]", b"nul", b'"text"', b"[" * 2000])
def test_a_signed_payload_that_is_no_set_of_claims_is_refused(payload: bytes) -> None:
    presented = jwt.PyJWS().encode(payload, RSA, "RS256", headers={"kid": "rsa-1"})
    assert "no" in refusal(ring(), presented)


def test_a_refusal_says_nothing_that_is_in_the_token() -> None:
    secret = "hunter2secret"
    for presented in (token(sub=secret + " "), token(iss=secret), token(kid=secret), token(OTHER_RSA, sub=secret)):
        text = refusal(ring(), presented)
        assert secret not in text
        assert presented not in text
        assert "shop" not in text


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_a_token_is_verified_once_and_until_it_expires() -> None:
    subject = ring(leeway_s=5.0)
    presented = token(exp=NOW_S + 60)
    for moment in (0.0, 1.0, 64.0):
        assert subject.identify(presented, NOW_S + moment).tenant == "shop"
    assert subject.tally.verifications == 1
    assert "expired" in refusal(subject, presented, NOW_S + 65.0)
    assert "expired" in refusal(subject, presented, NOW_S + 65.0)
    assert subject.remembered == 0


def test_remembered_tokens_are_bounded_and_the_latest_used_stay() -> None:
    subject = ring(tokens_max=3)
    mine = token(sub="mine")
    for i in range(10):
        subject.identify(mine, NOW_S)
        subject.identify(token(EC, "ES256", "ec-1", sub=f"t{i}"), NOW_S)
    assert subject.remembered == 3
    assert subject.tally.verifications == 11, "mine once, the ten others once each"


def test_the_same_bad_token_costs_one_verification_and_many_are_bounded() -> None:
    subject = ring()
    forged = token(OTHER_RSA)
    for _ in range(50):
        assert "signature is not good" in refusal(subject, forged)
    assert subject.tally.verifications == 1
    head = forged.rpartition(".")[0]
    for i in range(REFUSED_MAX + 10):
        refusal(subject, f"{head}.{segment(i.to_bytes(256, 'big'))}")
    assert len(subject._refused) == REFUSED_MAX
    assert subject.remembered == 0


def test_a_token_that_is_not_valid_yet_is_taken_when_it_is() -> None:
    subject = ring()
    presented = token(nbf=NOW_S + 30)
    assert "not valid yet" in refusal(subject, presented)
    assert subject.identify(presented, NOW_S + 30).tenant == "shop"


def test_new_keys_forget_what_old_ones_verified() -> None:
    before, after = ring(jwks(jwk(RSA, "a"))), ring(jwks(jwk(OTHER_RSA, "b")))
    presented = token(kid="a")
    assert before.identify(presented, NOW_S).tenant == "shop"
    assert "not known here" in refusal(after, presented)
    during = ring(jwks(jwk(RSA, "a"), jwk(OTHER_RSA, "b")))
    assert during.identify(presented, NOW_S) == during.identify(token(OTHER_RSA, kid="b"), NOW_S)


# --- the file of keys -------------------------------------------------------------------------------------------------


def bad(data: bytes) -> str:
    with pytest.raises(PolicyError) as caught:
        parse_jwt_keys(data, "keys.json")
    (problem,) = caught.value.problems
    assert problem.file == "keys.json"
    assert problem.remedy
    return problem.message


SMALL_RSA = rsa.generate_private_key(65537, 1024)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "neither PEM nor JSON"),
        (b"\xff\xfe", "neither PEM nor JSON"),
        (b"[" * 5000, "neither PEM nor JSON"),
        (b"{}", "no JWKS"),
        (b"[]", "no JWKS"),
        (b'{"keys": {}}', "no JWKS"),
        (b'{"keys": []}', "no key in it"),
        (b'{"keys": [7]}', "keys[0] is no key"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "no key in it"),
        (jwks(jwk(RSA, "a", use="enc")), "no key in it"),
        (jwks(jwk(RSA, "a", key_ops=["encrypt"])), "no key in it"),
        (jwks(jwk(RSA, "a", alg="RSA-OAEP")), "no key in it"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB"}]}', "keys[0] cannot be read"),
        (b'{"keys": [{"kty": "RSA", "n": 7, "e": "AQAB"}]}', "keys[0] cannot be read"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', "keys[0] cannot be read"),
        (jwks({**jwk(RSA, None), "kid": 7}), "keys[0].kid is no text"),
        (jwks(jwk(RSA, "a"), jwk(EC, "a")), "two keys have the `kid` a"),
        (jwks(jwk(SMALL_RSA, "a")), "1024 bits"),
        (jwks(*(jwk(EC, str(i)) for i in range(KEYS_MAX + 1))), f"more than {KEYS_MAX}"),
        (private_pem(RSA), "a private key in it"),
        (public_pem(SMALL_RSA), "1024 bits"),
        (public_pem(RSA) * (CANDIDATES_MAX + 1), "more than 4"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "no public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n", "has no end"),
        (public_pem(ec.generate_private_key(ec.SECP256K1())), "neither RSA"),
        (b" " * (1024 * 1024 + 1), "larger than"),
    ],
)
def test_a_bad_file_of_keys_is_refused(data: bytes, said: str) -> None:
    assert said in bad(data)


def test_a_private_key_in_a_jwks_is_refused_by_name() -> None:
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA))
    message = bad(jwks({**private, "kid": "a"}))
    assert "keys[0] is a private key" in message
    assert private["d"] not in message


def test_keys_for_other_things_are_passed_over() -> None:
    shared = {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "s"}
    keys = parse_jwt_keys(jwks(shared, {"kty": "new"}, jwk(RSA, "enc", use="enc"), jwk(EC, "sig", use="sig")), "f")
    assert [key.kid for key in keys] == ["sig"]


def test_keys_that_fit_no_algorithm_of_the_policy_are_refused() -> None:
    check_jwt_keys(public_pem(RSA), "f", ["RS256", "ES256"])
    with pytest.raises(PolicyError, match=r"which `identity\.jwt\.algorithms` does not take"):
        check_jwt_keys(public_pem(RSA), "f", ["ES256"])


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_the_parser_fail_otherwise(data: bytes) -> None:
    read: Callable[[], object] = lambda: parse_jwt_keys(data, "f")  # noqa: E731
    with pytest.raises(PolicyError):
        read()
