"""The manual of the load lab, rendered from the commands' own help, the schema of scenarios, the figures and a
scenario, so that it can say nothing else than what the lab does.

`python -m load.document > docs/load.md`, in the project's directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from gateway.policy.document import tables
from load.chaos_figures import CHAOS_FIGURES
from load.document_commands import commands_table, sections
from load.figures import TIMER_LATE_MS_MAX
from load.replica_figures import REPLICA_FIGURES
from load.run_figures import LATE_SHARE_MAX, RUN_FIGURES, TRAFFIC_FIGURES
from load.scenario import SCENARIOS_DIR, find_scenario, load_scenario, scenario_names
from load.scenario_faults import needs_chaos
from load.scenario_schema import Scenario
from load.trace import PROBLEMS_MAX

INTRO = """# The load lab

<!-- Rendered by `python -m load.document > docs/load.md`; change load/, not this page. -->

`python -m load COMMAND` starts what it needs (real Tritons, Sluice, Envoy) on free ports of the loopback, drives it,
and stops it again. It shows where it stands on stderr. Every command has `--help`, and `--json OUT` for programs (`-`
is stdout; then nothing else is printed there). Exit codes, the same for all: 0 passed; 1 failed, or the run itself
failed; 2 wrong usage; 3 inconclusive; 130 interrupted.
"""

RUN = """## run

`python -m load run SCENARIO` sends calls at the times that a scenario says, through Sluice to real Tritons, and says
whether what was promised was kept.

```
python -m load run --list                                    # the scenarios that come with the lab
python -m load run steady                                    # a table and a verdict
python -m load run steady --json out.json --pictures out/    # for programs, and as pictures
python -m load run steady --protocol grpc --scale 5          # the same over gRPC, at five times the rate
python -m load run steady --target direct                    # without Sluice, for comparison
python -m load run my/scenario.yaml --seed 7                 # one of your own
python -m load run steady --address 127.0.0.1:8000           # against what runs there already
```

On a terminal a line tells each second where the run stands; elsewhere it is quiet. Exit codes: 0 all checks kept; 1 a
check missed, or the run itself failed; 2 wrong usage or a wrong scenario; 3 inconclusive; 130 interrupted.
"""

WHY = """### Why latency counts from the intended send time

A generator that waits for an answer before it sends the next call (a closed loop) is slowed down by the very stall that
it should measure: a server that freezes for a second gets a single call in that second, so thousands of quick calls
stand beside one slow one, and p99 looks as if nothing had happened. Users do not wait for one another. In the same
second 200 of them would have called, and each would have waited.

So calls are sent at the times of the schedule, whatever has become of those before, and **latency is the time from when
a call was meant to be sent to the end of its answer**. If the generator is late, or has to hold a call back, that wait
is part of the latency, never left out of it. A test freezes a server for one second of ten and compares: p99 is a few
milliseconds in a closed loop and about 900 ms here.

Two things can hold a call back:

- `in_flight_max` calls are out. Those that follow wait in their order and are counted as `held`; one that waits until
  its deadline has passed is counted as `not_sent`, which is a call without a right answer. What is held has only what
  is left of its deadline.
- The generator itself is late. That is measured (next section), because it says something about the generator and
  nothing about the target.

Latencies are of right answers only: a quick refusal is not a quick answer. So judge `error_share` beside `p99_ms`;
`failed_p99_ms` says how long callers waited for nothing.
"""

VERDICTS = f"""### How a verdict comes about

- **pass**: every check was kept, and no answer was wrong. That no answer is wrong is checked in every run.
- **fail**: a check was missed. A check of a figure that does not exist (p99 of no right answers) is missed.
- **inconclusive**: the generator did not make the load that was meant, so nothing can be said: more than
  {LATE_SHARE_MAX:.0%} of the sends were over 5 ms late, or its timers came more than {TIMER_LATE_MS_MAX:g} ms late at
  p99. The run is repeated once; if the second one is spoiled as well, this is the verdict. A wrong answer fails the run
  all the same.

