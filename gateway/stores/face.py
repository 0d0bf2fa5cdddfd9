"""The face of a store that gateways share, so far for quotas alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.decide.quota import QuotaSettings
from gateway.decide.quota_cell import Ask, Grant


class QuotaQuestion(NamedTuple):
    """What a gateway asks of one quota."""

    tenant: str
    model: str
    """"" for all models together."""
    settings: QuotaSettings
    """The limits as this gateway has them: each question is judged by its own."""
    share: float
    ask: Ask


class QuotaStore(Protocol):
    """Hands out leases of tokens and slots. One user, one question at a time.

    Nothing here raises but CancelledError, however ill the store is.
    """

    async def ready(self) -> bool:
        """Whether a question is worth while now. May take as long as a connection takes to be made."""
        ...

    async def lease(self, gateway: str, questions: Sequence[QuotaQuestion]) -> Sequence[Grant | None]:
        """An answer to each question, in their order; None where there was none, or not in time."""
        ...

    async def aclose(self) -> None: ...

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`kind`; `up`: 1 while it answers; `questions`: counts by `labels.STORE_OUTCOMES`."""
        ...
