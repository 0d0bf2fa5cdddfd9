"""The gRPC edge on grpcio: raw messages in, raw messages out.

One generic handler takes every method of `inference.GRPCInferenceService` and `grpc.health.v1.Health`; no library
parses a message. Each inference runs as a task of its own beside its handler, so that the end of the RPC and the end
of the call are told apart: a handler that is cancelled means that the caller left, a task that is cancelled while its
handler lives is a fault of ours and ends as INTERNAL, never in silence (field case FH-14).

The data-plane issue puts our own HTTP/2 behind the same face: `start`, `begin_drain`, `wait_closed`, `aclose`,
`statistics`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.credentials import NO_PEER
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, BodyBudget, Catalogue
from gateway.core.header_names import TRUE_STATUS
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.edge.explain import Explainer
from gateway.edge.grpc_call import grpc_call, read_call, refusal
from gateway.edge.grpc_handlers import Context, GrpcioPort, Handlers, Methods
from gateway.edge.grpc_listener import GrpcListener, server_options, why_not
from gateway.edge.grpc_methods import HEALTH_CHECK, SERVICE
from gateway.edge.grpc_questions import ASKED, ask_fleet, check_version
from gateway.edge.grpc_stream import EXPIRY_GRACE_S, ClientStream, StreamKit
from gateway.edge.grpc_tls import GrpcPeers, GrpcPortTls
from gateway.edge.headers import ClientHeaders, HeaderReader, response_headers
from gateway.edge.observer import EdgeObserver
from gateway.edge.status import internal_error, retry_delay_s
from gateway.policy.schema import GrpcLimits
from gateway.runtime.clock import Clock
from gateway.runtime.listen import listen_error, split_address
from gateway.wire.kserve.metadata import check_request, decode_model_request, encode_bool

_log = logging.getLogger("sluice.edge.grpc")

LISTEN_KEY = "gateway.listen.grpc"
_DRAIN_FOREVER_S = 86_400.0
"""The library wants a number; the limit of draining is `wait_closed`'s business."""

_STATUS = {code: next(status for status in grpc.StatusCode if status.value[0] == code.value) for code in Code}
_INITIAL = frozenset({"x-request-id", "x-sluice-model", "x-sluice-model-version", "x-sluice-rung", "x-sluice-impact",
                      "x-sluice-cache"})  # fmt: skip
"""These go into initial metadata, the rest into trailing; an error has no initial metadata and carries all in
trailing.
"""

_GOOD_HEALTH, _BAD_HEALTH = b"\x08\x01", b"\x08\x02"
"""`HealthCheckResponse` with SERVING and NOT_SERVING."""

_OVERLOADS = frozenset({Reason.QUEUE_FULL, Reason.BODY_MEMORY, Reason.UPSTREAM_QUEUE_FULL, Reason.RECORD_FULL})
_CUT_GRACE_S = 1.0
"""After the drain limit, this long for the errors that cut calls short to be written."""


