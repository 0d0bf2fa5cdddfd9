"""What a decoder remembers of earlier blocks changes no answer, and is bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.hpack import HeaderBlock, HeaderListTooLarge, HpackDecoder, HpackEncoder
from gateway.wire.hpack.huffman import encode_huffman
from gateway.wire.hpack.integers import encode_integer
from tests.unit.hpack_driving import BLOCKS, LIST_MAX, Decoded, Fields, by_ours, literal_block

TIMEOUTS = st.integers(0, 99).map(lambda number: b"%02dm" % number)
# Blocks of few forms: the same ones come again, or differ in a value, or in what the table makes of an index.
SIMILAR = st.one_of(
    st.builds(lambda value: b"\x82\x86" + literal_block((b"grpc-timeout", value), (b"t", b"acme")), TIMEOUTS),
    st.builds(lambda value, index: literal_block((b"x", value)) + bytes((index,)), TIMEOUTS, st.integers(0xBE, 0xC3)),
    st.builds(lambda value: b"@\x01y\x03" + value, TIMEOUTS),
    st.builds(lambda value, flag: bytes((flag,)) + b"\x01z\x03" + value, TIMEOUTS, st.sampled_from([0x00, 0x10, 0x40])),
    st.builds(lambda index, value: bytes((index, 0x03)) + value, st.sampled_from([0x7E, 0x7F, 0x44, 0x04]), TIMEOUTS),
    st.sampled_from(
        [b"\x20", b"\x3f\x45", b"\x3f\x06", b"\x20\x3f\xe1\x1f", b"\x3f\xe1\x1f\xbe", b"\xbe\xbf", b"\xbf"]
    ),
    st.builds(lambda value: b"\x3f\xe1\x1f" + literal_block((b"x", value)), TIMEOUTS),
    # Strings and indices of more than one octet, and coded strings, which no layout takes for values.
    st.builds(lambda value: b"\x00\x01l\x7f\x00" + value.rjust(127, b"v") + literal_block((b"x", value)), TIMEOUTS),
    st.builds(lambda value: b"\x0f\x2f\x03" + value + b"\x0f\x10\x03" + value, TIMEOUTS),
    st.builds(lambda value: b"\x00\x01h\x83" + encode_huffman(b"1" + value) + b"\x10\x01x\x03" + value, TIMEOUTS),
)


def repeated(blocks: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Sequences in which most blocks come several times."""
    return st.lists(blocks, min_size=1, max_size=5).flatmap(
        lambda few: st.lists(st.one_of(st.sampled_from(few), st.sampled_from(few), blocks), max_size=40)
    )


def assert_same(blocks: list[bytes], list_bytes_max: int) -> None:
    remembering = HpackDecoder(4096, list_bytes_max)
    forgetful = HpackDecoder(4096, list_bytes_max, remember=False)
    for block in blocks:
        assert by_ours(remembering, block) == by_ours(forgetful, block)
        with_memory, without = remembering.statistics(), forgetful.statistics()
        assert (with_memory.table_entries, with_memory.table_bytes) == (without.table_entries, without.table_bytes)
        assert without.blocks == without.layouts == 0


@settings(max_examples=250, deadline=None)
@given(repeated(SIMILAR), st.sampled_from([80, 120, LIST_MAX]))
def test_similar_blocks_mean_the_same_with_memory_and_without(blocks: list[bytes], list_bytes_max: int) -> None:
    assert_same(blocks, list_bytes_max)


@settings(max_examples=250, deadline=None)
@given(repeated(BLOCKS), st.sampled_from([80, 120, LIST_MAX]))
def test_any_blocks_mean_the_same_with_memory_and_without(blocks: list[bytes], list_bytes_max: int) -> None:
    assert_same(blocks, list_bytes_max)


