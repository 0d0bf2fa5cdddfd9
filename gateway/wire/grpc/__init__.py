"""gRPC over HTTP/2 above the frames, without I/O: messages, compression, statuses, time limits and custom metadata.

How an answer is read, given the payloads and header blocks of its stream::

    reader = MessageReader(limit_bytes)
    for compressed, payload in reader.feed(data, start, stop):      # DATA; raises GrpcFault
        message = decompress(payload, encoding, limit_bytes) if compressed else payload
    reader.end()                                                    # raises GrpcFault inside a message
    code, text = read_end(trailers) or (code_of_http(status), "")

A `GrpcFault` carries the code that the call ends with; nothing else is raised for anything that a peer can send.
"""

from gateway.wire.grpc.compression import (
    ACCEPT_ENCODING,
    accepted,
    check_compressed,
    compress,
    decompress,
    read_encoding,
)
from gateway.wire.grpc.errors import GrpcFault, MessageRefused, MessageTooLarge
from gateway.wire.grpc.framing import PREFIX_BYTES, Message, MessageReader, message_prefix
from gateway.wire.grpc.metadata import (
    decode_binary,
    encode_binary,
    is_reserved,
    read_metadata,
    write_metadata,
)
from gateway.wire.grpc.status import (
    code_of_http,
    code_of_reset,
    decode_message,
    encode_message,
    encode_status,
    end_fields,
    parse_status,
    read_end,
)
from gateway.wire.grpc.timeout import encode_timeout, parse_timeout

__all__ = [
    "ACCEPT_ENCODING",
    "PREFIX_BYTES",
    "GrpcFault",
    "Message",
    "MessageReader",
    "MessageRefused",
    "MessageTooLarge",
    "accepted",
    "check_compressed",
    "code_of_http",
    "code_of_reset",
    "compress",
    "decode_binary",
    "decode_message",
    "decompress",
    "encode_binary",
    "encode_message",
    "encode_status",
    "encode_timeout",
    "end_fields",
    "is_reserved",
    "message_prefix",
    "parse_status",
    "parse_timeout",
    "read_encoding",
    "read_end",
    "read_metadata",
    "write_metadata",
]
