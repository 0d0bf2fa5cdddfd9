"""The part of the lab's manual that is about the commands beside `run`: each one's own help, what its verdict means and
what its JSON holds. Tests hold the tables of members to what the commands write.
"""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping

from load.__main__ import COMMANDS, described
from load.compare_scenario_figures import ROUNDS_MIN as SCENARIO_ROUNDS_MIN
from load.envoy_tuned import WHY as ENVOY_WHY
from load.figures import OTHERS_CORES_MAX, TIMER_LATE_MS_MAX
from load.soak_figures import BLOCKS, LOST_SHARE_MAX, RESOLUTION_MB, SAMPLES_MIN, STAYS_SLACK
from load.stress import ROWS as STRESS_ROWS
from load.verdict import CLEAR_SHARE, PAIRS_MIN, ROUNDS_MIN, SPREAD_MAX, UNCHANGED_RATIO_MAX, UNJUDGED

CHECKS = "what was judged: `name`, `limit`, `measured`, and `pass`, which is null if it is inconclusive"
WITH_WHY = f"{CHECKS}; then `why` has the reason"

VERDICTS: Mapping[str, str] = {
    "chaos": """\
The verdict comes about as that of `run`, and from the same kinds of checks, which may also

- look at a `window` of the run: at the calls that were meant to be sent in it, and what began in it;
- compare with a `baseline` (`times_baseline`): the same scenario run before, on servers of its own, without its faults,
  without some of its traffic, or with other policies; a baseline that the generator spoiled leaves the verdict
  **inconclusive**;
- ask when all was well again (`recovery_s`);
- ask the replicas (`replica-1.executions`) and the gateway's records (`attempts_per_call`), not only the callers.

A replica that ended though nobody had killed it makes a run like one that the generator spoiled: it is done once
more, and then **inconclusive**. A fault that could not be made, or a replica that did not come back, ends the command
with exit code 1 and says so. Whatever ends a run, Ctrl-C included, thaws what is frozen and stops what was
started.""",
    "compare": f"""\
Each round gives one ratio of each kind, and the figure is the median over the rounds. A round is disturbed if the
generator's timers came more than {TIMER_LATE_MS_MAX:g} ms late at p99, or other work took more than
{OTHERS_CORES_MAX:g} CPUs; it is done once more then, and counted as it is. For each `--limit`:

- **pass**: the median is within the limit.
- **fail**: it is beyond, and so are at least {CLEAR_SHARE:.0%} of the rounds. One call that failed or was answered
  wrongly, on either side, fails the comparison too, whatever the limits say; so does one that Triton, by its own
  count, did not execute, or executed twice.
- **inconclusive**: fewer than {ROUNDS_MIN} rounds; more than half of them disturbed; a median beyond the limit with
  fewer than {CLEAR_SHARE:.0%} of the rounds; or rounds that disagree (the 95 % interval of their median is wider than
  {SPREAD_MAX:.0%} of it) with the limit inside the interval. The line of the check says which.
- **{UNJUDGED}**: no `--limit` was set, so no ratio was judged; the exit code is 0. Ratios that mean nothing by
  themselves are marked in the table all the same.

Callers in a closed loop measure what calls cost, not how long users wait: for latency under a rate take `run`, or
`--scenario`. With that a round is a whole run of the scenario on either side, so {SCENARIO_ROUNDS_MIN} rounds are
enough for a `--limit`, and a round is spoiled, as a run of `chaos` is, if the generator itself was too late, twice.
What the scenario promises is judged by `chaos`; here its checks, those beside a baseline left out, are shown for both
sides and judged for neither, and only a wrong answer fails the comparison by itself: calls fail in such scenarios. All
rates go by one capacity where the scenario has one to be measured: that of a plain Envoy. If the run that measures it,
and the healthy p97, is spoiled, no round says anything.

{ENVOY_WHY}""",
    "connections": f"""\
The verdict is **fail** if a check is missed, else **inconclusive** if one is open. Only one can be: that of the p50 of
calls beside the idle connections over that without them, at most {UNCHANGED_RATIO_MAX:g} as the median of at least
{PAIRS_MIN} pairs, judged as a `--limit` of `compare`; its line says why. The others are counts: connections opened,
kept, and gone at the end, memory, failed calls, descriptors and tasks left over.""",
    "perf-analyzer": """\
There is no verdict: it prints the tool's own figures, side by side. A call that fails ends the tool, and the command
with exit code 1.""",
    "stress": f"""\
The verdict of a row is that of `chaos`; the whole fails with one row, and is else inconclusive with one. The rows are
{", ".join(f"`{name}`" for name in STRESS_ROWS)}. A picture is the distribution of latency where a row is
about that (dashed: the baseline), else latency over time.

The same rows but `fan-out`, over many seeds and without a server, are a part of the simulation:

```
python -m tests.simulation stress --seeds 1000 --json stress.json --table stress.md
python -m tests.simulation stress --only kill --seed 17
```

There the whole gateway but for its ports runs on virtual time before simulated Tritons whose batches take exactly
S(b), with the rates, policies, faults, baselines and checks of these very files. A seed is a run of its own: other
arrivals, other chance in the fleet and in the gateway. It plays the seconds of the scenario in which something happens
(`tests/simulation/stress/rows.py` says which), and what is judged is what all seeds together come to; a check that
allows nothing at all (`max: 0`) is asked of each seed, and so is that every call ends once, in its time, and leaves
nothing behind. A seed in which that did not hold is named with the command that runs it again. The gateway takes no
time there, for a virtual clock stands still while code runs: CPU is not judged, and latencies are those of waiting and
of the model alone. All rows with a thousand seeds take about forty minutes on two CPUs that are free; exit codes: 0
all checks kept, 1 one missed, 2 wrong usage.""",
    "protections": """\
There is no verdict: no cost has a limit of its own, and the whole is judged by `compare`. A protection that this
gateway does not have yet is named and left out. A cost whose interval goes below 0 is less than what can be measured
this way: count instructions. `all second attempts` is a gateway whose model is not read-only, so that the layer that
would send calls again is not there at all. Classes of calls, the queue and the pace cannot be switched off.""",
    "soak": f"""\
The run is cut into quarters: the first warms up, the second is what the last is compared with.

- **pass**: memory's slope over the second half and its growth are within their limits; descriptors, tasks and series of
  the metrics page grew by no more than {STAYS_SLACK} or 5 %; p50 and p99 did not drift ({BLOCKS} blocks of each
  quarter, compared in pairs and judged as a `--limit` of `compare`); at the end nothing is in flight or left open, and
  every call has its record; at most {LOST_SHARE_MAX:.1%} of the calls ended otherwise than their kind of traffic is
  meant to, and none was answered wrongly.
- **fail**: one of them is missed, clearly: for the slope with its whole 95 % interval, {RESOLUTION_MB:g} MB of chance
  allowed.
- **inconclusive**: a run too short (fewer than {SAMPLES_MIN} readings in the second half say nothing about a slope), a
  slope whose interval lies on both sides of the limit, or other work that took more than {OTHERS_CORES_MAX:g} CPUs in a
  quarter.""",
    "sizes": """\
The verdict is **fail** if a call failed or was answered wrongly, else **none**: no figure has a limit. A ratio that
means nothing by itself (too few rounds, most of them disturbed, or too far apart) has a question mark.""",
    "beside": f"""\
The verdict is **fail** if a call failed or was answered wrongly, small or large. Else it is that of the ratio of
ratios, judged as a `--limit` of `compare`: **inconclusive** with fewer than {ROUNDS_MIN} rounds, with more than half
of them disturbed (other work, or a generator that was late itself), or with a median too near the limit.""",
    "fleet": """\
There is no verdict: it shows how the cost of a call grows with the fleet.""",
    "throughput": f"""\
The verdict is **fail** if one of our own calls failed or was answered wrongly, or if Triton, by its own count, did not
execute a call or executed it twice. Else it is that of every ratio under `--limit`, judged as one of `compare` (at
least {ROUNDS_MIN} rounds), and **{UNJUDGED}** without.""",
    "stages": """\
There is no verdict: a budget is a plan, and what is judged is the whole, by `compare`. A stage whose interval is wide
was measured on a busy machine.""",
    "instructions": """\
There is no verdict: no count has a limit. What the stages are:

- `http`, `grpc`: all that an edge does from a request's bytes to its answer's, the call's task included, over a service
  that answers at once.
- `client`: the client of a replica, from the call to its answer, over a replica that answers at once.
- `layers`: all layers with the metrics: what a call through them costs more than what drives it (a task, the call
  itself and an answer at once; the floor of `stages`).
- `records`: the prediction record, its writer's thread included: what a call through all layers costs more with it.

The sums are those of an edge, `layers`, `records` and `client`. They hold no
socket: neither the event loop's work with one nor the kernel's. What else the process does while counting is on (probes
of replicas, timers) is counted as well.

How well they repeat: in two runs of 960 calls, one after the other on a quiet machine, the edges and a call through the
layers differed by 0.1 %, the client by 0.5 %, the prediction record by 4 % (its writer works by the clock), and the
sums by 1 %. Beside other work an edge came out 1 % higher and the client 2 %: calls last longer then, and more of what
goes by the clock falls into them. Count twice before a smaller difference is believed.""",
}
"""What the verdict of each command means."""

