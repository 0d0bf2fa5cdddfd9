"""What a decoder gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.wire.hpack.static_table import Field

if TYPE_CHECKING:
    from gateway.wire.hpack.layout import Layout


class HeaderBlock:
    """The fields of one block, in order.

    `size` counts len(name) + len(value) + 32 bytes for each field. `never_indexed` names the fields that the peer wants
    to be indexed nowhere on their way (RFC 7541 section 6.2.3). `layout` is shared by blocks whose fields are equal but
    for the values at `layout.varying`; None where there is no such thing.

    A block that came before may be the same object: read only, but for `note` and `verdict`, which are for its users.
    """

    __slots__ = ("fields", "layout", "never_indexed", "note", "size", "verdict")

    fields: tuple[Field, ...]
    size: int
    never_indexed: frozenset[bytes]
    layout: Layout | None
    note: object
    verdict: object
