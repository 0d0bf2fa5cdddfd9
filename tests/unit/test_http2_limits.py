"""Limits that make no sense are refused where they are made."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gateway.wire.http2 import Http2Limits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("streams_max", 0),
        ("window_bytes", 0),
        ("window_bytes", 1 << 31),
        ("connection_window_bytes", 65_534),
        ("connection_window_bytes", 1 << 31),
        ("frame_max_bytes", 16_383),
        ("frame_max_bytes", 1 << 24),
        ("header_table_bytes", -1),
        ("header_list_max_bytes", 0),
        ("acks_waiting_max", 0),
        ("idle_frames_per_s", -0.1),
        ("waiting_max", -1),
        ("burst_bytes", 0),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"Http2Limits\.{name} is {value}; it must be at least"):
        Http2Limits(**{name: value})  # type: ignore[arg-type]


def test_the_ends_of_the_ranges_are_good() -> None:
    Http2Limits(
        window_bytes=(1 << 31) - 1,
        connection_window_bytes=65_535,
        frame_max_bytes=(1 << 24) - 1,
        header_table_bytes=0,
        waiting_max=0,
        reserve_bytes=0,
        continuations_max=0,
        idle_frames_per_s=0,
        resets_per_s=0,
    )


def test_every_limit_has_a_unit_in_its_name() -> None:
    units = ("_bytes", "_max", "_burst", "_per_s", "_per_message", "_kept", "_before_settings")
    assert [field.name for field in fields(Http2Limits) if not field.name.endswith(units)] == []