MEMBERS: Mapping[str, Mapping[str, str]] = {
    "chaos": {
        "scenario": "its name",
        "verdict": "`pass`, `fail`, `inconclusive`",
        "checks": CHECKS,
        "figures": "those of `run` and those of `chaos` above; the same of each window under `windows` (named as "
        "`5-20`), and of each replica under `replicas`",
        "baseline": "`figures` and `distribution` of the run before, and how many `attempts` it took; null without one",
        "setting": "as of `run`, and `faults`: what each really was, with `kind`, `replica`, `begin_s`, and `end_s`, "
        "which is null if it did not end",
        "seconds": "as of `run`",
        "distribution": "as of `run`",
    },
    "compare": {
        "protocol": "`http` or `grpc`",
        "concurrency": "callers",
        "sides": "`sluice` and the peer, each with the sum of `calls`, `errors`, `error_kinds`, of all calls that were "
        "`sent`, and of Triton's `inferences` and `executions` (`batch` is their ratio), and the medians over "
        "the rounds of `rps`, `p50_ms`, `p99_ms`, `cpu_us_per_call`, `rss_mb` (of the proxy), "
        "`triton_cpu_us_per_call`, `generator_cpu_us_per_call`, `others_cores`, `timer_late_p99_ms`; null where there "
        "is no proxy",
        "ratios": "`cpu`, `p50`, `p99`, `rps`: medians of the rounds' own ratios, Sluice over the peer",
        "spread": "of each ratio `mad` (median absolute deviation), `low` to `high` (95 % interval of the median), "
        "`min`, `max`",
        "inconclusive": "ratios that mean nothing by themselves, each with the reason",
        "verdict": f"`pass`, `fail`, `inconclusive`, `{UNJUDGED}`",
        "checks": WITH_WHY,
        "disturbed_rounds": "how many of the rounds",
        "setting": "peer, times, machine, …",
        "rounds": "all of them: `sluice`, `peer`, `load_average`",
    },
    "stress": {
        "verdict": "`pass`, `fail`, `inconclusive`",
        "rows": "each with `scenario`, `description`, `verdict`, `error` (why it could not be run, or empty), `checks` "
        "as of `chaos`, some `figures` of the run and of its `baseline` (null without one), `started`, `took_s`, "
        "`disturbed` (why it is inconclusive), `picture` (a file's name, or null)",
        "machine": "its name",
    },
    "protections": {
        "protections": "each with `name`, what it adds to a call as `us` (median over the rounds) with its 95 % "
        "interval from `low` to `high`, and as `instructions` (null if they were not counted); the last one is all of "
        "them together",
        "everything_on": "`us` and `instructions` of a call with all of them",
        "everything_off": "the same without any",
        "setting": "rounds, calls, rate, replicas, loop, machine, and the protections that are `missing`",
        "rounds": "microseconds of CPU per call of each gateway",
    },
    "connections": {
        "scenario": "`connections`",
        "verdict": "`pass`, `fail`, `inconclusive`",
        "checks": WITH_WHY,
        "figures": "the gateway before, with and after the connections (`rss_mb_…`, `kb_per_connection`, "
        "`descriptors_during`, `tasks_during`), `seconds_to_open`, the calls' `p50_ms_…` and `p99_ms_…` `alone` and "
        "`beside` them, `p50_ratio` with its spread, and all `cycles`",
    },
    "perf-analyzer": {
        "protocol": "`http` or `grpc`",
        "streaming": "whether over ModelStreamInfer",
        "concurrency": "calls out",
        "model": "its name",
        "machine": "its name",
        "sides": "each peer with medians of what the tool reports: `requests`, `inferences_per_s`, `responses_per_s`, "
        "`avg_us`, `p50_us` to `p99_us`, and by the server's own statistics `server_inferences`, `server_executions`, "
        "`server_queue_us`, `server_compute_us`",
        "rate_ratios_to_direct": "of each other peer, if `direct` is among them",
        "runs": "each peer's figures, run by run",
    },
    "soak": {
        "scenario": "`soak`",
        "verdict": "`pass`, `fail`, `inconclusive`",
        "checks": CHECKS,
        "figures": "memory, CPU and latency by quarter, ranges of the counts, records, and under `traffic` the endings "
        "of each kind of calls",
        "setting": "rate, deadline, shares of the traffic, machine, how late the generator was, …",
        "samples": "every reading of the gateway: `at_s`, `rss_bytes`, `descriptors`, `tasks`, `in_flight`, …",
        "seconds": "every second: `offered`, `ended`, `failed`, `p50_ms`, `p99_ms`, `max_ms`",
    },
    "sizes": {
        "protocol": "`http` or `grpc`",
        "verdict": f"`fail`, `{UNJUDGED}`",
        "checks": CHECKS,
        "sizes": "each with `size`, `bytes`, `sides` (each way with the sums of `calls` and `errors`, the medians of "
        "`cpu_us_per_call`, `cpu_us_per_mb`, `p50_ms`, `others_cores`, and the largest `rss_growth_mb` and "
        "`lag_over_ms`; null where it does not apply), and `ratios` of `cpu` and `p50`, Sluice over each other way",
        "setting": "peer, rounds, calls, machine, …",
        "rounds": "all readings, by size and way",
    },
    "beside": {
        "verdict": "`pass`, `fail`, `inconclusive`",
        "checks": WITH_WHY,
        "ways": "`sluice` and `direct`, each `alone` and `beside` the large calls, with sums of `calls`, `errors`, "
        "`large_calls`, medians of `p50_ms`, `p99_ms`, `max_ms`, `late_share`, `timer_late_p99_ms`, `others_cores`, "
        "and the largest `rss_growth_mb`",
        "slowdowns": "of each way, p99 beside over p99 alone",
        "excess": "Sluice's slowdown over that of direct calls, which is judged",
        "disturbed_rounds": "how many of the rounds",
        "setting": "rate, times, size, machine, …",
        "rounds": "all readings",
    },
    "fleet": {
        "fleets": "each with `models`, `replicas`, `us_per_call` with its 95 % interval from `low` to `high`, "
        "`over_first` (over the first fleet's of the same rounds), `rest_us_per_s`, "
        "and `first_us_per_call`, that of the first calls after the start",
        "setting": "rate, rounds, machine, …",
        "rounds": "all readings",
    },
    "throughput": {
        "protocol": "`http` or `grpc`",
        "verdict": f"`pass`, `fail`, `inconclusive`, `{UNJUDGED}`",
        "checks": WITH_WHY,
        "generators": "each `generator` at each `concurrency`, with `sides` (`sluice` and `direct`: sums of `sent`, "
        "`errors`, and of Triton's `inferences` and `executions`, whose ratio is `batch`; medians of `rps`, `p50_ms`, "
        "`p99_ms`, `others_cores`), `ratio` of the rates, and `disturbed_rounds`",
        "setting": "rounds, requests, model, machine, …",
        "rounds": "all readings, by generator and concurrency",
    },
    "stages": {
        "ends": "the ports and the client of replicas, each with `name`, `us`, `low`, `high`, `budget_us`",
        "stages": "each with `name`, `group`, `us` per call (the median over the rounds), and its 95 % interval from "
        "`low` to `high`",
        "groups": "the sums of their stages as `us`, beside `budget_us`",
        "floor_us": "what the driver itself costs: a task, a call, and an answer at once",
        "setting": "rate, rounds, loop, machine, …",
        "rounds": "microseconds of CPU per call of each depth, of the whole `process` and of the thread of the `loop`",
    },
    "instructions": {
        "stages": "each with `stage` (as on the command line), `name`, and `instructions` per call",
        "sums": "of whole calls, each with `name` and `instructions` per call, where all their stages were counted",
        "counts": "instructions of all calls together, by what was run; `records` is the difference of `with records` "
        "and `with metrics`, `layers` that of `with metrics` and `client`",
        "setting": "calls of each stage, loop, versions of valgrind and Python, machine",
    },
}
"""The members of each command's JSON."""

