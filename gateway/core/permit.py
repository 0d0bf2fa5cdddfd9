"""Permit: a slot on a named replica, held by one attempt from the moment it is granted until it is given back.

What is learnt from the attempt is learnt when its permit comes back (`decide/admission.py`): the slot is the one thing
that comes back in every case, whether there was an answer, an error, or a cancellation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from gateway.core.call import Attempt, Call

Kind = Literal["primary", "retry", "hedge"]


class Desk(Protocol):
    """Where permits come from and go back to: the waiting place of one model version. Whoever holds a permit can ask
    here about a second attempt; nothing here waits.
    """

    def give_back(self, permit: Permit) -> None:
        """The slot is free again. Once for each permit."""
        ...

    def answered(self, permit: Permit) -> None:
        """The first response of a stream is there; the slot is not free yet."""
        ...

    def another(self, kind: Kind, tried: tuple[str, ...], work: float = 1.0) -> Permit | None:
        """A slot at once, for a call of so much work, on a replica that is not one of `tried`; None if there is none,
        or others wait for it.
        """
        ...

    async def wait_again(self, call: Call, tried: tuple[str, ...]) -> Permit | None:
        """A slot for a call whose replica went down with it, as soon as there is one; None if it is refused."""
        ...

    def hedge_delay_s(self, remaining_s: float, now_s: float, work: float = 1.0) -> float | None:
        """After how long a primary that is sent now, by a call with so much time left, counts as slow."""
        ...

    def hedge_again_s(self, elapsed_s: float, remaining_s: float) -> float | None:
        """After a refusal that passes, when the primary has been out for so long: how much longer to wait."""
        ...

    def may_hedge(self, tried: tuple[str, ...], *, cancels_capped: bool) -> str:
        """`hedge`, or why not (`decide.hedge.HedgeWord`)."""
        ...

    def hedge_none(self) -> str:
        """Why `hedge_delay_s`, asked just now, gave None (`decide.hedge.NoDelay`)."""
        ...

    def hedge_saw(self) -> dict[str, float | str]:
        """What `may_hedge` looks at, for a note."""
        ...

    def fresh_grants(self) -> int:
        """Permits that were granted since this was asked last."""
        ...

    def median_s(self) -> float:
        """The usual time from send to reply; 0.0 while it is not known."""
        ...

    def slots_of(self, replica: str) -> int:
        """How many slots the replica has, or had when it was found down; 0 if it has left."""
        ...


class Doubt(NamedTuple):
    """A call is sent to a replica whose breaker is not closed: why, and how the others are."""

    word: str
    """`probe`, to prove that the replica is well; `kept`, no more may be out; `panic`, too few are well."""
    replicas: int
    """Of the set, those that are up."""
    healthy: int
    ejected: int

    @property
    def numbers(self) -> dict[str, int]:
        return {"replicas": self.replicas, "healthy": self.healthy, "ejected": self.ejected}


class Special(NamedTuple):
    """What is not usual about an attempt."""

    kind: Kind = "primary"
    probe: object = None
    """The breaker's permit, if the attempt is to prove that the replica is well."""
    opens: bool = False
    """The call begins a sequence."""
    doubt: Doubt | None = None
    told: bool = False
    """The limit has learnt from its first response; its end teaches nothing more."""
    work: float = 1.0
    """Units of work of the call."""
    held_bytes: int = 0
    """What the call holds of its replica's memory budget."""


class Permit:
    """Granted once, given back once."""

    __slots__ = ("attempt", "desk", "in_flight", "replica", "special")

    def __init__(self, replica: str, in_flight: int, special: Special | None = None) -> None:
        self.replica = replica
        self.in_flight = in_flight
        """Calls on the replica when it was granted, this one included."""
        self.special = special
        """None for nearly all: a first attempt, and nothing more to say about it."""
        self.attempt: Attempt | None = None
        """Set by the track layer; None where nothing was sent. What became of it is read when the permit comes back."""
        self.desk: Desk | None = None
        """Set by the layer that hands it down; None in tests that hand one down themselves."""
