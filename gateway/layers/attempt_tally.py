"""What became of second attempts: counted, for the metrics and the admin port, and noted on the call's trail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gateway.core.call import Attempt, Note, Trail
from gateway.core.faults import known_nowhere
from gateway.core.outcome import TEACHINGS, Outcome


class AttemptTally:
    """Of one model. `hedge` and `retry` are paid for from the budget, `resend` from the allowance of a death."""

    __slots__ = ("refused", "sent", "won")

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.won: Counter[str] = Counter()
        self.refused: dict[str, Counter[str]] = {"hedge": Counter(), "retry": Counter()}
        """By the words of the deciders, which are closed lists."""

    def hedge_refused(self, trail: Trail, word: str, saw: Mapping[str, float | str]) -> None:
        """A slow call asked for its hedge. It may ask again: the last answer is what is kept of it."""
        self.refused["hedge"][word] += 1
        notes = trail.notes
        if notes and notes[-1].decider == "hedge":
            notes[-1] = Note("hedge", word, saw)
        else:
            trail.note("hedge", word, saw)

    def retry_refused(self, trail: Trail, word: str, saw: Mapping[str, float | str]) -> None:
        self.refused["retry"][word] += 1
        trail.note("retry", word, saw)

    def statistics(self) -> dict[str, Any]:
        return {
            "sent": dict(self.sent),
            "won": dict(self.won),
            "refused": {kind: dict(words) for kind, words in self.refused.items()},
        }


def speaks_for_itself(attempt: Attempt) -> bool:
    """Of a failed attempt: nobody wonders why it was not made again."""
    return attempt.outcome in (Outcome.CALLER_FAULT, Outcome.EXPIRED, Outcome.GATEWAY_FAULT)


def is_final(attempt: Attempt) -> bool:
    """Whether no other replica could better what has become of an attempt that failed."""
    outcome = attempt.outcome
    assert outcome is not None, "track closes every attempt"
    return not TEACHINGS[outcome].elsewhere or (outcome is Outcome.NOT_LOADED and known_nowhere(attempt.text))
