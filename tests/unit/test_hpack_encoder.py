"""What the encoder puts on the wire: what it indexes, what it does not, and size updates."""

from __future__ import annotations

import pytest

from gateway.wire.hpack import HpackDecoder, HpackEncoder, literal
from tests.unit.hpack_driving import LIST_MAX, Fields, literal_block

CALL: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"triton:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def test_fields_of_the_static_table_take_one_octet() -> None:
    encoder = HpackEncoder(4096)

    assert encoder.encode(((b":method", b"POST"), (b":status", b"200"), (b"accept-encoding", b"gzip, deflate"))) == (
        b"\x83\x88\x90"
    )


def test_a_field_is_indexed_when_it_comes_again() -> None:
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)

    blocks = [encoder.encode(CALL) for _ in range(5)]

    assert [decoder.decode(block).fields for block in blocks] == [CALL] * 5
    assert b"/inference" in blocks[0]
    assert b"/inference" in blocks[1]
    assert blocks[2] == blocks[3] == blocks[4] == b"\x83\x86\xc1\xc0\xbf\xbe"
    assert decoder.statistics().table_entries == 4


def test_values_that_differ_each_time_stay_out_of_the_table() -> None:
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)
    for number in range(300):
        fields = (*CALL, (b"x-request-id", b"%d" % number))
        assert decoder.decode(encoder.encode(fields)).fields == fields

    assert decoder.statistics().table_entries == 4
    assert len(encoder.encode((*CALL, (b"x-request-id", b"300")))) == 6 + 1 + 13 + 4


def test_varying_fields_are_never_indexed_in_the_table() -> None:
    encoder = HpackEncoder(4096, varying=(b"grpc-timeout", b":path"))

    for _ in range(4):
        block = encoder.encode(((b"grpc-timeout", b"100m"), (b":path", b"/x"), (b"grpc-timeout", b"t" * 200)))

    assert block == (
        literal_block((b"grpc-timeout", b"100m")) + b"\x04\x02/x" + b"\x00\x0cgrpc-timeout\x7f\x49" + b"t" * 200
    )


@pytest.mark.parametrize("name", [b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"])
def test_secrets_are_marked_as_never_indexed(name: bytes) -> None:
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)
    for _ in range(4):
        block = encoder.encode(((name, b"secret"), (b"te", b"trailers")))
        decoded = decoder.decode(block)
        assert decoded.never_indexed == {name}
        assert b"\x06secret" in block
    assert decoder.statistics().table_entries == 1


def test_what_the_caller_marks_is_never_indexed_even_if_it_is_in_the_table() -> None:
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)
    fields = ((b"x-token", b"abc"), (b":method", b"GET"))
    for _ in range(3):
        plain = encoder.encode(fields)
        decoder.decode(plain)
    assert plain == b"\xbe\x82"

    marked = encoder.encode(fields, never_indexed=frozenset({b"x-token", b":method"}))

    assert decoder.decode(marked).never_indexed == {b"x-token", b":method"}
    assert decoder.decode(marked).fields == fields
    assert encoder.encode(fields) == plain


def test_a_varying_field_may_be_marked_too() -> None:
    encoder = HpackEncoder(4096, varying=(b"x-token",))

    assert encoder.encode(((b"x-token", b"abc"),)) == b"\x00\x07x-token\x03abc"
    assert encoder.encode(((b"x-token", b"abc"),), frozenset({b"x-token"})) == b"\x10\x07x-token\x03abc"
    secret = ((b"authorization", b"Bearer x"), (b"x-token", b"abc"))
    assert encoder.encode(secret, frozenset({b"other"})) == b"\x1f\x08\x08Bearer x\x00\x07x-token\x03abc"
    assert encoder.encode(((b"x-token", b"abc"),)) == b"\x00\x07x-token\x03abc"


def test_a_field_too_large_for_the_table_is_not_inserted() -> None:
    encoder = HpackEncoder(4096)
    large = (b"n", b"v" * 1024)

    assert len({encoder.encode((large,)) for _ in range(5)}) == 1


