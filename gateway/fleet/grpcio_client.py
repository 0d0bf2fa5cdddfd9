"""`ReplicaClient` on grpcio: messages as bytes, no protobuf library, one connection per replica."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import re
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from gateway.core.call import Attempt, Metadata
from gateway.core.codes import Code
from gateway.core.faces import Endpoints
from gateway.core.faults import UpstreamFault
from gateway.core.header_names import PEERS_OWN, PEERS_OWN_PREFIXES
from gateway.core.rest import Rest
from gateway.fleet.grpc_faults import to_fault
from gateway.fleet.grpc_tls import open_channel
from gateway.fleet.grpcio_stream import GrpcioStream
from gateway.fleet.replica_calls import (
    INFER,
    LEFT_MAX,
    METADATA_BYTES_MAX,
    ROUTED_NAMES_BYTES,
    RUN_OUT_AGAIN_S,
    RUN_OUT_S,
    SERVICE,
    UNREAD_BYTES_MAX,
    ReplicaCalls,
)
from gateway.fleet.tls import PoolTls
from gateway.runtime.clock import Clock

_NAME = re.compile(r"[a-z0-9_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class GrpcioOptions:
    """Bounds and timing of connections.

    `reconnect_max_ms` bounds how long a replica that came back is not tried: without it grpcio waits up to two minutes.
    `connect_timeout_ms` bounds one attempt to connect, up to the peer's first frame.
    """

    message_bytes_max: int = 64 * 1024 * 1024
    page_bytes_max: int = 8 * 1024 * 1024
    connect_timeout_ms: int = 1000
    reconnect_min_ms: int = 100
    reconnect_max_ms: int = 1000

    def arguments(self) -> list[tuple[str, int]]:
        """Channel arguments. Keep-alive stays off: Triton answers pings on an idle connection with GOAWAY, and the
        liveness probes do the same work.
        """
        return [
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_send_message_length", min(self.message_bytes_max + ROUTED_NAMES_BYTES, 2**31 - 1)),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
            # The library would let that grow with the speed of the connection, to tens of MiB a stream, all of it for a
            # caller who takes nothing.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", UNREAD_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.initial_reconnect_backoff_ms", self.reconnect_min_ms),
            ("grpc.min_reconnect_backoff_ms", self.connect_timeout_ms),
            ("grpc.max_reconnect_backoff_ms", self.reconnect_max_ms),
            ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ]


class GrpcioConnector:
    """Makes clients with one set of options."""

    def __init__(self, options: GrpcioOptions, clock: Clock, tls: PoolTls | None = None) -> None:
        self._options = options
        self._clock = clock
        self._tls = tls

    def connect(self, endpoints: Endpoints) -> GrpcioReplicaClient:
        """A client for one replica. Must be called inside the event loop that will use it."""
        return GrpcioReplicaClient(endpoints, self._options, self._clock, self._tls)


class GrpcioReplicaClient(ReplicaCalls):
    """One replica over grpcio."""

    def __init__(self, endpoints: Endpoints, options: GrpcioOptions, clock: Clock, tls: PoolTls | None = None) -> None:
        super().__init__(endpoints, options.page_bytes_max)
        self._options = options
        self._clock = clock
        self._channel = open_channel(f"dns:///{endpoints.grpc}", options.arguments(), tls)
        self._infer = self._method(INFER)
        self._methods: dict[str, Any] = {}
        self._left: dict[Any, asyncio.TimerHandle] = {}
        """Calls that were given up and run out, and what ends their time."""

    def _method(self, path: str) -> Any:
        return self._channel.unary_unary(path, None, None)

    async def _ask(self, name: str, message: bytes, timeout_s: float) -> bytes:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = self._method(SERVICE + name)
        return await self._call(method, message, None, timeout_s, None)

    async def _call(
        self,
        method: Any,
        message: bytes,
        metadata: list[tuple[str, str | bytes]] | None,
        timeout_s: float,
        attempt: Attempt | None,
    ) -> bytes:
        limit_s = None if timeout_s == math.inf else max(0.0, timeout_s)
        guarded = attempt is not None and self._restraint.guarded
        started_s = self._clock.now_s()
        try:
            told_s = limit_s if limit_s is None or not guarded else limit_s + self._restraint.slack_s()
            call = method(message, timeout=told_s, metadata=metadata)
            # Not `await call` while it is out: cancelling that drops the library's batch while the core works on it,
            # which leaks 1 kB for each call (grpc/grpc issue 43360, open in 1.85). See the cancel below.
            if not guarded or limit_s is None:
                await asyncio.shield(call._call_response)
            elif not (await asyncio.wait((call._call_response,), timeout=limit_s))[0]:
                self._part(call, attempt)
                raise UpstreamFault(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", from_peer=False)
            response: bytes | None = await call
        except aio.AioRpcError as error:
            if attempt is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._restraint.cancelled()  # by the library, or by the replica itself
            raise to_fault(
                error.code().value[0],
                error.details() or "",
                channel_ready=self._channel.get_state() is grpc.ChannelConnectivity.READY,
                timed_out=limit_s is not None and self._clock.now_s() - started_s >= limit_s * 0.99,
                message_bytes_max=self._options.message_bytes_max,
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._part(call, attempt)
                raise
            # Nobody cancelled this task: the channel was closed under the call, which grpcio tells in the same way.
            raise UpstreamFault(Code.UNAVAILABLE, "Channel closed while the call was out", from_peer=False) from None
        except (aio.UsageError, aio.InternalError) as error:
            raise UpstreamFault(
                Code.UNAVAILABLE, f"the call could not be made: {error}", from_peer=False, sent=False
            ) from error
        if response is None:
            raise UpstreamFault(Code.INTERNAL, "status OK came without a message", from_peer=True)
        return response

    def _part(self, call: Any, attempt: Attempt | None) -> None:
        """Nobody waits for it any more: cancel it, or leave it to run out."""
        restraint = self._restraint
        if attempt is not None and len(self._left) < LEFT_MAX and not restraint.may_cancel():
            attempt.rest = Rest()
            self._left[call] = asyncio.get_running_loop().call_later(RUN_OUT_S, self._ran_out, call)
            call._call_response.add_done_callback(lambda response: self._left_ended(call, attempt, response))
            return
        if attempt is not None and len(self._left) >= LEFT_MAX:
            restraint.cancelled()
        # RST_STREAM CANCEL goes to the replica, and the library's own task sees the call end in peace.
        call._cython_call.cancel("the gateway cancelled the call")

    def _ran_out(self, call: Any) -> None:
        """It has had its time."""
        if self._restraint.may_cancel(again=True):
            call._cython_call.cancel("the gateway cancelled the call")
        else:
            self._left[call] = asyncio.get_running_loop().call_later(RUN_OUT_AGAIN_S, self._ran_out, call)

    def _left_ended(self, call: Any, attempt: Attempt, response: asyncio.Future[Any]) -> None:
        self._left.pop(call).cancel()
        if not response.cancelled():
            response.exception()  # nobody else asks for it
        assert attempt.rest is not None
        attempt.rest.end()

    async def infer(
        self,
        message: bytes,
        metadata: Metadata,
        timeout_s: float,
        tail: bytes = b"",
        attempt: Attempt | None = None,
    ) -> bytes:
        """As the face says; `tail` goes out behind `message`, as a part of it."""
        return await self._call(self._infer, message + tail, clean(metadata) if metadata else None, timeout_s, attempt)

    def open_stream(self, metadata: Metadata, timeout_s: float) -> GrpcioStream:
        limit = self._options.message_bytes_max
        return GrpcioStream(self._channel, clean(metadata) if metadata else None, timeout_s, self._clock, limit)

    async def aclose(self) -> None:
        """Close the connection; calls that are out end with UNAVAILABLE."""
        await self._channel.close()
        await self._close_pages()


def clean(metadata: Metadata) -> list[tuple[str, str | bytes]]:
    """The entries that gRPC can carry: reserved names and characters outside printable ASCII are left out, a `-bin`
    value is decoded from base64.
    """
    kept: list[tuple[str, str | bytes]] = []
    for name, value in metadata:
        if name in PEERS_OWN or name.startswith(PEERS_OWN_PREFIXES):
            continue
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            continue
        if name.endswith("-bin"):
            try:
                kept.append((name, base64.b64decode(value + "=" * (-len(value) % 4), validate=True)))
            except binascii.Error:
                continue
        else:
            kept.append((name, value))
    return kept
