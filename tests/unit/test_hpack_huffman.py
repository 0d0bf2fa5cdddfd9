"""The Huffman code: both decoders, and agreement with the hpack package's."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman as decode_by_hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.hpack import HpackError
from gateway.wire.hpack.huffman import decode_huffman, encode_huffman
from gateway.wire.hpack.huffman_code import CODE_LENGTHS, CODES, decode_by_nibbles

PRINTABLE = bytes(octet for octet in range(0x20, 0x7F))
# Texts as headers have them, and texts with the octets whose codes are longer than deflate's.
TEXTS = st.one_of(
    st.text(PRINTABLE.decode(), max_size=80).map(str.encode),
    st.binary(max_size=40),
    st.text("0123456789abcdef-<`{\\~\x00\u00ff", max_size=40).map(lambda text: text.encode("latin-1")),
)
ENDS = st.one_of(
    st.sampled_from([b"", b"\xff", b"\xfe", b"\xff\xff", b"\x7f", b"\xff\xff\xff\xff"]), st.binary(max_size=5)
)
CODED = st.one_of(
    st.tuples(TEXTS, ENDS).map(lambda parts: encode_huffman(parts[0]) + parts[1]),
    st.lists(st.sampled_from([0xFF, 0xFE, 0xF8, 0x7F, 0x00, 0x07]), max_size=12).map(bytes),
    st.binary(max_size=60),
)


def outcome(coded: bytes) -> bytes | None:
    """What the decoder in use says; the one by nibbles and hpack's must say the same."""
    answers: list[bytes | None] = []
    for decode, fault in (
        (decode_huffman, HpackError),
        (decode_by_nibbles, HpackError),
        (decode_by_hpack, HPACKDecodingError),
    ):
        try:
            answers.append(bytes(decode(coded)))
        except fault:
            answers.append(None)
    assert answers[0] == answers[1] == answers[2], (coded, answers)
    return answers[0]


def test_the_code_is_complete_and_no_code_begins_another() -> None:
    assert len(CODES) == len(CODE_LENGTHS) == 257
    assert sum(2 ** (30 - length) for length in CODE_LENGTHS) == 2**30
    in_order = sorted(CODES)
    assert not any(two.startswith(one) for one, two in pairwise(in_order))
    assert CODES[256] == "1" * 30


@settings(max_examples=500, deadline=None)
@given(TEXTS)
def test_what_is_coded_is_decoded(text: bytes) -> None:
    assert outcome(encode_huffman(text)) == text


@settings(max_examples=1500, deadline=None)
@given(CODED)
def test_all_decoders_agree_about_any_octets(coded: bytes) -> None:
    text = outcome(coded)

    if text is not None:
        assert encode_huffman(text) == coded


@pytest.mark.parametrize("octet", range(256))
def test_each_octet_in_the_middle_and_at_the_end(octet: int) -> None:
    one = bytes((octet,))

    for text in (one * 8, b"ab" + one + b"cdefgh", b"abcdefgh" + one, one):
        assert outcome(encode_huffman(text)) == text


@pytest.mark.parametrize("fill", range(8))
@pytest.mark.parametrize("last", [b"0", b"1", b"o", b":", b"X", b"<", b"{", b"\\", b"\xff"])
def test_each_length_of_padding(fill: int, last: bytes) -> None:
    """Whatever bits are left behind the last code; one octet of ones more is too much."""
    text = b"0" * (8 + fill) + last  # each of these is five bits

    coded = encode_huffman(text)

    assert outcome(coded) == text
    assert outcome(coded + b"\xff") is None
    assert outcome(coded + b"\xff\xff") is None
    bits = "".join(CODES[octet] for octet in text)
    left = -len(bits) % 8
    for wrong in range(1, 1 << left):
        assert outcome(coded[:-1] + bytes((coded[-1] - wrong,))) != text


def test_a_long_string_is_decoded_whole() -> None:
    for text in (PRINTABLE * 700, bytes(range(256)) * 250, b"0" * 65536):
        assert outcome(encode_huffman(text)) == text
