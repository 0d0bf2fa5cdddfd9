"""quota: the part of the gate that counts tenants' calls; only where the policies declare a limit.

Directly inside the gate: a call that the gate refuses costs its tenant nothing, and one that is refused here has cost
nobody anything but its headers (over gRPC its message, in which the model's name stands). What a call holds goes back
when its reply is closed, or when it ends without one: once, whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.decide.quota import Quota, QuotaSettings, QuotaVerdict
from gateway.decide.quota_table import UNLIMITED, Held, Key, Quotas, SettingsOf
from gateway.layers.gate import shown
from gateway.policy import quota_schema
from gateway.runtime.clock import Clock

COST = 1.0
"""Of a call, in tokens. Its work is not known before its body is."""
SHOWN_MAX = 50
"""Quotas in the statistics, those used last."""
_NOTED = ("share", "store", "in_flight", "slots", "tokens", "leased", "share_tokens")
"""Of a quota's figures, what a caller may see of its own tenant."""


class Leases(Protocol):
    """Who asks the shared store."""

    def touch(self, key: Key, quota: Quota) -> None: ...

    def statistics(self, now_s: float) -> Mapping[str, Any]: ...


class QuotaLayer:
    """Counts calls by tenant, and by tenant and model. `leases` None: no store is shared."""

    __slots__ = ("_by_model", "_inner", "_leases", "_now_s", "_quotas")

    def __init__(
        self, inner: Service, quotas: Quotas, clock: Clock, leases: Leases | None = None, *, by_model: bool = True
    ) -> None:
        """`by_model`: there are limits on single models."""
        self._by_model = by_model
        self._inner = inner
        self._quotas = quotas
        self._now_s = clock.now_s
        self._leases = leases

    async def send(self, call: Call) -> Reply:
        tenant, model, now_s = call.identity.tenant, call.model if self._by_model else "", self._now_s()
        held = self._quotas.take(tenant, model, COST, now_s)
        blamed = self._quotas.blamed
        leases = self._leases
        if leases is not None:
            for key, quota in self._quotas.of(tenant, model):
                leases.touch(key, quota)
        if isinstance(held, QuotaVerdict):
            raise self._refused(call, held, blamed)
        if not held.counted:
            return await self._inner.send(call)
        if call.explain:
            self._note(call, "granted", {})
        try:
            reply = await self._inner.send(call)
        except BaseException:
            self._quotas.give_back(held)
            raise
        reply.on_close(_GiveBack(self._quotas, held))
        return reply

    def _refused(self, call: Call, verdict: QuotaVerdict, key: Key) -> GatewayError:
        settings = self._quotas.settings_of(*key)
        self._note(call, verdict.why, {"retry_after_s": round(verdict.retry_after_s, 3), "limit": _scope(key)})
        whose = "this caller's quota" + (f" for model '{shown(call.model)}'" if key[1] else "")
        if verdict.why == "table_full":
            text = "too many tenants have calls under way for this one to be counted"
        elif verdict.why == "concurrency":
            text = f"{whose} of {settings.concurrency_max} calls at a time is in use"
        else:
            text = f"{whose} of {settings.rate_per_s or 0:g} calls a second is used up"
        return GatewayError(Reason.QUOTA, f"{text}; try again later", retry_after_s=verdict.retry_after_s)

    def _note(self, call: Call, word: str, saw: dict[str, float | str]) -> None:
        now_s = self._now_s()
        for key, quota in self._quotas.of(call.identity.tenant, call.model):
            figures = quota.statistics(now_s)
            prefix = "model_" if key[1] else ""
            saw.update((prefix + name, _rounded(figures[name])) for name in _NOTED if name in figures)
        call.trail.note("quota", word, saw)

    def counts(self, now_s: float) -> Mapping[str, Any]:
        """Of all tenants together, without a name."""
        return self._quotas.statistics(now_s)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """For the admin port: tenants' names stand in it."""
        quotas = self._quotas
        figures: dict[str, Any] = dict(quotas.statistics(now_s))
        if self._leases is not None:
            figures["leases"] = self._leases.statistics(now_s)
        figures["used_last"] = [
            {"tenant": tenant, **({"model": model} if model else {}), **quota.statistics(now_s)}
            for (tenant, model), quota in quotas.recent(SHOWN_MAX)
        ]
        return figures


class _GiveBack:
    """Hung on a reply: smaller than a closure over the whole frame of `send`."""

    __slots__ = ("_held", "_quotas")

    def __init__(self, quotas: Quotas, held: Held) -> None:
        self._quotas = quotas
        self._held = held

    def __call__(self, outcome: Outcome) -> None:
        self._quotas.give_back(self._held)


def settings_of(policy: quota_schema.Quotas) -> SettingsOf:
    """The limits of a tenant, as the policies have them."""
    default = _limits(policy.default)
    named = {tenant: _limits(limits) for tenant, limits in (policy.tenants or {}).items()}

    def of(tenant: str, model: str) -> QuotaSettings:
        return named.get(tenant, default).get(model, UNLIMITED)

    return of


def _limits(tenant: quota_schema.TenantQuota | None) -> Mapping[str, QuotaSettings]:
    """By model; "" for all models together."""
    if tenant is None:
        return {}
    rows: dict[str, quota_schema.Quota | quota_schema.TenantQuota] = {"": tenant, **(tenant.models or {})}
    return {
        model: QuotaSettings(rate_per_s=row.rate_per_s, burst=row.burst, concurrency_max=row.concurrency_max)
        for model, row in rows.items()
    }


def _scope(key: Key) -> str:
    return "model" if key[1] else "tenant"


def _rounded(value: float | str) -> float | str:
    return round(value, 3) if isinstance(value, float) else value
