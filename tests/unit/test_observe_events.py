"""Log lines for operators, and the watch over the loop's lag."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.observe.events import RateLimit, configure_logging
from gateway.observe.lag import watch_loop


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logger = logging.getLogger("sluice")
    handler = configure_logging(logging.INFO, stream)
    yield stream
    logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_its_fields(stream: io.StringIO) -> None:
    logging.getLogger("sluice.fleet").warning("replica %s is down", "a\nb", extra={"pool": "default", "failures": 2})
    (line,) = lines(stream)
    assert (line["level"], line["logger"], line["event"]) == ("warning", "sluice.fleet", "replica a\nb is down")
    assert (line["pool"], line["failures"]) == ("default", 2)
    assert line["time"].endswith("Z")


def test_a_fault_carries_the_end_of_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("x" * 10_000)
    except ZeroDivisionError:
        logging.getLogger("sluice.edge").exception("it failed")
    (line,) = lines(stream)
    assert len(line["error"]) <= 4096


def test_many_lines_of_one_kind_are_held_back_and_counted(stream: io.StringIO) -> None:
    log = logging.getLogger("sluice.fleet")
    for number in range(1000):
        log.warning("replica %d is down", number)
    log.warning("another kind")
    assert len(lines(stream)) == 21


def test_the_next_window_tells_how_many_were_held_back() -> None:
    limit = RateLimit(lines=2, window_s=10.0)

    def at(created: float) -> logging.LogRecord:
        made = logging.makeLogRecord({"name": "sluice", "msg": "same"})
        made.created = created
        return made

    assert [limit.filter(at(100.0 + number)) for number in range(5)] == [True, True, False, False, False]
    late = at(111.0)
    assert limit.filter(late)
    assert late.__dict__["suppressed"] == 3
    assert limit.filter(at(50.0)), "a clock that went back opens a new window"


async def test_the_watch_reports_how_late_the_loop_is() -> None:
    late: list[float] = []
    ticks = iter(range(1000))

    def now_s() -> float:
        return next(ticks) * 0.5

    async with asyncio.timeout(10):
        watch = asyncio.create_task(watch_loop(now_s, late.append, interval_s=0.001))
        while len(late) < 3:
            await asyncio.sleep(0)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert late[:3] == pytest.approx([0.499] * 3)
