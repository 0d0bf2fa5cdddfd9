"""The figures of the connections to replicas on the metrics page."""

from __future__ import annotations

from gateway.observe.readings import upstream_readings
from gateway.observe.table import ROWS
from tests.unit.http2_world import World, run
from tests.unit.test_observe_metrics import metrics


def test_every_figure_of_a_client_is_shown_under_the_replicas_label() -> None:
    async def main(world: World) -> None:
        await world.infer()
        figures = world.client.statistics(world.now_s())
        of = metrics()
        shown = list(upstream_readings([("default", "default/10.0.0.1:8001", figures)], of))
        assert sorted(value for _, _, value in shown) == sorted(figures.values())
        assert {name for name, _, _ in shown} == {
            name for name in ROWS if name.startswith("sluice_upstream_") and "_cancels_" not in name
        }
        assert {values for _, values, _ in shown} == {("default", of.replica_label("default/10.0.0.1:8001"))}
        found = {name: value for name, _, value in shown}
        assert found["sluice_upstream_connects_total"] == 1
        assert found["sluice_upstream_connections"] == 1
        assert found["sluice_upstream_keepalive_seconds"] == figures["keepalive_s"]

    run(main)
