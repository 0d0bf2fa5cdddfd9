"""gate: what is decided from headers alone, before the body where nothing below could still answer.

Identity first, so that a caller without a key learns nothing about which models exist; then the right to the model,
then whether any policy names it, then the declared size.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator
from gateway.core.reply import Reply
from gateway.core.service import Service


class GateTable(Protocol):
    """What the gate asks of one revision of the policies."""

    @property
    def revision(self) -> str:
        """For the record of what is refused here."""
        ...

    @property
    def body_bytes_max(self) -> Callable[[str], int | None]:
        """Of a model: what the body of a call may come to; None if no policy names the model."""
        ...


class GateRules(Protocol):
    """The policies in force."""

    @property
    def table(self) -> GateTable: ...


class GateLayer:
    """Refuses what must not go further. Never waits, and has nothing to do afterwards: so `send` is no coroutine of its
    own, but hands out the next layer's.
    """

    __slots__ = ("_authenticator", "_inner", "_rules")

    def __init__(self, inner: Service, authenticator: Authenticator, rules: GateRules) -> None:
        self._inner = inner
        self._authenticator = authenticator
        self._rules = rules

    def send(self, call: Call) -> Coroutine[Any, Any, Reply]:
        model = call.model
        table = self._rules.table
        call.trail.policy_revision = table.revision
        limit = table.body_bytes_max(model)
        call.identity = identity = self._authenticator.identify(call.credentials)
        if identity.models is not None and not identity.may_call(model):
            raise GatewayError(Reason.FORBIDDEN, f"this caller may not call model '{shown(model)}'")
        if limit is None:
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{shown(model)}' is not found")
        body_bytes = call.body_bytes
        if body_bytes is not None and body_bytes > limit:
            raise GatewayError(
                Reason.TOO_LARGE,
                f"the body has {body_bytes} bytes; model '{shown(model)}' takes at most {limit}",
            )
        return self._inner.send(call)


def shown(name: str) -> str:
    """A caller's model name as it may stand in a message: printable, at most 128 characters."""
    text = "".join(character if character.isprintable() else "?" for character in name[:129])
    return text if len(text) <= 128 else text[:128] + "…"
