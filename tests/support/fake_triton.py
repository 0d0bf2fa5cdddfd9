"""A server that speaks Triton's protocol on real sockets and misbehaves on command; where it is told nothing it obeys.

Each model takes and gives one BYTES element, `text_input` and `text_output`. What it says when it refuses are the words
of the real server (`Said`), which `tests/field/test_fh08_status_meanings.py` holds against one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from aiohttp import web
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from tests.support.ports import free_port

SERVICE = "/inference.GRPCInferenceService/"
LOOPBACK = "127.0.0.1"
Status = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class Said:
    """One refusal: its code, and its text with the places for `model`, `version` and `id`. `on_model`: inside a stream
    the message tells whether it is the last, because the request had got as far as the model.
    """

    code: grpc.StatusCode
    text: str
    on_model: bool = False

    def about(self, request: pb.ModelInferRequest, version: str = "1") -> str:
        return self.text.format(
            model=request.model_name, version=request.model_version or version, id=request.id or "<id_unknown>"
        )


UNKNOWN_MODEL = Said(Status.NOT_FOUND, "Request for unknown model: '{model}' is not found")
UNKNOWN_VERSION = Said(Status.NOT_FOUND, "Request for unknown model: '{model}' version {version} is not found")
NO_VERSION = Said(Status.NOT_FOUND, "Request for unknown model: '{model}' has no available versions")
UNLOADED = Said(Status.UNAVAILABLE, "Request for unknown model: '{model}' version {version} is not at ready state")
RESTRICTED = Said(
    Status.UNAVAILABLE, "This protocol is restricted, expecting header 'triton-grpc-protocol-key'", on_model=False
)
QUEUE_TIMEOUT = Said(Status.UNAVAILABLE, "Request timeout expired", on_model=True)
QUEUE_FULL = Said(Status.UNAVAILABLE, "[request id: {id}] Exceeds maximum queue size")
STOPPING = Said(
    Status.UNAVAILABLE,
    "[request id: {id}] Server is stopping, scheduler for model has stopped accepting new inference requests",
)
BAD_INPUT = Said(Status.INVALID_ARGUMENT, "unexpected inference input 'other' for model '{model}'")
CUDA_FAULT = Said(Status.INTERNAL, "cuda fault 700", on_model=True)


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A model in the fake's repository."""

    name: str
    versions: tuple[str, ...] = ("1",)
    decoupled: bool = False


class Ended(Exception):
    """The fake ends the whole RPC with this status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Exchange:
    """One request, and what is done with it. `streamed`: it came over a ModelStreamInfer."""

    def __init__(self, request: pb.ModelInferRequest, model: FakeModel, version: str, wire: Wire, streamed: bool):
        self.request = request
        self.model = model
        self.version = version
        self.streamed = streamed
        self._wire = wire

    @property
    def text(self) -> bytes:
        """What the caller sent."""
        raw = self.request.raw_input_contents
        return bytes(raw[0][4:] if raw else self.request.inputs[0].contents.bytes_contents[0])

    async def headers(self) -> None:
        """Send the initial metadata now."""
        await self._wire.headers()

    async def respond(self, text: bytes, *, final: bool = True) -> None:
        """One response. Of a decoupled model Triton tells the end apart (`end`)."""
        answer = pb.ModelInferResponse(model_name=self.model.name, model_version=self.version, id=self.request.id)
        answer.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        answer.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
        if not self.streamed:
            await self._wire.write(answer.SerializeToString())
            return
        answer.parameters["triton_final_response"].bool_param = final and not self.model.decoupled
        await self._stream(answer)
        if final and self.model.decoupled:
            await self.end()

    async def end(self) -> None:
        """The end of a decoupled model's responses, for a caller who asked to be told."""
        if self.streamed and self.request.parameters["triton_enable_empty_final_response"].bool_param:
            answer = pb.ModelInferResponse(model_name=self.model.name, id=self.request.id)
            answer.parameters["triton_final_response"].bool_param = True
            await self._stream(answer)

    async def refuse(self, said: Said) -> None:
        """The status of a unary call; an error in its place on a stream, which lives on."""
        text = said.about(self.request, self.version)
        if not self.streamed or said is RESTRICTED:
            raise Ended(said.code, text)
        inner = pb.ModelInferResponse(id=self.request.id)
        if said.on_model:
            inner.parameters["triton_final_response"].bool_param = True
        await self._wire.write(
            pb.ModelStreamInferResponse(error_message=text, infer_response=inner).SerializeToString()
        )

    async def _stream(self, answer: pb.ModelInferResponse) -> None:
        await self._wire.write(pb.ModelStreamInferResponse(infer_response=answer).SerializeToString())


