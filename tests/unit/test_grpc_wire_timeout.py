"""`grpc-timeout` both ways."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.wire.grpc import GrpcFault, encode_timeout, parse_timeout, timeout

VALID = re.compile(rb"[0-9]{1,8}[HMSmun]")


@pytest.mark.parametrize(
    ("value", "timeout_s"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"10S", 10),
        (b"1500m", 1.5),
        (b"3010m", 3.01),
        (b"250u", 0.00025),
        (b"1n", 1e-9),
        (b"0S", 0),
        (b"00000009S", 9),
        (b"99999999H", 99999999 * 3600),
        (b"000000009S", 9),
        (b"999999999m", 999999.999),
        (b" 5 S ", 5),
        (b"999999999999999999H", 999999999999999999 * 3600.0),
    ],
)
def test_timeouts_that_are_taken(value: bytes, timeout_s: float) -> None:
    for _ in range(2):  # the second time from memory
        assert parse_timeout(value) == pytest.approx(timeout_s)


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"5", b"S", b"5s", b"5h", b"-5S", b"+5S", b"5.5S", b"1_0S", b"5SS", b"5S,6S", b"5S\n", b"\t5S", b"5 0S"),
        *(b"0x5S", b"\xb25S", "٥S".encode(), b"9" * 19 + b"S", b"9" * 5000 + b"S", b"nan", b"1e3S", b"infS"),
    ],
)
def test_what_is_no_timeout_is_a_fault(value: bytes) -> None:
    for _ in range(2):
        with pytest.raises(GrpcFault, match="grpc-timeout") as caught:
            parse_timeout(value)
        assert caught.value.code is Code.INTERNAL


@given(st.binary(max_size=12))
def test_any_value_is_a_number_of_seconds_or_a_fault(value: bytes) -> None:
    try:
        timeout_s = parse_timeout(value)
    except GrpcFault:
        assert not VALID.fullmatch(value)
    else:
        assert 0 <= timeout_s < math.inf


def test_values_that_are_remembered_are_bounded_in_number_and_size() -> None:
    for number in range(5000):
        assert parse_timeout(b"%dm" % number) == pytest.approx(number / 1000)
    assert parse_timeout(b"5" + b" " * 10_000 + b"S") == 5
    assert len(timeout._parsed) <= 1024
    assert max(map(len, timeout._parsed)) <= 16


@pytest.mark.parametrize(
    ("timeout_s", "value"),
    [
        (1.0, b"1000m"),
        (0.599, b"599m"),
        (0.5990001, b"600m"),
        (0.29, b"290m"),
        (0.0004, b"1m"),
        (0.0, b"1m"),
        (-5.0, b"1m"),
        (-math.inf, b"1m"),
        (3600.0, b"3600000m"),
        (99_998.9999, b"99999000m"),
        (99_999.0, b"99999S"),
        (604_800.5, b"604801S"),
        (99_999_998.9, b"99999999S"),
        (1e9, b"99999999S"),
        (math.inf, b"99999999S"),
    ],
)
def test_what_is_sent(timeout_s: float, value: bytes) -> None:
    assert encode_timeout(timeout_s) == value


def test_what_is_no_number_is_our_own_error() -> None:
    with pytest.raises(ValueError):
        encode_timeout(math.nan)


@given(st.one_of(st.floats(0, 1e8), st.floats(0, 100), st.floats(0, 1), st.floats(0, 1e-3)))
def test_it_is_rounded_up_by_little(timeout_s: float) -> None:
    value = encode_timeout(timeout_s)
    assert VALID.fullmatch(value)
    sent_s = parse_timeout(value)
    assert sent_s >= min(timeout_s, timeout.LONGEST_S) * (1 - 1e-12)
    assert sent_s <= timeout_s + (0.0010001 if timeout_s < 99_999 else 1.0)
