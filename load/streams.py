"""Calls that are streams: ModelStreamInfer with decoupled models, sessions and sequences, and generate_stream.

Each call is a session of its own: it opens a stream, sends its messages, half-closes, and reads to the end.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import grpc
import httptools
from grpc import aio

from load.connection import CONNECTION, NO_HEADERS, WRONG_ANSWER, Done, Part
from load.inputs import IdentityInputs, LoadCall
from load.protobuf import bytes_field, read_fields, varint_field
from load.tasks import CallTasks

LEFT = "left"
"""The ending of a call whose client left before the answer."""
STREAM_ERROR = "error in the stream"
TOKENS = 6
SESSION_CALLS = 4
SEQUENCE_CALLS = 3
_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"


class Session(Protocol):
    """What goes over one stream, and whether what comes back is right."""

    def messages(self, row: int) -> Sequence[bytes]:
        """The `inference.ModelInferRequest`s, in order."""

    def right(self, responses: Sequence[bytes], row: int) -> bool:
        """Whether these `inference.ModelInferResponse`s, in the order in which they came, are the answer."""


class Tokens:
    """One call of `streamer`, with `tokens` responses; `fails` asks for an error after the second."""

    def __init__(self, *, fails: bool = False, delay_ms: float = 0.0, tokens: int = TOKENS) -> None:
        self._fails = fails
        self._tokens = tokens
        self._delay_ms = delay_ms

    def messages(self, row: int) -> Sequence[bytes]:
        tensors = [
            ("text_input", "BYTES", _text(f"row {row}")),
            ("max_tokens", "INT32", struct.pack("<i", self._tokens)),
            ("delay_ms", "FP32", struct.pack("<f", self._delay_ms)),
        ]
        if self._fails:
            tensors += [("fail_at", "INT32", struct.pack("<i", 2)), ("fail_with", "BYTES", _text("as asked"))]
        return [_request("streamer", tensors)]

    def right(self, responses: Sequence[bytes], row: int) -> bool:
        return len(responses) == self._tokens


class Row:
    """`SESSION_CALLS` calls of `identity`, whose answers must come in order."""

    def __init__(self) -> None:
        self._inputs = IdentityInputs()

    def messages(self, row: int) -> Sequence[bytes]:
        return [self._inputs.grpc_message(row * SESSION_CALLS + number) for number in range(SESSION_CALLS)]

    def right(self, responses: Sequence[bytes], row: int) -> bool:
        rows = range(row * SESSION_CALLS, (row + 1) * SESSION_CALLS)
        return len(responses) == SESSION_CALLS and all(map(self._inputs.grpc_right, responses, rows))


class Sum:
    """One sequence of `accumulator`: the last sum must be that of all its values."""

    def __init__(self, first_id: int) -> None:
        self._first_id = first_id

    def messages(self, row: int) -> Sequence[bytes]:
        found = []
        for number in range(SEQUENCE_CALLS):
            parameters = [
                ("sequence_id", varint_field(2, self._first_id + row)),
                ("sequence_start", varint_field(1, int(number == 0))),
                ("sequence_end", varint_field(1, int(number == SEQUENCE_CALLS - 1))),
            ]
            found.append(_request("accumulator", [("value", "INT64", struct.pack("<q", row + number))], parameters, 1))
        return found

    def right(self, responses: Sequence[bytes], row: int) -> bool:
        total = sum(row + number for number in range(SEQUENCE_CALLS))
        return len(responses) == SEQUENCE_CALLS and struct.pack("<q", total) in responses[-1]


class GrpcStreams:
    """A `Sender` over one gRPC connection, each call a stream. With `leaves` the client cancels it after the first
    response. `headers` go with every call.
    """

    def __init__(
        self, address: str, session: Session, *, leaves: bool = False, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._more = tuple(headers.items())
        self._session = session
        self._leaves = leaves
        self._channel = aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        )
        self._method = self._channel.stream_stream(_METHOD, None, None)
        self._tasks = CallTasks()

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        self._tasks.begin(self._run(call, done, part))

    async def _run(self, call: LoadCall, done: Done, part: Part | None) -> None:
        metadata = (("x-request-id", call.request_id), ("traceparent", call.traceparent), *self._more)
        responses: list[bytes] = []
        try:
            stream = self._method(timeout=call.deadline_ms / 1000, metadata=metadata)
            for message in self._session.messages(call.row):
                await stream.write(message)
            await stream.done_writing()
            async for answer in stream:
                error, response = stream_response(answer)
                if error:
                    done(STREAM_ERROR)
                    stream.cancel()
                    return
                responses.append(response)
                if part is not None:
                    part()
                if self._leaves:
                    stream.cancel()
                    done(LEFT)
                    return
        except aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            done(f"code {code.name}")
        except asyncio.CancelledError:
            done(CONNECTION)
            raise
        else:
            done("" if self._session.right(responses, call.row) else WRONG_ANSWER)

    def check(self, now_s: float) -> None:
        pass  # the library ends every call in time

    async def aclose(self) -> None:
        await self._channel.close()
        await self._tasks.end()


class EventStreams:
    """A `Sender` of generate_stream calls of `streamer`, each over a connection of its own. `headers` go with every
    call.
    """

    def __init__(
        self, address: str, *, delay_ms: float = 0.0, tokens: int = TOKENS, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._tokens = tokens
        self._options = {"max_tokens": tokens, **({"delay_ms": delay_ms} if delay_ms else {})}
        host, _, port = address.rpartition(":")
        self._address, self._host, self._port = address, host, int(port)
        self._tasks = CallTasks()

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        self._tasks.begin(self._run(call, done, part or (lambda: None)))

    async def _run(self, call: LoadCall, done: Done, part: Part) -> None:
        body = json.dumps({"text_input": f"row {call.row}", **self._options}).encode()
        head = (
            f"POST /v2/models/streamer/generate_stream HTTP/1.1\r\nhost: {self._address}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            f"x-request-timeout-ms: {call.deadline_ms}\r\nx-request-id: {call.request_id}\r\n{self._more}\r\n"
        )
        answer = _Answer(part)
        ending = CONNECTION
        try:
            async with asyncio.timeout(call.deadline_ms / 1000 + 1):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(head.encode() + body)
                    parser = httptools.HttpResponseParser(answer)
                    while not answer.ended and (data := await reader.read(65536)):
                        parser.feed_data(data)
                    if answer.ended:
                        status = parser.get_status_code()
                        good = WRONG_ANSWER if answer.events != self._tokens else ""
                        ending = good if status == 200 else f"status {status}"
                finally:
                    writer.close()
        except (OSError, httptools.HttpParserError):  # TimeoutError is an OSError
            pass  # `ending` says so
        finally:
            done(ending)

    def check(self, now_s: float) -> None:
        pass  # each call has a time limit of its own

    async def aclose(self) -> None:
        await self._tasks.end()


class _Answer:
    """What llhttp finds in an answer of server-sent events."""

    def __init__(self, part: Callable[[], None]) -> None:
        self._part = part
        self._line = b""
        self.events = 0
        self.ended = False

    def on_body(self, data: bytes) -> None:
        *whole, self._line = (self._line + data).split(b"\n")
        for line in whole:
            if line.startswith(b"data:"):
                self.events += 1
                self._part()

    def on_message_complete(self) -> None:
        self.ended = True


def stream_response(message: bytes) -> tuple[str, bytes]:
    """Error message and `inference.ModelInferResponse` of a `ModelStreamInferResponse`."""
    error, response = "", b""
    for number, value in read_fields(message):
        if number == 1:
            error = value.decode(errors="replace")
        elif number == 2:
            response = value
    return error, response


def _request(
    model: str,
    tensors: Sequence[tuple[str, str, bytes]],
    parameters: Sequence[tuple[str, bytes]] = (),
    batch: int | None = None,
) -> bytes:
    """A `ModelInferRequest` (1 model_name; 4 parameters {1 key, 2 value}; 5 inputs {1 name, 2 datatype, 3 shape};
    7 raw_input_contents) of tensors of one element.
    """
    shape = bytes((1,)) if batch is None else bytes((batch, 1))
    parts = [bytes_field(1, model.encode())]
    parts += [bytes_field(4, bytes_field(1, key.encode()) + bytes_field(2, value)) for key, value in parameters]
    for name, datatype, _ in tensors:
        tensor = bytes_field(1, name.encode()) + bytes_field(2, datatype.encode()) + bytes_field(3, shape)
        parts.append(bytes_field(5, tensor))
    parts += [bytes_field(7, content) for _, _, content in tensors]
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data
