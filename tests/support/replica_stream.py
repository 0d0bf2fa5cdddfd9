"""A ModelStreamInfer to a replica whose every answer the test writes, under Triton's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Metadata
from gateway.core.faults import UpstreamFault


class HandStream:
    """A `core.faces.ReplicaStream`. `written` holds the requests in the order in which they came."""

    def __init__(self, metadata: Metadata = (), timeout_s: float = float("inf")) -> None:
        self.metadata = metadata
        self.timeout_s = timeout_s
        self.written: list[pb.ModelInferRequest] = []
        self.cancelled = False
        self.half_closed = False
        self.ended = False
        """It was read to its end."""
        self.cancelled_early = False
        self.reads = 0
        self._incoming: asyncio.Queue[bytes | UpstreamFault | None] = asyncio.Queue()

    def write(self, message: bytes) -> None:
        self.written.append(pb.ModelInferRequest.FromString(message))

    async def read(self) -> bytes | None:
        self.reads += 1
        found = await self._incoming.get()
        if isinstance(found, UpstreamFault):
            self.ended = True
            try:
                raise found
            finally:
                del found  # whose traceback holds this frame
        self.ended = found is None
        return found

    def half_close(self) -> None:
        self.half_closed = True
        self._incoming.put_nowait(None)  # a replica that owes nothing ends the stream at once

    def cancel(self) -> None:
        self.cancelled = True
        self.cancelled_early = self.cancelled_early or not self.ended

    # What the replica does.

    async def request(self, number: int) -> pb.ModelInferRequest:
        """Wait for the request of that number, counted from 0."""
        async with asyncio.timeout(5):
            while len(self.written) <= number:
                await asyncio.sleep(0)
        return self.written[number]

    def respond(
        self,
        request_id: str,
        data: bytes | None = b"\x01",
        *,
        final: bool | None = False,
        model: str = "m",
        version: str = "3",
    ) -> None:
        """One response; `data` None makes the empty one that only tells the end."""
        message = pb.ModelInferResponse(model_name=model, model_version=version, id=request_id)
        if data is not None:
            message.outputs.add(name="out", datatype="UINT8", shape=[len(data)])
            message.raw_output_contents.append(data)
        if final is not None:
            message.parameters["triton_final_response"].bool_param = final
        self._incoming.put_nowait(pb.ModelStreamInferResponse(infer_response=message).SerializeToString())

    def report(self, text: str, request_id: str = "", *, final: bool | None = None) -> None:
        """An error inside the stream."""
        message = pb.ModelInferResponse(id=request_id)
        if final is not None:
            message.parameters["triton_final_response"].bool_param = final
        whole = pb.ModelStreamInferResponse(error_message=text, infer_response=message)
        self._incoming.put_nowait(whole.SerializeToString())

    def raw(self, message: bytes) -> None:
        self._incoming.put_nowait(message)

    def end(self, fault: UpstreamFault | None = None) -> None:
        """The whole stream ends: with a fault, or with OK."""
        self._incoming.put_nowait(fault)


class HandStreamClient:
    """As much of a `ReplicaClient` as streams need; `streams` holds what was opened."""

    def __init__(self, opened: Callable[[HandStream], None] | None = None) -> None:
        self.streams: list[HandStream] = []
        self._opened = opened

    def open_stream(self, metadata: Metadata, timeout_s: float) -> HandStream:
        stream = HandStream(metadata, timeout_s)
        self.streams.append(stream)
        if self._opened is not None:
            self._opened(stream)
        return stream

    async def aclose(self) -> None:
        return None
