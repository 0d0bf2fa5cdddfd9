"""The header block of a request: fields that every call of a connection shares, and those of one call.

The shared ones go through the connection's table, where they come to a byte each; those of one call (its time limit,
its metadata) are literals that touch no table. Blocks are put together as text, each byte a character, and encoded
once: of all ways to join short pieces Python's formatted strings are the quickest by far.
"""

from __future__ import annotations

import base64
import binascii
import re
from math import ceil

from gateway.core.call import Metadata
from gateway.core.header_names import PEERS_OWN, PEERS_OWN_PREFIXES
from gateway.wire.grpc import ACCEPT_ENCODING, encode_timeout
from gateway.wire.hpack import HpackEncoder, literal
from gateway.wire.hpack.encoder import SENSITIVE
from gateway.wire.hpack.integers import encode_integer
from gateway.wire.hpack.literals import NEVER_INDEXED, NOT_INDEXED, literal_head

Fields = tuple[tuple[bytes, bytes], ...]

USER_AGENT = b"sluice"
MEMO_MAX_S = 100.0
"""Longer limits are not remembered: most would come once."""
_NAME = re.compile(r"[a-z0-9_.-]+")
_MEMO_MAX = 4096
_SHORT = 127
"""The first length that the first byte of a string cannot tell."""
_LENGTHS = tuple(map(chr, range(_SHORT)))

_names: dict[str, tuple[str, bool]] = {}
"""Metadata names seen before: a literal up to its value, "" for a name that is not sent; and whether it is binary."""
_limits: dict[int, str] = {}
"""Time limits seen before, by whole milliseconds: the fields that tell of them."""


class HeadEncoder(HpackEncoder):
    """The encoder of one connection, which keeps the shared fields of a path once their block does not change any more.
    `heads` has those blocks by path, as text: they need not be encoded, and may also not be sent.
    """

    __slots__ = ("_authority", "_fields", "_last", "_scheme", "heads")

    def __init__(self, authority: bytes, scheme: bytes) -> None:
        super().__init__()
        self.heads: dict[str, str] = {}
        self._last: dict[str, bytes] = {}
        self._authority = authority
        self._scheme = scheme
        self._fields: dict[str, Fields] = {}
        """By path. Made once: the encoder knows them again by their identity."""

    def head(self, path: str) -> str:
        """The shared fields of a request. Must be sent at once, and in front of all others' heads."""
        fields = self._fields.get(path)
        if fields is None:
            fields = self._fields[path] = shared_fields(path, self._authority, self._scheme)
        block = self.encode(fields)
        text = block.decode("latin-1")
        if self._last.get(path) is block:
            # The encoder has remembered it, so there was nothing to be done about its table.
            self.heads[path] = text
        else:
            # The table may have changed, and every block with it.
            self.heads.clear()
            self._last[path] = block
        return text

    def set_table_bytes(self, size: int) -> None:
        super().set_table_bytes(size)
        self.heads.clear()


def shared_fields(path: str, authority: bytes, scheme: bytes) -> Fields:
    """What all calls of one method on one connection begin with."""
    return (
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":path", path.encode("ascii")),
        (b":authority", authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", USER_AGENT),
        (b"grpc-accept-encoding", ACCEPT_ENCODING),
    )


def request_block(head: str, metadata: Metadata, timeout_s: float) -> bytes:
    """The encoded fields of one call: `head`, which `HeadEncoder` gave, and its own. An infinite `timeout_s` is no
    limit, and not sent.

    Metadata that gRPC cannot carry is left out: reserved names, characters outside printable ASCII, and `-bin` values
    that are not base64.
    """
    limit = _limits.get(ceil(timeout_s * 1000)) if timeout_s < MEMO_MAX_S else None
    block = f"{head}{_limit_field(timeout_s) if limit is None else limit}"
    for name, value in metadata:
        part, binary = _names.get(name) or _learn(name)
        if not part or not (value.isascii() and value.isprintable()) or (binary and not _is_base64(value)):
            continue
        value = value.strip(" ")  # HTTP/2 forbids blanks at the ends, gRPC allows to drop them
        length = len(value)
        if length < _SHORT:
            block = f"{block}{part}{_LENGTHS[length]}{value}"
        else:
            block += part + encode_integer(length, _SHORT, 0).decode("latin-1") + value
    return block.encode("latin-1")


def _limit_field(timeout_s: float) -> str:
    """`grpc-timeout`, rounded up to whole milliseconds: never shorter than the limit, which the client keeps itself,
    telling the replica when it has passed; and so never longer than a unary call has left, for of that its limit is a
    millisecond less.
    """
    if timeout_s == float("inf"):
        return ""
    field = literal(b"grpc-timeout", encode_timeout(timeout_s)).decode("latin-1")
    if 0 < timeout_s < MEMO_MAX_S:
        if len(_limits) >= _MEMO_MAX:
            _limits.clear()
        _limits[ceil(timeout_s * 1000)] = field
    return field


def _learn(name: str) -> tuple[str, bool]:
    part = ""
    if name not in PEERS_OWN and not name.startswith(PEERS_OWN_PREFIXES) and _NAME.fullmatch(name):
        raw = name.encode("ascii")
        part = literal_head(raw, NEVER_INDEXED if raw in SENSITIVE else NOT_INDEXED).decode("latin-1")
    if len(_names) >= _MEMO_MAX:
        _names.clear()
    learned = _names[name] = (part, name.endswith("-bin"))
    return learned


def _is_base64(value: str) -> bool:
    try:
        base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
