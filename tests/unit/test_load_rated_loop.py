"""The open loop of a comparison: what was due within the window counts, however it ended."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from load import rig
from load.connection import NO_ANSWER, WRONG_ANSWER
from load.errors import LoadError
from load.inputs import Calls
from load.rated_loop import RatedLoop
from load.rig import Rig
from tests.unit.test_load_closed_loop import LIMIT_S, HandConnection


async def test_calls_come_at_the_rate_and_those_of_the_warm_up_are_sent_but_not_counted() -> None:
    calls, samples = Calls(1, 1000), count()
    connections = [HandConnection(lambda call: "") for _ in range(3)]
    loop = RatedLoop(connections, lambda: HandConnection(lambda call: ""), calls, 400.0, seed=1)
    async with asyncio.timeout(LIMIT_S):
        measured = await loop.run(0.2, 1.0, lambda: next(samples))
    tally = measured.tally
    assert 300 < tally.calls < 500
    assert tally.latency.count == tally.calls
    assert not tally.errors
    assert measured.sent == calls.made > tally.calls
    assert (measured.before, measured.after, measured.seconds) == (0, 1, 1.0)


async def test_both_sides_of_a_round_get_the_same_schedule() -> None:
    counts = []
    for _ in range(2):
        loop = RatedLoop([], lambda: HandConnection(lambda call: ""), Calls(1, 1000), 300.0, seed=7)
        async with asyncio.timeout(LIMIT_S):
            counts.append((await loop.run(0.05, 0.5, lambda: None)).tally.calls)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("ending", ["status 503", WRONG_ANSWER, NO_ANSWER])
async def test_what_failed_is_counted_by_its_kind_and_has_no_latency(ending: str) -> None:
    loop = RatedLoop([], lambda: HandConnection(lambda call: ending), Calls(1, 1000), 200.0, seed=1)
    async with asyncio.timeout(LIMIT_S):
        measured = await loop.run(0.05, 0.3, lambda: None)
    tally = measured.tally
    assert tally.calls > 0
    assert tally.errors == {ending: tally.calls}
    assert tally.latency.count == 0


def test_triton_s_counts_are_read_until_they_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(5, 5), (6, 6), (7, 6), (7, 6), (9, 9)])
    monkeypatch.setattr(Rig, "_executed", lambda self, model: next(found))
    assert Rig.executed(object.__new__(Rig), "identity") == (7, 6)


def test_counts_that_never_stand_still_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(rig, "COUNTS_SETTLE_S", 0.2)
    monkeypatch.setattr(Rig, "_executed", lambda self, model: (next(numbers), 0))
    with pytest.raises(LoadError, match="goes on executing identity"):
        Rig.executed(object.__new__(Rig), "identity")
