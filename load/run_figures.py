"""The figures of an open-loop run, what each means, and the verdict that its checks come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load.figures import TIMER_LATE_MS_MAX
from load.histogram import Histogram
from load.open_loop import OpenLoopResult
from load.scenario_schema import CheckSpec
from load.tallies import TrafficTally, quantile_ms
from load.verdict import Limit, Verdict

LATE_SHARE_MAX = 0.01
"""A run in which more of the sends than this were over 5 ms late says nothing: it was not the load that was meant."""

QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999, "p9999_ms": 0.9999}

TRAFFIC_FIGURES: dict[str, str] = {
    "offered": "Calls that were meant to be sent, warm-up left out.",
    "offered_rps": "The same per second of `duration_s`.",
    "goodput_rps": "Right answers within their deadline, per second of `duration_s`.",
    "right": "Right answers.",
    "wrong": "Answers that are not what they must be (of those that were compared, see `check_share`).",
    "errors": "Calls that ended in an error, in no answer, or with a lost connection; `error_kinds` counts each kind.",
    "held": "Calls that were sent later than meant because `in_flight_max` calls were out.",
    "not_sent": "Calls that were held until their deadline had passed, and never sent.",
    "overdue": "Right answers that came after their deadline.",
    "error_share": "Of the offered calls, the share without a right answer: wrong, errors and not sent.",
    "overdue_share": "Of the offered calls, the share of `overdue`.",
    "p50_ms": "Median latency of right answers, from the intended send time.",
    "p90_ms": "90th percentile of the same.",
    "p99_ms": "99th percentile of the same.",
    "p999_ms": "99.9th percentile of the same.",
    "p9999_ms": "99.99th percentile of the same.",
    "max_ms": "The largest of the same, exactly.",
    "failed_p50_ms": "Median time until a call failed, from the intended send time.",
    "failed_p99_ms": "99th percentile of the same.",
    "unclear": "Calls that ended neither in a right answer nor in a refusal: other errors, wrong, not sent.",
    "refused": "Of `errors`, the calls that were refused: 429, 503, and what they are over gRPC.",
    "refused_p50_ms": "Median time until a call was refused, from the intended send time.",
    "refused_p99_ms": "99th percentile of the same.",
    "first_p50_ms": "Streams: median time to the first response, from the intended send time.",
    "first_p99_ms": "Streams: 99th percentile of the same.",
    "between_p50_ms": "Streams: median time between two responses of a call.",
    "between_p99_ms": "Streams: 99th percentile of the same.",
    "leaf_p50_ms": "With `fan_out`: median latency of right answers to single calls; all other figures are of tasks.",
    "leaf_p99_ms": "With `fan_out`: 99th percentile of the same.",
}
"""Figures of one kind of traffic, and of all traffic together, to their meaning."""

RUN_FIGURES: dict[str, str] = {
    **TRAFFIC_FIGURES,
    "duration_s": "How long calls were sent and counted.",
    "in_flight_most": "The most calls that were out at a time.",
    "late_share": "Of the sends, the share that the generator made more than 5 ms late.",
    "send_late_p50_ms": "Median of actual minus intended send time (waiting for `in_flight_max` left out).",
    "send_late_p99_ms": "99th percentile of the same.",
    "send_late_max_ms": "The largest of the same.",
    "timer_late_p99_ms": "By how much other timers of the generator came late, 99th percentile.",
    "timer_late_max_ms": "The largest of the same.",
    "generator_cpu_us_per_call": "The generator's own CPU per offered call, microseconds.",
    "gateway_cpu_us_per_call": "The CPU of a gateway that was started here per offered call, microseconds; in a window "
    "that of its whole seconds.",
    "gateway_rss_mb": "The gateway's resident memory at the end, MB.",
    "others_cores": "CPUs that the machine spent on what is neither generator, gateway nor Triton.",
}
"""Figures of a run to their meaning."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the kernel said of the measured time; None where it cannot be known."""

    generator_cpu_s: float
    gateway_cpu_s: float | None = None
    gateway_rss_bytes: int | None = None
    others_cores: float | None = None
    gateway_looks: Sequence[tuple[float, float]] = ()
    """Each second of the run, and the gateway's CPU seconds up to then."""

    def gateway_cpu_us_per_call(self, from_s: float, to_s: float, offered: int) -> float | None:
        """Its CPU from the last look before a window to the first one after it, per call that was meant to be sent in
        the window; None without such looks, or without calls.
        """
        before = [cpu_s for at_s, cpu_s in self.gateway_looks if at_s <= from_s + LOOK_SLACK_S]
        after = [cpu_s for at_s, cpu_s in self.gateway_looks if at_s >= to_s - LOOK_SLACK_S]
        if not before or not after or not offered:
            return None
        return round((after[0] - before[-1]) * 1e6 / offered, 1)


