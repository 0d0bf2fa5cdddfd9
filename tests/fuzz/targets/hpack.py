"""Header blocks of one connection, in order (`gateway.wire.hpack`): after a byte of options, each behind two bytes of
length.
"""

from __future__ import annotations

import random

import hpack

from gateway.wire.hpack import HeaderListTooLarge, HpackDecoder, HpackEncoder, HpackError, literal
from tests.fuzz.footprint import footprint
from tests.fuzz.mutations import change
from tests.fuzz.target import Target, looked_at

LIMITS = ((4096, 65536), (4096, 300), (64, 65536), (0, 1000), (65536, 2000))
"""Bytes of the table, and of a list."""
TABLE_LEAST = 4096
NO_LIMIT = 1 << 30
HELD_BYTES = 300_000
"""What a decoder may hold besides its table: the memory of blocks and of their forms."""
HELD_ELEMENTS = 40_000
BLOCKS_MAX = 32
ACKNOWLEDGED = 0x40

Fields = tuple[tuple[bytes, bytes], ...]


def check(data: bytes) -> None:
    """A decoder that remembers, one that does not, and the hpack package must agree; and what they read must survive
    an encoder.
    """
    options, blocks = (data[0] if data else 0), split(data[1:])
    table_bytes, list_bytes = LIMITS[options % len(LIMITS)]
    decoder = HpackDecoder(table_bytes, list_bytes)
    forgetful = HpackDecoder(table_bytes, list_bytes, remember=False)
    reference = hpack.Decoder(max_header_list_size=NO_LIMIT)
    reference.max_allowed_table_size = max(table_bytes, TABLE_LEAST)
    if options & ACKNOWLEDGED:
        reference.max_allowed_table_size = table_bytes
        decoder.settings_acknowledged()
        forgetful.settings_acknowledged()
    # What this encoder makes, a decoder with that table must read.
    encoder = HpackEncoder(table_bytes, huffman=options & 0x80 != 0, varying=(b"grpc-timeout", b"a"))
    mirror = HpackDecoder(max(table_bytes, TABLE_LEAST), NO_LIMIT)
    empty = footprint(decoder)
    fed = 0
    looked = looked_at(blocks)
    for number, block in enumerate(blocks):
        fed += len(block)
        first, second = decode(decoder, block, list_bytes), decode(forgetful, block, list_bytes)
        assert first == second, f"block {number}: {first!r}, and with no memory {second!r}"
        theirs = decode_by_reference(reference, block)
        if isinstance(first, str):
            # Only an integer may be too long for us alone.
            assert theirs is None or "integer" in first, f"block {number}: {first}, but {theirs!r}"
            assert isinstance(decode(decoder, b"", list_bytes), str), "a decoder goes on after an error"
            break
        assert theirs is not None, f"block {number}: {first!r}, but an error"
        if first is None:
            assert listed_bytes(theirs) > list_bytes
        else:
            assert first == theirs
            encoder.set_table_bytes((TABLE_LEAST, 0, 100, 65536)[number // 4 % 4])
            assert mirror.decode(encoder.encode(first)).fields == first
            if number % 4 == 0:
                plain = b"".join(literal(*field) for field in first)
                assert HpackDecoder(0, NO_LIMIT).decode(plain).fields == first
        if number in looked:
            held = footprint(decoder)
            assert held.size - empty.size <= 2 * max(table_bytes, TABLE_LEAST) + min(fed * 300, HELD_BYTES)
            assert held.elements - empty.elements <= table_bytes // 8 + min(fed * 20 + 100, HELD_ELEMENTS)
            assert footprint(encoder).size <= 3 * max(table_bytes, TABLE_LEAST) + 64 * (fed + 100)


def listed_bytes(fields: Fields) -> int:
    return sum(len(name) + len(value) + 32 for name, value in fields)


def decode(decoder: HpackDecoder, block: bytes, list_bytes: int) -> Fields | str | None:
    """The fields; the text of the error; None if they are too large."""
    try:
        decoded = decoder.decode(block)
    except HeaderListTooLarge:
        return None
    except HpackError as error:
        return str(error)
    assert decoded.size == listed_bytes(decoded.fields)
    assert decoded.size <= list_bytes
    assert decoded.never_indexed <= {name for name, _ in decoded.fields}
    return decoded.fields


def decode_by_reference(decoder: hpack.Decoder, block: bytes) -> Fields | None:
    """The fields; None for an error."""
    try:
        return tuple((bytes(field[0]), bytes(field[1])) for field in decoder.decode(block, raw=True))
    except hpack.HPACKDecodingError:
        return None


def split(data: bytes) -> list[bytes]:
    blocks: list[bytes] = []
    at = 0
    while at + 2 <= len(data) and len(blocks) < BLOCKS_MAX:
        length = int.from_bytes(data[at : at + 2], "big")
        blocks.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return blocks


def join(options: int, blocks: list[bytes]) -> bytes:
    return bytes((options & 0xFF,)) + b"".join(len(block).to_bytes(2, "big") + block for block in blocks)


REQUEST: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"localhost:8001"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"grpc-timeout", b"990m"),
    (b"user-agent", b"grpc-python/1.85.3"),
    (b"authorization", b"Bearer secret"),
    (b"x-request-id", b"0123456789abcdef"),
)
RESPONSE: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-a", b"\xff\x00"))


