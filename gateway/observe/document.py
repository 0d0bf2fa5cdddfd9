"""`docs/metrics.md`, made from the table: `python -m gateway.observe.document > docs/metrics.md`."""

from __future__ import annotations

import sys

from gateway.observe.metrics import BOUNDS_S, FADE_S, LAG_BOUNDS_S
from gateway.observe.table import TABLE

_HEAD = f"""# Metrics

`GET /metrics` on the metrics port (8002). This page is made from the code (`python -m gateway.observe.document`); a
test holds the two together.

- Label values come from closed sets: models from the policies, versions from the fleet, routes as templates. Whatever a
  caller makes up is counted under `other`, so nobody can grow the page.
- `replica` is eight hex digits without a meaning outside of this gateway: the port shows no addresses. `/v1/fleet` on
  the admin port lists them as `metrics_id`.
- Series of versions and replicas that are gone are removed {FADE_S // 60:.0f} minutes later.
- The page is collected at most twice a second, and written out away from the request path.
- Bounds of call histograms, seconds: {", ".join(f"{bound:g}" for bound in BOUNDS_S)}, and the model's objective.
- Bounds of the event loop's lag, seconds: {", ".join(f"{bound:g}" for bound in LAG_BOUNDS_S)}.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{row.name}` | {row.kind} | {', '.join(f'`{label}`' for label in row.labels)} | {row.meaning} |\n"
        for row in TABLE
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(page())
