"""A call that asks admission for a slot, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.core.permit import Permit
from gateway.decide.fair_lines import RoomTicket
from gateway.decide.rendezvous import Key
from gateway.decide.waiting_room import WORDS
from gateway.decide.waiting_room import Why as RoomWhy

Why = Literal[RoomWhy, "no_replica", "cohort", "too_large"]
"""Why a call is refused: `no_replica`, nothing could ever free a slot; `cohort`, it is not its turn under overload;
`too_large`, no replica could ever hold it; the others are the waiting room's.
"""
WHYS: tuple[Why, ...] = ("no_replica", "cohort", "too_large", *WORDS)


class Ticket(RoomTicket):
    """A call that asks for a slot. When its fate is decided, `permit` is set, or `why`. `waiter` is the asker's."""

    __slots__ = ("key", "level", "permit", "waiter", "why")

    def __init__(
        self,
        offered_s: float,
        deadline_s: float,
        *,
        criticality: int = 1,
        tenant: str = "",
        work: float = 1.0,
        level: int = 0,
        pinned: str = "",
        opens: bool = False,
        admitted: bool = False,
        key: Key | None = None,
    ) -> None:
        super().__init__(
            offered_s,
            deadline_s,
            criticality=criticality,
            tenant=tenant,
            work=work,
            pinned=pinned,
            opens=opens,
            admitted=admitted,
        )
        self.level = level
        """`cohorts.level` of the call."""
        self.key = key  # what keeps calls together (`affinity.py`)
        self.permit: Permit | None = None
        self.why: Why | None = None
        self.waiter: object = None


@dataclass(frozen=True, slots=True)
class Granted:
    permit: Permit


@dataclass(frozen=True, slots=True)
class Queued:
    ahead: int
    """Calls that waited when it came, but for one that had to make room for it."""


@dataclass(frozen=True, slots=True)
class Refused:
    why: Why
    wait_s: float = 0.0
    """How long it would have waited, by estimate."""


Decision = Granted | Queued | Refused
