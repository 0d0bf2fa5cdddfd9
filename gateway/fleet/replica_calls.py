"""What a `ReplicaClient` asks besides inference, whatever carries it: control calls over gRPC, pages over HTTP."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faces import Endpoints, IndexEntry, ModelConfigBytes
from gateway.core.faults import UpstreamFault
from gateway.core.restraint import Free, Restraint
from gateway.fleet.http_get import HttpGetter
from gateway.wire.kserve import metadata as messages
from gateway.wire.kserve.repository import decode_index

T = TypeVar("T")

_log = logging.getLogger("sluice.fleet")

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
STREAM_INFER = SERVICE + "ModelStreamInfer"

UNREAD_BYTES_MAX = 1024 * 1024
"""What a replica may send ahead on a stream that is not read, bytes."""
METADATA_BYTES_MAX = 1024 * 1024
"""Triton quotes a caller's own names in its errors, which travel as metadata: 16 KiB, which is usual, are soon over,
and then a caller's fault would read as a lost connection.
"""
ROUTED_NAMES_BYTES = 4096
"""What a model's limit lets in goes out with the routed name and version behind it."""
CONFIG_BYTES_MAX = 16 * 1024 * 1024
LEFT_MAX = 1024
"""Calls that are left to run out on one replica at a time; beyond it they are cancelled, whatever the cap says. Each
holds its slot, so there are no more of them than the replica has slots.
"""
RUN_OUT_S = 5.0
"""A call that was left to run out, and has not after this time, is cancelled as soon as that is allowed."""
RUN_OUT_AGAIN_S = 0.1
"""How often that is asked."""


class ReplicaCalls(ABC):
    """A part of `core.faces.ReplicaClient`. The JSON configuration and the metrics page come over HTTP, which Triton
    serves in the clear alone.
    """

    def __init__(self, endpoints: Endpoints, page_bytes_max: int) -> None:
        self._endpoints = endpoints
        self._page_bytes_max = page_bytes_max
        self._http = HttpGetter()
        self._restraint: Restraint = Free()

    def restrain(self, restraint: Restraint) -> None:
        self._restraint = restraint

    @abstractmethod
    async def _ask(self, name: str, message: bytes, timeout_s: float) -> bytes:
        """One unary call of the method `name`: serialized request in, serialized response out."""

    async def server_live(self, timeout_s: float) -> bool:
        return _read(messages.decode_bool, await self._ask("ServerLive", b"", timeout_s))

    async def server_ready(self, timeout_s: float) -> bool:
        return _read(messages.decode_bool, await self._ask("ServerReady", b"", timeout_s))

    async def server_metadata(self, timeout_s: float) -> bytes:
        return await self._ask("ServerMetadata", b"", timeout_s)

    async def repository_index(self, timeout_s: float) -> tuple[IndexEntry, ...]:
        return _read(decode_index, await self._ask("RepositoryIndex", b"", timeout_s))

    async def model_statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._ask("ModelStatistics", messages.encode_model_request(model, version), timeout_s)

    async def model_ready(self, model: str, version: str, timeout_s: float) -> bool:
        answer = await self._ask("ModelReady", messages.encode_model_request(model, version), timeout_s)
        return _read(messages.decode_bool, answer)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._ask("ModelMetadata", messages.encode_model_request(model, version), timeout_s)

    async def model_config(self, model: str, version: str, timeout_s: float) -> ModelConfigBytes:
        """Both spellings. `json` is empty where HTTP does not give it: a closed HTTP port, or a name with a space, a
        slash or a letter outside ASCII (Triton matches names as they stand in the path, escapes and all).
        """
        proto = await self._ask("ModelConfig", messages.encode_model_request(model, version), timeout_s)
        path = f"/v2/models/{quote(model, safe='')}/versions/{quote(version, safe='')}/config"
        try:
            body = await self._http.get(self._endpoints.http, path, timeout_s, CONFIG_BYTES_MAX)
        except UpstreamFault as fault:
            _log.debug("no JSON configuration of model %r version %r: %s", model, version, fault)
            body = b""
        return ModelConfigBytes(proto, body)

    async def scrape(self, timeout_s: float) -> str:
        page = await self._http.get(self._endpoints.metrics, "/metrics", timeout_s, self._page_bytes_max)
        return page.decode(errors="replace")

    async def _close_pages(self) -> None:
        await self._http.aclose()


def _read(reader: Callable[[bytes], T], answer: bytes) -> T:
    try:
        return reader(answer)
    except GatewayError as error:
        raise UpstreamFault(Code.INTERNAL, error.message, from_peer=True) from None
