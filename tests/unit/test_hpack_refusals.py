"""Malformed blocks, each with its rule, and blocks that are too large."""

from __future__ import annotations

import pytest

from gateway.wire.hpack import HeaderListTooLarge, HpackDecoder, HpackError
from gateway.wire.hpack.huffman import encode_huffman
from gateway.wire.hpack.integers import encode_integer
from tests.unit.hpack_driving import LIST_MAX, by_ours, literal_block

# Whole representations and the fields that they stand for, on a new connection and in this order.
REPRESENTATIONS = [
    (b"\x3f\xe1\x1f", ()),  # the size that the table has anyway
    (b"\x82", ((b":method", b"GET"),)),
    (b"@\x03new\x05value", ((b"new", b"value"),)),
    (b"\x44\x02/a", ((b":path", b"/a"),)),
    (b"\xbe", ((b":path", b"/a"),)),
    (b"\x7f\x00\x01v", ((b"new", b"v"),)),
    (b"\x0f\x2f\x01w", ((b"new", b"w"),)),
    (b"\x10\x06secret\x03xyz", ((b"secret", b"xyz"),)),
    (b"@\x82\x64\x02\x86\xa8\xeb\x10\x64\x9c\xbf", ((b"302", b"no-cache"),)),
    (b"\x00\x7f\x49" + b"n" * 200 + b"\x7f\x00" + b"v" * 127, ((b"n" * 200, b"v" * 127),)),
    (b"\x00\x01c\xff\x80\x01" + b"\x00" * 255, ((b"c", b"0" * 408),)),  # 255 octets of five-bit codes
]


def malformed(*blocks: bytes, table_bytes_max: int = 4096) -> str:
    """The complaint about the last of these blocks."""
    decoder = HpackDecoder(table_bytes_max, LIST_MAX)
    for block in blocks[:-1]:
        decoder.decode(block)
    with pytest.raises(HpackError) as refused:
        decoder.decode(blocks[-1])
    return str(refused.value)


def test_a_block_cut_anywhere_but_between_two_representations_is_malformed() -> None:
    whole = b"".join(representation for representation, _ in REPRESENTATIONS)
    ends = {0: 0}
    for count, (representation, _) in enumerate(REPRESENTATIONS, 1):
        ends[max(ends) + len(representation)] = count

    for cut in range(len(whole) + 1):
        outcome = by_ours(HpackDecoder(4096, LIST_MAX), whole[:cut])
        if cut in ends:
            assert not isinstance(outcome, str), cut
            assert outcome.fields == sum((fields for _, fields in REPRESENTATIONS[: ends[cut]]), ())
        else:
            assert outcome == "HpackError", cut


@pytest.mark.parametrize("block", [b"\x80", b"\x82\x80", b"\x80\x82"])
def test_index_0_is_no_field(block: bytes) -> None:
    assert "index 0" in malformed(block)


@pytest.mark.parametrize(
    "block",
    [
        b"\xbe",
        b"\xfe",
        b"\xff\x00",
        b"\xff\xff\xff\x7f",
        b"\x7e\x01v",
        b"\x7f\x00\x01v",
        b"\x0f\x2f\x01v",
        b"\x1f\x2f\x01v",
    ],
)
def test_an_index_beyond_the_table(block: bytes) -> None:
    assert "beyond the table" in malformed(block)


def test_the_index_of_an_evicted_entry() -> None:
    table_of_64 = b"\x3f\x21"
    one = b"@\x01a\x01b"

    assert HpackDecoder(4096, LIST_MAX).decode(table_of_64 + one + b"\xbe").fields == ((b"a", b"b"),) * 2
    assert "beyond the table" in malformed(table_of_64 + one + one, b"\xbf")
    assert "beyond the table" in malformed(one, b"\x20\xbe")


def test_a_table_may_be_just_full() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    table_of_68 = b"\x3f\x25"

    assert decoder.decode(table_of_68 + b"@\x01a\x01b@\x01c\x01d\xbf").fields[2] == (b"a", b"b")
    assert decoder.statistics().table_bytes == 68
    decoder.decode(b"@\x01e\x01f")
    assert decoder.decode(b"\xbe\xbf").fields == ((b"e", b"f"), (b"c", b"d"))
    assert decoder.statistics().table_bytes == 68


