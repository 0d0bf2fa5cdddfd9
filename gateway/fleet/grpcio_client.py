"""`ReplicaClient` on grpcio: messages as bytes, no protobuf library, one connection per replica."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
from grpc import aio

from gateway.core.call import Metadata
from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faces import Endpoints, IndexEntry, ModelConfigBytes
from gateway.core.faults import UpstreamFault
from gateway.core.header_names import PEERS_OWN, PEERS_OWN_PREFIXES
from gateway.fleet.grpc_faults import to_fault
from gateway.fleet.grpc_tls import open_channel
from gateway.fleet.grpcio_stream import GrpcioStream
from gateway.fleet.http_get import HttpGetter
from gateway.fleet.tls import PoolTls
from gateway.runtime.clock import Clock
from gateway.wire.kserve import metadata as messages
from gateway.wire.kserve.repository import decode_index

T = TypeVar("T")

_log = logging.getLogger("sluice.fleet")

_SERVICE = "/inference.GRPCInferenceService/"
UNREAD_BYTES_MAX = 1024 * 1024
METADATA_BYTES_MAX = 1024 * 1024
ROUTED_NAMES_BYTES = 4096
_CONFIG_BYTES_MAX = 16 * 1024 * 1024
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
            # What a model's limit lets in goes out with the routed name and version behind it.
            ("grpc.max_send_message_length", min(self.message_bytes_max + ROUTED_NAMES_BYTES, 2**31 - 1)),
            # Triton quotes a caller's own names in its errors, which travel as metadata: 16 KiB are soon over, and then
            # a caller's fault would read as a lost connection.
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
            # What a replica may send ahead on a stream that is not read. The library would let that grow with the speed
            # of the connection, to tens of MiB a stream, all of it for a caller who takes nothing.
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


class GrpcioReplicaClient:
    """One replica over grpcio; the JSON configuration and the metrics page over HTTP, which Triton serves in the clear
    alone.
    """

    def __init__(self, endpoints: Endpoints, options: GrpcioOptions, clock: Clock, tls: PoolTls | None = None) -> None:
        self._endpoints = endpoints
        self._options = options
        self._clock = clock
        self._channel = open_channel(f"dns:///{endpoints.grpc}", options.arguments(), tls)
        self._http = HttpGetter()
        self._infer = self._method("ModelInfer")
        self._methods: dict[str, Any] = {}

    def _method(self, name: str) -> Any:
        return self._channel.unary_unary(_SERVICE + name, None, None)

    async def _ask(self, name: str, message: bytes, timeout_s: float) -> bytes:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = self._method(name)
        return await self._call(method, message, None, timeout_s)

    async def _call(
        self, method: Any, message: bytes, metadata: list[tuple[str, str | bytes]] | None, timeout_s: float
    ) -> bytes:
        limit_s = None if timeout_s == math.inf else max(0.0, timeout_s)
        started_s = self._clock.now_s()
        try:
            call = method(message, timeout=limit_s, metadata=metadata)
            # Not `await call` while it is out: cancelling that drops the library's batch while the core works on it,
            # which leaks 1 kB for each call (grpc/grpc issue 43360, open in 1.85). See the cancel below.
            await asyncio.shield(call._call_response)
            response: bytes | None = await call
        except aio.AioRpcError as error:
            raise to_fault(
                error.code().value[0],
                error.details() or "",
                channel_ready=self._channel.get_state() is grpc.ChannelConnectivity.READY,
                timed_out=limit_s is not None and self._clock.now_s() - started_s >= limit_s * 0.99,
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # RST_STREAM CANCEL goes to the replica, and the library's own task sees the call end in peace.
                call._cython_call.cancel("the gateway cancelled the call")
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

    # -- the face -----------------------------------------------------------------------------------------------------

    async def server_live(self, timeout_s: float) -> bool:
        return self._read(messages.decode_bool, await self._ask("ServerLive", b"", timeout_s))

    async def server_ready(self, timeout_s: float) -> bool:
        return self._read(messages.decode_bool, await self._ask("ServerReady", b"", timeout_s))

    async def server_metadata(self, timeout_s: float) -> bytes:
        return await self._ask("ServerMetadata", b"", timeout_s)

    async def repository_index(self, timeout_s: float) -> tuple[IndexEntry, ...]:
        return self._read(decode_index, await self._ask("RepositoryIndex", b"", timeout_s))

    async def model_statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._ask("ModelStatistics", messages.encode_model_request(model, version), timeout_s)

    async def model_ready(self, model: str, version: str, timeout_s: float) -> bool:
        answer = await self._ask("ModelReady", messages.encode_model_request(model, version), timeout_s)
        return self._read(messages.decode_bool, answer)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._ask("ModelMetadata", messages.encode_model_request(model, version), timeout_s)

    async def model_config(self, model: str, version: str, timeout_s: float) -> ModelConfigBytes:
        """Both spellings. `json` is empty where HTTP does not give it: a closed HTTP port, or a name with a space, a
        slash or a letter outside ASCII (Triton matches names as they stand in the path, escapes and all).
        """
        proto = await self._ask("ModelConfig", messages.encode_model_request(model, version), timeout_s)
        path = f"/v2/models/{quote(model, safe='')}/versions/{quote(version, safe='')}/config"
        try:
            body = await self._http.get(self._endpoints.http, path, timeout_s, _CONFIG_BYTES_MAX)
        except UpstreamFault as fault:
            _log.debug("no JSON configuration of model %r version %r: %s", model, version, fault)
            body = b""
        return ModelConfigBytes(proto, body)

    async def infer(self, message: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        return await self._call(self._infer, message, clean(metadata) if metadata else None, timeout_s)

    def open_stream(self, metadata: Metadata, timeout_s: float) -> GrpcioStream:
        return GrpcioStream(self._channel, clean(metadata) if metadata else None, timeout_s, self._clock)

    async def scrape(self, timeout_s: float) -> str:
        page = await self._http.get(self._endpoints.metrics, "/metrics", timeout_s, self._options.page_bytes_max)
        return page.decode(errors="replace")

    async def aclose(self) -> None:
        """Close the connection; calls that are out end with UNAVAILABLE."""
        await self._channel.close()
        await self._http.aclose()

    @staticmethod
    def _read(reader: Callable[[bytes], T], answer: bytes) -> T:
        try:
            return reader(answer)
        except GatewayError as error:
            raise UpstreamFault(Code.INTERNAL, error.message, from_peer=True) from None


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
