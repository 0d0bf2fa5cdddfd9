"""Scenarios: those that come with the lab load, and what is wrong in one is told with its place and a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from load import arrivals
from load.drive import headers_of
from load.errors import UsageError
from load.scenario import LoadedScenario, find_scenario, load_scenario, scenario_names
from load.trace import PROBLEMS_MAX

GOOD = """\
description: An example.
traffic:
  - name: reads
    model: identity
    arrivals: {constant: {rps: 100}}
duration_s: 5
"""


def load(text: str, folder: Path, **files: str) -> LoadedScenario:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
    path = folder / "example.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def problems(text: str, folder: Path, **files: str) -> list[str]:
    with pytest.raises(UsageError) as raised:
        load(text, folder, **files)
    head, *lines = str(raised.value).splitlines()
    assert head == "the scenario cannot be used"
    assert all("example.yaml:" in line for line in lines)
    return [line.partition("example.yaml:")[2] for line in lines]


@pytest.mark.parametrize("name", scenario_names())
def test_each_scenario_of_the_lab_loads_and_promises_something(name: str) -> None:
    scenario = load_scenario(find_scenario(name))
    assert scenario.name == name
    assert scenario.spec.checks
    for process in scenario.arrivals:
        assert next(process.offsets("1", scenario.spec.duration_s), None) is not None


def test_the_lab_has_each_kind_of_arrivals() -> None:
    assert {"steady", "poisson", "burst", "step", "trace"} <= set(scenario_names())
    kinds = {type(each) for name in scenario_names() for each in load_scenario(find_scenario(name)).arrivals}
    assert kinds == {arrivals.Constant, arrivals.Poisson, arrivals.Burst, arrivals.Step, arrivals.Trace}


def test_defaults_fill_what_is_not_said(tmp_path: Path) -> None:
    scenario = load(GOOD, tmp_path)
    (traffic,) = scenario.spec.traffic
    assert (traffic.protocol, traffic.body, traffic.deadline_ms, traffic.check_share) == ("http", "json", 1000, 1.0)
    assert scenario.arrivals == (arrivals.Constant(100.0),)
    assert (scenario.models, scenario.protocols, scenario.spec.target.replicas) == (("identity",), ("http",), 1)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("poisson: {rps: 5}", arrivals.Poisson(5.0)),
        (
            "burst: {base_rps: 1, burst_rps: 9, burst_s: 1, every_s: 4, first_s: 2}",
            arrivals.Burst(1, 9, 1, 4, 2, "random"),
        ),
        (
            "step: {spacing: even, steps: [{start_s: 0, rps: 1}, {start_s: 3, rps: 2}]}",
            arrivals.Step(((0.0, 1.0), (3.0, 2.0)), "even"),
        ),
    ],
)
def test_each_kind_of_arrivals_is_made_from_its_keys(kind: str, made: Any, tmp_path: Path) -> None:
    assert load(GOOD.replace("constant: {rps: 100}", kind), tmp_path).arrivals == (made,)


def test_the_same_scenario_over_another_protocol_at_another_rate_and_length(tmp_path: Path) -> None:
    changed = load(GOOD, tmp_path).changed(protocol="grpc", scale=2.5, duration_s=1.0, warm_up_s=0.0, seed=9)
    assert changed.protocols == ("grpc",)
    assert changed.arrivals == (arrivals.Constant(250.0),)
    assert (changed.spec.duration_s, changed.spec.warm_up_s, changed.spec.seed) == (1.0, 0.0, 9)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("duration_s: 5", "duration: 5", "6:1: duration: unknown key; did you mean `duration_s` (seconds)?"),
        ("duration_s: 5", "duration_s: 5s", "6:13: duration_s: `5s` is text with a unit; the key counts seconds"),
        ("duration_s: 5", "duration_s: 5\nseeds: 1", "7:1: seeds: unknown key; did you mean `seed`?"),
        ("model: identity", "model: identiti", "4:12: traffic[0].model: `identiti` is not known; allowed: accel,"),
        ("rps: 100", "rps: -1", "5:32: traffic[0].arrivals.constant.rps: -1 is out of range; write 0 to"),
        ("rps: 100", "rate: 100", "unknown key"),
        ("constant: {rps: 100}", "", "5:15: traffic[0].arrivals: no kind of arrivals is given; give exactly one"),
        (
            "{constant: {rps: 100}",
            "{constant: {rps: 100}, poisson: {rps: 1}",
            "constant and poisson stand side by side",
        ),
        ("{rps: 100}", "{rps: 100}\n      step: {steps: []}", "not YAML"),
        (
            "constant: {rps: 100}",
            "step: {steps: [{start_s: 1, rps: 1}]}",
            "5:22: traffic[0].arrivals.step: steps begin at 0 s",
        ),
        (
            "constant: {rps: 100}",
            "burst: {base_rps: 1, burst_rps: 2, burst_s: 3, every_s: 2}",
            "a burst of 3.0 s does not fit into every 2.0 s",
        ),
        ("duration_s", "checks: [{figure: p99_mss, max: 1}]\nduration_s", "did you mean `p99_ms`?"),
        (
            "duration_s",
            "checks: [{figure: reds.p99_ms, max: 1}]\nduration_s",
            "there is no traffic `reds`; allowed: reads",
        ),
        ("duration_s", "checks: [{figure: reads.late_share, max: 1}]\nduration_s", "there is no figure `late_share`"),
        ("duration_s", "checks: [{figure: p99_ms}]\nduration_s", "6:10: checks[0]: a check has exactly one of"),
        ("duration_s", "checks: [{figure: p99_ms, max: 1, min: 0}]\nduration_s", "a check has exactly one of"),
        ("    arrivals", "    work: 2\n    arrivals", "5:11: traffic[0].work: means nothing with http and identity"),
        ("    arrivals", "    connections: 2\n    arrivals", "traffic[0].connections: means nothing with http"),
        (
            "    arrivals",
            "    protocol: grpc\n    body: json\n    arrivals",
            "traffic[0].body: means nothing with grpc",
        ),
        ("name: reads", "name: all", "traffic[0].name: `all` is the sum of all traffic; take another name"),
        ("name: reads", "name: Reads", "is not a name of lower-case letters, digits and inner dashes"),
        (
            "    arrivals",
            "    responses: 2\n    arrivals",
            "traffic[0].responses: means nothing with http and identity",
        ),
        (
            "model: identity",
            "model: streamer\n    check_share: 0",
            "traffic[0].check_share: means nothing with http and",
        ),
        ("duration_s", "target: {models: {iris: {}}}\nduration_s", "target.models.iris: there is no such model"),
        (
            "duration_s",
            "target: {models: {identity: {policy: {admision: {queue_max: 1}}}}}\nduration_s",
            "6:39: admision: unknown key; did you mean `admission`?",
        ),
        (
            "duration_s",
            "target: {models: {identity: {policy: {deadline: {default_ms: 2000}}}}}\nduration_s",
            "deadline.default_ms: `default_ms` (2000) is longer than `max_ms` (1000)",
        ),
        (
            "duration_s",
            "target: {models: {identity: {policy: {model: fraud}}}}\nduration_s",
            "model: the lab sets this key; remove it",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_to_do(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in GOOD
    assert any(said in line for line in problems(GOOD.replace(old, new, 1), tmp_path))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("duration_s: 5", "duration_s: 0").replace("identity", "other").replace("rps: 100", "rps: x")
    assert len(problems(text, tmp_path)) == 3


TWO_KINDS = """\
description: An example.
traffic:
  - name: reads
    model: identity
    work: 2
    arrivals: {constant: {rps: 100}, poisson: {rps: 1}}
  - name: all
    model: accel
    protocol: grpc
    body: json
    arrivals: {burst: {base_rps: 1, burst_rps: 2, burst_s: 3, every_s: 2}}