def seeds() -> list[bytes]:
    """Blocks as an encoder makes them, with and without Huffman, that fill a table and resize it."""
    made = []
    for options in range(2 * len(LIMITS)):
        encoder = HpackEncoder(LIMITS[options % len(LIMITS)][0], huffman=options % 2 == 0)
        blocks = [encoder.encode(fields) for fields in (REQUEST, REQUEST, RESPONSE, REQUEST, RESPONSE, REQUEST)]
        encoder.set_table_bytes(50)
        blocks.append(encoder.encode(RESPONSE))
        encoder.set_table_bytes(4096)
        blocks += [encoder.encode([(b"x-%d" % number, b"v" * number)] * 2) for number in range(0, 200, 60)]
        made.append(join(options, blocks))
    made += [
        join(0, [b"\x3f\xe1\x1f\x20\x82", b"\x40\x01a\x01b\xbe\xbe\xbe", b"\xbe"]),
        join(1, [b"\x40\x01a\x7f\x81\x01" + b"b" * 256, b"\xbe" * 50, b"\x82"]),
        join(0, [b"\x0f\x80\x01\x00\x01a", b"\x10\x01a\x01b", b"\x7f\x00\x01a", b"\xff\x80\x80\x01"]),
        join(0, [b"\x00\x84\xff\xff\xff\xff\x01a", b"\x00\x81\x1f\x01a", b"\x00\x00\x00"]),
    ]
    return made


TOKENS = (
    b"\x20", b"\x3f\xe1\x1f", b"\x3f\x00", b"\x82", b"\xbe", b"\xbf", b"\xff\x00", b"\xff\x80\x01", b"\x40\x01a\x01b",
    b"\x00\x01a\x01b", b"\x10\x01a\x01b", b"\x7f\x00\x01c", b"\x0f\x30\x01d", b"\x40\x00\x00", b"\x41\x83\xff\xff\xff",
    b"\x7f\x80\x80\x80\x80\x80", b"\x40\x7f\x81\x01", b"\xc0", b"\x80", b"\x01\x82\x1f\xff",
    b"\x40\x01e\x7f\xff\xff\xff\x01",
)  # fmt: skip


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Blocks repeated, moved and left out; or one block, or anything, changed."""
    options, blocks = (data[0] if data else 0), split(data[1:])
    if chance.random() < 0.1:
        return change(data, chance, TOKENS)
    if chance.random() < 0.1:
        options = chance.randrange(256)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if not blocks:
            blocks = [chance.choice(TOKENS)]
        at = chance.randrange(len(blocks))
        kind = chance.randrange(7)
        if kind == 0:
            blocks[at:at] = [chance.choice(blocks)] * chance.choice((1, 1, 3))
        elif kind == 6 and blocks[at]:
            # The same again, but for an octet: what decoders remember of a form is used and tested.
            other = bytearray(blocks[at])
            other[chance.randrange(len(other))] ^= 1 << chance.randrange(7)
            blocks[at + 1 : at + 1] = [blocks[at], bytes(other)]
        elif kind == 1:
            del blocks[at]
        elif kind == 2:
            blocks[at] = blocks[at] + chance.choice(blocks)
        elif kind == 3:
            cut = chance.randrange(len(blocks[at]) + 1)
            blocks[at : at + 1] = [blocks[at][:cut], blocks[at][cut:]]
        else:
            blocks[at] = change(blocks[at], chance, TOKENS)
    return join(options, blocks)


TARGET = Target(seeds, check, mutate)
