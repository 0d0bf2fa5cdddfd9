"""The assembled stack follows the list of positions."""

from __future__ import annotations

from gateway.stack import POSITIONS


def test_positions_are_named_once_and_each_has_a_reason() -> None:
    names = [position.name for position in POSITIONS]
    assert len(set(names)) == len(names)
    assert all(len(position.reason) > 20 for position in POSITIONS)


def test_the_order_is_the_designs() -> None:
    assert [position.name for position in POSITIONS] == [
        "edge", "record", "gate", "deadline", "route", "sequence", "ladder", "cache", "coalesce", "features", "shadow",
        "stages", "admit", "attempts", "track", "transport",
    ]  # fmt: skip