class GrpcServer:
    """The listener on the gRPC port."""

    def __init__(
        self,
        *,
        service: Service,
        catalogue: Catalogue,
        authenticator: Authenticator,
        reader: HeaderReader,
        explainer: Explainer,
        budget: BodyBudget,
        observer: EdgeObserver,
        limits: GrpcLimits,
        receive_bytes_max: int,
        chance: random.Random,
        clock: Clock,
        tls: GrpcPortTls | None = None,
        handshake_timeout_ms: int = 10_000,
        peers: GrpcPeers | None = None,
    ) -> None:
        """With `tls` the port speaks TLS alone. `peers` tells who is at the other end; None: it does not matter.
        `receive_bytes_max`: a message larger than this is wanted by no model."""
        self._service = service
        self._catalogue = catalogue
        self._authenticator = authenticator
        self._reader = reader
        self._explainer = explainer
        self._budget = budget
        self._limits = limits
        self._receive_bytes_max = receive_bytes_max
        self._chance = chance
        self._observer = observer
        self._clock = clock
        self._tls = tls
        self._handshake_timeout_ms = handshake_timeout_ms
        self._peers = peers
        self._calls: dict[asyncio.Task[Reply], Call] = {}
        self._streams: dict[ClientStream, None] = {}
        self._stream_kit = StreamKit(
            service=service,
            budget=budget,
            observer=observer,
            explainer=explainer,
            clock=clock,
            read_call=read_call,
            calls_max=limits.stream_calls_max,
            write_timeout_s=limits.write_timeout_ms / 1000,
        )
        self._handlers = Handlers()
        self._server: GrpcListener | None = None
        self._draining: asyncio.Future[None] | None = None

    async def start(self, address: str) -> str:
        """Listen on `address` (`host:port`; port 0 takes a free one). Returns the address in use. Raises
        `ListenError`.
        """
        host, wanted = split_address(address)
        listener = GrpcListener(
            self._library_server,
            lambda: self._observer.internal_fault("grpc"),
            None if self._tls is None else self._tls.credentials,
        )
        try:
            port = await listener.start(f"[{host}]" if ":" in host else host, wanted)
        except RuntimeError as error:
            raise listen_error(address, LISTEN_KEY, why_not(host, wanted)) from error
        self._server = listener
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _library_server(self) -> grpc.aio.Server:
        limit = self._limits.message_bytes_max
        server = grpc.aio.server(
            options=server_options(
                # The library holds a message whole, and unpacked, before anybody here is asked.
                receive_bytes_max=min(limit, self._receive_bytes_max),
                send_bytes_max=limit,
                handshake_timeout_ms=self._handshake_timeout_ms,
            ),
            maximum_concurrent_rpcs=self._limits.streams_max,
        )
        server.add_generic_rpc_handlers((Methods(self),))
        return server

    def begin_drain(self) -> None:
        """Take no new calls; those in flight go on."""
        for stream in tuple(self._streams):
            stream.drain()
        if self._server is not None and self._draining is None:
            self._draining = asyncio.ensure_future(self._server.stop(_DRAIN_FOREVER_S))

    async def wait_closed(self, limit_s: float) -> bool:
        """Wait until every call has ended. After `limit_s` calls still running end with `draining`, and what then
        remains is cut off. Returns whether none was left at the limit.
        """
        self.begin_drain()
        clean = True
        if self._draining is not None:
            done, _ = await asyncio.wait((self._draining,), timeout=limit_s)
            clean = bool(done)
            if not clean:
                _log.warning("%d calls are left after %g s of draining; they are ended", self._handlers.count, limit_s)
                self._cut()
                await asyncio.wait((self._draining,), timeout=_CUT_GRACE_S)
        await self.aclose()
        return clean

    def _cut(self) -> None:
        told = GatewayError(Reason.DRAINING, "the gateway is shutting down; send the call again", retry_after_s=1.0)
        for task, call in tuple(self._calls.items()):
            call.cut = told
            task.cancel()
        for stream in tuple(self._streams):
            stream.cut(told)

    async def aclose(self) -> None:
        """Stop at once and wait until every call has ended."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        if self._draining is not None:
            await asyncio.wait((self._draining,))
            self._draining = None
        # The handlers and not the calls' tasks: a handler closes its reply, and with it the record, after the task.
        await self._handlers.none()

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"calls": self._handlers.count, "draining": self._draining is not None}

    # --- control methods: answered by the catalogue --------------------

    async def control(self, method: str, message: bytes, context: Context) -> bytes:
        name = method.removeprefix(SERVICE)
        code = Code.OK
        headers = self._headers(context)
        request_id = ("x-request-id", headers.request_id)
        try:
            if name in ASKED:
                answer = await self._asked(name, message, headers)
            else:
                answer = self._control(name, message, headers)
            await context.send_initial_metadata((request_id,))
            return answer
        except GatewayError as error:
            code = error.code
            await self._abort(context, error, (request_id, ("x-sluice-reason", error.reason.label)))
            raise AssertionError("abort raises") from error
        except (asyncio.CancelledError, grpc.aio.InternalError) as error:
            code = Code.CANCELLED
            raise asyncio.CancelledError from error  # the library's other word for a caller who leaves this moment
        except Exception as error:
            code = Code.INTERNAL
            self._observer.internal_fault("grpc")
            _log.exception("answering %s failed", method)
            await self._abort(context, internal_error(), (request_id, ("x-sluice-reason", Reason.INTERNAL.label)))
            raise AssertionError("abort raises") from error
        finally:
            self._observer.request_without_call("grpc", name if method != HEALTH_CHECK else "Health/Check", code.name)

    async def _asked(self, name: str, message: bytes, headers: ClientHeaders) -> bytes:
        """The answer to a question for which the model servers must be asked. Cancelled when the caller leaves."""
        with self._handlers:
            return await ask_fleet(self._catalogue, self._authenticator, name, message, headers)

    def _control(self, name: str, message: bytes, headers: ClientHeaders) -> bytes:
        catalogue = self._catalogue
        if message and name in ("ServerLive", "ServerReady", "ServerMetadata", HEALTH_CHECK):
            check_request(message, f"{name.rpartition('/')[2]}Request", text=int(name == HEALTH_CHECK))
        if name == "ServerLive":
            return encode_bool(catalogue.server_live())
        if name == "ServerReady":
            return encode_bool(catalogue.server_ready())
        if name == HEALTH_CHECK:
            return _GOOD_HEALTH if catalogue.server_ready() else _BAD_HEALTH
        model, version = "", ""
        if name != "ServerMetadata":
            model, version = decode_model_request(message, f"{name}Request")
            check_version(version)
        if name == "ModelReady":
            return encode_bool(self._model_ready(model, version))
        if headers.fault is not None:
            raise headers.fault
        identity = self._authenticator.identify(headers.credentials)
        if name == "ServerMetadata":
            return catalogue.server_metadata()
        if not identity.may_call(model):
            raise GatewayError(Reason.FORBIDDEN, "this caller may not ask about that model")
        if name == "ModelMetadata":
            return catalogue.model_metadata(model, version)
        return catalogue.model_config(model, version).proto

    def _model_ready(self, model: str, version: str) -> bool:
        """As Triton 2.51 answers over gRPC: what it does not know is not ready, and that is no error."""
        try:
            return self._catalogue.model_ready(model, version)
        except GatewayError as error:
            if error.reason in (Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION):
                return False
            raise

    async def refused(self, name: str, text: str, context: Context) -> None:
        """A method that is not served. Never returns."""
        self._observer.request_without_call("grpc", name, Code.UNIMPLEMENTED.name)
        error = GatewayError(Reason.UNSUPPORTED, text)
        request_id = ("x-request-id", self._headers(context).request_id)
        await self._abort(context, error, (request_id, ("x-sluice-reason", error.reason.label)))

    # --- inference --------------------

    async def infer(self, message: bytes, context: Context) -> bytes:
        with self._handlers:
            return await self._infer(message, context)

    async def _infer(self, message: bytes, context: Context) -> bytes:
        now_s = self._clock.now_s()
        remaining_s = context.time_remaining()
        headers = self._headers(context)
        call = grpc_call(headers, message, self._clock, now_s, _least(headers.timeout_s, remaining_s))
        refused = headers.fault
        held = self._budget.try_reserve(len(message))
        if not held and refused is None:
            refused = GatewayError(Reason.BODY_MEMORY, Reason.BODY_MEMORY.meaning, retry_after_s=1.0)
        try:
            try:
                read_call(call, message)
            except GatewayError as error:
                # Bytes that are no message never became a call: no model, no record, only this count.
                self._observer.request_without_call("grpc", "ModelInfer", error.code.name)
                await self._refuse(context, call, error)
            if refused is not None:
                call.message, call.receive = None, refusal(refused)
            return await self._run(call, context)
        finally:
            if held:
                self._budget.release(len(message))

    async def _run(self, call: Call, context: Context) -> bytes:
        task = asyncio.get_running_loop().create_task(_guarded(self._service, call))
        self._calls[task] = call
        task.add_done_callback(self._calls.pop)
        try:
            # `wait` and not `await task`: it raises CancelledError only if this handler itself is cancelled.
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await self._caller_left(call, task, context)
            raise
        if task.cancelled():
            if call.cut is not None:
                await self._refuse(context, call, call.cut)
            self._observer.internal_fault("grpc")
            _log.error("call %s was cancelled inside the gateway; the caller gets INTERNAL", call.request_id)
            await self._refuse(context, call, internal_error())
        error = task.exception()
        if isinstance(error, GatewayError):
            await self._refuse(context, call, error)
        if error is not None:
            self._observer.internal_fault("grpc")
            _log.error("call %s failed inside the gateway", call.request_id, exc_info=error)
            await self._refuse(context, call, internal_error())
        try:
            return await self._deliver(call, task.result(), context)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError from error  # the caller left this moment, and the record says so
        except Exception:
            self._observer.internal_fault("grpc")
            _log.exception("call %s could not be delivered", call.request_id)
            await self._refuse(context, call, internal_error())
            raise AssertionError("abort raises") from None

    # --- streams --------------------

    async def stream_infer(self, context: Context) -> None:
        """Serve one ModelStreamInfer."""
        with self._handlers:
            await self._stream(context)

    async def _stream(self, context: Context) -> None:
        remaining_s = context.time_remaining()
        headers = self._headers(context)
        request_id = ("x-request-id", headers.request_id)
        try:
            if headers.fault is not None:
                raise headers.fault
            self._authenticator.identify(headers.credentials)
            if self._draining is not None:
                raise GatewayError(Reason.DRAINING, Reason.DRAINING.meaning, retry_after_s=1.0)
        except GatewayError as error:
            self._observer.request_without_call("grpc", "ModelStreamInfer", error.code.name)
            await self._abort(context, error, (request_id, ("x-sluice-reason", error.reason.label)))
        deadline_s = math.inf if remaining_s is None else self._clock.now_s() + remaining_s
        wanted = (TRUE_STATUS, "true") in (context.invocation_metadata() or ())
        stream = ClientStream(self._stream_kit, GrpcioPort(context), headers, deadline_s, true_status=wanted)
        self._streams[stream] = None
        try:
            await stream.run()
        except GatewayError as error:
            await self._abort(context, error, (request_id, ("x-sluice-reason", error.reason.label)))
        finally:
            del self._streams[stream]

    # --- the end of a unary call --------------------

    async def _caller_left(self, call: Call, task: asyncio.Task[Reply], context: Context) -> None:
        """End the call's task for a handler that was cancelled, and wait until everything it held is free."""
        remaining_s = context.time_remaining()
        expires = remaining_s is not None and remaining_s <= EXPIRY_GRACE_S
        if not expires or call.deadline_s - self._clock.now_s() > EXPIRY_GRACE_S:
            call.abandoned = True
            task.cancel()
        # Otherwise the deadline is passing this moment: the call's own scope ends it, and is right about the reason.
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await task.result().aclose(Outcome.ABANDONED if call.abandoned else Outcome.EXPIRED)

    async def _deliver(self, call: Call, reply: Reply, context: Context) -> bytes:
        if self._clock.now_s() > call.deadline_s:
            await reply.aclose(Outcome.EXPIRED)
            await self._refuse(
                context, call, GatewayError(Reason.DEADLINE, "the deadline passed before the answer could be written")
            )
        try:
            pairs = response_headers(call, None, self._explanation(call, None))
            await context.send_initial_metadata(tuple(pair for pair in pairs if pair[0] in _INITIAL))
            context.set_trailing_metadata(tuple(pair for pair in pairs if pair[0] not in _INITIAL))
        except BaseException:
            await reply.aclose(Outcome.ABANDONED)
            raise
        await reply.aclose(Outcome.OK)
        return reply.message

    async def _refuse(self, context: Context, call: Call, error: GatewayError) -> None:
        """End the RPC with `error`; never returns."""
        pairs = response_headers(call, error, self._explanation(call, error))
        if error.reason in _OVERLOADS:
            pairs.append(("grpc-retry-pushback-ms", str(int(retry_delay_s(error, self._chance) * 1000))))
        await self._abort(context, error, tuple(pairs))

    @staticmethod
    async def _abort(context: Context, error: GatewayError, metadata: tuple[tuple[str, str], ...]) -> None:
        try:
            await context.abort(_STATUS[error.code], error.message, metadata)
        except grpc.aio.InternalError as left:
            raise asyncio.CancelledError from left

    def _headers(self, context: Context) -> ClientHeaders:
        metadata = context.invocation_metadata() or ()
        peer = NO_PEER if self._peers is None else self._peers.of(context)
        return self._reader.read(((key, value) for key, value in metadata if isinstance(value, str)), peer)

    def _explanation(self, call: Call, error: GatewayError | None) -> str:
        return self._explainer.explain(call, self._clock.now_s(), error) if call.explain else ""


async def _guarded(service: Service, call: Call) -> Reply:
    """`send`, with what would tear down the event loop turned into an ordinary error: asyncio re-raises
    KeyboardInterrupt and SystemExit out of a task's step, and one call's fault must not end the gateway.
    """
    try:
        return await service.send(call)
    except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        raise RuntimeError(f"{type(error).__name__} was raised inside a call") from error


def _least(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