def test_an_entry_that_is_larger_than_the_table_empties_it() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    large = b"@\x01l" + encode_integer(4096 - 32, 0x7F, 0) + b"l" * (4096 - 32)

    assert decoder.decode(b"@\x01a\x01b").fields == ((b"a", b"b"),)
    assert decoder.decode(large).fields[0][0] == b"l"
    assert decoder.statistics().table_entries == 0
    assert decoder.statistics().table_bytes == 0
    assert decoder.decode(b"@\x01a\x01b").fields == ((b"a", b"b"),)
    assert decoder.statistics().table_bytes == 34


def test_an_entry_may_take_its_name_from_the_one_that_it_evicts() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    value = b"v" * 3000
    first = b"@\x04name" + encode_integer(len(value), 0x7F, 0) + value
    second = b"\x7e" + encode_integer(len(value), 0x7F, 0) + value

    decoder.decode(first)

    assert decoder.decode(second).fields == ((b"name", value),)
    assert decoder.decode(b"\xbe").fields == ((b"name", value),)
    assert decoder.statistics().table_entries == 1


@pytest.mark.parametrize(
    "prefix", [b"\xff", b"\x7f", b"\x0f", b"\x1f", b"\x3f", b"\x00\x7f", b"\x00\xff", b"\x00\x01n\x7f"]
)
@pytest.mark.parametrize(
    "octets", [b"\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x00", b"\xff" * 20 + b"\x01", b"\xff" * 2000]
)
def test_an_integer_too_large(prefix: bytes, octets: bytes) -> None:
    assert "integer is too large" in malformed(prefix + octets + b"x" * 40)


@pytest.mark.parametrize("octets", [b"\xff\xff\xff\x7f", b"\x80\x80\x80\x01", b"\x80\x80\x08"])
@pytest.mark.parametrize("prefix", [b"\x00\x7f", b"\x00\xff", b"\x00\x01n\x7f", b"\x00\x01n\xff"])
def test_a_string_longer_than_the_block(prefix: bytes, octets: bytes) -> None:
    assert "truncated" in malformed(prefix + octets + b"x" * 40)


def test_an_integer_may_be_longer_than_it_must() -> None:
    assert HpackDecoder(4096, LIST_MAX).decode(b"\x00\x01n\x7f\x80\x00" + b"v" * 127).size == 160


@pytest.mark.parametrize("name", [True, False], ids=["name", "value"])
@pytest.mark.parametrize(
    ("coded", "complaint"),
    [
        (b"\xff\xff\xff\xff", "end-of-string"),  # thirty ones and two of padding
        (encode_huffman(b"0" * 8) + b"\xff\xff\xff\xff", "end-of-string"),
        (encode_huffman(b"0" * 8) + b"\xff\xff\xff\xfc" + encode_huffman(b"0" * 8), "end-of-string"),
        (b"\xff", "padding"),  # eight ones
        (encode_huffman(b"0" * 8) + b"\xff", "padding"),
        (encode_huffman(b"0" * 8) + b"\xff\xff", "padding"),
        (b"\x07\xff", "padding"),  # "0" and eleven ones
        (b"\x00", "padding"),  # "0" and three zeros
        (encode_huffman(b"0" * 7)[:-1] + b"\x1e", "padding"),  # not only ones
        (b"\xfe", "padding"),  # a code's first half
    ],
)
def test_a_coded_string_that_is_none(name: bool, coded: bytes, complaint: str) -> None:
    string = encode_integer(len(coded), 0x7F, 0x80) + coded

    assert complaint in malformed(b"\x00" + string + b"\x01v" if name else b"\x00\x01n" + string)


def test_a_size_update_over_what_was_advertised() -> None:
    def update(size: int) -> bytes:
        return encode_integer(size, 0x1F, 0x20)

    assert "advertised" in malformed(update(4097))
    assert "advertised" in malformed(update(8193), table_bytes_max=8192)
    assert HpackDecoder(8192, LIST_MAX).decode(update(8192)).fields == ()


