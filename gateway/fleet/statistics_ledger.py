"""The ledger of model statistics: what each replica last said, added up so that the sum never goes back.

Pure and synchronous. A caller sees one server, and takes differences: perf_analyzer reads the counts before and after
each of its windows. Triton's counts grow while a version stays loaded; those of the fleet grow while any replica keeps
it loaded:

- A replica that does not answer counts with what it said last.
- One whose counters went back has loaded the version anew, or was started anew: what it had counted before stays in.
- So does what a replica had counted that has left the fleet. If it comes back under the same address and its counters
  go on where they were, they are its own again: nothing is counted twice.
- A version that no replica of the fleet lists any more is forgotten; when it comes back, it begins at zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.wire.kserve.statistics import ModelStatistics, decode_statistics

Key = tuple[str, str, str]
"""Pool, model, version."""

DEPARTED_MAX = 256
"""Replicas that have left and are remembered one by one; of older ones only the sum is."""


class _Count:
    """One version on one replica: the counts of earlier loads, and those of the load that it was last asked about."""

    __slots__ = ("before", "message", "now")

    def __init__(self, message: bytes, now: ModelStatistics) -> None:
        self.message = message
        """As it came: mostly the next one is the same, and needs no reading."""
        self.now = now
        self.before: ModelStatistics | None = None

    def take(self, message: bytes) -> None:
        if message == self.message:
            return
        now, last = decode_statistics(message), self.now
        if not now.continues(last):
            self.before = _sum(self.before, last.without_memory())
        self.message, self.now = message, now

    @property
    def total(self) -> ModelStatistics:
        return self.now if self.before is None else self.now.plus(self.before)


class _Account:
    """One replica. `listed` is what its last answer held; `present` whether it is in the fleet."""

    __slots__ = ("counts", "listed", "present")

    def __init__(self) -> None:
        self.counts: dict[Key, _Count] = {}
        self.listed: frozenset[Key] = frozenset()
        self.present = True


class StatisticsLedger:
    """Used by one round at a time. What it holds is bounded by replicas and by the versions that they serve."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        """By the replica's id; those that left last stand last."""
        self._older: dict[Key, ModelStatistics] = {}

    def record(self, replica: str, parts: Mapping[Key, bytes]) -> None:
        """Take a replica's whole answer: every version that it lists, each a serialized `ModelStatistics`. Raises
        `GatewayError` (UPSTREAM_BROKEN) at the first that cannot be read; those before it are taken.
        """
        account = self._accounts.get(replica)
        if account is None:
            account = self._accounts[replica] = _Account()
        for key, message in parts.items():
            count = account.counts.get(key)
            if count is None:
                account.counts[key] = _Count(message, decode_statistics(message))
            else:
                count.take(message)
        account.listed = frozenset(parts)

    def settle(self, present: Collection[str]) -> None:
        """After the answers of a round: the replicas of the fleet are these, whether they answered or not."""
        for replica in list(self._accounts):
            account = self._accounts[replica]
            if replica in present:
                account.present = True
            elif account.present:
                account.present, account.listed = False, frozenset()
                self._accounts[replica] = self._accounts.pop(replica)
        departed = [replica for replica, account in self._accounts.items() if not account.present]
        for replica in departed[: max(0, len(departed) - DEPARTED_MAX)]:
            for key, count in self._accounts.pop(replica).counts.items():
                self._older[key] = _sum(self._older.get(key), count.total.without_memory())
        self._forget()

    def _forget(self) -> None:
        listed = set().union(*(account.listed for account in self._accounts.values()))
        for key in [key for key in self._older if key not in listed]:
            del self._older[key]
        for replica, account in list(self._accounts.items()):
            for key in [key for key in account.counts if key not in listed]:
                del account.counts[key]
            if not account.present and not account.counts:
                del self._accounts[replica]

    def totals(self) -> dict[Key, ModelStatistics]:
        """Of every version that a replica of the fleet lists: the sum. Memory is counted only where it is listed."""
        totals = dict(self._older)
        for account in self._accounts.values():
            for key, count in account.counts.items():
                one = count.total if key in account.listed else count.total.without_memory()
                totals[key] = _sum(totals.get(key), one)
        return totals


def _sum(one: ModelStatistics | None, other: ModelStatistics) -> ModelStatistics:
    return other if one is None else one.plus(other)
