"""The gRPC port on grpcio: raw messages in, raw messages out.

One generic handler takes every method of `inference.GRPCInferenceService` and `grpc.health.v1.Health`; no library
parses a message. Each inference runs as a task of its own beside its handler, so that the end of the RPC and the end
of the call are told apart: a handler that is cancelled means that the caller left, a task that is cancelled while its
handler lives is a fault of ours and ends as INTERNAL, never in silence (field case FH-14).

`grpc_port` is our own server with the same face: `start`, `begin_drain`, `wait_closed`, `aclose`, `statistics`. This
one can be chosen instead, and is what the tests compare that one with.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.credentials import NO_PEER
from gateway.core.errors import GatewayError
from gateway.core.header_names import REQUEST_ID, TRUE_STATUS
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.edge.grpc_answers import Pairs, answered, failed, refused
from gateway.edge.grpc_call import grpc_call, no_memory, read_call, refusal
from gateway.edge.grpc_kit import CUT_GRACE_S, LISTEN_KEY, GrpcKit, cut_short, least, too_late
from gateway.edge.grpc_stream import EXPIRY_GRACE_S, ClientStream
from gateway.edge.grpcio_handlers import Context, GrpcioStreamPort, Handlers, Methods
from gateway.edge.grpcio_listener import GrpcioListener, server_options, why_not
from gateway.edge.grpcio_tls import GrpcioPeers, GrpcioTls
from gateway.edge.headers import ClientHeaders
from gateway.edge.status import internal_error
from gateway.runtime.listen import listen_error, split_address

_log = logging.getLogger("sluice.edge.grpc")

_DRAIN_FOREVER_S = 86_400.0
"""The library wants a number; the limit of draining is `wait_closed`'s business."""

_STATUS = {code: next(status for status in grpc.StatusCode if status.value[0] == code.value) for code in Code}


