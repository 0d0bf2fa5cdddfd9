"""Whether an answer is from the version that was asked, without reading who else it might be from."""

from __future__ import annotations

from gateway.wire.kserve import protobuf as pb

_FIELDS_MAX = pb.MAX_FIELDS - 2


def answered_as(message: bytes, names: bytes) -> bool:
    """True if `message` is a well-formed `ModelInferResponse` that names the model and version which `names` (fields 1
    and 2, as `request_view.model_override` writes them) has, and no others: what `read_response_head` would find.

    False if it is not written as servers write it, names first and each once; then that must be asked.
    """
    if not message.startswith(names):
        return False
    pos, end = len(names), len(message)
    for _ in range(_FIELDS_MAX):
        if pos >= end:
            return pos == end
        tag = message[pos]
        # Outputs, raw contents and parameters are skipped; the id is the last one that has a text to be checked.
        if tag != 0x2A and tag != 0x32 and tag != 0x22 and tag != 0x1A:
            return False
        pos += 1
        if pos >= end:
            return False
        size = message[pos]
        if size < 0x80:
            start = pos + 1
        else:
            try:
                size, start = pb.read_varint(message, pos, end)
            except pb.WireError:
                return False
        pos = start + size
        if tag == 0x1A and not message[start:pos].isascii():
            return False
    return False
