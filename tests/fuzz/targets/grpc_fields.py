"""What is in gRPC's header fields, and compressed messages (`gateway.wire.grpc`). The first byte says which."""

from __future__ import annotations

import gzip
import math
import random
import re
import struct
import zlib
from collections.abc import Callable

from gateway.wire.content_coding import DEFLATE, GZIP
from gateway.wire.grpc import (
    GrpcFault,
    MessageTooLarge,
    accepted,
    decode_binary,
    decode_message,
    decompress,
    encode_binary,
    encode_message,
    encode_timeout,
    is_reserved,
    parse_status,
    parse_timeout,
    read_encoding,
    read_end,
    read_metadata,
    write_metadata,
)
from tests.fuzz.mutations import change
from tests.fuzz.target import Target

LIMIT = 4096
MESSAGE = re.compile(rb"(?:[ -$&-~]|%[0-9A-F]{2})*")
TIMEOUT = re.compile(rb"[0-9]{1,8}[HMSmun]")
TEXT = re.compile(rb"[ -~]*")


def check(data: bytes) -> None:
    if data:
        PARTS[data[0] % len(PARTS)](data[1:])


def gzip_message(value: bytes) -> None:
    message(value, GZIP, zlib.MAX_WBITS | 16)


def deflate_message(value: bytes) -> None:
    message(value, DEFLATE, zlib.MAX_WBITS)


def message(value: bytes, encoding: bytes, wbits: int) -> None:
    """Taken is exactly what zlib takes to its last byte, unless it is too large."""
    decoder = zlib.decompressobj(wbits)
    try:
        plain = decoder.decompress(value, LIMIT + 1)
        good = decoder.eof and not decoder.unused_data
    except zlib.error:
        plain, good = b"", False
    try:
        ours = decompress(value, encoding, LIMIT)
    except MessageTooLarge:
        assert len(plain) > LIMIT
    except GrpcFault:
        assert not good
        assert value
    else:
        assert not value or (good and ours == plain)


def status_message(value: bytes) -> None:
    text = decode_message(value)
    sent = encode_message(text)
    assert MESSAGE.fullmatch(sent)
    assert decode_message(sent) == text


def status(value: bytes) -> None:
    code, _, text = value.partition(b"\n")
    parse_status(code)
    ended = read_end([(b"grpc-status", code), (b"grpc-message", text)])
    assert ended == (parse_status(code), decode_message(text))


def timeout(value: bytes) -> None:
    timeout_s = parse_timeout(value)
    assert math.isfinite(timeout_s)
    assert timeout_s >= 0


def timeout_out(value: bytes) -> None:
    if len(value) >= 8:
        timeout_s = struct.unpack_from("<d", value)[0]
        if not math.isnan(timeout_s):
            sent = encode_timeout(timeout_s)
            assert TIMEOUT.fullmatch(sent)
            unit_s = 0.001 if sent.endswith(b"m") else 1.0
            assert parse_timeout(sent) <= max(timeout_s, 0.0) * (1 + 1e-9) + unit_s


def binary(value: bytes) -> None:
    decoded = decode_binary(value)
    assert sum(map(len, decoded)) <= len(value)
    assert decode_binary(b",".join(map(encode_binary, decoded))) == decoded


def fields(value: bytes) -> None:
    pairs = [(name, rest) for name, _, rest in (line.partition(b":") for line in value.split(b"\n"))]
    read = read_metadata(pairs)
    written = write_metadata(read)
    for name, sent in written:
        assert not is_reserved(name)
        assert TEXT.fullmatch(sent)
    assert write_metadata(read_metadata(written)) == written


def encodings(value: bytes) -> None:
    assert accepted(value) <= {b"identity", b"gzip", b"deflate"}
    assert read_encoding(value) in accepted(value)


def faults_are_allowed(part: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def run(value: bytes) -> None:
        try:
            part(value)
        except GrpcFault as fault:
            assert len(fault.text) < 200  # noqa: PT017

    return run


PARTS = [
    faults_are_allowed(part)
    for part in (gzip_message, deflate_message, status_message, status, timeout, timeout_out, binary, fields, encodings)
]


def seeds() -> list[bytes]:
    body = b"hello hello hello " * 10
    return [
        b"\0" + gzip.compress(body, mtime=0),
        b"\0" + gzip.compress(bytes(100_000), mtime=0),
        b"\1" + zlib.compress(body),
        b"\1" + zlib.compress(bytes(5000)),
        b"\2the%20model%C3%A4 is not ready %",
        b"\x035\nnot%20found",
        b"\x040",
        *(b"\4" + value for value in (b"1S", b"99999999H", b"250m", b" 5 u ", b"0n")),
        *(b"\5" + struct.pack("<d", value) for value in (0.9987, 1e-9, 3600, 1e12, -1)),
        *(b"\6" + value for value in (b"YQ==", b"YWI,YWJj", b"//4", b"")),
        b"\7x-a: b\nx-a-bin:YQ\nte:trailers\ngrpc-x:1\n:path:/\nx-c:\xe4",
        *(b"\x08" + value for value in (b"gzip", b"identity, deflate, gzip", b"zstd")),
    ]


def mutate(data: bytes, chance: random.Random) -> bytes:
    tokens = (
        b"%C3%A4",
        b"%",
        b",",
        b"=",
        b"-bin:",
        b"\n",
        b"9",
        b"S",
        b"m",
        b" ",
        b"gzip",
        b"\xff",
        b"\x1f\x8b\x08",
        b"\x78\x9c",
    )
    return change(data, chance, tokens)


TARGET = Target(seeds, check, mutate)