class GrpcioServer:
    """The listener on the gRPC port."""

    def __init__(
        self,
        kit: GrpcKit,
        *,
        tls: GrpcioTls | None = None,
        handshake_timeout_ms: int = 10_000,
        peers: GrpcioPeers | None = None,
    ) -> None:
        """With `tls` the port speaks TLS alone. `peers` tells who is at the other end; None: it does not matter."""
        self._kit = kit
        self._tls = tls
        self._handshake_timeout_ms = handshake_timeout_ms
        self._peers = peers
        self._calls: dict[asyncio.Task[Reply], Call] = {}
        self._streams: dict[ClientStream, None] = {}
        self._handlers = Handlers()
        self._server: GrpcioListener | None = None
        self._draining: asyncio.Future[None] | None = None

    async def start(self, address: str) -> str:
        """Listen on `address` (`host:port`; port 0 takes a free one). Returns the address in use. Raises
        `ListenError`.
        """
        host, wanted = split_address(address)
        listener = GrpcioListener(
            self._library_server,
            lambda: self._kit.observer.internal_fault("grpc"),
            None if self._tls is None else self._tls.credentials,
        )
        try:
            port = await listener.start(f"[{host}]" if ":" in host else host, wanted)
        except RuntimeError as error:
            raise listen_error(address, LISTEN_KEY, why_not(host, wanted)) from error
        self._server = listener
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _library_server(self) -> grpc.aio.Server:
        limits = self._kit.limits
        server = grpc.aio.server(
            options=server_options(
                # The library holds a message whole, and unpacked, before anybody here is asked.
                receive_bytes_max=self._kit.message_bytes_max,
                send_bytes_max=limits.message_bytes_max,
                handshake_timeout_ms=self._handshake_timeout_ms,
            ),
            maximum_concurrent_rpcs=limits.streams_max,
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
                await asyncio.wait((self._draining,), timeout=CUT_GRACE_S)
        await self.aclose()
        return clean

    def _cut(self) -> None:
        told = cut_short()
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

    # --- control methods --------------------

    async def control(self, method: str, message: bytes, context: Context) -> bytes:
        desk, headers = self._kit.desk, self._headers(context)
        try:
            with desk.counting(method):
                try:
                    if desk.must_ask(method):
                        with self._handlers:
                            answer = await desk.ask(method, message, headers, headers.timeout_s)
                    else:
                        answer = desk.answer(method, message, headers)
                    await context.send_initial_metadata(((REQUEST_ID, headers.request_id),))
                except grpc.aio.InternalError as left:  # the library's other word for a caller who leaves this moment
                    raise asyncio.CancelledError from left
                return answer
        except GatewayError as error:
            await self._abort(context, error, refused(headers.request_id, error, self._kit.chance))
            raise AssertionError("abort raises") from error

    async def refused(self, name: str, text: str, context: Context) -> None:
        """A method that is not served. Never returns."""
        error = self._kit.desk.refuse(name, text)
        await self._abort(context, error, refused(self._headers(context).request_id, error, self._kit.chance))

    # --- inference --------------------

    async def infer(self, message: bytes, context: Context) -> bytes:
        with self._handlers:
            return await self._infer(message, context)

    async def _infer(self, message: bytes, context: Context) -> bytes:
        kit = self._kit
        now_s = kit.clock.now_s()
        remaining_s = context.time_remaining()
        headers = self._headers(context)
        call = grpc_call(headers, len(message), kit.clock, now_s, least(headers.timeout_s, remaining_s))
        fault = headers.fault
        held = kit.budget.try_reserve(len(message))
        if not held and fault is None:
            fault = no_memory()
        try:
            try:
                read_call(call, message)
            except GatewayError as error:
                # Bytes that are no message never became a call: no model, no record, only this count.
                kit.observer.request_without_call("grpc", "ModelInfer", error.code.name)
                await self._refuse(context, call, error)
            if fault is not None:
                call.message, call.receive = None, refusal(fault)
            return await self._run(call, context)
        finally:
            if held:
                kit.budget.release(len(message))

    async def _run(self, call: Call, context: Context) -> bytes:
        task = asyncio.get_running_loop().create_task(_guarded(self._kit.service, call))
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
            self._kit.observer.internal_fault("grpc")
            _log.error("call %s was cancelled inside the gateway; the caller gets INTERNAL", call.request_id)
            await self._refuse(context, call, internal_error())
        error = task.exception()
        if isinstance(error, GatewayError):
            await self._refuse(context, call, error)
        if error is not None:
            self._kit.observer.internal_fault("grpc")
            _log.error("call %s failed inside the gateway", call.request_id, exc_info=error)
            await self._refuse(context, call, internal_error())
        try:
            return await self._deliver(call, task.result(), context)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError from error  # the caller left this moment, and the record says so
        except Exception:
            self._kit.observer.internal_fault("grpc")
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
        kit, headers = self._kit, self._headers(context)
        try:
            kit.check_stream(headers, draining=self._draining is not None)
        except GatewayError as error:
            await self._abort(context, error, refused(headers.request_id, error, self._kit.chance))
        deadline_s = math.inf if remaining_s is None else kit.clock.now_s() + remaining_s
        wanted = (TRUE_STATUS, "true") in (context.invocation_metadata() or ())
        stream = ClientStream(kit.streams, GrpcioStreamPort(context), headers, deadline_s, true_status=wanted)
        self._streams[stream] = None
        try:
            await stream.run()
        except GatewayError as error:
            await self._abort(context, error, refused(headers.request_id, error, self._kit.chance))
        finally:
            del self._streams[stream]

    # --- the end of a unary call --------------------

    async def _caller_left(self, call: Call, task: asyncio.Task[Reply], context: Context) -> None:
        """End the call's task for a handler that was cancelled, and wait until everything it held is free."""
        remaining_s = context.time_remaining()
        expires = remaining_s is not None and remaining_s <= EXPIRY_GRACE_S
        if not expires or call.deadline_s - self._kit.clock.now_s() > EXPIRY_GRACE_S:
            call.abandoned = True
            task.cancel()
        # Otherwise the deadline is passing this moment: the call's own scope ends it, and is right about the reason.
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await task.result().aclose(Outcome.ABANDONED if call.abandoned else Outcome.EXPIRED)

    async def _deliver(self, call: Call, reply: Reply, context: Context) -> bytes:
        if self._kit.clock.now_s() > call.deadline_s:
            await reply.aclose(Outcome.EXPIRED)
            await self._refuse(context, call, too_late())
        try:
            initial, trailing = answered(call, self._kit.story(call))
            await context.send_initial_metadata(tuple(initial))
            context.set_trailing_metadata(tuple(trailing))
        except BaseException:
            await reply.aclose(Outcome.ABANDONED)
            raise
        await reply.aclose(Outcome.OK)
        return reply.message

    async def _refuse(self, context: Context, call: Call, error: GatewayError) -> None:
        """End the RPC with `error`; never returns."""
        kit = self._kit
        await self._abort(context, error, failed(call, error, kit.story(call, error), kit.chance))

    @staticmethod
    async def _abort(context: Context, error: GatewayError, metadata: Pairs) -> None:
        try:
            await context.abort(_STATUS[error.code], error.message, tuple(metadata))
        except grpc.aio.InternalError as left:
            raise asyncio.CancelledError from left

    def _headers(self, context: Context) -> ClientHeaders:
        metadata = context.invocation_metadata() or ()
        peer = NO_PEER if self._peers is None else self._peers.of(context)
        return self._kit.reader.read(((key, value) for key, value in metadata if isinstance(value, str)), peer)


async def _guarded(service: Service, call: Call) -> Reply:
    """`send`, with what would tear down the event loop turned into an ordinary error: asyncio re-raises
    KeyboardInterrupt and SystemExit out of a task's step, and one call's fault must not end the gateway.
    """
    try:
        return await service.send(call)
    except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        raise RuntimeError(f"{type(error).__name__} was raised inside a call") from error
