"""What can be wrong with a header block."""

from __future__ import annotations


class HpackError(Exception):
    """The block is malformed: the two ends no longer agree about the table, so the connection must end.

    RFC 9113 section 4.3: a connection error of type COMPRESSION_ERROR. The decoder must not be used again.
    """


class HeaderListTooLarge(Exception):
    """The block is well formed but its fields are over the limit: they are dropped, the table is up to date.

    The connection may go on; only the stream of this block cannot.
    """
