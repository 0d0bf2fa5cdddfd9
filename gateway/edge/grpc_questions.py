"""The two control methods over gRPC for which the model servers must be asked."""

from __future__ import annotations

from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, Catalogue
from gateway.edge.headers import ClientHeaders
from gateway.edge.patience import patience_s, within
from gateway.wire.http_path import is_version
from gateway.wire.kserve.metadata import decode_model_request
from gateway.wire.kserve.repository import decode_index_request

ASKED = frozenset(("ModelStatistics", "RepositoryIndex"))
"""Methods by their bare name."""


async def ask_fleet(
    catalogue: Catalogue,
    authenticator: Authenticator,
    method: str,
    message: bytes,
    headers: ClientHeaders,
    timeout_s: float | None,
) -> bytes:
    """The serialized answer. Raises `GatewayError`. Who may not ask is told so without a word to the model servers."""
    model, version, ready = "", "", False
    if method == "RepositoryIndex":
        ready = decode_index_request(message)
    else:
        model, version = decode_model_request(message, f"{method}Request")
        if model:
            check_version(version)
    if headers.fault is not None:
        raise headers.fault
    identity = authenticator.identify(headers.credentials)
    if model and not identity.may_call(model):
        raise GatewayError(Reason.FORBIDDEN, "this caller may not ask about that model")
    limit_s = patience_s(timeout_s)
    if method == "RepositoryIndex":
        return await within(limit_s, lambda: catalogue.repository_index(ready, identity))
    return (await within(limit_s, lambda: catalogue.model_statistics(model, version, identity))).proto


def check_version(version: str) -> None:
    """Raise `GatewayError` (BAD_REQUEST) for what can be no version; "" leaves the choice open."""
    if version and not is_version(version):
        raise GatewayError(
            Reason.BAD_REQUEST,
            f"model version {version[:64]!r} is not a version: versions are whole numbers such as '1'",
        )
