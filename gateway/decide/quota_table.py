"""All quotas of a gateway: which of them a call is counted in, and what bounds their number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from gateway.decide.quota import OK, Quota, QuotaSettings, QuotaVerdict, TenantQuota, checked_share

Key = tuple[str, str]
"""(tenant, model); model "" stands for all of the tenant's models together."""
SettingsOf = Callable[[str, str], QuotaSettings]
"""The limits of a tenant on a model ("": on all together). Must answer `UNLIMITED` for models that nobody declared."""

MakeQuota = Callable[[QuotaSettings, float], Quota]
"""From the limits and a gateway's share of them."""

UNLIMITED = QuotaSettings()
_Entry = tuple[Key, Quota]


class Held:
    """What a call holds. Goes back once, to `Quotas.give_back`."""

    __slots__ = ("_entries",)

    def __init__(self, entries: tuple[_Entry, ...]) -> None:
        self._entries: tuple[_Entry, ...] | None = entries

    @property
    def counted(self) -> bool:
        """Whether anything is held: not where nothing is limited."""
        return bool(self._entries)


class _TableFull(Exception):
    def __init__(self, verdict: QuotaVerdict) -> None:
        super().__init__()
        self.verdict = verdict


class Quotas:
    """All quotas of a gateway.

    A call must pass its tenant's quota over all models, and the one on its own model; if either refuses, neither is
    charged. Where nothing is limited, nothing is remembered.

    At most `entries_max` are kept, whoever calls. At the bound the quota that was idle for longest is forgotten; its
    tenant begins anew with a full bucket, which exceeds the limit by at most one burst each time (counted as
    `forgotten_early` unless the bucket was full again anyway). One with calls under way is never forgotten; if all have
    some, a tenant without an entry is refused: `table_full`. Every method but `replace` and `statistics` is O(1).
    """

    __slots__ = (
        "_busy",
        "_entries_max",
        "_forgotten",
        "_forgotten_early",
        "_granted",
        "_idle",
        "_make",
        "_refused",
        "_settings_of",
        "_share",
        "blamed",
    )

    def __init__(
        self,
        settings_of: SettingsOf,
        share: float = 1.0,
        *,
        entries_max: int = 10_000,
        make: MakeQuota = TenantQuota,
    ) -> None:
        if entries_max < 2:
            raise ValueError(f"entries_max must be at least 2 (a call may need two), not {entries_max}")
        self._settings_of = settings_of
        self._share = checked_share(share)
        self._entries_max = entries_max
        self._make = make
        self._idle: OrderedDict[Key, Quota] = OrderedDict()
        """Without calls under way, the longest unused first."""
        self._busy: dict[Key, Quota] = {}
        self.blamed: Key = ("", "")
        """Whose quota refused last. For reading, right after a refusal."""
        self._granted = 0
        self._refused: dict[str, int] = {"rate": 0, "concurrency": 0, "table_full": 0}
        self._forgotten = 0
        self._forgotten_early = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def take(self, tenant: str, model: str, cost: float, now_s: float) -> Held | QuotaVerdict:
        """A call asks. `Held`: it may go, and `give_back` must follow. Raises ValueError for an impossible cost."""
        first: _Entry | None = None
        second: _Entry | None = None
        try:
            first = self._entry((tenant, ""), None, now_s)
            if model:
                second = self._entry((tenant, model), first, now_s)
        except _TableFull as full:
            return self._no((tenant, ""), full.verdict)
        if first is None:
            first, second = second, None
        if first is None:
            self._granted += 1
            return Held(())
        if second is not None and second[1].would(cost, now_s) is not OK:
            return self._no(second[0], second[1].take(cost, now_s))
        verdict = first[1].take(cost, now_s)
        if verdict is not OK:
            return self._no(first[0], verdict)
        self._mark(first)
        self._granted += 1
        if second is None:
            return Held((first,))
        second[1].take(cost, now_s)
        self._mark(second)
        return Held((first, second))

    def _entry(self, key: Key, needed: _Entry | None, now_s: float) -> _Entry | None:
        """The entry, made if there is none; None where nothing is limited. Raises `_TableFull`."""
        quota = self._busy.get(key)
        if quota is not None:
            return key, quota
        quota = self._idle.get(key)
        if quota is not None:
            self._idle.move_to_end(key)
            return key, quota
        settings = self._settings_of(*key)
        if settings is UNLIMITED or settings.unlimited:
            return None
        if len(self) >= self._entries_max and not self._forget_one(needed, now_s):
            raise _TableFull(QuotaVerdict("table_full", settings.busy_retry_s))
        quota = self._idle[key] = self._make(settings, self._share)
        return key, quota

    def _mark(self, entry: _Entry) -> None:
        """The entry has been granted a call."""
        key, quota = entry
        if quota.in_flight == 1:
            self._busy[key] = self._idle.pop(key)

    def _no(self, key: Key, verdict: QuotaVerdict) -> QuotaVerdict:
        self._refused[verdict.why] += 1
        self.blamed = key
        return verdict

    def _forget_one(self, needed: _Entry | None, now_s: float) -> bool:
        for key, quota in self._idle.items():
            if needed is None or key != needed[0]:
                del self._idle[key]
                self._forgotten += 1
                self._forgotten_early += not quota.full(now_s)
                return True
        return False

    def give_back(self, held: Held) -> None:
        """A call ended. Raises ValueError if it was given back before."""
        entries, held._entries = held._entries, None
        if entries is None:
            raise ValueError("what a call held of its quotas was given back twice")
        for key, quota in entries:
            quota.give_back()
            if not quota.in_flight:
                del self._busy[key]
                self._idle[key] = quota

    def replace(self, settings_of: SettingsOf, share: float, now_s: float) -> None:
        """Other settings, or another number of gateways. Counts stay; what is not limited any more and not in use is
        forgotten. Calls that came while nothing was limited were not counted and do not count now. O(entries).
        """
        self._settings_of, self._share = settings_of, checked_share(share)
        for table in (self._idle, self._busy):
            for key, quota in tuple(table.items()):
                settings = settings_of(*key)
                if settings.unlimited and not quota.in_flight:
                    del table[key]
                else:
                    quota.replace(settings, share, now_s)

    def of(self, tenant: str, model: str) -> Iterator[tuple[Key, Quota]]:
        """The quotas that a call of this tenant on this model is counted in, as far as there are any yet."""
        for key in ((tenant, ""), (tenant, model)) if model else ((tenant, ""),):
            quota = self._busy.get(key) or self._idle.get(key)
            if quota is not None:
                yield key, quota

    @property
    def settings_of(self) -> SettingsOf:
        return self._settings_of

    @property
    def share(self) -> float:
        return self._share

    @property
    def any_busy(self) -> bool:
        """Whether any counted call is under way."""
        return bool(self._busy)

    def recent(self, count: int) -> Iterator[tuple[Key, Quota]]:
        """Up to `count` that were used last, those with calls under way first. O(count)."""
        yield from islice(chain(self._busy.items(), reversed(self._idle.items())), count)

    def busy(self) -> tuple[tuple[Key, Quota], ...]:
        """Those with calls under way: their leases must be renewed though no call comes. O(entries)."""
        return tuple(self._busy.items())

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "entries": len(self),
            "entries_max": self._entries_max,
            "busy": len(self._busy),
            "share": self._share,
            "granted": self._granted,
            "refused": dict(self._refused),
            "forgotten": self._forgotten,
            "forgotten_early": self._forgotten_early,
        }
