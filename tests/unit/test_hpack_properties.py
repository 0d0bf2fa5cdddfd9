"""Agreement with the hpack package in both directions, on fields and on damaged blocks."""

from __future__ import annotations

import hpack
from hpack.struct import NeverIndexedHeaderTuple
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.wire.hpack import HpackDecoder, HpackEncoder, literal
from tests.unit.hpack_driving import BLOCKS, FIELD_LISTS, LIST_MAX, NAMES, VALUES, Decoded, Fields, by_hpack, by_ours

TABLE_SIZES = st.one_of(st.sampled_from([0, 31, 32, 33, 100, 256, 1000, 4096]), st.integers(0, 4096))
# What happens between blocks: nothing mostly, or a new table size, or several.
CHANGES: st.SearchStrategy[list[int]] = st.one_of(st.just([]), st.just([]), st.lists(TABLE_SIZES, max_size=3))
CONNECTIONS = st.lists(st.tuples(CHANGES, FIELD_LISTS, st.booleans()), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    CONNECTIONS,
    st.sampled_from([0, 64, 512, 4096, 16384]),
    st.sets(NAMES, max_size=3),
    st.sets(NAMES, max_size=3),
    st.booleans(),
)
def test_what_our_encoder_writes_hpack_reads(
    connection: list[tuple[list[int], Fields, bool]],
    table_bytes_max: int,
    varying: set[bytes],
    sensitive: set[bytes],
    huffman: bool,
) -> None:
    encoder = HpackEncoder(table_bytes_max, varying, sensitive, huffman=huffman)
    theirs = hpack.Decoder(LIST_MAX)
    ours = HpackDecoder(4096, LIST_MAX)
    for sizes, fields, again in connection:
        for size in sizes:
            encoder.set_table_bytes(size)
        for _ in range(3 if again else 1):
            block = encoder.encode(fields)
            headers = list(theirs.decode(block, raw=True))
            assert tuple((bytes(name), bytes(value)) for name, value in headers) == fields
            assert all(isinstance(header, NeverIndexedHeaderTuple) == (header[0] in sensitive) for header in headers)
            decoded = ours.decode(block)
            assert decoded.fields == fields
            assert decoded.never_indexed == sensitive & {name for name, _ in fields}
        if sizes:
            assert theirs.header_table_size == min(sizes[-1], table_bytes_max)


@settings(max_examples=150, deadline=None)
@given(CONNECTIONS)
def test_what_hpack_writes_our_decoder_reads(connection: list[tuple[list[int], Fields, bool]]) -> None:
    encoder = hpack.Encoder()
    decoder = HpackDecoder(4096, LIST_MAX)
    for sizes, fields, huffman in connection:
        for size in sizes:
            if size != encoder.header_table_size:  # hpack forgets a change that is followed by the same size again
                encoder.header_table_size = size
        decoded = decoder.decode(encoder.encode(fields, huffman=huffman))
        assert decoded.fields == fields
        assert decoded.size == sum(len(name) + len(value) + 32 for name, value in fields)
        table = encoder.header_table
        statistics = decoder.statistics()
        assert statistics.table_entries == len(table.dynamic_entries)
        assert statistics.table_bytes == sum(len(name) + len(value) + 32 for name, value in table.dynamic_entries)


@settings(max_examples=500, deadline=None)
@given(st.lists(BLOCKS, max_size=6))
@example([b"@\x01a\x01b", b"\xbe\x3f\xe1\x1f"])
def test_any_blocks_mean_the_same_to_hpack_or_are_refused_by_both(blocks: list[bytes]) -> None:
    """In one thing hpack is laxer: it takes integers of ten octets, while ours end at five.

    That is more than any length or index can need; a longer one spells a small number with zeros, or is an attack, and
    the RFC leaves the limit to the implementation (section 7.4).
    """
    ours, theirs = HpackDecoder(4096, LIST_MAX), hpack.Decoder(LIST_MAX)
    for block in blocks:
        mine, other = by_ours(ours, block), by_hpack(theirs, block)
        if other is None:
            assert mine == "HpackError"
            return
        if mine == "HpackError":
            assert has_long_integer(block), (block, other)
            return
        assert isinstance(mine, Decoded)
        assert mine.fields == other


def has_long_integer(block: bytes) -> bool:
    """Whether four octets in a row say that a fifth follows."""
    run = 0
    for octet in block:
        run = run + 1 if octet >= 0x80 else 0
        if run > 4:
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(NAMES, VALUES, st.booleans())
def test_a_literal_needs_no_table(name: bytes, value: bytes, never_index: bool) -> None:
    block = literal(name, value, never_index=never_index)
    theirs = hpack.Decoder(LIST_MAX)
    decoder = HpackDecoder(4096, LIST_MAX)

    assert by_hpack(theirs, block) == ((name, value),)
    assert decoder.decode(block).fields == ((name, value),)
    assert decoder.decode(block).never_indexed == ({name} if never_index else set())
    assert decoder.statistics().table_entries == 0
