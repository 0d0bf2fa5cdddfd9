"""API keys: the file of hashes, and who a presented key belongs to."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.codes import Code
from gateway.core.credentials import NO_CREDENTIALS, Credentials
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator
from gateway.policy.document import KEYS_EXAMPLE
from gateway.policy.keys import KEY_BYTES_MAX, AnonymousAuthenticator, KeyRing, new_key, parse_keys
from gateway.policy.problems import PolicyError

KEY, HASH = new_key(bytes(range(32)))
OTHER, OTHER_HASH = new_key(bytes(range(1, 33)))


def _ring(text: str) -> KeyRing:
    return parse_keys(text.encode(), "keys.yaml")


RING = _ring(
    f"- {{tenant: shop, sha256: {HASH!r}, models: [fraud, fraud-lite]}}\n"
    f"- {{tenant: ops@example.com, sha256: {OTHER_HASH!r}, may_explain: true}}\n"
)


def test_a_key_belongs_to_its_tenant_with_its_rights() -> None:
    assert RING.identify(KEY) == Identity("shop", frozenset({"fraud", "fraud-lite"}), False)
    assert RING.identify(OTHER) == Identity("ops@example.com", None, True)
    assert len(RING) == 2


def test_without_keys_everybody_is_anonymous() -> None:
    authenticator: Authenticator = AnonymousAuthenticator()
    assert authenticator.identify(NO_CREDENTIALS) is ANONYMOUS
    assert authenticator.identify(Credentials(api_key="anything")) is ANONYMOUS


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "wrong",
        KEY[:-1],
        KEY + " ",
        KEY.upper(),
        HASH,
        "x" * (KEY_BYTES_MAX + 1),
        "x" * 1_000_000,
        "schlüssel",
        "\ud800",
        "\x00",
        "\udcff" + KEY,
        KEY + "\n",
    ],
)
def test_anything_else_is_unauthenticated(key: str | None) -> None:
    with pytest.raises(GatewayError) as caught:
        RING.identify(key)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert caught.value.code is Code.UNAUTHENTICATED


def test_an_error_says_nothing_of_the_key_that_was_sent() -> None:
    texts = set()
    for key in ("wrong", KEY[:-1], "x" * 1000, "ü"):
        with pytest.raises(GatewayError) as caught:
            RING.identify(key)
        texts.add(caught.value.message)
    assert texts == {"the API key is not known"}


def test_the_longest_key_is_good() -> None:
    key = "k" * KEY_BYTES_MAX
    ring = _ring(f"- {{tenant: a, sha256: '{hashlib.sha256(key.encode()).hexdigest()}'}}\n")
    assert ring.identify(key).tenant == "a"


@given(st.text())
def test_no_text_makes_the_lookup_fail_otherwise(key: str) -> None:
    with pytest.raises(GatewayError):
        RING.identify(key)


def test_a_tenant_may_have_two_keys_while_one_is_being_replaced() -> None:
    ring = _ring(f"- {{tenant: shop, sha256: '{HASH}'}}\n- {{tenant: shop, sha256: '{OTHER_HASH}'}}\n")
    assert ring.identify(KEY) == ring.identify(OTHER) == Identity("shop")


def test_json_is_taken_too() -> None:
    ring = _ring(f'[{{"tenant": "shop", "sha256": "{HASH}", "models": ["fraud"], "may_explain": false}}]')
    assert ring.identify(KEY).models == frozenset({"fraud"})


def test_the_example_of_the_manual_is_a_good_file() -> None:
    assert len(_ring(KEYS_EXAMPLE)) == 2


GOOD = f"- tenant: shop\n  sha256: '{HASH}'\n"

BAD = {
    "empty": ("", (1, 1), "the file is empty"),
    "empty list": ("[]\n", (1, 1), "there is no key in it"),
    "a mapping": (f"tenant: shop\nsha256: '{HASH}'\n", (1, 1), "begin with `- tenant:`"),
    "text": ("shop\n", (1, 1), "a list is wanted"),
    "list of text": ("- shop\n", (1, 3), "[0]: `shop` stands where a mapping is wanted"),
    "unknown key": (GOOD + "  model: [fraud]\n", (3, 3), "[0].model: unknown key; did you mean `models`?"),
    "no tenant": (f"- sha256: '{HASH}'\n", (1, 3), "the key `tenant` is missing"),
    "no hash": ("- tenant: shop\n", (1, 3), "the key `sha256` is missing"),
    "a key for a hash": (f"- tenant: shop\n  sha256: {KEY}\n", (2, 11), "is not the SHA-256 of a key; write 64"),
    "capitals": (f"- tenant: shop\n  sha256: '{HASH.upper()}'\n", (2, 11), "lower-case hexadecimal"),
    "hash that is a number": (f"- tenant: shop\n  sha256: {'1' * 64}\n", (2, 11), "is a number, not text; write"),
    "odd tenant": (f"- tenant: 'a b'\n  sha256: '{HASH}'\n", (1, 11), "is not a tenant's name"),
    "reserved tenant": (f"- tenant: anonymous\n  sha256: '{HASH}'\n", (1, 11), "`anonymous` is reserved"),
    "reserved tenant in capitals": (f"- tenant: Anonymous\n  sha256: '{HASH}'\n", (1, 11), "is reserved"),
    "one key twice": (GOOD + GOOD, (4, 11), "[1].sha256: this key stands already in line 2"),
    "models null": (GOOD + "  models:\n", (3, 3), "[0].models: there is no value (null)"),
    "models empty": (GOOD + "  models: []\n", (3, 11), "the list is empty"),
    "models one name": (GOOD + "  models: fraud\n", (3, 11), 'write `["fraud"]`'),
    "explain in words": (GOOD + "  may_explain: yes\n", (3, 16), "write true"),
    "alias": (GOOD + "  models: *all\n", (3, 11), "is an alias"),
    "two documents": (GOOD + "---\n" + GOOD, (3, 1), "a second document"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_key_file_is_refused_with_its_place(name: str) -> None:
    text, place, part = BAD[name]
    with pytest.raises(PolicyError) as caught:
        _ring(text)
    assert [(problem.line, problem.column) for problem in caught.value.problems] == [place], str(caught.value)
    assert part in str(caught.value)
    assert str(caught.value).startswith("keys.yaml:")


def test_a_file_beyond_its_bound_is_refused_unread() -> None:
    with pytest.raises(PolicyError, match="larger than"):
        parse_keys(GOOD.encode() * 100_000, "keys.yaml")


def test_a_problem_does_not_print_a_whole_key_that_was_pasted_by_mistake() -> None:
    long_key, _ = new_key(b"s" * 60)
    with pytest.raises(PolicyError) as caught:
        _ring(f"- tenant: shop\n  sha256: {long_key}\n")
    assert long_key not in str(caught.value)


@given(st.binary(min_size=16, max_size=64))
def test_a_new_key_is_found_by_its_hash(secret: bytes) -> None:
    key, sha256 = new_key(secret)
    assert hashlib.sha256(key.encode()).hexdigest() == sha256
    assert key.isascii()
    assert len(key) <= KEY_BYTES_MAX
    assert _ring(f"- {{tenant: a, sha256: '{sha256}'}}").identify(key).tenant == "a"


def test_a_secret_that_could_be_guessed_makes_no_key() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        new_key(b"short")
