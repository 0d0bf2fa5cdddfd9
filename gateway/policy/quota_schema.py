"""`quotas` of fleet.yaml: how much of the gateways' service each tenant may take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.policy.strict import Strict

_Rate = Annotated[float, Meta(ge=0.001, le=1_000_000)]
_Burst = Annotated[float, Meta(ge=1, le=10_000_000)]
_Slots = Annotated[int, Meta(ge=1, le=1_000_000)]
_RATE = Meta(description="Calls a second, over all gateways. Each message of a stream is a call. Default: no limit.")
_BURST = Meta(
    description="Calls that may come at once after a pause; only with `rate_per_s`. Default: one second of the rate, "
    "at least 1."
)
_SLOTS = Meta(
    description="Calls under way at a time, over all gateways; a stream counts until it ends. Default: no limit."
)


class Quota(Strict, frozen=True, kw_only=True):
    """Limits on one model."""

    rate_per_s: Annotated[_Rate | None, _RATE] = None
    burst: Annotated[_Burst | None, _BURST] = None
    concurrency_max: Annotated[_Slots | None, _SLOTS] = None


class TenantQuota(Strict, frozen=True, kw_only=True):
    """Limits of a tenant: over all models together, and on single ones besides."""

    rate_per_s: Annotated[_Rate | None, _RATE] = None
    burst: Annotated[_Burst | None, _BURST] = None
    concurrency_max: Annotated[_Slots | None, _SLOTS] = None
    models: Annotated[
        dict[str, Quota] | None,
        Meta(
            description="Limits on single models, by the model's name, besides those above: a call must be within "
            "both. Default: none."
        ),
    ] = None


class Quotas(Strict, frozen=True, kw_only=True):
    tenants: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=255)], TenantQuota] | None,
        Meta(
            description="By tenant, as `identity` names it. What stands here replaces `default` as a whole: `{}` "
            "lifts every limit from this tenant. Default: none."
        ),
    ] = None
    default: Annotated[
        TenantQuota | None,
        Meta(description="For each tenant that is not named, on its own. Default: not limited."),
    ] = None
    gateways: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Gateways that share these limits. Each keeps to this part of every limit where no Redis is "
            "configured (`SLUICE_REDIS_URL`), or while it does not answer.",
        ),
    ] = 1
    entries_max: Annotated[
        int,
        Meta(
            ge=2,
            le=1_000_000,
            description="Tenants, and tenants on models, that are remembered at a time. Beyond it the one that was "
            "idle for longest is forgotten and begins anew with a full burst; if all have calls under way, calls of "
            "others are refused.",
        ),
    ] = 10_000

    def limits_models(self) -> bool:
        """Whether any limit stands on a single model."""
        return any(tenant.models for tenant in (*(self.tenants or {}).values(), self.default) if tenant is not None)

    def limits_nothing(self) -> bool:
        """Then no call is counted at all."""
        each = (*(self.tenants or {}).values(), *(() if self.default is None else (self.default,)))
        every = [quota for tenant in each for quota in (tenant, *(tenant.models or {}).values())]
        return all(quota.rate_per_s is None and quota.concurrency_max is None for quota in every)