LOOK_SLACK_S = 0.1
"""A look at a whole second comes a little before or after it."""


def run_figures(result: OpenLoopResult, machine: Machine) -> dict[str, Any]:
    """All figures of a run; `traffic` has those of each kind by name. None where there is nothing to tell."""
    offered = max(1, sum(tally.offered for tally in result.traffic))
    gateway_s, rss = machine.gateway_cpu_s, machine.gateway_rss_bytes
    return {
        **traffic_figures(total(result.traffic), result.duration_s),
        "duration_s": result.duration_s,
        "in_flight_most": result.in_flight_most,
        "late_share": round(result.late_sends / max(1, result.sends), 6),
        "send_late_p50_ms": quantile_ms(result.send_late, 0.5),
        "send_late_p99_ms": quantile_ms(result.send_late, 0.99),
        "send_late_max_ms": _largest_ms(result.send_late),
        "timer_late_p99_ms": quantile_ms(result.timer_late, 0.99),
        "timer_late_max_ms": _largest_ms(result.timer_late),
        "generator_cpu_us_per_call": round(machine.generator_cpu_s * 1e6 / offered, 1),
        "gateway_cpu_us_per_call": None if gateway_s is None else round(gateway_s * 1e6 / offered, 1),
        "gateway_rss_mb": None if rss is None else round(rss / 1e6, 1),
        "others_cores": None if machine.others_cores is None else round(machine.others_cores, 3),
        "traffic": {tally.name: traffic_figures(tally, result.duration_s) for tally in result.traffic},
        "windows": {
            window_name(each.from_s, each.to_s): {
                **traffic_figures(total(each.traffic), each.to_s - each.from_s),
                "gateway_cpu_us_per_call": machine.gateway_cpu_us_per_call(
                    each.from_s, each.to_s, sum(tally.offered for tally in each.traffic)
                ),
                "traffic": {tally.name: traffic_figures(tally, each.to_s - each.from_s) for tally in each.traffic},
            }
            for each in result.windows
        },
    }


def window_name(from_s: float, to_s: float) -> str:
    """Under which name a window's figures stand: `5-20`."""
    return f"{from_s:g}-{to_s:g}"


def traffic_figures(tally: TrafficTally, duration_s: float) -> dict[str, Any]:
    """The figures of one tally."""
    offered = tally.offered
    return {
        "offered": offered,
        "offered_rps": round(offered / duration_s, 3),
        "goodput_rps": round((tally.right - tally.overdue) / duration_s, 3),
        "right": tally.right,
        "wrong": tally.wrong,
        "errors": sum(tally.errors.values()),
        "error_kinds": dict(tally.errors),
        "held": tally.held,
        "not_sent": tally.not_sent,
        "overdue": tally.overdue,
        "error_share": round(tally.failed / offered, 6) if offered else None,
        "overdue_share": round(tally.overdue / offered, 6) if offered else None,
        **{name: quantile_ms(tally.latency, share) for name, share in QUANTILES.items()},
        "max_ms": _largest_ms(tally.latency),
        "failed_p50_ms": quantile_ms(tally.failure, 0.5),
        "failed_p99_ms": quantile_ms(tally.failure, 0.99),
        "unclear": tally.failed - tally.refusal.count,
        "refused": tally.refusal.count,
        "refused_p50_ms": quantile_ms(tally.refusal, 0.5),
        "refused_p99_ms": quantile_ms(tally.refusal, 0.99),
        "first_p50_ms": quantile_ms(tally.first, 0.5),
        "first_p99_ms": quantile_ms(tally.first, 0.99),
        "between_p50_ms": quantile_ms(tally.between, 0.5),
        "between_p99_ms": quantile_ms(tally.between, 0.99),
        "leaf_p50_ms": quantile_ms(tally.leaf, 0.5),
        "leaf_p99_ms": quantile_ms(tally.leaf, 0.99),
    }