@pytest.mark.parametrize("before", [b"\x82", b"@\x01a\x01b", b"\x00\x01a\x01b"])
def test_a_size_update_behind_a_field(before: bytes) -> None:
    assert "start of a block" in malformed(before + b"\x20")
    assert "start of a block" in malformed(b"\x20" + before + b"\x3f\xe1\x1f")


def test_several_size_updates_at_the_start() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    decoder.decode(b"@\x01a\x01b")

    assert decoder.decode(b"\x20\x3f\xe1\x1f\x82").fields == ((b":method", b"GET"),)
    assert decoder.statistics().table_entries == 0
    assert decoder.decode(b"@\x01a\x01b\xbe").fields == ((b"a", b"b"),) * 2


def test_a_smaller_table_must_be_taken_up_once_its_setting_is_acknowledged() -> None:
    field = b"@\x01a\x01b"
    decoder = HpackDecoder(100, LIST_MAX)
    decoder.decode(b"\x3f\xe1\x1f" + field * 5)  # not acknowledged: the peer may think that there are 4096 bytes
    decoder.settings_acknowledged()
    assert decoder.decode(b"\x3f\x45\xbf").fields == ((b"a", b"b"),)
    assert decoder.statistics().table_bytes == 68
    assert decoder.decode(b"\xbe").fields == ((b"a", b"b"),)

    decoder = HpackDecoder(100, LIST_MAX)
    decoder.decode(field)
    assert decoder.decode(b"\xbe").fields == ((b"a", b"b"),)
    decoder.settings_acknowledged()
    with pytest.raises(HpackError, match="shrink"):
        decoder.decode(b"\xbe")

    decoder = HpackDecoder(100, LIST_MAX)
    decoder.settings_acknowledged()
    with pytest.raises(HpackError, match="advertised"):
        decoder.decode(b"\x3f\x46")


def test_a_table_that_is_small_enough_need_not_shrink() -> None:
    decoder = HpackDecoder(100, LIST_MAX)
    decoder.decode(b"\x3f\x45")
    decoder.settings_acknowledged()

    assert decoder.decode(b"\x82").fields == ((b":method", b"GET"),)


def test_after_a_malformed_block_nothing_is_decoded_any_more() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    good = literal_block((b"a", b"b"))
    assert decoder.decode(good).size == 34
    with pytest.raises(HpackError):
        decoder.decode(b"\x80")

    for block in (good, b"", b"\x82"):
        with pytest.raises(HpackError, match="earlier block"):
            decoder.decode(block)


def test_a_list_that_is_too_large_leaves_the_connection_usable() -> None:
    decoder = HpackDecoder(4096, 200)
    large = b"@\x01a\x01b" + literal_block((b"c", b"d" * 90)) * 2 + b"@\x01e\x01f" + b"\x82\xbe"

    with pytest.raises(HeaderListTooLarge, match="200 bytes"):
        decoder.decode(large)

    assert decoder.decode(b"\xbe\xbf").fields == ((b"e", b"f"), (b"a", b"b"))


def test_a_list_of_just_the_limit_is_taken() -> None:
    block = literal_block((b"name", b"v" * 20), (b"n", b"w"))

    assert HpackDecoder(4096, 90).decode(block).size == 90
    with pytest.raises(HeaderListTooLarge):
        HpackDecoder(4096, 89).decode(block)


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        (b"\x80", "index 0"),
        (b"\x82\x80", "index 0"),
        (b"\x82\xbe", "beyond"),
        (b"\xff\x00", "beyond"),
        (b"\x20", "start of a block"),
        (b"\x00\x01n\x05v", "truncated"),
        (b"\x00\x01n\x81\xff", "padding"),
        (b"\xff\xff\xff\xff\xff\x01", "too large"),
    ],
)
def test_a_list_that_is_too_large_and_malformed_is_malformed(rest: bytes, complaint: str) -> None:
    decoder = HpackDecoder(4096, 100)

    with pytest.raises(HpackError, match=complaint):
        decoder.decode(literal_block((b"n", b"v" * 120)) + rest)


def test_a_value_that_is_too_large_and_truncated_is_malformed() -> None:
    for missing in (1, 20):
        decoder = HpackDecoder(4096, 100)
        with pytest.raises(HpackError, match="truncated"):
            decoder.decode(literal_block((b"n", b"v" * 120))[:-missing])
