"""The control methods over gRPC: answered by the catalogue, the same by whichever server a question came."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, Catalogue
from gateway.edge.grpc_methods import HEALTH_CHECK, SERVICE
from gateway.edge.grpc_questions import ASKED, ask_fleet, check_version
from gateway.edge.headers import ClientHeaders
from gateway.edge.observer import EdgeObserver
from gateway.edge.status import internal_error
from gateway.wire.kserve.metadata import check_request, decode_model_request, encode_bool

_log = logging.getLogger("sluice.edge.grpc")

_GOOD_HEALTH, _BAD_HEALTH = b"\x08\x01", b"\x08\x02"
"""`HealthCheckResponse` with SERVING and NOT_SERVING."""
_NAMES = {HEALTH_CHECK: "Health/Check"}


class GrpcDesk:
    """Answers control methods, and counts them."""

    def __init__(self, catalogue: Catalogue, authenticator: Authenticator, observer: EdgeObserver) -> None:
        self._catalogue = catalogue
        self._authenticator = authenticator
        self._observer = observer

    @staticmethod
    def must_ask(method: str) -> bool:
        """Whether the model servers must be asked: then `ask` answers, and else `answer`."""
        return method.removeprefix(SERVICE) in ASKED

    @contextmanager
    def counting(self, method: str) -> Iterator[None]:
        """Around everything that is done for one request: counts how it ended. What it raises is a `GatewayError`, or
        CancelledError for a caller who left.
        """
        code = Code.OK
        try:
            yield
        except GatewayError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = Code.CANCELLED
            raise
        except Exception as error:
            code = Code.INTERNAL
            self._observer.internal_fault("grpc")
            _log.exception("answering %s failed", method)
            raise internal_error() from error
        finally:
            name = _NAMES.get(method) or method.removeprefix(SERVICE)
            self._observer.request_without_call("grpc", name, code.name)

    async def ask(self, method: str, message: bytes, headers: ClientHeaders, timeout_s: float | None) -> bytes:
        """The answer of the model servers, to a caller who waits for `timeout_s`. Raises `GatewayError`; may be
        cancelled when the caller leaves.
        """
        name = method.removeprefix(SERVICE)
        return await ask_fleet(self._catalogue, self._authenticator, name, message, headers, timeout_s)

    def answer(self, method: str, message: bytes, headers: ClientHeaders) -> bytes:
        """The serialized answer from what is known. Raises `GatewayError`."""
        catalogue, name = self._catalogue, method.removeprefix(SERVICE)
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

    def refuse(self, name: str, text: str) -> GatewayError:
        """The error for a method that is not served; `name` is what it is counted under."""
        self._observer.request_without_call("grpc", name, Code.UNIMPLEMENTED.name)
        return GatewayError(Reason.UNSUPPORTED, text)

    def _model_ready(self, model: str, version: str) -> bool:
        """As Triton 2.51 answers over gRPC: what it does not know is not ready, and that is no error."""
        try:
            return self._catalogue.model_ready(model, version)
        except GatewayError as error:
            if error.reason in (Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION):
                return False
            raise