def total(tallies: Iterable[TrafficTally]) -> TrafficTally:
    """Several tallies as one."""
    whole = TrafficTally("all")
    for tally in tallies:
        for name in ("offered", "held", "not_sent", "right", "wrong", "overdue"):
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        for kind, count in tally.errors.items():
            whole.errors[kind] = whole.errors.get(kind, 0) + count
        for name in ("latency", "failure", "refusal", "first", "between", "leaf"):
            getattr(whole, name).merge(getattr(tally, name))
    return whole


def disturbed(figures: Mapping[str, Any]) -> str:
    """Why the generator did not make the load that was meant, or "" if it did (DESIGN.md, section 5)."""
    if figures["late_share"] > LATE_SHARE_MAX:
        return f"{figures['late_share']:.1%} of the sends were more than 5 ms late"
    timers_ms = figures["timer_late_p99_ms"]
    if timers_ms is None or timers_ms > TIMER_LATE_MS_MAX:
        return f"the generator's timers came {timers_ms} ms late at p99"
    return ""


NEVER_WRONG = CheckSpec(name="no wrong answer", figure="wrong", max=0)
"""Checked in every run, and the one failure that no disturbance excuses."""


def judge_run(
    checks: Sequence[CheckSpec],
    figures: Mapping[str, Any],
    measure: Callable[[CheckSpec], float | None] | None = None,
    *,
    void: bool | None = None,
) -> tuple[Verdict, list[dict[str, Any]]]:
    """The verdict of a run, and its checks as JSON: name, limit, measured, pass (null: inconclusive). `measure` finds
    what a check is about; without it that is a figure of the run, or of a window of it. `void`: whether the run says
    nothing, if that does not follow from its figures.

    A figure that does not exist, as the latency of no right answers, fails its check.
    """
    void = bool(disturbed(figures)) if void is None else void
    rows: list[dict[str, Any]] = []
    for check in (NEVER_WRONG, *checks):
        limit = limit_of(check)
        measured = figure_in(figures, check) if measure is None else measure(check)
        kept = measured is not None and not limit.beyond(measured)
        open_ = void and (kept or check is not NEVER_WRONG)
        rows.append(
            {
                "name": check.name or _words(check, limit),
                "figure": check.figure,
                "limit": limit.value,
                "measured": measured,
                "pass": None if open_ else kept,
            }
        )
    if any(row["pass"] is False for row in rows):
        return "fail", rows
    return ("inconclusive" if void else "pass"), rows


def _words(check: CheckSpec, limit: Limit) -> str:
    window = check.window
    time = "" if window is None else f" from {window.from_s:g} s" + (f" to {window.to_s:g} s" if window.to_s else "")
    times = " times the baseline's" if check.times_baseline else ""
    return f"{check.figure}{time} at {'most' if limit.at_most else 'least'} {limit.value:g}{times}"


def limit_of(check: CheckSpec) -> Limit:
    """The limit of a check that the loader has found good."""
    if check.max is not None:
        return Limit(check.max)
    assert check.min is not None
    return Limit(check.min, at_most=False)


def figure_in(figures: Mapping[str, Any], check: CheckSpec) -> float | None:
    """The figure of a check, in its window if it has one."""
    window = check.window
    if window is None:
        return figure_of(figures, check.figure)
    to_s = figures["duration_s"] if window.to_s is None else window.to_s
    return figure_of(figures["windows"][window_name(window.from_s, to_s)], check.figure)


def figure_of(figures: Mapping[str, Any], name: str) -> float | None:
    """A figure by the name that a check gives it."""
    owner, dot, figure = name.rpartition(".")
    holders = {**figures["traffic"], **figures.get("replicas", {})}
    value = holders[owner][figure] if dot else figures[figure]
    return None if value is None else float(value)


def _largest_ms(histogram: Histogram) -> float | None:
    return round(histogram.largest_ns / 1e6, 3) if histogram.count else None
