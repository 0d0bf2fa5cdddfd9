"""Custom metadata: which names are free for it, and the base64 of names that end in `-bin`.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Custom-Metadata".
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable

from gateway.core.codes import Code
from gateway.core.header_names import PEERS_OWN, PEERS_OWN_PREFIXES
from gateway.wire.grpc.errors import GrpcFault

BINARY_SUFFIX = b"-bin"

_RESERVED = frozenset(name.encode() for name in PEERS_OWN)
_RESERVED_PREFIXES = tuple(prefix.encode() for prefix in PEERS_OWN_PREFIXES)
_NAME = re.compile(r"[a-z0-9_.-]+")


def is_reserved(name: bytes) -> bool:
    """Whether `name` (lower case) belongs to HTTP/2, to gRPC or to one connection, and so is no custom metadata."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)


def read_text(value: bytes) -> str:
    """Text as it is sent: UTF-8; what is not is read as Latin-1, as gRPC's library does it. Never raises."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def encode_binary(value: bytes) -> bytes:
    """`value` as it is sent under a name that ends in `-bin`: base64 without padding."""
    return b2a_base64(value, newline=False).rstrip(b"=")


def decode_binary(value: bytes) -> list[bytes]:
    """The values in a field whose name ends in `-bin`: base64, padded or not; commas stand between several.

    Raises `GrpcFault` (INTERNAL) for what no encoder writes.
    """
    return [_decode(part) for part in value.split(b",")]


def _decode(part: bytes) -> bytes:
    bare = part.strip(b" \t").rstrip(b"=")
    try:
        decoded = a2b_base64(bare + b"==")
    except Error:
        raise _bad() from None
    # The decoder skips what is not in the alphabet, and bits that are left over.
    if encode_binary(decoded) != bare:
        raise _bad()
    return decoded


def _bad() -> GrpcFault:
    return GrpcFault(Code.INTERNAL, "metadata whose name ends in -bin is not base64")


def read_metadata(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str | bytes]]:
    """The custom metadata among a block's fields, in order: text, or the bytes of names that end in `-bin`.

    Raises `GrpcFault` (INTERNAL) for a `-bin` value that is not base64.
    """
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        key = _keys.get(name) or _learn_key(name)
        if key == _NOT_CUSTOM:
            continue
        if name.endswith(BINARY_SUFFIX):
            pairs.extend([(key, decoded) for decoded in decode_binary(value)])
        else:
            pairs.append((key, read_text(value)))
    return pairs


def write_metadata(pairs: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """The fields that carry `pairs`. Left out is what gRPC cannot carry: reserved names, names and text with characters
    that are not allowed. Under a name that ends in `-bin` stand bytes, or a text that is base64 already. Never raises.
    """
    fields: list[tuple[bytes, bytes]] = []
    for key, value in pairs:
        name = _names.get(key) or _learn_name(key)
        if name == _NOT_CARRIED:
            continue
        if name.endswith(BINARY_SUFFIX):
            fields.extend([(name, encode_binary(each)) for each in _binaries(value)])
        elif isinstance(value, str) and value.isascii() and value.isprintable():
            fields.append((name, value.encode("ascii")))
    return fields


_NAMES_MAX = 1024
_NAME_BYTES_MAX = 64
_NOT_CUSTOM, _NOT_CARRIED = ":", b":"  # no name of metadata: they stand for all those that are none
_keys: dict[bytes, str] = {}
_names: dict[str, bytes] = {}
"""What is made of names seen before: there are few of them, and each comes with every call."""


def _learn_key(name: bytes) -> str:
    key = _NOT_CUSTOM if is_reserved(name) else read_text(name)
    if len(name) <= _NAME_BYTES_MAX:
        if len(_keys) >= _NAMES_MAX:
            _keys.clear()
        _keys[name] = key
    return key


def _learn_name(key: str) -> bytes:
    name = key.encode("ascii") if _NAME.fullmatch(key) else _NOT_CARRIED
    if is_reserved(name):
        name = _NOT_CARRIED
    if len(key) <= _NAME_BYTES_MAX:
        if len(_names) >= _NAMES_MAX:
            _names.clear()
        _names[key] = name
    return name


def _binaries(value: str | bytes) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    try:
        return decode_binary(value.encode("utf-8", "replace"))
    except GrpcFault:
        return []
