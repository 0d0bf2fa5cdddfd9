"""Which class the calls of a model have whose callers name none."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.criticality import CLASS_OF, DEFAULT_NAME, ClassName
from gateway.policy.strict import Strict


class Classes(Strict, frozen=True, kw_only=True):
    default: Annotated[
        ClassName | None,
        Meta(
            description="The class of calls that name none. Callers name theirs with `x-sluice-priority`; nobody's is "
            "above the `highest_class` of its tenant, this one included. Default: `critical_plus` where "
            "`latency_critical` is true, `sheddable_plus` where `interactive` is false, else `critical`."
        ),
    ] = None


def default_class(classes: Classes, *, interactive: bool, latency_critical: bool) -> int:
    """By its number."""
    if classes.default is not None:
        return CLASS_OF[classes.default]
    if latency_critical:
        return CLASS_OF["critical_plus"]
    return CLASS_OF[DEFAULT_NAME if interactive else "sheddable_plus"]
