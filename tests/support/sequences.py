"""Steps of sequences to the demo's stateful models, over each of the three ways that clients have."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

TIMEOUT_S = 60.0
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True, slots=True)
class Sum:
    """The answer to one step: `corrid` is the id as the model saw it."""

    total: int
    count: int
    corrid: int | str


class StepFailed(Exception):
    """`code` is the HTTP status, or the name of the gRPC status; `reason` is `x-sluice-reason`."""

    def __init__(self, code: int | str, text: str, reason: str = "") -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.reason = reason


def request_of(
    model: str, sequence_id: int | str, value: int, *, start: bool, end: bool, request_id: str = "", version: str = ""
) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    tensor = request.inputs.add(name="value", datatype="INT64", shape=[1, 1])
    tensor.contents.int64_contents.append(value)
    if isinstance(sequence_id, str):
        request.parameters["sequence_id"].string_param = sequence_id
    else:
        request.parameters["sequence_id"].int64_param = sequence_id
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    return request


def sum_of(answer: pb.ModelInferResponse) -> Sum:
    total, count, corrid = answer.raw_output_contents
    text = answer.outputs[2].datatype == "BYTES"
    return Sum(_int64(total), _int64(count), corrid[4:].decode() if text else struct.unpack("<Q", corrid)[0])


def _int64(raw: bytes) -> int:
    return int(struct.unpack("<q", raw)[0])


class GrpcSteps:
    """Each step a ModelInfer."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._infer = self._channel.unary_unary(UNARY, pb.ModelInferRequest.SerializeToString, _answer)

    async def step(
        self, model: str, sequence_id: int | str, value: int, *, start: bool = False, end: bool = False
    ) -> Sum:
        """Raises `StepFailed`."""
        return await self.send(request_of(model, sequence_id, value, start=start, end=end))

    async def send(self, request: pb.ModelInferRequest) -> Sum:
        """Raises `StepFailed`."""
        try:
            return sum_of(await self._infer(request, timeout=TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            reason = dict(error.trailing_metadata() or ()).get("x-sluice-reason", "")
            raise StepFailed(error.code().name, error.details() or "", str(reason)) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()


class HttpSteps:
    """Each step an `infer` on a connection of its own."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.partition(":")

    async def step(
        self, model: str, sequence_id: int | str, value: int, *, start: bool = False, end: bool = False
    ) -> Sum:
        """Raises `StepFailed`."""
        document = {
            "parameters": {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end},
            "inputs": [{"name": "value", "datatype": "INT64", "shape": [1, 1], "data": [value]}],
        }
        body = json.dumps(document).encode()
        head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {len(body)}"
        )
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head.encode() + b"\r\n\r\n" + body)
                told, _, content = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
                await writer.wait_closed()
        lines = told.decode().split("\r\n")
        answer: dict[str, Any] = json.loads(content)
        status = int(lines[0].split()[1])
        if status != 200:
            headers = dict(line.lower().split(": ", 1) for line in lines[1:])
            raise StepFailed(status, answer["error"], headers.get("x-sluice-reason", ""))
        return Sum(*(output["data"][0] for output in answer["outputs"]))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class StreamSteps:
    """All steps on one ModelStreamInfer; answers are told apart by request id. They come in the order of the requests:
    whoever waits for one answer waits for all before it.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        infer = self._channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        self._requests: asyncio.Queue[pb.ModelInferRequest | None] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[pb.ModelStreamInferResponse]] = {}
        self._number = 0
        self._stream = infer(self._feed())
        self._reader = asyncio.ensure_future(self._read())

    async def _feed(self) -> AsyncIterator[pb.ModelInferRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        try:
            async for response in self._stream:
                future = self._waiting.pop(response.infer_response.id)
                if not future.done():
                    future.set_result(response)
        except grpc.aio.AioRpcError as error:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(StepFailed(error.code().name, error.details() or ""))

    async def step(
        self, model: str, sequence_id: int | str, value: int, *, start: bool = False, end: bool = False
    ) -> Sum:
        """Raises `StepFailed`, whose code is "" for an error inside the stream."""
        self._number += 1
        name = f"step-{self._number}"
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(request_of(model, sequence_id, value, start=start, end=end, request_id=name))
        async with asyncio.timeout(TIMEOUT_S):
            response = await future
        if response.error_message:
            raise StepFailed("", response.error_message)
        return sum_of(response.infer_response)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put_nowait(None)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait((self._reader,))
        await self._channel.close()


def _answer(raw: bytes) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(raw)


Steps = GrpcSteps | HttpSteps | StreamSteps
