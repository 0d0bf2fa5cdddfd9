"""What second attempts may add to the load: a budget fed by ordinary traffic, and an allowance for replicas that died.

`AttemptBudget` is one bucket per model, shared by retries and hedges. It is fed by primaries alone, so extra sends stay
a share of real traffic whatever fails: a limit of attempts per call amplifies exactly in an outage, a budget does not
(Finagle `RetryBudget`, tower `tps_budget`, linkerd; the ratio of one tenth is that of Google's SRE book, chapter 21).
What it does differently:

- It has two halves. A hedge draws from its own half alone, so hedging costs at most its own twentieth. A retry draws
  from the retries' half first and, where that is short, takes the rest from the hedges': a call that failed needs a
  second attempt more than one that is slow, and in an outage hedges are worth nothing.
- It holds no time. Tokens do not expire: a quiet model keeps its right to retry. What piles up is bounded by the cap.
- A full bucket could be spent at once, on top of what comes in meanwhile. So the extra sends of the last thousand
  primaries are remembered, and never exceed what a thousand primaries deposit: over any 1,000 offered calls, upstream
  sends are at most 1.1 times that. With the least cap (20) and hedges alone, this is never felt.

`DownAllowance` is beside it: when a replica goes down, its unanswered attempts fail together, more of them than a ratio
would let through. They are sent again once, from an allowance that equals the replica's slots.

Bounded: `window_primaries` * (sum of the deposits) positions a model, and `replicas_max` allowances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SEND = 1000
"""The cost of an extra send, in the budget's units. Integers, because twenty times 0.05 in floats is not always 1."""

BudgetWord = Literal["granted", "empty", "window"]
"""`empty`: too few tokens. `window`: there are tokens, but the last primaries have had their share of extra sends."""