SCENARIO_MEMBERS: Mapping[str, str] = {
    "scenario": "its name",
    "protocol": "what its callers speak",
    "sides": "`sluice` and `envoy`, each with sums of `calls`, `errors`, `wrong`, `refused`, `error_kinds` and of the "
    "`counters` that Envoy has itself (warm-up included); medians over the rounds of `rps` (right answers in time), "
    "`p50_ms`, `p99_ms`, `p999_ms`, `max_ms`, `error_share`, `refused_p99_ms`, `cpu_us_per_call`, `rss_mb`, "
    "`extra_execution_share`, `expired_work_share`, `goodput_share`, and of what Sluice alone tells by its records: "
    "`attempts_per_call`, `hedge_share`, `retry_share`; `traffic` has some for each kind",
    "ratios": "`cpu`, `p50`, `p99`, `p999`, `rps`: medians of the rounds' own ratios, Sluice over Envoy",
    "spread": "of each ratio `low` to `high` (95 % interval of the median)",
    "verdict": f"`pass`, `fail`, `inconclusive`, `{UNJUDGED}`",
    "checks": WITH_WHY,
    "scenario_checks": "each with `name`, `figure`, `limit`, `at_most` (else at least), and what `sluice` and `envoy` "
    "measured, medians over the rounds; null where a side cannot tell, or where it never came about",
    "disturbed_rounds": "how many of the rounds were spoiled",
    "setting": "times, seed, machine, capacity, what Envoy was tuned to (`envoy_…`), and the last round's `faults`",
    "rounds": "each side's figures",
    "seconds": "of each side, each second's medians over the rounds",
    "distribution": "of each side, the latencies of all rounds",
}
"""Those of `compare --scenario`."""