def test_a_full_table_changes_seldom() -> None:
    """A hundred kinds of calls, each with a path of its own, must not turn the table over with every block."""
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)
    changes = 0
    known = None
    for number in range(3000):
        fields = (*CALL[:2], (b":path", b"/%0200d" % (number // 2 % 50)))
        block = encoder.encode(fields)
        assert decoder.decode(block).fields == fields
        if number >= 1000:
            changes += (b"\x44" in block[:3]) and known is not None
            known = block

    assert decoder.statistics().table_entries == 4096 // (5 + 201 + 32)
    assert 1 <= changes <= 2000 // 64 + 1


def test_the_same_tuple_is_recognised_until_the_table_changes() -> None:
    encoder = HpackEncoder(4096)
    for _ in range(3):
        first = encoder.encode(CALL)
    assert encoder.encode(CALL) is encoder.encode(CALL)

    other = ((b"x-new", b"1"),)
    for _ in range(2):
        encoder.encode(other)

    assert encoder.encode(CALL) == b"\x83\x86\xc2\xc1\xc0\xbf" != first


def test_a_list_that_is_changed_is_encoded_anew() -> None:
    encoder = HpackEncoder(4096)
    fields = [(b":method", b"GET")]
    assert encoder.encode(fields) == b"\x82"
    assert encoder.encode(fields) == b"\x82"
    fields[0] = (b":method", b"POST")

    assert encoder.encode(fields) == b"\x83"


def test_a_tuple_that_is_gone_is_not_taken_for_one_at_its_place() -> None:
    encoder = HpackEncoder(4096)
    for number in range(2000):
        status = b"200" if number % 3 else b"404"
        assert encoder.encode(((b":status", status),)) == (b"\x88" if number % 3 else b"\x8d")


def test_a_smaller_table_is_announced_before_anything_else() -> None:
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)
    for _ in range(3):
        decoder.decode(encoder.encode(CALL))
    encoder.set_table_bytes(100)
    block = encoder.encode(CALL)

    assert block.startswith(b"\x3f\x45\x83\x86")
    assert decoder.decode(block).fields == CALL
    assert decoder.statistics().table_bytes <= 100
    assert not encoder.encode(CALL).startswith(b"\x3f")


def test_the_smallest_size_between_two_blocks_is_announced_too() -> None:
    encoder = HpackEncoder(4096)
    for size in (500, 0, 300, 4096):
        encoder.set_table_bytes(size)

    assert encoder.encode(((b":method", b"GET"),)) == b"\x20\x3f\xe1\x1f\x82"


def test_a_peer_that_allows_more_is_used_up_to_the_own_limit() -> None:
    encoder = HpackEncoder(8192)
    encoder.set_table_bytes(1 << 31)
    assert encoder.encode(()) == b"\x3f\xe1\x3f"

    encoder = HpackEncoder(4096)
    encoder.set_table_bytes(1 << 31)
    assert encoder.encode(()) == b""


def test_an_encoder_without_a_table_says_so_and_inserts_nothing() -> None:
    encoder = HpackEncoder(0)
    decoder = HpackDecoder(4096, LIST_MAX)
    blocks = [encoder.encode(CALL) for _ in range(4)]

    assert blocks[0] == b"\x20" + blocks[1]
    assert [decoder.decode(block).fields for block in blocks] == [CALL] * 4
    assert decoder.statistics().table_entries == 0


def test_a_block_of_literals_alone_starts_with_the_update() -> None:
    encoder = HpackEncoder(4096)
    assert encoder.take_update() == b""
    encoder.set_table_bytes(0)

    block = encoder.take_update() + literal(b":status", b"200")

    assert block == b"\x20\x88"
    assert encoder.encode(((b":status", b"200"),)) == b"\x88"


def test_literals_may_follow_what_was_encoded() -> None:
    encoder = HpackEncoder(4096)
    decoder = HpackDecoder(4096, LIST_MAX)
    for number in range(5):
        block = encoder.encode(CALL) + literal(b"grpc-timeout", b"%dm" % number) + literal(b"x-long", b"v" * 300)
        assert decoder.decode(block).fields == (*CALL, (b"grpc-timeout", b"%dm" % number), (b"x-long", b"v" * 300))


def test_literals_take_what_the_static_table_has() -> None:
    assert literal(b":status", b"200") == b"\x88"
    assert literal(b":status", b"201") == b"\x08\x03201"
    assert literal(b"grpc-status", b"0") == b"\x00\x0bgrpc-status\x010"
    assert literal(b"user-agent", b"x") == b"\x0f\x2b\x01x"
    assert literal(b"authorization", b"Basic x", never_index=True) == b"\x1f\x08\x07Basic x"
    assert literal(b":status", b"200", never_index=True) == b"\x18\x03200"


def test_strings_are_coded_on_request_where_that_is_shorter() -> None:
    plain, coding = HpackEncoder(4096), HpackEncoder(4096, huffman=True)
    text, noise = (b"x", b"www.example.com"), (b"y", b"\x01\x02\x03\x04")

    assert b"www.example.com" in plain.encode((text,))
    assert b"\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff" in coding.encode((text,))
    assert b"\x04\x01\x02\x03\x04" in coding.encode((noise,))
