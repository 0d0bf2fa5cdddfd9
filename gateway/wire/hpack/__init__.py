"""Header compression of HTTP/2 (RFC 7541), without I/O: one decoder and one encoder for each connection.

How a connection uses it::

    decoder = HpackDecoder(header_table_bytes, header_list_max_bytes)
    block = decoder.decode(raw)                  # a whole block: HEADERS and its CONTINUATIONs, as bytes
        HpackError         -> COMPRESSION_ERROR, the connection is over
        HeaderListTooLarge -> refuse the stream; the table is up to date, the connection goes on
    decoder.settings_acknowledged()              # the peer has seen our table size

    encoder = HpackEncoder(table_bytes_max, varying=(b"grpc-timeout", b"traceparent"))
    encoder.set_table_bytes(size)                # the peer's SETTINGS_HEADER_TABLE_SIZE
    raw = encoder.encode(SHARED) + literal(b"grpc-timeout", b"990m")

Blocks must be encoded in the order in which they are sent. `literal` touches no table, so a block of literals may be
made at any time; if the peer's table size has just changed, `encoder.take_update()` goes in front of it.

**Speed.** Blocks of gRPC repeat, so most are recognised:

* as a whole, while the table has not changed. The `HeaderBlock` is then the same object, with the `note` and `verdict`
  that its users left in it;
* but for the values of plain literals (`layout`), likewise. `HeaderBlock.layout` tells users what is the same;
* field by field otherwise. That is the lot of clients that put values into the table which differ each time (Go, Java,
  and the C library with its `grpc-timeout`), since each insertion shifts all indices. Here the Huffman strings are
  what costs, so zlib decodes them.

The encoder writes plain strings and indexes what it sees a second time, so the blocks it makes repeat, too.

**Bounds.** A decoder holds its table (at most the larger of 4096 bytes and the advertised size), 32 KiB of blocks and
their fields, and 16 layouts. Decoding takes time in proportion to the block and the sizes of strings; fields past the
limit are read and dropped, one octet each that refers to a large entry costs as one octet. What is not bounded here is
the size of a block; that is the connection's to bound.

Decisions where the RFC leaves a choice: an integer has at most five octets; an error is final for the decoder; a table
size that was advertised below 4096 binds the peer from its acknowledgement on, and then it must shrink the table first
(RFC 9113 section 4.3.1). Names are taken as they come: what HTTP/2 allows is for its own code to check.
"""

from gateway.wire.hpack.decoder import HpackDecoder
from gateway.wire.hpack.encoder import HpackEncoder
from gateway.wire.hpack.errors import HeaderListTooLarge, HpackError
from gateway.wire.hpack.header_block import HeaderBlock
from gateway.wire.hpack.layout import Layout
from gateway.wire.hpack.literals import literal

__all__ = ["HeaderBlock", "HeaderListTooLarge", "HpackDecoder", "HpackEncoder", "HpackError", "Layout", "literal"]
