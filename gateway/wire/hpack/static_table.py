"""The static table (RFC 7541 appendix A)."""

from __future__ import annotations

from typing import Final, TypeAlias

Field: TypeAlias = tuple[bytes, bytes]

STATIC_TABLE: Final[tuple[Field, ...]] = (
    (b"", b""),  # indices start at 1
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
"""By index; index 0 is none."""

TABLE_BYTES_DEFAULT: Final = 4096
"""The size of a dynamic table until another is agreed (RFC 9113 section 6.5.2)."""

STATIC_SIZE: Final = len(STATIC_TABLE)
"""The index of the newest entry of the dynamic table."""

STATIC_FIELDS: Final[dict[Field, int]] = {field: index for index, field in enumerate(STATIC_TABLE) if index}
"""Field to its index."""

STATIC_NAMES: Final[dict[bytes, int]] = {
    name: index for index, (name, _) in reversed(tuple(enumerate(STATIC_TABLE))) if index
}
"""Name to the lowest index that has it."""


def entry_size(field: Field) -> int:
    """What a field counts, in bytes: in the table and in a header list (RFC 7541 section 4.1)."""
    return len(field[0]) + len(field[1]) + 32