Act = Callable[[Exchange], Awaitable[None]]


async def obey(exchange: Exchange) -> None:
    """What a good model does: give back what it got."""
    await exchange.respond(exchange.text)


def refusing(said: Said) -> Act:
    """An act for every request."""

    async def act(exchange: Exchange) -> None:
        await exchange.refuse(said)

    return act


class Wire:
    """The server's side of one RPC; writes go out one at a time, in order."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._begun = False

    async def headers(self) -> None:
        async with self._turn:
            if not self._begun:
                self._begun = True
                await self._context.send_initial_metadata(())

    async def write(self, message: bytes) -> None:
        async with self._turn:
            self._begun = True
            await self._context.write(message)


class FakeTriton(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`async with` runs it. What the test may change at any time: the flags, `acts` by model, `models`.

    It counts what it was asked (`asked`, by method) and keeps the inference requests that named an id (`seen`): the
    gateway's own warm-up calls have none.
    """

    def __init__(self, *models: FakeModel, host: str = LOOPBACK, ports: tuple[int, int, int] | None = None) -> None:
        self.models = {model.name: model for model in models}
        self.host = host
        self.ports = ports or (free_port(), free_port(), free_port())
        self.live = self.ready = True
        self.unready: set[str] = set()
        """Models that say of themselves that they are not ready; they answer calls all the same."""
        self.loading: set[str] = set()
        """Models that are being loaded: in the index, and nowhere else."""
        self.acts: dict[str, Act] = {}
        self.asked: Counter[str] = Counter()
        self.seen: list[pb.ModelInferRequest] = []
        self._server: Any = None
        self._http: web.AppRunner | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        http, rpc, metrics = self.ports
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        assert self._server.add_insecure_port(f"{self.host}:{rpc}") == rpc
        await self._server.start()
        app = web.Application()
        app.add_routes(
            [
                web.get("/v2/models/{model}/versions/{version}/config", self._config_json),
                web.get("/metrics", self._metrics),
            ]
        )
        self._http = web.AppRunner(app, access_log=None)
        await self._http.setup()
        for port in (http, metrics):
            await web.TCPSite(self._http, self.host, port).start()

    async def stop(self) -> None:
        """At once: connections are closed, and the ports refuse."""
        server, http = self._server, self._http
        self._server = self._http = None
        if server is not None:
            await server.stop(None)
        if http is not None:
            await http.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def addresses(self) -> dict[str, str]:
        """As a static replica of a policy."""
        return {name: f"{self.host}:{port}" for name, port in zip(("http", "grpc", "metrics"), self.ports, strict=True)}

    def requests(self, prefix: str = "") -> list[pb.ModelInferRequest]:
        """Those whose id begins with `prefix`."""
        return [request for request in self.seen if request.id.startswith(prefix)]

    # -- gRPC ---------------------------------------------------------------------------------------------------------

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.removeprefix(SERVICE)
        self.asked[name] += 1
        if name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if name == "ModelInfer":
            # To the client the same as a unary method; here it may also fail behind its message.
            return grpc.unary_stream_rpc_method_handler(self._infer)
        answer = getattr(self, f"_{name}", None)
        return None if answer is None else grpc.unary_unary_rpc_method_handler(_answering(answer))

    def _ServerLive(self, message: bytes) -> Any:
        return pb.ServerLiveResponse(live=self.live)

    def _ServerReady(self, message: bytes) -> Any:
        return pb.ServerReadyResponse(ready=self.ready)

    def _ServerMetadata(self, message: bytes) -> Any:
        return pb.ServerMetadataResponse(name="triton", version="2.51.0", extensions=["model_repository"])

    def _RepositoryIndex(self, message: bytes) -> Any:
        index = pb.RepositoryIndexResponse()
        for model in self.models.values():
            for version in model.versions:
                state = "LOADING" if model.name in self.loading else "READY"
                index.models.add(name=model.name, version=version, state=state)
        return index

    def _ModelReady(self, message: bytes) -> Any:
        asked = pb.ModelReadyRequest.FromString(message)
        there = self._find(asked.name, asked.version) is not None
        return pb.ModelReadyResponse(ready=there and asked.name not in self.unready)

    def _ModelMetadata(self, message: bytes) -> Any:
        asked = pb.ModelMetadataRequest.FromString(message)
        model, _ = self._known(asked.name, asked.version)
        metadata = pb.ModelMetadataResponse(name=model.name, versions=model.versions, platform="python")
        metadata.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        metadata.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        return metadata

    def _ModelConfig(self, message: bytes) -> Any:
        asked = pb.ModelConfigRequest.FromString(message)
        return pb.ModelConfigResponse(config=_config(self._known(asked.name, asked.version)[0]))

    def _ModelStatistics(self, message: bytes) -> Any:
        asked = pb.ModelStatisticsRequest.FromString(message)
        model, _ = self._known(asked.name, asked.version)
        return pb.ModelStatisticsResponse(
            model_stats=[pb.ModelStatistics(name=model.name, version=version) for version in model.versions]
        )

    def _find(self, name: str, version: str) -> tuple[FakeModel, str] | None:
        model = self.models.get(name)
        if model is None or name in self.loading or (version and version not in model.versions):
            return None
        return model, version or max(model.versions, key=int)

    def _known(self, name: str, version: str) -> tuple[FakeModel, str]:
        found = self._find(name, version)
        if found is None:
            said = UNKNOWN_VERSION if name in self.models else UNKNOWN_MODEL
            raise Ended(said.code, said.about(pb.ModelInferRequest(model_name=name, model_version=version)))
        return found

    async def _infer(self, message: bytes, context: Any) -> None:
        wire = Wire(context)
        try:
            exchange = self._received(message, wire, streamed=False)
            if exchange.model.decoupled:
                raise Ended(
                    Status.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
                )
            await self.acts.get(exchange.model.name, obey)(exchange)
        except Ended as ended:
            await context.abort(ended.code, ended.text)

    async def _stream(self, messages: Any, context: Any) -> None:
        """Requests are worked on side by side, and begun in order. It ends when the caller has said its last and all is
        answered, or when an act raises `Ended`, with OK too.
        """
        wire, tasks = Wire(context), set[asyncio.Task[None]]()
        reading = asyncio.ensure_future(context.read())
        try:
            while reading is not None or tasks:
                done, _ = await asyncio.wait(
                    {*tasks, *([] if reading is None else [reading])}, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done & tasks:
                    tasks.discard(task)
                    task.result()
                if reading in done:
                    message = reading.result()
                    reading = None if message is grpc.aio.EOF else asyncio.ensure_future(context.read())
                    if message is not grpc.aio.EOF:
                        tasks.add(asyncio.ensure_future(self._streamed(bytes(message), wire)))
        except Ended as ended:
            if ended.code is not Status.OK:
                await context.abort(ended.code, ended.text)
        finally:
            for each in (*tasks, *([] if reading is None else [reading])):
                each.cancel()

    async def _streamed(self, message: bytes, wire: Wire) -> None:
        try:
            exchange = self._received(message, wire, streamed=True)
        except Ended as ended:
            await wire.write(pb.ModelStreamInferResponse(error_message=ended.text).SerializeToString())
            return
        await self.acts.get(exchange.model.name, obey)(exchange)

    def _received(self, message: bytes, wire: Wire, *, streamed: bool) -> Exchange:
        request = pb.ModelInferRequest.FromString(message)
        if request.id:
            self.seen.append(request)
        model, version = self._known(request.model_name, request.model_version)
        return Exchange(request, model, version, wire, streamed)

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    async def _config_json(self, request: web.Request) -> web.Response:
        found = self._find(request.match_info["model"], request.match_info["version"])
        if found is None:
            return web.json_response({"error": "Request for unknown model"}, status=404)
        return web.Response(
            text=json_format.MessageToJson(_config(found[0]), preserving_proto_field_name=True),
            content_type="application/json",
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [
            f'nv_inference_pending_request_count{{model="{model.name}",version="{version}"}} 0\n'
            for model in self.models.values()
            for version in model.versions
        ]
        return web.Response(text="".join(lines))


def _answering(answer: Callable[[bytes], Any]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(message: bytes, context: Any) -> bytes:
        try:
            return bytes(answer(message).SerializeToString())
        except Ended as ended:
            await context.abort(ended.code, ended.text)
            raise AssertionError("abort raises") from ended

    return handle


def _config(model: FakeModel) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig(name=model.name, backend="python", max_batch_size=0)
    config.input.add(name="text_input", data_type=model_config_pb2.TYPE_STRING, dims=[1])
    config.output.add(name="text_output", data_type=model_config_pb2.TYPE_STRING, dims=[1])
    config.instance_group.add(name=model.name, count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    config.model_transaction_policy.decoupled = model.decoupled
    return config


def static(fakes: Iterable[FakeTriton]) -> list[dict[str, str]]:
    """The fakes as a policy's static replicas."""
    return [fake.addresses for fake in fakes]
