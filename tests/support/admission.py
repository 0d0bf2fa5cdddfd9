"""An admission of given replicas, at an instant that the test chooses."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.ticket import Decision, Granted, Queued, Ticket

LATE_S = 1e6
"""A deadline that nobody misses."""


class Desk:
    """Asks an `Admission` as the layer does, and empties `decided` each time."""

    def __init__(self, *candidates: Candidate, queue_max: int | None = None, seed: int = 1) -> None:
        self.admission = Admission(random.Random(seed), queue_max)
        self.now_s = 0.0
        self.admission.update(candidates, self.now_s)

    def ask(self, pinned: str = "", *, opens: bool = False, deadline_s: float = LATE_S, **more: object) -> Ticket:
        """A call that asks for a slot: its ticket has a permit, waits, or was refused (`why`)."""
        ticket = Ticket(self.now_s, deadline_s, pinned=pinned, opens=opens, **more)  # type: ignore[arg-type]
        decision = self.offer(ticket)
        if isinstance(decision, Granted):
            assert ticket.permit is decision.permit
        elif not isinstance(decision, Queued):
            ticket.why = decision.why
        return ticket

    def offer(self, ticket: Ticket) -> Decision:
        return self.admission.offer(ticket, self.now_s)

    def end(self, ticket: Ticket) -> list[Ticket]:
        """The call of a ticket ends: those who were decided by that."""
        assert ticket.permit is not None
        self.admission.give_back(ticket.permit, self.now_s)
        return self.decided()

    def update(self, candidates: Sequence[Candidate], down: Collection[str] = ()) -> list[Ticket]:
        self.admission.update(candidates, self.now_s, down)
        return self.decided()

    def decided(self) -> list[Ticket]:
        decided, self.admission.decided = self.admission.decided, []
        for ticket in decided:
            assert (ticket.permit is None) != (ticket.why is None), "granted or refused"
        return decided


def replica_of(ticket: Ticket) -> str:
    assert ticket.permit is not None
    return ticket.permit.replica


def waits(ticket: Ticket) -> bool:
    return ticket.permit is None and ticket.why is None
