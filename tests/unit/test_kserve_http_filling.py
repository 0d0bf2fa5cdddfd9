"""Requests whose tensors are put where they belong as they come: the same messages as from whole bodies."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.wire.kserve.http_filling import FillingRequest
from gateway.wire.kserve.http_request import HttpInferRequest, decode_http_infer, form_in_pieces
from gateway.wire.slab import PLACE_BYTES_LEAST

LARGE = 3 * PLACE_BYTES_LEAST


def body_of(*inputs: int | list[int]) -> tuple[bytes, int]:
    """A body with binary inputs of so many bytes, and inputs in JSON; the length of its JSON."""
    chance = random.Random(len(inputs))
    described: list[dict[str, Any]] = []
    tail = b""
    for number, each in enumerate(inputs):
        if isinstance(each, int):
            entry: dict[str, Any] = {"shape": [each], "parameters": {"binary_data_size": each}}
            tail += chance.randbytes(each)
        else:
            entry = {"shape": [len(each)], "data": each}
        described.append({"name": f"x{number}", "datatype": "UINT8", **entry})
    head = json.dumps({"id": "7", "inputs": described, "parameters": {"binary_data_output": True}}).encode()
    return head + tail, len(head)


def filled(body: bytes, length: int, first: int, chance: random.Random) -> tuple[HttpInferRequest, int]:
    """`first` bytes come at once, the others in pieces or to their place; how many came to their place."""
    form, tail = form_in_pieces((body[:first],), length, len(body))
    filling = FillingRequest(form, tail)
    rest, to_place = memoryview(body)[first:], 0
    while rest:
        place = filling.place(len(rest) - 1) if chance.random() < 0.9 else None
        size = min(len(rest), chance.choice((1, 1000, 70_000)))
        if place is None:
            filling.put(rest[:size])
        else:
            size = min(size, len(place))
            place[:size] = rest[:size]
            filling.placed(size)
            to_place += size
        rest = rest[size:]
    return filling.request(), to_place


@pytest.mark.parametrize(
    "inputs",
    [(LARGE,), (LARGE, LARGE), (0, LARGE, 0, 5, LARGE, 0), ([1, 2], LARGE, [3]), (1, 1, 1), (LARGE, [7], LARGE, 0)],
)
def test_it_is_the_message_of_the_whole_body(inputs: tuple[int | list[int], ...]) -> None:
    body, length = body_of(*inputs)
    wanted = decode_http_infer(body, length)
    placed = 0
    for seed in range(30):
        chance = random.Random(seed)
        request, to_place = filled(body, length, chance.choice((length, length + 1, len(body))), chance)
        assert request == wanted
        placed += to_place
    assert placed or LARGE not in inputs
