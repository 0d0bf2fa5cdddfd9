"""How calls end, on the wire: codes, percent-encoded texts, and what stands for them where they are missing."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.wire.grpc import (
    code_of_http,
    code_of_reset,
    decode_message,
    encode_message,
    encode_status,
    end_fields,
    parse_status,
    read_end,
)

SENT = re.compile(rb"(?:[ -$&-~]|%[0-9A-F]{2})*")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", b""),
        ("the model is not ready", b"the model is not ready"),
        (" a ", b" a "),
        ("100% sure", b"100%25 sure"),
        ("%41", b"%2541"),
        ("ä€😀", b"%C3%A4%E2%82%AC%F0%9F%98%80"),
        ("a\r\nb\t\x00\x7f", b"a%0D%0Ab%09%00%7F"),
        ("\xa0", b"%C2%A0"),
        ("lone \ud800", b"lone ?"),
        ('~!"#$&', b'~!"#$&'),
    ],
)
def test_texts_are_percent_encoded(text: str, value: bytes) -> None:
    assert encode_message(text) == value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(text: str) -> None:
    value = encode_message(text)
    assert SENT.fullmatch(value)
    assert decode_message(value) == text


@given(st.text(st.characters(codec="utf-16", exclude_categories=[])))
def test_no_text_can_break_the_head(text: str) -> None:
    assert SENT.fullmatch(encode_message(text))


def test_each_byte_is_escaped_or_itself() -> None:
    for number in range(128):
        value = encode_message(chr(number))
        assert value == (bytes((number,)) if 0x20 <= number <= 0x7E and number != 0x25 else b"%%%02X" % number), number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"a%20b", "a b"),
        (b"%", "%"),
        (b"%4", "%4"),
        (b"%zz", "%zz"),
        (b"%%41", "%A"),
        (b"%2541", "%41"),
        (b"%e2%82%ac", "€"),
        (b"\xe2\x82\xac", "€"),
        (b"%E2\x82%ac", "€"),
        (b"%e4", "ä"),
        (b"\xff%41", "ÿA"),
        (b"%00%0a", "\x00\n"),
        (b" a ", " a "),
        (b"%+1", "%+1"),
        (b"% 1", "% 1"),
    ],
)
def test_whatever_is_received_is_some_text(value: bytes, text: str) -> None:
    assert decode_message(value) == text


@given(st.one_of(st.binary(), st.lists(st.sampled_from([b"%", b"%4", b"1", b"a", b"\xe4", b"%C3"])).map(b"".join)))
def test_escapes_are_those_of_urls(value: bytes) -> None:
    unescaped = unquote_to_bytes(value)
    try:
        expected = unescaped.decode()
    except UnicodeDecodeError:
        expected = unescaped.decode("latin-1")
    assert decode_message(value) == expected


def test_very_many_escapes_take_linear_time() -> None:
    started = time.process_time()
    for value in (b"%41" * 100_000, b"%" * 300_000, b"%4" * 150_000, b"\xff" * 300_000):
        decode_message(value)
        encode_message(value.decode("latin-1"))
    assert time.process_time() - started < 20


def test_every_code_has_its_number() -> None:
    for code in Code:
        assert parse_status(encode_status(code)) is code
        assert encode_status(code) == str(int(code)).encode()


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"00", Code.OK),
        (b"05", Code.NOT_FOUND),
        (b" 5\t", Code.NOT_FOUND),
        (b"+5", Code.NOT_FOUND),
        (b"17", Code.UNKNOWN),
        (b"99", Code.UNKNOWN),
        (b"2147483647", Code.UNKNOWN),
        (b"-1", Code.INTERNAL),
        (b"", Code.INTERNAL),
        (b"x", Code.INTERNAL),
        (b"OK", Code.INTERNAL),
        (b"5.0", Code.INTERNAL),
        (b"1_0", Code.INTERNAL),
        (b"0x5", Code.INTERNAL),
        (b"5,5", Code.INTERNAL),
        (b"\xb2", Code.INTERNAL),
        (b"9" * 5000, Code.INTERNAL),
    ],
)
def test_other_values_of_the_status(value: bytes, code: Code) -> None:
    assert parse_status(value) is code


@given(st.binary(max_size=20))
def test_any_status_is_some_code_and_only_zero_is_ok(value: bytes) -> None:
    code = parse_status(value)
    assert isinstance(code, Code)
    assert (code is Code.OK) == (re.fullmatch(rb"[ \t]*\+?0+[ \t]*", value) is not None)


def test_what_an_answer_without_grpc_means() -> None:
    table = {
        400: Code.INTERNAL,
        401: Code.UNAUTHENTICATED,
        403: Code.PERMISSION_DENIED,
        404: Code.UNIMPLEMENTED,
        429: Code.UNAVAILABLE,
        502: Code.UNAVAILABLE,
        503: Code.UNAVAILABLE,
        504: Code.UNAVAILABLE,
    }
    for status in range(100, 1000):
        assert code_of_http(status) is table.get(status, Code.UNKNOWN), status


def test_what_a_reset_means() -> None:
    table = {
        7: Code.UNAVAILABLE,
        8: Code.CANCELLED,
        11: Code.RESOURCE_EXHAUSTED,
        12: Code.PERMISSION_DENIED,
    }
    for error_code in (*range(20), 255, 2**32 - 1):
        assert code_of_reset(error_code) is table.get(error_code, Code.INTERNAL), error_code


def test_the_end_in_trailers() -> None:
    assert read_end([]) is None
    assert read_end([(b"grpc-message", b"lost"), (b"x-a", b"b")]) is None
    assert read_end([(b":status", b"200"), (b"grpc-status", b"0")]) == (Code.OK, "")
    assert read_end([(b"grpc-message", b"not%20here"), (b"x-a", b"b"), (b"grpc-status", b"5")]) == (
        Code.NOT_FOUND,
        "not here",
    )
    twice = [(b"grpc-status", b"3"), (b"grpc-message", b"a"), (b"grpc-status", b"5"), (b"grpc-message", b"b")]
    assert read_end(twice) == (Code.NOT_FOUND, "b")


@given(st.sampled_from(Code), st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_written_as_the_end_is_read_as_it(code: Code, text: str) -> None:
    assert read_end(end_fields(code, text)) == (code, text)
    assert len(end_fields(code, text)) == (2 if text else 1)
