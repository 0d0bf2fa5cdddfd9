"""`ModelStreamInferResponse`: read where a stream of responses comes in, written where one goes out.

Nothing of a response's tensors is parsed or copied: the inner message is taken out, or put in, as it stands.
"""

from __future__ import annotations

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.parameters import Kind, entry_field, read_entry
from gateway.wire.kserve.response_view import broken

FINAL = "triton_final_response"
"""Response parameter: no response to this request comes after this one."""
EMPTY_FINAL = "triton_enable_empty_final_response"
"""Request parameter: tell the end of a decoupled model's responses by an empty one, if the last was not known to be."""

_FINAL_BYTES = FINAL.encode()
_MARK_FINAL = entry_field(4, FINAL, Kind.BOOL, True)
_WANT_END = entry_field(4, EMPTY_FINAL, Kind.BOOL, True)
_NO_ERROR = ""


class StreamedResponse:
    """One message of a stream.

    `message` is the serialized `ModelInferResponse` inside, b"" if there is none; `id` is its request's. `final` is
    None where the replica did not say. `empty`: it has no outputs.
    """

    __slots__ = ("empty", "error", "final", "id", "message", "model_name", "model_version")

    def __init__(self) -> None:
        self.error = _NO_ERROR
        self.message = b""
        self.id = ""
        self.model_name = ""
        self.model_version = ""
        self.final: bool | None = None
        self.empty = True


def read_streamed(message: bytes) -> StreamedResponse:
    """What a serialized `ModelStreamInferResponse` says. Raises `GatewayError` (UPSTREAM_BROKEN)."""
    found = StreamedResponse()
    try:
        for number, wire, start, stop in pb.fields(message, 0, len(message)):
            if number == 1:
                pb.expect(wire, pb.LEN, 1, stop)
                # Words for people, in whatever bytes the model put there: they must not break the stream.
                found.error = message[start:stop].decode(errors="replace")
            elif number == 2:
                pb.expect(wire, pb.LEN, 2, stop)
                # Given twice, an inner message is merged, and protobuf's merging of this one is putting it together.
                found.message = message[start:stop] if not found.message else found.message + message[start:stop]
        _read_inner(found)
    except (pb.WireError, UnicodeDecodeError) as error:
        problem = str(error) if isinstance(error, pb.WireError) else "a name is not valid UTF-8"
        raise broken(problem) from None
    return found


def _read_inner(found: StreamedResponse) -> None:
    message = found.message
    for number, wire, start, stop in pb.fields(message, 0, len(message)):
        if number > 6:
            continue
        pb.expect(wire, pb.LEN, number, stop)
        if number == 1:
            found.model_name = message[start:stop].decode()
        elif number == 2:
            found.model_version = message[start:stop].decode()
        elif number == 3:
            found.id = message[start:stop].decode()
        elif number == 4:
            if message.find(_FINAL_BYTES, start, stop) >= 0:
                key, parameter = read_entry(message, start, stop)
                if key == FINAL:
                    found.final = parameter.value is True
        else:
            found.empty = False


def encode_streamed(message: bytes) -> bytes:
    """The `ModelStreamInferResponse` around a serialized `ModelInferResponse`."""
    return pb.len_field(2, message)


def encode_streamed_error(text: str, request_id: str, inner: bytes = b"") -> bytes:
    """An error in the place of a response, as Triton writes it: the text, and the id of the request. `inner` is what
    the model server sent beside the text, if anything: it says whether more comes.
    """
    inner = inner or (pb.text_field(3, request_id) if request_id else b"")
    return pb.text_field(1, text) + pb.len_field(2, inner)


def with_final_mark(message: bytes) -> bytes:
    """A response as it goes on a stream where it is the only one to its request. `message` is well-formed."""
    return message + _MARK_FINAL


def with_end_wanted(message: bytes) -> bytes:
    """A request whose end the replica shall tell. `message` has passed `read_head`."""
    return message + _WANT_END


def with_id(message: bytes, request_id: str) -> bytes:
    """A request or a response (`id` is field 3 of both) that bears another id: the last one counts."""
    return message + pb.text_field(3, request_id)
