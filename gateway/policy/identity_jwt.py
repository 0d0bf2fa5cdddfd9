"""JWT: the issuer's public keys, and what a presented token says if it is good.

The rules (RFC 8725): signatures of a closed list, each bound to the kind of key it is made with, so that a public key
is never taken for a shared secret and `none` is nothing; a token that names its key (`kid`) is checked with that key
alone; issuer and audience must be the ones of the policy; a token without an end (`exp`) is not taken. Key locations
in the token itself (`jku`, `jwk`, `x5u`) are never looked at.

PyJWT reads keys and verifies signatures. The three segments are taken apart here, since PyJWT looks at each character
in Python, 2 ms for a forged token of 16 KiB; claims are judged here because time is passed in.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.criticality import CLASS_OF, DEFAULT
from gateway.core.errors import GatewayError, Reason
from gateway.policy.identity_schema import JwtPolicy
from gateway.policy.keys import TENANT_TEXT
from gateway.policy.problems import START, PolicyError, Problems, printable

KEYS_BYTES_MAX = 1024 * 1024
KEYS_MAX = 256
TOKEN_CHARS_MAX = 16 * 1024
"""A longer token is refused unread."""
CANDIDATES_MAX = 4
"""Keys that one token is checked with at most: a token that names none must not cost a verification per key."""
REFUSED_MAX = 1024
"""Tokens with a bad signature that are remembered: a client that sends one again and again costs no verification."""
RSA_BITS_MIN = 2048

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_PRIVATE = ("d", "p", "q", "k")
_SEGMENTS = re.compile(r"(([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+))\.([A-Za-z0-9_-]+)\Z")
NO_TOKEN = "what stands behind `Bearer` is no token"

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


@dataclass(frozen=True, slots=True)
class JwtKey:
    """One public key of the issuer's. `kid` is "" where the file gives it none; `algorithms` are those it can have
    signed with.
    """

    kid: str
    key: PublicKey
    algorithms: frozenset[str]


class _Bad(Exception):
    """What is wrong with one key, and what to do."""


def parse_jwt_keys(data: bytes, file_name: str) -> tuple[JwtKey, ...]:
    """The keys of a JWKS document or of PEM blocks. Raises `PolicyError`. Keys of a JWKS that are for something else
    (`use: enc`, shared secrets, unknown kinds) are passed over, as RFC 7517 section 5 wants it; private keys are not.
    """
    problems = Problems()
    keys: list[JwtKey] = []
    try:
        if len(data) > KEYS_BYTES_MAX:
            raise _Bad(f"it is larger than {KEYS_BYTES_MAX} bytes; leave old keys out")
        keys = _from_pem(data) if b"-----BEGIN" in data else _from_jwks(data)
        if not keys:
            raise _Bad("there is no key in it to check a signature with; put the issuer's public keys there")
        if len(keys) > KEYS_MAX:
            raise _Bad(f"there are {len(keys)} keys in it, more than {KEYS_MAX}; leave old keys out")
        named = [key.kid for key in keys if key.kid]
        twice = next((kid for kid in named if named.count(kid) > 1), "")
        if twice:
            raise _Bad(f"two keys have the `kid` {printable(twice)}; each has its own")
    except _Bad as bad:
        message, _, remedy = str(bad).partition("; ")
        problems.add(file_name, START, (), message, remedy)
    problems.raise_if_any()
    return tuple(keys)


def _from_pem(data: bytes) -> list[JwtKey]:
    keys = []
    for match in _PEM.finditer(data):
        label = match[1].decode()
        if "PRIVATE" in label:
            raise _Bad("there is a private key in it; only public keys belong here, replace this key at the issuer")
        try:
            key = serialization.load_pem_public_key(match[0])
        except Exception as error:
            raise _Bad(f"a PEM block ({label}) is no public key: {_short(error)}; export it as PUBLIC KEY") from None
        keys.append(JwtKey("", *_usable(key)))
    if not keys:
        raise _Bad("its PEM block has no end; copy the file again")
    if len(keys) > CANDIDATES_MAX:
        raise _Bad(f"{len(keys)} PEM keys are more than {CANDIDATES_MAX}; use a JWKS, where each key has a `kid`")
    return keys


def _from_jwks(data: bytes) -> list[JwtKey]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Bad(f"it is neither PEM nor JSON: {_short(error)}; put a JWKS or PEM public keys there") from None
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise _Bad('it is no JWKS; write `{"keys": [...]}`')
    keys = []
    for i, each in enumerate(found):
        if not isinstance(each, dict):
            raise _Bad(f"keys[{i}] is no key; write a JSON object")
        if any(name in each for name in _PRIVATE) and each.get("kty") != "oct":
            raise _Bad(f"keys[{i}] is a private key; only public keys belong here, replace this key at the issuer")
        if each.get("kty") not in ("RSA", "EC", "OKP") or each.get("use", "sig") != "sig":
            continue
        if "verify" not in each.get("key_ops", ["verify"]):
            continue
        kid = each.get("kid", "")
        if not isinstance(kid, str):
            raise _Bad(f"keys[{i}].kid is no text; write it in quotes")
        try:
            # `alg` decides the class that reads the key: without it each kind has a default of its own.
            key, algorithms = _usable(jwt.PyJWK({**each, "alg": _any_algorithm(each)}).key)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise _Bad(f"keys[{i}] cannot be read: {_short(error)}; get the document from the issuer again") from None
        except _Bad as bad:
            raise _Bad(f"keys[{i}]: {bad}") from None
        alone = each.get("alg")
        if alone is not None:
            algorithms &= {alone}
        if algorithms:
            keys.append(JwtKey(kid, key, algorithms))
    return keys


def _any_algorithm(each: Mapping[str, Any]) -> str:
    if each["kty"] == "EC":
        return {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}.get(str(each.get("crv")), "ES256")
    return "EdDSA" if each["kty"] == "OKP" else "RS256"


def _usable(key: Any) -> tuple[PublicKey, frozenset[str]]:
    if isinstance(key, RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise _Bad(f"an RSA key has {key.key_size} bits; use {RSA_BITS_MIN} or more")
        return key, _RSA
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return key, frozenset({_CURVES[key.curve.name]})
    if isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        return key, frozenset({"EdDSA"})
    raise _Bad("a key is neither RSA, nor P-256, P-384 or P-521, nor Ed25519 or Ed448; use one of these")


def _short(error: BaseException) -> str:
    return printable(str(error) or type(error).__name__, 120)


class Tally:
    """Counts over all rings of one gateway."""

    __slots__ = ("verifications",)

    def __init__(self) -> None:
        self.verifications = 0
        """Signatures checked."""


class TokenRing:
    """Who holds a token. Remembers verified tokens by their hash, at most `tokens_max`, until they expire; the keys
    are fixed, so changed keys make a new ring and nothing verified with old ones stays.
    """

    def __init__(
        self, policy: JwtPolicy, keys: Iterable[JwtKey], tally: Tally | None = None, highest_class: int = DEFAULT
    ) -> None:
        """`highest_class` is that of tokens that name none."""
        self._policy = policy
        self._highest_class = highest_class
        self.tally = Tally() if tally is None else tally
        known = jwt.algorithms.get_default_algorithms()
        self._algorithms = {name: known[name] for name in policy.algorithms}
        self._by_kid: dict[str, JwtKey] = {}
        self._unnamed: list[JwtKey] = []
        self._all = tuple(keys)
        for key in self._all:
            if key.kid:
                self._by_kid[key.kid] = key
            else:
                self._unnamed.append(key)
        self._known: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        self._refused: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def remembered(self) -> int:
        return len(self._known)

    def identify(self, token: str, wall_s: float) -> Identity:
        """Raises `GatewayError` (UNAUTHENTICATED). `wall_s`: seconds since the epoch. The texts say what is wrong with
        the token, and nothing that is in it.
        """
        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            raise _refusal("the token is too long, or no token")
        digest = hashlib.sha256(token.encode("ascii")).digest()
        known = self._known.get(digest)
        if known is not None:
            identity, end_s = known
            if wall_s < end_s:
                self._known.move_to_end(digest)
                return identity
            del self._known[digest]
            raise _refusal("the token has expired")
        if digest in self._refused:
            self._refused.move_to_end(digest)
            raise _refusal("the token's signature is not good")
        claims = self._verified(token, digest)
        identity, end_s = self._judge(claims, wall_s)
        self._known[digest] = (identity, end_s)
        if len(self._known) > self._policy.tokens_max:
            self._known.popitem(last=False)
        return identity

    def _verified(self, token: str, digest: bytes) -> dict[str, Any]:
        """The claims of a token whose signature is good."""
        match = _SEGMENTS.match(token)
        if match is None:
            raise _refusal(NO_TOKEN)
        header = _object(match[2], NO_TOKEN)
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header or "b64" in header:
            raise _refusal("the token demands extensions that are not known here")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise _refusal("the token is not signed in a way that is taken here")
        candidates = self._candidates(kid, algorithm)
        verify, signed, signature = self._algorithms[algorithm].verify, match[1].encode("ascii"), _bytes(match[4])
        for key in candidates:
            self.tally.verifications += 1
            if verify(signed, key.key, signature):
                return _object(match[3], "the token has no claims")
        self._refused[digest] = None
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
        raise _refusal("the token's signature is not good")

    def _candidates(self, kid: object, algorithm: str) -> list[JwtKey]:
        """The keys that may have signed it, at most `CANDIDATES_MAX`."""
        if kid is None:
            keys = list(self._all)
        elif isinstance(kid, str) and kid in self._by_kid:
            keys = [self._by_kid[kid]]
        else:
            keys = self._unnamed
        fit = [key for key in keys if algorithm in key.algorithms]
        if not fit:
            raise _refusal("the token is signed with a key that is not known here")
        if len(fit) > CANDIDATES_MAX:
            raise _refusal("the token does not say which key signed it (`kid`)")
        return fit

    def _judge(self, claims: Mapping[str, Any], wall_s: float) -> tuple[Identity, float]:
        policy = self._policy
        leeway_s = policy.leeway_s
        end_s = _time(claims, "exp")
        if end_s is None:
            raise _refusal("the token has no end (`exp`)")
        if wall_s >= end_s + leeway_s:
            raise _refusal("the token has expired")
        for name in ("nbf", "iat"):
            begin_s = _time(claims, name)
            if begin_s is not None and wall_s < begin_s - leeway_s:
                raise _refusal(f"the token is not valid yet (`{name}`)")
        if claims.get("iss") != policy.issuer:
            raise _refusal("the token is from another issuer")
        audience = claims.get("aud")
        if audience != policy.audience and not (isinstance(audience, list) and policy.audience in audience):
            raise _refusal("the token is for another audience")
        tenant = claims.get(policy.tenant_claim)
        if not isinstance(tenant, str) or not TENANT_TEXT.fullmatch(tenant) or tenant.lower() == ANONYMOUS.tenant:
            raise _refusal("the token names no tenant")
        models = _models(claims.get(policy.models_claim)) if policy.models_claim else None
        explain = bool(policy.explain_claim) and claims.get(policy.explain_claim) is True
        return Identity(tenant, models, explain, self._highest(claims)), end_s + leeway_s

    def _highest(self, claims: Mapping[str, Any]) -> int:
        claim = self._policy.class_claim
        if not claim or claim not in claims:
            return self._highest_class
        named = claims[claim]
        if not isinstance(named, str) or named not in CLASS_OF:
            # Not lowered in silence, and surely not raised: the issuer means something that this gateway does not know.
            raise _refusal("the token names a class of calls that there is not")
        return CLASS_OF[named]


def _refusal(text: str) -> GatewayError:
    return GatewayError(Reason.UNAUTHENTICATED, text)


def _bytes(segment: str) -> bytes:
    """Base64url without padding, as `_SEGMENTS` lets it through."""
    try:
        return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    except ValueError:
        raise _refusal(NO_TOKEN) from None


def _object(segment: str, otherwise: str) -> dict[str, Any]:
    """The JSON object in a segment."""
    try:
        value = msgspec.json.decode(_bytes(segment))
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _refusal(otherwise)
    return value


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise _refusal(f"the token's `{name}` is no time")
    return float(value)


def _models(value: object) -> frozenset[str] | None:
    """None: all."""
    names: object = value.split() if isinstance(value, str) else value
    models = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    return None if "*" in models else models


def check_jwt_keys(data: bytes, file_name: str, algorithms: Iterable[str]) -> None:
    """Keys of which none can have signed with any of `algorithms` let nobody in. Raises `PolicyError`."""
    keys = parse_jwt_keys(data, file_name)
    if not any(key.algorithms & set(algorithms) for key in keys):
        problems = Problems()
        can = sorted({algorithm for key in keys for algorithm in key.algorithms})
        message = f"its keys sign with {', '.join(can)}, which `identity.jwt.algorithms` does not take"
        problems.add(file_name, START, (), message, "add one of these there")
        problems.raise_if_any()


__all__ = ["JwtKey", "PolicyError", "TokenRing", "check_jwt_keys", "parse_jwt_keys"]
