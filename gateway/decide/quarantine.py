"""Quarantine: inputs whose call was out on two replicas when these died, and which are therefore not sent again.

An input that crashes a server does it on every server. A gateway that sends what was lost with a dead replica again
would carry such an input through the whole pool; after the second death the input is refused instead (the caller of
this object answers 400), until it expires. Queues do the same with poison messages (a "maximum receive count", then the
dead-letter queue); the number here is two, because the first death may be anything, and a call is sent again only once.

What it counts are deaths, not calls: many callers send the same input, and a replica that dies with ten of them in
flight is one death. So each death has a name, and is counted once for a digest.

Who is near when a replica dies is only suspected. A success clears a single death. What it does not clear are inputs
that happened to be in flight at two deaths with no answer between them: of these the innocent are refused too, for
`ttl_s`.

Bounded: `max_entries` digests of at most `DIGEST_MAX` bytes, with two names of deaths each. At the bound the entry that
expires first goes, which is the one whose last death is longest ago. Only deaths make entries: callers cannot fill it
faster than replicas die with their calls in flight. O(1), but for expired entries: each is removed once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEATHS_MAX = 2
"""So many deaths put an input into quarantine."""
DIGEST_MAX = 64
"""Bytes of the longest digest: that of SHA-512, or BLAKE2b."""


@dataclass(frozen=True, slots=True)
class QuarantineSettings:
    """Raises ValueError for less than one entry, or a time that is not positive and finite."""

    max_entries: int = 1024
    """Digests remembered. A replica dies with no more inputs in flight than it has slots, some dozens; this is room for
    those of many deaths, in some hundred kilobytes.
    """
    ttl_s: float = 600.0
    """How long after its last death an input is remembered, and refused if there were two. Servers need 30 to 100 s to
    come back with a large model (notes 9): an input may kill two of them in ten minutes, which a pool survives.
    """

    def __post_init__(self) -> None:
        if self.max_entries < 1:
            raise ValueError(f"max_entries must be at least 1, not {self.max_entries}")
        if not 0 < self.ttl_s < float("inf"):
            raise ValueError(f"ttl_s must be positive and finite, not {self.ttl_s}")


DEFAULTS = QuarantineSettings()


class _Entry:
    __slots__ = ("deaths", "until_s")

    def __init__(self, death: str, until_s: float) -> None:
        self.deaths: tuple[str, ...] = (death,)
        """Their names, `DEATHS_MAX` at most."""
        self.until_s = until_s


class Quarantine:
    """The inputs of one model version. A digest stands for everything that the replica is sent of the call."""

    __slots__ = ("_counts", "_quarantined", "_settings", "entries")

    def __init__(self, settings: QuarantineSettings = DEFAULTS) -> None:
        self._settings = settings
        self.entries: OrderedDict[bytes, _Entry] = OrderedDict()
        """In the order of their last deaths, which is that of expiry."""
        self._quarantined = 0
        self._counts = {"deaths": 0, "cleared": 0, "refused": 0, "evicted": 0}

    @property
    def idle(self) -> bool:
        """Nothing is remembered: no call needs to be asked about, and none needs a digest."""
        return not self.entries

    def note_death(self, digest: bytes, death: str, now_s: float) -> int:
        """A replica went down that had a call with this input, sent and unanswered. `death` names the event, the same
        for every call that was lost in it: the replica, and the how-manieth time it went down. Returns the input's
        deaths so far, at most `DEATHS_MAX`. Raises ValueError for a digest that is empty or longer than `DIGEST_MAX`.
        """
        if not 0 < len(digest) <= DIGEST_MAX:
            raise ValueError(f"a digest has 1 to {DIGEST_MAX} bytes, not {len(digest)}")
        self._expire(now_s)
        until_s = now_s + self._settings.ttl_s
        entry = self.entries.get(digest)
        if entry is None:
            if len(self.entries) >= self._settings.max_entries:
                self._remove(next(iter(self.entries)))
                self._counts["evicted"] += 1
            self.entries[digest] = entry = _Entry(death, until_s)
        elif death in entry.deaths:
            return len(entry.deaths)
        else:
            entry.until_s = until_s
            self.entries.move_to_end(digest)
            if len(entry.deaths) < DEATHS_MAX:
                entry.deaths = (*entry.deaths, death)
                self._quarantined += len(entry.deaths) == DEATHS_MAX
        self._counts["deaths"] += 1
        return len(entry.deaths)

    def note_success(self, digest: bytes) -> None:
        """A call with this input was answered. A single death is forgotten; a quarantine stands."""
        entry = self.entries.get(digest)
        if entry is not None and len(entry.deaths) < DEATHS_MAX:
            self._remove(digest)
            self._counts["cleared"] += 1

    def blocked(self, digest: bytes, now_s: float) -> float | None:
        """How long the input is still refused, seconds, above 0.0; None if it may be sent."""
        self._expire(now_s)
        entry = self.entries.get(digest)
        if entry is None or len(entry.deaths) < DEATHS_MAX:
            return None
        self._counts["refused"] += 1
        return entry.until_s - now_s

    def _expire(self, now_s: float) -> None:
        while self.entries:
            digest, first = next(iter(self.entries.items()))
            if now_s < first.until_s:
                return
            self._remove(digest)

    def _remove(self, digest: bytes) -> None:
        entry = self.entries.pop(digest)
        self._quarantined -= len(entry.deaths) == DEATHS_MAX

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`suspected` have one death, `quarantined` two."""
        self._expire(now_s)
        return {
            "suspected": len(self.entries) - self._quarantined,
            "quarantined": self._quarantined,
            **self._counts,
        }
