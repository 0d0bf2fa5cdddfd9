"""MemoryBudget: whether a call's memory still fits on the device that would run it.

Not the gateway's own memory (that is `bytebudget`), but the model server's: a batch of long inputs can exhaust a device
whose queue looks short, and then everything on it fails. What a device needs is reckoned as

    sum over the models loaded there of `fixed_bytes`  +  sum over the calls in flight of work x `bytes_per_unit`

against its limit. Models that share a device share its limit: the account is the device's, whoever names it. vLLM and
TensorRT-LLM admit by the same account (blocks of cache per token in flight). The figures are the policy's, measured
once per model; the gateway does not see the device's own count, and memory that others take there must be left out of
the limit.

A call that would not fit even if it were alone is refused for good: `too_large`. Any other has to wait: `full`.

What is taken is remembered in bytes, so that new figures in a policy, a model that is unloaded, or a device that leaves
cannot unbalance the books: what was taken is what goes back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MemoryWhy = Literal["ok", "full", "too_large", "unknown"]
"""unknown: no such device now."""

BYTES_MAX = 1 << 60
"""More than any device has: a figure beyond it is refused as a mistake, so that all sums stay exact."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model needs on a device. The default is nothing: a model without figures is not held back."""

    fixed_bytes: int = 0
    """Once, while it is loaded: weights and work space."""
    bytes_per_unit: float = 0.0
    """For each unit of work in flight."""

    def __post_init__(self) -> None:
        if not 0 <= self.fixed_bytes <= BYTES_MAX:
            raise ValueError(f"fixed_bytes must be in [0, 2^60], not {self.fixed_bytes}")
        if not 0 <= self.bytes_per_unit <= BYTES_MAX:
            raise ValueError(f"bytes_per_unit must be in [0, 2^60], not {self.bytes_per_unit}")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device: what may be used of it, and the models loaded there."""

    limit_bytes: int
    models: Collection[str] = ()

    def __post_init__(self) -> None:
        if not 0 < self.limit_bytes <= BYTES_MAX:
            raise ValueError(f"limit_bytes must be in (0, 2^60], not {self.limit_bytes}")


_NOTHING = ModelMemory()


class _Account:
    """One device. `taken`: bytes in flight by model, without zeros."""

    __slots__ = ("fixed", "full", "high", "limit", "present", "taken", "too_large", "used")

    def __init__(self) -> None:
        self.limit = 0
        self.fixed = 0
        self.present = False
        self.used = 0
        self.taken: dict[str, int] = {}
        self.high = 0
        self.full = 0
        self.too_large = 0


class MemoryBudget:
    """The accounts of all devices. A replica that has its device for itself is named as the device; replicas that share
    one name the same.

    Remembers the devices of the last update, and those that left with calls in flight until these have ended. All
    methods but `update` and `statistics` are O(1).
    """

    __slots__ = ("_accounts", "_models")

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._models: Mapping[str, ModelMemory] = {}

    def update(self, devices: Mapping[str, DeviceMemory], models: Mapping[str, ModelMemory]) -> None:
        """Fleet or policies changed. Calls in flight keep what they took; if that is more than a new limit, nothing
        starts there until enough has ended. O(devices x models).
        """
        self._models = models
        for name in [name for name in self._accounts if name not in devices]:
            account = self._accounts[name]
            account.present = False
            if not account.used:
                del self._accounts[name]
        for name, device in devices.items():
            account = self._accounts.setdefault(name, _Account())
            account.present = True
            account.limit = device.limit_bytes
            account.fixed = sum(models.get(model, _NOTHING).fixed_bytes for model in set(device.models))

    def bytes_of(self, model: str, work: float) -> int:
        """What a call needs, rounded up. Raises ValueError for what is no amount of work."""
        if not 0.0 <= work < math.inf:
            raise ValueError(f"work must be a finite number from 0 up, not {work}")
        needed = work * self._models.get(model, _NOTHING).bytes_per_unit
        return math.ceil(needed) if needed < BYTES_MAX else BYTES_MAX

    def may_take(self, device: str, model: str, work: float) -> MemoryWhy:
        """Whether a call may start there now. Counts nothing, so that a picker can ask it of every replica."""
        return self._judge(self._accounts.get(device), self.bytes_of(model, work))

    @staticmethod
    def _judge(account: _Account | None, needed: int) -> MemoryWhy:
        if account is None or not account.present:
            return "unknown"
        if not needed:
            return "ok"
        if account.fixed + needed > account.limit:
            return "too_large"
        return "ok" if account.fixed + account.used + needed <= account.limit else "full"

    def has_room(self, device: str, model: str, work: float, kept: int) -> bool:
        """Whether a call would leave `kept` bytes free there; one that needs none leaves what there is."""
        account, needed = self._accounts.get(device), self.bytes_of(model, work)
        return not needed or (account is not None and account.fixed + account.used + needed + kept <= account.limit)

    def used_bytes(self, device: str) -> int:
        """Of the calls in flight there."""
        account = self._accounts.get(device)
        return 0 if account is None else account.used

    def refused(self, device: str, why: MemoryWhy) -> None:
        """A call was turned away for this: counted, for the metrics page."""
        account = self._accounts.get(device)
        if account is not None:
            if why == "full":
                account.full += 1
            elif why == "too_large":
                account.too_large += 1

    def take(self, device: str, model: str, work: float) -> int:
        """A call starts. Returns the bytes it took, which must be given back. Raises ValueError unless `may_take` says
        `ok`.
        """
        needed = self.bytes_of(model, work)
        account = self._accounts.get(device)
        why = self._judge(account, needed)
        if why != "ok" or account is None:
            raise ValueError(f"a call of {model} that needs {needed} bytes may not start on {device}: {why}")
        if needed:
            account.used += needed
            account.taken[model] = account.taken.get(model, 0) + needed
            account.high = max(account.high, account.fixed + account.used)
        return needed

    def give_back(self, device: str, model: str, taken: int) -> None:
        """A call ended; `taken` is what `take` returned. Raises ValueError if the model has less than that in flight
        there.
        """
        if not taken:
            return
        account = self._accounts.get(device)
        held = 0 if account is None else account.taken.get(model, 0)
        if account is None or not 0 < taken <= held:
            raise ValueError(f"{taken} bytes of {model} given back on {device}, where it has {held}")
        account.used -= taken
        if held == taken:
            del account.taken[model]
        else:
            account.taken[model] = held - taken
        if not account.used and not account.present:
            del self._accounts[device]

    def may_load(self, device: str, model: str) -> MemoryWhy:
        """Whether the fixed part of one more model fits beside what is there and in flight."""
        account = self._accounts.get(device)
        return self._judge(account, self._models.get(model, _NOTHING).fixed_bytes)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            device: {
                "limit_bytes": account.limit,
                "fixed_bytes": account.fixed,
                "in_flight_bytes": account.used,
                "by_model": dict(sorted(account.taken.items())),
                "high_bytes": account.high,
                "full": account.full,
                "too_large": account.too_large,
            }
            for device, account in sorted(self._accounts.items())
        }
