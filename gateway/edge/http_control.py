"""Requests that need no model: routing, control queries from the catalogue, and refusals that headers decide.

What comes out is an answer, at once, or the word that the request is an inference call or a question to the model
servers (`ask`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gateway.core.call import Identity
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, Catalogue
from gateway.edge.headers import ClientHeaders
from gateway.edge.http_answer import EMPTY_TYPE, HttpAnswer, HttpAnswers, Refusal
from gateway.edge.http_coding import coding_fault
from gateway.edge.observer import EdgeObserver
from gateway.edge.refusals import LOAD, LOG, SHARED_MEMORY, TRACE
from gateway.edge.status import MODEL_NOT_READY, NO_SUCH_METHOD, NO_SUCH_ROUTE, error_body, internal_error
from gateway.wire.http1 import RequestHead
from gateway.wire.http_path import PathMatch, PathMatcher, PathResult, Route
from gateway.wire.kserve.metadata import decode_model_metadata, decode_server_metadata
from gateway.wire.kserve.repository import NAMED_REPOSITORY, decode_index_body, index_to_json

_log = logging.getLogger("sluice.edge")

SERVED = frozenset(
    {
        Route.SERVER_METADATA,
        Route.HEALTH_LIVE,
        Route.HEALTH_READY,
        Route.MODEL_METADATA,
        Route.MODEL_READY,
        Route.MODEL_CONFIG,
        Route.MODEL_INFER,
        Route.MODEL_GENERATE,
        Route.MODEL_GENERATE_STREAM,
        Route.MODEL_STATS,
        Route.ALL_STATS,
        Route.REPOSITORY_INDEX,
    }
)
CALLS = frozenset({Route.MODEL_INFER, Route.MODEL_GENERATE, Route.MODEL_GENERATE_STREAM})
"""What becomes a call, and so has a record."""
ASKED = frozenset({Route.MODEL_STATS, Route.ALL_STATS, Route.REPOSITORY_INDEX})
"""Control queries for which the model servers must be asked: `HttpQuestion` waits for them."""
OPEN_ROUTES = frozenset({Route.HEALTH_LIVE, Route.HEALTH_READY, Route.MODEL_READY})
"""Control queries that need no key: orchestrators and balancers have none."""


REFUSED: Mapping[Route, str] = MappingProxyType(
    {
        Route.REPOSITORY_LOAD: LOAD,
        Route.REPOSITORY_UNLOAD: LOAD,
        Route.TRACE_SETTING: TRACE,
        Route.MODEL_TRACE_SETTING: TRACE,
        Route.LOGGING: LOG,
        Route.SYSTEM_SHARED_MEMORY_STATUS: SHARED_MEMORY,
        Route.SYSTEM_SHARED_MEMORY_REGISTER: SHARED_MEMORY,
        Route.SYSTEM_SHARED_MEMORY_UNREGISTER: SHARED_MEMORY,
        Route.CUDA_SHARED_MEMORY_STATUS: SHARED_MEMORY,
        Route.CUDA_SHARED_MEMORY_REGISTER: SHARED_MEMORY,
        Route.CUDA_SHARED_MEMORY_UNREGISTER: SHARED_MEMORY,
    }
)
"""Routes of Triton's that are answered 501, with what to do instead."""

_BAD_VERSION = PathResult.BAD_VERSION
_INFER = Route.MODEL_INFER  # looking an enum's member up in its class, or in a set, takes longer than all the rest
_RENDERED_MAX = 256