@settings(max_examples=150, deadline=None)
@given(repeated(SIMILAR))
def test_blocks_of_one_layout_differ_only_where_it_says(blocks: list[bytes]) -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    first: dict[int, HeaderBlock] = {}
    for block in blocks:
        if by_ours(decoder, block) == "HpackError":
            return
        decoded = decoder.decode(block)
        layout = decoded.layout
        if layout is None:
            continue
        other = first.setdefault(id(layout), decoded)
        assert other.layout is layout
        assert decoded.never_indexed == other.never_indexed
        assert [name for name, _ in decoded.fields] == [name for name, _ in other.fields]
        for place, (one, two) in enumerate(zip(decoded.fields, other.fields, strict=True)):
            assert one == two or place in layout.varying


def test_the_same_block_gives_the_same_object_until_the_table_changes() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    decoder.decode(b"@\x01a\x01b")
    first = decoder.decode(b"\xbe\x82")
    first.note = "parsed"

    assert decoder.decode(bytes(bytearray(b"\xbe\x82"))) is first
    decoder.decode(b"@\x01c\x01d")
    after = decoder.decode(b"\xbe\x82")
    assert after.fields == ((b"c", b"d"), (b":method", b"GET"))
    assert after.note is None


@pytest.mark.parametrize(
    ("change", "newest"),
    [
        (b"@\x01c\x01d", (b"c", b"d")),
        (b"@\x01l\x7f\xe1\x1e" + b"l" * 4064, None),
        (b"\x20\x3f\xe1\x1f", None),
    ],
    ids=["entry", "entry too large", "size"],
)
def test_each_change_of_the_table_is_noticed(change: bytes, newest: tuple[bytes, bytes] | None) -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    decoder.decode(b"@\x01a\x01b")
    for value in (b"1", b"2", b"3"):
        decoder.decode(b"\xbe" + literal_block((b"x", value)))
    assert decoder.statistics().blocks
    decoder.decode(change)

    for value in (b"1", b"4"):
        outcome = by_ours(decoder, b"\xbe" + literal_block((b"x", value)))
        if newest is None:
            assert outcome == "HpackError"
        else:
            assert outcome == Decoded((newest, (b"x", value)), 68, frozenset())


def test_values_that_vary_share_a_layout() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    decoder.decode(b"@\x0aconst-name\x05const")

    def block(timeout: bytes, tenant: bytes) -> bytes:
        return b"\x83" + literal_block((b"grpc-timeout", timeout)) + b"\xbe\x10\x06tenant\x04" + tenant

    seen = [decoder.decode(block(b"%03dm" % number, b"te%02d" % number)) for number in range(20)]

    assert [decoded.fields[1] for decoded in seen] == [(b"grpc-timeout", b"%03dm" % number) for number in range(20)]
    assert [decoded.fields[3] for decoded in seen] == [(b"tenant", b"te%02d" % number) for number in range(20)]
    assert {decoded.fields[2] for decoded in seen} == {(b"const-name", b"const")}
    layout = seen[-1].layout
    assert layout is not None
    assert layout.varying == (1, 3)
    assert all(decoded.layout is layout for decoded in seen[1:])
    assert all(decoded.never_indexed == {b"tenant"} for decoded in seen)


def test_a_layout_deals_with_integers_of_several_octets() -> None:
    blocks = [b"".join(b"@\x01n\x02%02d" % number for number in range(100))]
    for number in range(10):
        value = b"\x03%03d" % number
        index_143 = b"\x0f\x80\x01" + value
        blocks.append(b"\x3f\xe1\x1f\xff\x07" + index_143 + b"\x1f\x10" + value + b"\xff\x00\x00\x01x" + value)

    assert_same(blocks, LIST_MAX)

    decoder = HpackDecoder(4096, LIST_MAX)
    last = [decoder.decode(block) for block in blocks][-1]
    assert last.fields == ((b"n", b"27"), (b"n", b"009"), (b"content-type", b"009"), (b"n", b"34"), (b"x", b"009"))
    assert last.layout is not None
    assert last.layout.varying == (1, 2, 4)