def commands_table() -> Iterator[str]:
    """What each command is for."""
    yield "| command | what it is for |"
    yield "|---|---|"
    for name in ("run", *VERDICTS):
        yield f"| [`{name}`](#{name}) | {described(COMMANDS[name])} |"
    yield ""


def sections() -> Iterator[str]:
    """One section for each command but `run`."""
    for name, verdict in VERDICTS.items():
        yield f"## {name}\n"
        yield f"{described(COMMANDS[name])}\n"
        yield from _help(name)
        yield f"{verdict}\n"
        yield "`--json OUT` writes one object:\n"
        yield "| member | what it holds |"
        yield "|---|---|"
        for member, meaning in MEMBERS[name].items():
            yield f"| `{member}` | {meaning} |"
        yield ""
        if name == "compare":
            yield "With `--scenario` it is another one:\n"
            yield "| member | what it holds |"
            yield "|---|---|"
            for member, meaning in SCENARIO_MEMBERS.items():
                yield f"| `{member}` | {meaning} |"
            yield ""


def _help(name: str) -> Iterator[str]:
    """A command's examples, its explanation and its options, as its own `--help` has them."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"load.{name.replace('-', '_')}").configure(parser)
    assert parser.epilog is not None
    examples, *paragraphs, codes = parser.epilog.split("\n\n")
    yield "```"
    yield from (line.strip() for line in examples.splitlines()[1:])
    yield "```\n"
    for paragraph in (*paragraphs, codes[0].upper() + codes[1:] + "."):
        yield textwrap.fill(_prose(paragraph), 120, break_on_hyphens=False, break_long_words=False) + "\n"
    yield "| option | meaning |"
    yield "|---|---|"
    for action in parser._actions:
        if action.dest != "help":
            yield f"| `{_invocation(action)}` | {_prose(action.help or '')} |"
    yield ""


def _invocation(action: argparse.Action) -> str:
    value = str(action.metavar or "")
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}" + (" …" if action.nargs == "+" else "")
    if action.nargs == 0:
        value = ""
    return " ".join(filter(None, (*action.option_strings[:1], value)))


def _prose(text: str) -> str:
    """Lines joined, options set as code."""
    return re.sub(r"(?<![\w`-])--([a-z][a-z-]*)?(?![\w-])", r"`\g<0>`", " ".join(text.split()))