class ControlDesk:
    """Routes requests and answers those that are no inference calls."""

    def __init__(
        self, catalogue: Catalogue, authenticator: Authenticator, answers: HttpAnswers, observer: EdgeObserver
    ) -> None:
        self._catalogue = catalogue
        self._observer = observer
        self._authenticator = authenticator
        self._answers = answers
        self._match = PathMatcher().match
        self._rendered: dict[tuple[Route, bytes], bytes] = {}

    def match(self, head: RequestHead) -> PathMatch:
        return self._match(head.target)

    def refuse(self, head: RequestHead, match: PathMatch, client: ClientHeaders) -> HttpAnswer | None:
        """The refusal of a request that cannot become a call; None if it can, or is a control query to be answered."""
        answers, request_id, route = self._answers, client.request_id, match.route
        if route is None:
            if match.result is PathResult.BAD_PATH:
                return answers.refused(request_id, GatewayError(Reason.BAD_REQUEST, match.reason))
            return answers.refused(request_id, GatewayError(Reason.UNKNOWN_ROUTE, NO_SUCH_ROUTE))
        if route is _INFER and head.method == b"POST":
            return None
        if head.method not in route.methods:
            error = GatewayError(Reason.UNKNOWN_ROUTE, NO_SUCH_METHOD)
            refusal = Refusal(error, 405, ((b"allow", route.allow),))
        elif route in CALLS:
            return None
        elif route not in SERVED:
            refusal = Refusal(GatewayError(Reason.UNSUPPORTED, REFUSED[route]))
        else:
            found = self.fault(head, match, client)
            if found is None and match.repository:
                found = Refusal(GatewayError(Reason.UNSUPPORTED, NAMED_REPOSITORY))
            if found is None:
                return None
            refusal = found
        return answers.refused(
            request_id, refusal.error, status=refusal.status, model=match.model, more=refusal.headers
        )

    def fault(self, head: RequestHead, match: PathMatch, client: ClientHeaders) -> Refusal | None:
        """What is wrong with a request for a served route. An inference call with a fault is a call all the same: who
        calls and for which model is known, so it takes its way through identity and record, and ends there.
        """
        if match.result is _BAD_VERSION:
            return Refusal(GatewayError(Reason.BAD_REQUEST, match.reason))
        if client.fault is not None:
            return Refusal(client.fault, 431 if client.fault.reason is Reason.TOO_LARGE else 0)
        return coding_fault(head, match.route)

    def answer(self, match: PathMatch, client: ClientHeaders) -> HttpAnswer:
        """The answer to a control query that was not refused."""
        try:
            return self._answer(match, client)
        except GatewayError as error:
            return self._answers.refused(client.request_id, error, model=match.model)
        except BaseException as fault:
            # As for calls: whatever it is, it ends this request with one answer, and no other.
            self._observer.internal_fault("http")
            _log.error("request %s: an internal fault ended a control query", client.request_id, exc_info=fault)
            return self._answers.refused(client.request_id, internal_error(), model=match.model)

    def admit(self, match: PathMatch, client: ClientHeaders) -> Identity | HttpAnswer:
        """Who asks the model servers, or why they may not."""
        try:
            identity = self._authenticator.identify(client.credentials)
            if match.model and not identity.may_call(match.model):
                raise GatewayError(Reason.FORBIDDEN, "this caller may not see this model")
        except GatewayError as error:
            return self.refused(match, client, error)
        return identity

    async def ask(self, match: PathMatch, client: ClientHeaders, identity: Identity, body: bytes) -> HttpAnswer:
        """The answer to a question for which the model servers must be asked. Raises `GatewayError`."""
        if match.route is Route.REPOSITORY_INDEX:
            message = await self._catalogue.repository_index(decode_index_body(body), identity)
            return self._answers.told(client.request_id, index_to_json(message))
        document = (await self._catalogue.model_statistics(match.model, match.version, identity)).json
        return self._answers.told(client.request_id, document, model=match.model)

    def refused(self, match: PathMatch, client: ClientHeaders, error: GatewayError, status: int = 0) -> HttpAnswer:
        """The answer to a question that ended in `error`; `status` is the HTTP status, 0 for the error's own."""
        return self._answers.refused(client.request_id, error, status=status, model=match.model)

    def _answer(self, match: PathMatch, client: ClientHeaders) -> HttpAnswer:
        catalogue, route = self._catalogue, match.route
        if route is Route.HEALTH_LIVE:
            return self._health(client, catalogue.server_live(), "")
        if route is Route.HEALTH_READY:
            return self._health(client, catalogue.server_ready(), "")
        if route is Route.MODEL_READY:
            if not catalogue.model_ready(match.model, match.version):
                body = error_body(MODEL_NOT_READY)
                return self._answers.told(client.request_id, body, status=400, model=match.model)
            return self._health(client, True, match.model)
        identity = self._authenticator.identify(client.credentials)
        if route is Route.SERVER_METADATA:
            body = self._render(route, catalogue.server_metadata(), _server_metadata_json)
            return self._answers.told(client.request_id, body)
        if not identity.may_call(match.model):
            raise GatewayError(Reason.FORBIDDEN, "this caller may not see this model")
        if route is Route.MODEL_METADATA:
            message = catalogue.model_metadata(match.model, match.version)
            body = self._render(route, message, _model_metadata_json)
        elif route is Route.MODEL_CONFIG:
            body = catalogue.model_config(match.model, match.version).json
        else:
            raise AssertionError(f"{route} is served but has no answer")
        return self._answers.told(client.request_id, body, model=match.model)

    def _health(self, client: ClientHeaders, good: bool, model: str) -> HttpAnswer:
        return self._answers.told(
            client.request_id, b"", status=200 if good else 400, content_type=EMPTY_TYPE, model=model
        )

    def _render(self, route: Route, message: bytes, to_json: Callable[[bytes], bytes]) -> bytes:
        """JSON of a protobuf message of the catalogue's; the same message was mostly seen before."""
        key = (route, message)
        body = self._rendered.get(key)
        if body is None:
            body = to_json(message)
            if len(self._rendered) >= _RENDERED_MAX:
                self._rendered.clear()
            self._rendered[key] = body
        return body


def _server_metadata_json(message: bytes) -> bytes:
    return decode_server_metadata(message).for_callers().to_json()


def _model_metadata_json(message: bytes) -> bytes:
    return decode_model_metadata(message).to_json()
