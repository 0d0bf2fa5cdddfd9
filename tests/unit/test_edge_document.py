"""docs/protocols.md is the code's own tables."""

from __future__ import annotations

from pathlib import Path

from gateway.core.errors import Reason
from gateway.edge.deviations import DEVIATIONS
from gateway.edge.document import render
from gateway.edge.http_control import OPEN_ROUTES, REFUSED, SERVED
from gateway.wire.http_path import Route

ROOT = Path(__file__).resolve().parents[2]


def test_the_manual_is_rendered_from_the_tables() -> None:
    written = (ROOT / "docs" / "protocols.md").read_text()
    assert written == render(), "run: python -m gateway.edge.document > docs/protocols.md"


def test_every_route_is_either_served_or_refused_with_words() -> None:
    assert SERVED | set(REFUSED) == set(Route)
    assert not SERVED & set(REFUSED)
    assert OPEN_ROUTES < SERVED
    assert all(REFUSED.values())


def test_every_reason_and_deviation_stands_in_the_manual_once() -> None:
    text = render()
    for reason in Reason:
        assert text.count(f"\n| `{reason.label}` |") == 1
    ids = [row.id for row in DEVIATIONS]
    assert len(set(ids)) == len(ids)
    assert {row.on for row in DEVIATIONS} <= {"HTTP", "gRPC", "both"}