duration: 5
seed: x
target: {replicas: 0, models: {nosuch: {}, identity: {policy: {admision: {queue_max: 1}}}}}
checks:
  - {figure: p99_mss, max: 1}
  - {figure: writes.p99_ms, max: 1, min: 0}
  - {figure: error_share, max: none}
  - {figure: Reads, max: 1}
"""


def test_what_the_schema_refuses_hides_nothing_of_the_rest(tmp_path: Path) -> None:
    told = problems(TWO_KINDS, tmp_path)
    wanted = [
        "5:11: traffic[0].work: means nothing",
        "6:15: traffic[0].arrivals: constant and poisson stand side by side",
        "7:11: traffic[1].name: `all` is the sum",
        "traffic[1].arrivals.burst: a burst of 3.0 s does not fit",
        "traffic[1].body: means nothing with grpc",
        "12:1: duration: unknown key",
        "13:7: seed: `x` is text",
        "target.replicas: 0 is out of range",
        "target.models.nosuch: there is no such model",
        "admision: unknown key",
        "16:14: checks[0].figure: there is no figure `p99_mss`",
        "17:5: checks[1]: a check has exactly one of",
        "checks[1].figure: there is no traffic `writes`",
        "checks[2].max: `none` is text",
        "checks[3].figure: `Reads` is not a figure's name",
    ]
    assert len(told) == len(wanted)
    for line in wanted:
        assert any(line in each for each in told), (line, told)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: reads", "name: Reads", ["is not a name"]),  # `reads.p99_ms` may be meant for it
        ("model: identity", "model: identiti", ["is not known"]),  # the deadline of the policy too
        ("constant: {rps: 100}", "constnt: {rps: 100}", ["unknown key"]),
        ("constant: {rps: 100}", "constant: {rps: x}", ["is text"]),
        ("constant: {rps: 100}", "constant: 5", ["a mapping is wanted"]),
        ("max: 1}", "mx: 1}", ["unknown key"]),
        ("max: 1}", "max: x}", ["is text"]),
    ],
)
def test_one_mistake_is_told_once(old: str, new: str, said: list[str], tmp_path: Path) -> None:
    text = (
        GOOD.replace("    arrivals", "    deadline_ms: 5000\n    arrivals")
        + "checks: [{figure: reads.p99_ms, max: 1}]\n"
        + "target: {models: {identity: {policy: {deadline: {default_ms: 3000}}}}}\n"
    )
    assert load(text, tmp_path).spec.checks
    assert old in text
    told = problems(text.replace(old, new, 1), tmp_path)
    assert len(told) == len(said)
    assert all(word in line for word, line in zip(said, told, strict=True)), told


@pytest.mark.parametrize("model", ["identity", "streamer"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_kind_of_traffic_may_name_its_class(model: str, protocol: str, tmp_path: Path) -> None:
    named = GOOD.replace("    arrivals", f"    protocol: {protocol}\n    priority: sheddable\n    arrivals")
    named = named.replace("model: identity", f"model: {model}")
    (traffic,) = load(named, tmp_path).spec.traffic
    assert headers_of(traffic) == {"x-sluice-priority": "sheddable"}
    (plain,) = load(GOOD, tmp_path).spec.traffic
    assert headers_of(plain) == {}


def test_a_class_that_there_is_not_is_told_with_those_there_are(tmp_path: Path) -> None:
    (told,) = problems(GOOD.replace("    arrivals", "    priority: high\n    arrivals"), tmp_path)
    assert "traffic[0].priority: `high` is not known" in told
    assert "sheddable_plus" in told


def test_the_overload_scenario_names_its_classes() -> None:
    top, rest = load_scenario(find_scenario("overload")).spec.traffic
    assert (top.priority, rest.priority) == ("critical_plus", "sheddable_plus")


def test_two_kinds_of_traffic_have_two_names(tmp_path: Path) -> None:
    twice = GOOD.replace("duration_s", "  - {name: reads, model: accel, arrivals: {poisson: {rps: 1}}}\nduration_s")
    assert problems(twice, tmp_path) == [
        "6:12: traffic[1].name: `reads` names 2 kinds of traffic; give each a name of its own"
    ]


def test_what_it_says_of_a_policy_is_kept_as_it_stands(tmp_path: Path) -> None:
    policy = '{admission: {slots_per_replica: 3}, objective: {p99_ms: 20}, versions: ["1"]}'
    scenario = load(
        GOOD.replace("duration_s", f"target: {{models: {{identity: {{policy: {policy}}}}}}}\nduration_s"), tmp_path
    )
    assert scenario.overrides == {
        "identity": {"admission": {"slots_per_replica": 3}, "objective": {"p99_ms": 20}, "versions": ["1"]}
    }


def test_a_name_that_nobody_has_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no scenario stedy; did you mean steady\? there are all-down,.*step"):
        find_scenario("stedy")
    with pytest.raises(UsageError, match="no scenario file"):
        find_scenario(str(tmp_path / "none.yaml"))


# --- traces ---------------------------------------------------------------------------------------------------------

TRACED = GOOD.replace("constant: {rps: 100}", "trace: {file: arrivals.csv}")


def test_a_trace_in_csv_is_sorted_and_each_traffic_has_its_own_rows(tmp_path: Path) -> None:
    text = TRACED.replace(
        "duration_s", "  - {name: b, model: accel, arrivals: {trace: {file: arrivals.csv}}}\nduration_s"
    )
    rows = "offset_s,traffic,row\n2.5,reads,7\n0.5,b,\n1.5,reads,\n1.0,,3\n"
    reads, other = load(text, tmp_path, arrivals_csv=rows).arrivals
    assert reads == arrivals.Trace(((1.0, 3), (1.5, -1), (2.5, 7)))
    assert other == arrivals.Trace(((0.5, -1), (1.0, 3)))


def test_a_trace_in_json_lines_is_the_same(tmp_path: Path) -> None:
    text = TRACED.replace("arrivals.csv", "arrivals.jsonl")
    rows = '{"offset_s": 1, "row": 2}\n\n{"offset_s": 0.25, "traffic": "reads"}\n'
    assert load(text, tmp_path, arrivals_jsonl=rows).arrivals == (arrivals.Trace(((0.25, -1), (1.0, 2))),)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("time\n1\n", "arrivals.csv:2: unknown column `time`; there are offset_s, traffic, row"),
        ("offset_s\nsoon\n", "arrivals.csv:2: `offset_s` is not a number of seconds from 0 on"),
        ("offset_s\n1\n-1\n", "arrivals.csv:3: `offset_s` is not a number of seconds from 0 on"),
        ("offset_s\nnan\n", "arrivals.csv:2: `offset_s`"),
        ("offset_s,row\n1,x\n", "arrivals.csv:2: `row` is not a whole number from 0 on"),
        ("offset_s,row\n1,1.5\n", "arrivals.csv:2: `row` is not a whole number from 0 on"),
        ("offset_s,row\n1\n", "arrivals.csv:2: it has not as many fields as the head line"),
        ("offset_s,traffic\n1,writes\n", "arrivals.csv:2: the scenario has no traffic `writes`; there are reads"),
        ("offset_s\n", "arrivals.csv: it has no arrivals of the traffic `reads`"),
    ],
)
def test_a_trace_that_cannot_be_used_is_told_with_its_line(rows: str, said: str, tmp_path: Path) -> None:
    assert any(said in line for line in problems(TRACED, tmp_path, arrivals_csv=rows))


def test_several_wrong_rows_of_a_trace_are_told_at_once_up_to_a_bound(tmp_path: Path) -> None:
    said = "\n".join(problems(TRACED, tmp_path, arrivals_csv="offset_s\nsoon\n1\nlater\n"))
    assert "arrivals.csv:2: `offset_s`" in said
    assert "arrivals.csv:4: `offset_s`" in said
    said = "\n".join(problems(TRACED, tmp_path, arrivals_csv="offset_s\n" + "soon\n" * 50))
    assert said.count("`offset_s` is not") == PROBLEMS_MAX
    assert f"the rows behind line {PROBLEMS_MAX + 1} are not looked at yet" in said


def test_a_trace_that_is_not_there_or_not_json_is_told(tmp_path: Path) -> None:
    assert "no such file" in problems(TRACED, tmp_path)[0]
    json_lines = TRACED.replace("arrivals.csv", "arrivals.jsonl")
    assert "arrivals.jsonl:1: not JSON" in problems(json_lines, tmp_path, arrivals_jsonl="{offset_s: 1}\n")[0]
    assert "arrivals.jsonl:1: not an object" in problems(json_lines, tmp_path, arrivals_jsonl="[1]\n")[0]
