"""A ratio of two sides over several rounds: its figures, and whether they say anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from load.figures import doubt
from load.verdict import ROUNDS_MIN, Limit, Verdict, judge_why, passed, spread


def ratio_figures(values: Sequence[float], disturbed: int) -> dict[str, Any] | None:
    """Median and 95 % interval of the rounds' own ratios, and the reason as `inconclusive` if they mean nothing by
    themselves; None without any.
    """
    if not values:
        return None
    found, reason = spread(values), doubt(values, disturbed)
    figures: dict[str, Any] = {
        "median": round(found.median, 3),
        "low": round(found.low, 3),
        "high": round(found.high, 3),
    }
    return figures if reason is None else {**figures, "inconclusive": reason}


def ratio_words(figures: dict[str, Any] | None) -> str:
    """The same for a cell of a table; a ratio that means nothing by itself has a question mark."""
    if figures is None:
        return "-"
    return f"{figures['median']:.2f} ({figures['low']:.2f}..{figures['high']:.2f})" + (
        "?" if "inconclusive" in figures else ""
    )


def ratio_check(name: str, values: Sequence[float], limit: Limit, disturbed: int) -> tuple[Verdict, dict[str, Any]]:
    """The verdict over the median of the rounds' ratios, and its check for the JSON."""
    verdict, why = judge_why(values, limit, rounds_min=ROUNDS_MIN, disturbed=disturbed)
    check = {
        "name": name,
        "limit": limit.value,
        "measured": round(spread(values).median, 3) if values else None,
        "pass": passed(verdict),
    }
    return verdict, {**check, "why": why} if why else check


def count_check(name: str, measured: int) -> tuple[Verdict, dict[str, Any]]:
    """Of something that must not happen at all."""
    return ("fail" if measured else "pass"), {"name": name, "limit": 0, "measured": measured, "pass": not measured}


def check_words(check: dict[str, Any]) -> str:
    """A check for people."""
    word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
    why = f": {check['why']}" if "why" in check else ""
    return f"{word}: {check['name']} (measured {check['measured']}, limit {check['limit']}){why}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first column is set to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