def test_coded_values_are_no_part_of_a_layout() -> None:
    blocks = []
    for number in range(40):
        coded = encode_huffman(b"1%02d" % (number // 4))
        blocks.append(b"\x00\x01h" + bytes((0x80 | len(coded),)) + coded + literal_block((b"x", b"%02d" % number)))

    assert_same(blocks, LIST_MAX)

    decoder = HpackDecoder(4096, LIST_MAX)
    seen = [decoder.decode(block) for block in blocks]
    assert seen[-1].layout is not None
    assert seen[-1].layout.varying == (1,)
    assert seen[-1].fields == ((b"h", b"109"), (b"x", b"39"))


@pytest.mark.parametrize(
    ("value_bytes", "blocks", "block_bytes", "layouts"),
    [
        (lambda number: 5, range(128, 129), range(32768), range(1, 17)),
        (lambda number: 120, range(64, 128), range(32000, 32769), range(1, 17)),
        (lambda number: number % 90, range(64, 129), range(32769), range(16, 17)),
    ],
    ids=["blocks", "bytes", "layouts"],
)
def test_memory_is_bounded(
    value_bytes: Callable[[int], int], blocks: range, block_bytes: range, layouts: range
) -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    seen = []
    for number in range(2000):
        decoder.decode(literal_block((b"n%d" % number, b"v" * value_bytes(number))))
        seen.append(decoder.statistics())

    assert max(each.blocks for each in seen) in blocks
    assert max(each.block_bytes for each in seen) in block_bytes
    assert max(each.layouts for each in seen) in layouts


def test_a_large_block_is_not_remembered() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)
    for number in range(20):
        decoder.decode(b"\x00\x01n" + encode_integer(9000, 0x7F, 0) + b"%04d" % (number % 4) + b"v" * 8996)

    statistics = decoder.statistics()
    assert statistics.blocks == statistics.block_bytes == statistics.layouts == 0


KIB_64 = 65536
FOUR_KIB_VALUE = b"@\x01n\x7f\xdb\x1e" + b"v" * 4058  # 91 bytes of table are left
BOMBS = {
    "indexed": b"\xbe" * KIB_64,
    "static": b"\x82" * KIB_64,
    "name of an entry": b"\x0f\x2f\x00" * (KIB_64 // 3),
    "insertions": b"\x41\x00" * (KIB_64 // 2),
    "never indexed": b"\x11\x00" * (KIB_64 // 2),
}


def test_what_the_bombs_refer_to() -> None:
    decoder = HpackDecoder(4096, LIST_MAX)

    assert decoder.decode(FOUR_KIB_VALUE).size == 4091
    assert decoder.decode(b"\xbe").fields == ((b"n", b"v" * 4058),)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_costs_no_more_memory_than_the_limit_allows(kind: str) -> None:
    decoder = HpackDecoder(4096, 16384)
    decoder.decode(FOUR_KIB_VALUE)
    tracemalloc.start()
    try:
        with pytest.raises(HeaderListTooLarge):
            decoder.decode(BOMBS[kind])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # At most 512 fields are held, and one run of octets.
    assert peak_bytes < 200_000


def test_an_octet_each_for_a_large_entry_stops_at_the_limit() -> None:
    """Just as many as the limit allows are taken; one more, and none."""
    decoder = HpackDecoder(4096, 4 * 4091)
    decoder.decode(FOUR_KIB_VALUE)

    assert decoder.decode(b"\xbe" * 4).size == 4 * 4091
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(b"\xbe" * 5)


@pytest.mark.parametrize(
    "fields_of",
    [
        lambda number: ((b"x", b"%0900d" % number),),
        lambda number: ((b"x", b"%0900d" % (number // 2)),),
        lambda number: ((b":method", b"GET"),) * (1 + number % 50),
        lambda number: ((b":method", b"GET"),) * (2000 + number % 50),
        lambda number: ((b"authorization", b"%0900d" % number), (b"grpc-timeout", b"%dm" % number)),
    ],
    ids=["once", "twice", "static", "many", "never tried"],
)
def test_an_encoder_remembers_little(fields_of: Callable[[int], Fields]) -> None:
    encoder = HpackEncoder(4096, varying=(b"grpc-timeout",))
    tracemalloc.start()
    try:
        for number in range(2000):
            encoder.encode(fields_of(number))
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert kept_bytes < 60_000