@dataclass(frozen=True, slots=True)
class AttemptBudgetSettings:
    """Raises ValueError for deposits outside [0, 1], a negative reserve, or bounds below their least values."""

    hedge_deposit: float = 0.05
    """Hedges that one primary pays for (DESIGN 7). Multiples of 0.001."""
    retry_deposit: float = 0.05
    """Retries that one primary pays for (DESIGN 7). Multiples of 0.001."""
    retry_reserve: float = 3.0
    """Retries that may be made before any primary has paid for them: without it the first twenty calls of a quiet model
    have none. Three, as Envoy's retry budget never goes below. Hedges have none, and stay under their share from the
    first call on. At most half of the cap counts.
    """
    cap_min: int = 20
    """The least cap, in sends (DESIGN 7)."""
    cap_per_batch: int = 4
    """Sends of the cap for each element of the largest batch: one slow batch delays a batch and those behind it."""
    window_primaries: int = 1000
    """Over any so many primaries, the extra sends are at most what these deposit."""

    def __post_init__(self) -> None:
        for name in ("hedge_deposit", "retry_deposit"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value}")
        if not 0 <= self.retry_reserve < float("inf"):
            raise ValueError(f"retry_reserve must be a finite number of at least 0, not {self.retry_reserve}")
        for name, least in (("cap_min", 2), ("cap_per_batch", 0), ("window_primaries", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def cap(self, batch_max: int) -> int:
        """The cap, in sends, of a model whose largest batch is `batch_max` (0: it does not batch)."""
        return max(self.cap_min, self.cap_per_batch * batch_max)


DEFAULTS = AttemptBudgetSettings()


class AttemptBudget:
    """The budget of one model. `cap` is the number of sends that both halves together may hold.

    `primary` is called once for each call whose first attempt is sent: a call that was refused locally pays for
    nothing. Draw last, when everything else about the second attempt is decided: there is no giving back. O(1), but
    for the positions that leave the window: one at most for each that came.
    """

    __slots__ = (
        "_extra",
        "_extra_max",
        "_half_max",
        "_hedge",
        "_hedge_deposit",
        "_hedges",
        "_primaries",
        "_refused",
        "_retries",
        "_retry",
        "_retry_deposit",
        "_settings",
        "_window",
        "fresh",
    )

    def __init__(self, cap: int, settings: AttemptBudgetSettings = DEFAULTS) -> None:
        """Raises ValueError for a cap below 2: each half must be able to hold a send."""
        self._settings = settings
        self._half_max = _half(cap)
        self._hedge_deposit = round(settings.hedge_deposit * SEND)
        self._retry_deposit = round(settings.retry_deposit * SEND)
        self._window = settings.window_primaries
        self._hedge = 0
        self._retry = min(self._half_max, round(settings.retry_reserve * SEND))
        self._extra: deque[int] = deque()
        """Of each extra send of the window: how many primaries there had been."""
        self._extra_max = (self._hedge_deposit + self._retry_deposit) * self._window // SEND
        self._primaries = self._hedges = self._retries = 0
        self._refused: dict[BudgetWord, int] = {"empty": 0, "window": 0}
        self.fresh = 0
        """Primaries that have not paid in yet: a hot path may add to it, as `primary` does. They do before anything is
        drawn, read, or capped, so that nobody can tell.
        """

    def primary(self) -> None:
        """A call's first attempt is sent: it pays into both halves."""
        self.fresh += 1

    def _pay_in(self) -> None:
        count, self.fresh = self.fresh, 0
        self._primaries += count
        self._hedge = min(self._half_max, self._hedge + count * self._hedge_deposit)
        self._retry = min(self._half_max, self._retry + count * self._retry_deposit)

    def hedge(self) -> BudgetWord:
        """`granted`: a hedge may be sent, and is paid for."""
        self._pay_in()
        word = self._judge(self._hedge)
        if word == "granted":
            self._hedge -= SEND
            self._hedges += 1
        return word

    def retry(self) -> BudgetWord:
        """`granted`: a retry may be sent, and is paid for."""
        self._pay_in()
        word = self._judge(self._retry + self._hedge)
        if word == "granted":
            own = min(self._retry, SEND)
            self._retry -= own
            self._hedge -= SEND - own
            self._retries += 1
        return word

    def _judge(self, tokens: int) -> BudgetWord:
        extra, oldest = self._extra, self._primaries - self._window
        while extra and extra[0] <= oldest:
            extra.popleft()
        word: BudgetWord = "granted"
        if tokens < SEND:
            word = "empty"
        elif len(extra) >= self._extra_max:
            word = "window"
        if word == "granted":
            extra.append(self._primaries)
        else:
            self._refused[word] += 1
        return word

    def tokens(self, kind: str = "retry") -> float:
        """What a hedge, or a retry, could draw from now, in sends."""
        self._pay_in()
        return (self._hedge if kind == "hedge" else self._retry + self._hedge) / SEND

    def primaries(self, count: int) -> None:
        """As `primary`, for many at once."""
        self.fresh += count

    def set_batch_max(self, batch_max: int) -> None:
        """The model's largest batch is known, or has changed (0: it does not batch)."""
        self.set_cap(self._settings.cap(batch_max))

    def set_cap(self, cap: int) -> None:
        """What is over the new cap is lost. Raises ValueError below 2."""
        half_max = _half(cap)
        self._pay_in()
        self._half_max = half_max
        self._hedge = min(self._hedge, self._half_max)
        self._retry = min(self._retry, self._half_max)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Tokens are in sends; `extra_in_window` is as of the last draw."""
        self._pay_in()
        return {
            "cap": 2 * self._half_max / SEND,
            "hedge_tokens": self._hedge / SEND,
            "retry_tokens": self._retry / SEND,
            "primaries": self._primaries,
            "hedges": self._hedges,
            "retries": self._retries,
            "extra_in_window": len(self._extra),
            "extra_in_window_max": self._extra_max,
            "refused": dict(self._refused),
        }


def _half(cap: int) -> int:
    if cap < 2:
        raise ValueError(f"the cap must be at least 2 sends, not {cap}")
    return cap * SEND // 2


@dataclass(frozen=True, slots=True)
class DownAllowanceSettings:
    """Raises ValueError unless both are positive and finite."""

    life_s: float = 1.0
    """Attempts that were out when a replica went down are known to be lost in that same moment, and a second attempt
    takes a free slot at once or is not sent. A second covers all of them, however late their own errors come.
    """
    replicas_max: int = 256
    """Allowances open at one time. A further replica gets none: its calls have the ratio budget."""

    def __post_init__(self) -> None:
        if not 0 < self.life_s < float("inf"):
            raise ValueError(f"life_s must be positive and finite, not {self.life_s}")
        if self.replicas_max < 1:
            raise ValueError(f"replicas_max must be at least 1, not {self.replicas_max}")


DOWN_DEFAULTS = DownAllowanceSettings()


class _Open:
    __slots__ = ("left", "until_s")

    def __init__(self, left: int, until_s: float) -> None:
        self.left = left
        self.until_s = until_s


class DownAllowance:
    """Re-sends of attempts whose replica went down, for one model version.

    Open it before the attempts that were lost with the replica are judged. O(1), but for expired ones: each is removed
    once.
    """

    __slots__ = ("_counts", "_open", "_settings")

    def __init__(self, settings: DownAllowanceSettings = DOWN_DEFAULTS) -> None:
        self._settings = settings
        self._open: dict[str, _Open] = {}
        """In the order of opening, which is that of expiry."""
        self._counts = {"opened": 0, "taken": 0, "refused": 0, "no_room": 0}

    def open(self, replica: str, slots: int, now_s: float) -> None:
        """`replica` was declared down; it had `slots` for this model. An allowance that is still open is not filled up
        again, so that a replica which flaps costs its slots once in `life_s`.
        """
        self._expire(now_s)
        if slots <= 0 or replica in self._open:
            return
        if len(self._open) >= self._settings.replicas_max:
            self._counts["no_room"] += 1
            return
        self._open[replica] = _Open(slots, now_s + self._settings.life_s)
        self._counts["opened"] += 1

    def take(self, replica: str, now_s: float) -> bool:
        """Whether an attempt that was lost with `replica` may be sent again; True is one taken. Draw last."""
        self._expire(now_s)
        opened = self._open.get(replica)
        if opened is None or not opened.left:
            self._counts["refused"] += 1
            return False
        opened.left -= 1
        self._counts["taken"] += 1
        return True

    def _expire(self, now_s: float) -> None:
        while self._open:
            replica, first = next(iter(self._open.items()))
            if now_s < first.until_s:
                return
            del self._open[replica]

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        self._expire(now_s)
        return {"open": len(self._open), "left": sum(each.left for each in self._open.values()), **self._counts}
