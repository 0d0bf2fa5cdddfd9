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
    for the values at `layout.varying`, which are `values`; None, and (), where there is no such thing.

    A block that came before may be the same object: read only, but for `note` and `verdict`, which are for its users.
    """

    __slots__ = ("_fields", "layout", "never_indexed", "note", "size", "values", "verdict")

    _fields: tuple[Field, ...] | None
    """None until somebody asks for them, where a layout can tell."""
    size: int
    never_indexed: frozenset[bytes]
    layout: Layout | None
    values: tuple[bytes, ...]
    note: object
    verdict: object

    @property
    def fields(self) -> tuple[Field, ...]:
        """Names and values."""
        fields = self._fields
        if fields is None:
            assert self.layout is not None
            fields = self._fields = self.layout.fields(self.values)
        return fields