The generator is one process and shares the machine with the servers, so on a small machine it must not be short of CPU
itself: `generator_cpu_us_per_call` times the rate is its share of one CPU, about 110 us per call over HTTP and 310 us
over gRPC (grpcio's). It takes its sends from a timer of the kernel, since timers of event loops are rounded to
milliseconds, and keeps Python's collector out of the run as far as it can. `others_cores` tells of a machine that was
busy with something else.

Latencies are kept in a histogram of buckets that are at most 1/128 of their value wide, so a percentile is within 0.4 %
of the exact one; the largest value is exact.
"""

WRITING = """### Writing a scenario

A scenario is a YAML file. This is `steady`:
"""

RULES = """\
Files are read as strictly as policies: an unknown key, a value of another type, or a key that means nothing where it
stands is an error with file, line, column and remedy. All that can be told at once is: what relates several values is
looked at where each of them is right, so a repair may bring up another error, and a file that is no YAML is read only
up to where it stops being it. Of a trace the first {PROBLEMS_MAX} wrong rows are told. Keys carry their unit (`_s`,
`_ms`); rates are `rps`, calls per second.

- Several kinds of `traffic` run side by side, each with its own model, protocol, rate and deadline. Their figures stand
  under their names, and `all` is their sum. Each draws its chance from the seed and its own name, so adding one moves
  none of the others.
- With `fan_out: 10` each arrival is a task of ten calls, sent at once: whoever makes ten calls waits for the slowest,
  so what one call in a hundred feels is felt by one task in ten. `p99_ms` is that of tasks then.
- Every call has an id, a trace context, a deadline, and inputs of its own, up to `distinct_inputs`. Answers are
  compared with what they must be; `check_share` makes that cheaper.
- What `target.models.<name>.policy` says is checked by the schema of policies (policies.md), with the scenario's lines.
  It is not used with `--address` and `--target direct`.
- The same scenario and seed mean the same calls with the same inputs at the same times.

This one has two kinds of traffic from one file (`trace.csv` begins with `{head}`):

```yaml
{trace}
```
"""

FIGURES = """### What the figures mean

Checks name these figures. Those of the first table exist for all traffic together and for each kind of traffic, there
with its name before it: `reads.p99_ms`.
"""

PICTURES = """### Files

`--json OUT` writes one object: `scenario`, `verdict`, `checks` (each with `name`, `figure`, `limit`, `measured`, and
`pass`, which is null if it is inconclusive), `figures` (the figures above, `error_kinds`, and per kind of traffic under
`traffic`), `setting` (target, machine, time, seed, …), `seconds` (per second: `offered`, `ended`, `failed`, and of the
calls meant to be sent in it `p50_ms`, `p99_ms`, `max_ms`), and `distribution` (the whole histogram of each kind of
traffic, in nanoseconds).

`--pictures FOLDER` writes three SVG files, drawn from the same: latency over time, the distribution of latency by
percentile (dashed that of a baseline), and calls offered against calls done.
"""


def render() -> str:
    """The whole page."""
    return "\n".join(_page()).rstrip("\n") + "\n"


def _page() -> Iterator[str]:
    yield INTRO
    yield from commands_table()
    yield RUN
    yield "| scenario | command | length | what it is for |"
    yield "|---|---|---|---|"
    for name in scenario_names():
        spec = load_scenario(find_scenario(name)).spec
        length = f"{2 if spec.baseline is not None else 1} x {spec.duration_s:g} s".removeprefix("1 x ")
        yield f"| `{name}` | {'`chaos`' if needs_chaos(spec) else '`run`'} | {length} | {spec.description} |"
    yield ""
    yield WHY
    yield VERDICTS
    yield WRITING
    yield f"```yaml\n{_file('steady.yaml')}\n```\n"
    yield RULES.format(PROBLEMS_MAX=PROBLEMS_MAX, head=_file("trace.csv").splitlines()[0], trace=_file("trace.yaml"))
    yield from _tables()
    yield FIGURES
    yield from _figures(TRAFFIC_FIGURES)
    yield "For a run as a whole:\n"
    yield from _figures({name: each for name, each in RUN_FIGURES.items() if name not in TRAFFIC_FIGURES})
    yield "For `load chaos` alone:\n"
    yield from _figures(CHAOS_FIGURES)
    yield "And of each replica, named as `replica-1.attempts`:\n"
    yield from _figures(REPLICA_FIGURES)
    yield PICTURES
    yield from sections()


def _tables() -> Iterator[str]:
    """The tables of the schema, without that of a policy, which stands in policies.md."""
    foreign = False
    for line in tables(Scenario, "", title="Keys of a scenario"):
        if line.startswith("### "):
            foreign = "policy`" in line
        if not foreign:
            yield f"#{line}" if line.startswith("### ") else line


def _file(name: str) -> str:
    return (SCENARIOS_DIR / name).read_text("utf-8").rstrip()


def _figures(figures: dict[str, str]) -> Iterator[str]:
    yield "| figure | meaning |"
    yield "|---|---|"
    for name, meaning in figures.items():
        yield f"| `{name}` | {meaning} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(render())
