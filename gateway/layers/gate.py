"""gate: what is decided from headers alone, before the body where nothing below could still answer.

Identity first, so that a caller without a key learns nothing about which models exist; then the right to the model,
then whether any policy names it, then the declared size.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator
from gateway.core.reply import Reply
from gateway.core.service import Service


class GateRules(Protocol):
    """What the gate asks of the policies in force."""

    @property
    def revision(self) -> str:
        """Of these policies, for the record of what is refused here."""
        ...

    def body_bytes_max(self, model: str) -> int | None:
        """The model's limit; None if no policy names the model."""
        ...


class GateLayer:
    """Refuses what must not go further. Never waits."""

    __slots__ = ("_authenticator", "_inner", "_rules")

    def __init__(self, inner: Service, authenticator: Authenticator, rules: GateRules) -> None:
        self._inner = inner
        self._authenticator = authenticator
        self._rules = rules

    async def send(self, call: Call) -> Reply:
        call.trail.policy_revision = self._rules.revision
        call.identity = identity = self._authenticator.identify(call.credentials)
        if not identity.may_call(call.model):
            raise GatewayError(Reason.FORBIDDEN, f"this caller may not call model '{shown(call.model)}'")
        limit = self._rules.body_bytes_max(call.model)
        if limit is None:
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{shown(call.model)}' is not found")
        if call.body_bytes is not None and call.body_bytes > limit:
            raise GatewayError(
                Reason.TOO_LARGE,
                f"the body has {call.body_bytes} bytes; model '{shown(call.model)}' takes at most {limit}",
            )
        return await self._inner.send(call)


def shown(name: str) -> str:
    """A caller's model name as it may stand in a message: printable, at most 128 characters."""
    text = "".join(character if character.isprintable() else "?" for character in name[:129])
    return text if len(text) <= 128 else text[:128] + "…"
