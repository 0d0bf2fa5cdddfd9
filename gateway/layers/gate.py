"""gate: what is decided from headers alone, before the body where nothing below could still answer.

Identity first, so that a caller without a key learns nothing about which models exist; then the right to the model,
then whether any policy names it, then its class, then the declared size.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gateway.core.call import Call
from gateway.core.criticality import CLASS_NAMES
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
    def gate(self) -> Callable[[str], tuple[int, int] | None]:
        """Of a model: what the body of a call may come to, and the class of calls that name none; None if no policy
        names the model.
        """
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
        limits_of = table.gate
        limits = limits_of(model)
        call.identity = identity = self._authenticator.identify(call.credentials)
        if identity.models is not None and not identity.may_call(model):
            raise GatewayError(Reason.FORBIDDEN, f"this caller may not call model '{shown(model)}'")
        if limits is None:
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{shown(model)}' is not found")
        limit, rank = limits
        asked, highest = call.priority, identity.highest_class
        if asked is not None:
            rank = asked
        call.criticality = rank if rank > highest else highest
        if call.explain or (asked is not None and asked < highest):
            _note_class(call, rank, highest)
        body_bytes = call.body_bytes
        if body_bytes is not None and body_bytes > limit:
            raise GatewayError(
                Reason.TOO_LARGE,
                f"the body has {body_bytes} bytes; model '{shown(model)}' takes at most {limit}",
            )
        return self._inner.send(call)


def _note_class(call: Call, rank: int, highest: int) -> None:
    asked = call.priority is not None
    word = "lowered" if rank < highest else "asked" if asked else "default"
    saw = {"asked" if asked else "default": CLASS_NAMES[rank], "highest": CLASS_NAMES[highest]}
    call.trail.note("class", word, {**saw, "class": CLASS_NAMES[call.criticality]})


def shown(name: str) -> str:
    """A caller's model name as it may stand in a message: printable, at most 128 characters."""
    text = "".join(character if character.isprintable() else "?" for character in name[:129])
    return text if len(text) <= 128 else text[:128] + "…"
