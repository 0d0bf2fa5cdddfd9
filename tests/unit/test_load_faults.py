"""Faults in scenarios: what the files may say, the plan that comes of it, and who makes and undoes them when."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.local import LocalFleetError
from deploy.local.layout import write_atomically
from load import injector as injecting
from load.errors import LoadError, UsageError
from load.fault_schema import (
    FAULT_KINDS,
    BlackholeFault,
    FaultSpec,
    FreezeFault,
    KillFault,
    SlowFault,
    StragglersFault,
    fault_of,
)
from load.faults import blackholed, clash, plan
from load.injector import Injector
from load.open_loop import Moment
from load.scenario import find_scenario, load_scenario, scenario_names
from load.scenario_faults import needs_chaos, windows
from tests.unit.test_load_scenario import GOOD, load, problems

FAULTY = GOOD.replace("duration_s", "target: {replicas: 3}\nduration_s").replace("identity", "accel")


def faulty(entries: str, checks: str = "", more: str = "") -> str:
    return f"{FAULTY}faults: [{entries}]\nchecks: [{checks}]\n{more}"


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "made"),
    [
        ("kill: {replica: 1, at_s: 2}", KillFault(at_s=2, replica=1)),
        ("kill: {replica: 1, at_s: 2, restart_after_s: 1}", KillFault(at_s=2, replica=1, restart_after_s=1)),
        ("freeze: {all: true, at_s: 2, for_s: 1}", FreezeFault(at_s=2, for_s=1, all=True)),
        ("blackhole: {replica: 0, at_s: 2, for_s: 1}", BlackholeFault(at_s=2, for_s=1, replica=0)),
        ("slow: {replica: 2, factor: 10}", SlowFault(factor=10, replica=2)),
        (
            "stragglers: {all: true, share: 0.02, factor: 20, at_s: 1, for_s: 2}",
            StragglersFault(share=0.02, factor=20, at_s=1, for_s=2, all=True),
        ),
    ],
)
def test_each_kind_of_fault_is_made_from_its_keys(entry: str, made: Any, tmp_path: Path) -> None:
    (fault,) = load(faulty(f"{{{entry}}}"), tmp_path).spec.faults
    assert fault_of(fault)[1] == made


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("{}", "faults[0]: no kind of fault is given; give exactly one in each entry"),
        ("{freze: {replica: 0, at_s: 1, for_s: 1}}", "unknown key"),
        ("{kill: {replica: 0, at_s: 1}, slow: {replica: 0, factor: 2}}", "kill and slow stand in one entry"),
        ("{kill: {at_s: 1}}", "faults[0].kill: a fault has exactly one of `replica` and `all: true`"),
        ("{kill: {at_s: 1, replica: 0, all: true}}", "a fault has exactly one of `replica` and `all: true`"),
        ("{kill: {at_s: 1, replica: 3}}", "faults[0].kill.replica: there is no replica 3; write 0 to 2"),
        ("{kill: {replica: 1}}", "the key `at_s` is missing"),
        ("{freeze: {replica: 1, at_s: 1}}", "the key `for_s` is missing"),
        ("{slow: {replica: 1, factor: 1}}", "1 is out of range"),
        ("{stragglers: {all: true, share: 0, factor: 2}}", "0 is out of range"),
        ("{kill: {replica: 1, at_s: 5}}", "faults[0]: it begins at 5 s, and the run ends at 5 s"),
        (
            "{kill: {replica: 1, at_s: 1}}, {freeze: {all: true, at_s: 2, for_s: 1}}",
            "faults[1]: replica 1 has the fault 0 (kill) at that time; let one end before the other",
        ),
    ],
)
def test_a_fault_that_makes_no_sense_is_told_with_what_to_do(entries: str, said: str, tmp_path: Path) -> None:
    assert any(said in line for line in problems(faulty(entries), tmp_path))


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("figure: replica-3.attempts, max: 0", "there is no `replica-3`"),
        ("figure: replica-1.attemps, max: 0", "did you mean `attempts`?"),
        ("figure: late_share, max: 0, window: {from_s: 1}", "`late_share` exists for the whole run only"),
        ("figure: replica-1.inferences, max: 0, window: {from_s: 1}", "`inferences` exists for the whole run only"),
        ("figure: capacity_rps, max: 0, window: {from_s: 1}", "`capacity_rps` exists for the whole run only"),
        ("figure: p99_ms, max: 0, window: {from_s: 3, to_s: 2}", "it is from 3 s to 2 s"),
        ("figure: p99_ms, max: 0, window: {to_s: 6}", "it is from 0 s to 6 s, and the run ends at 5 s"),
        ("figure: p99_ms, max: 2, times_baseline: true", "the scenario has no `baseline`"),
        ("figure: recovery_s, max: 2", "`recovery_s` and the key `recovery` need each other"),
        ("figure: p99_ms, max: 2, recovery: {after_s: 1, p99_ms: 5}", "need each other"),
        ("figure: recovery_s, max: 2, recovery: {p99_ms: 5}", "exactly one of `after_s` and `after_fault`"),
        ("figure: recovery_s, max: 2, recovery: {after_s: 1}", "exactly one of `p99_ms` and `times`"),
        ("figure: recovery_s, max: 2, recovery: {after_s: 1, times: 2}", "`times` and `before_s` need each other"),
        ("figure: recovery_s, max: 2, recovery: {after_fault: 1, p99_ms: 5}", "there is no fault 1"),
        ("figure: recovery_s, max: 2, recovery: {after_s: 5, p99_ms: 5}", "it is later than the run"),
    ],
)
def test_a_check_that_makes_no_sense_is_told_with_what_to_do(check: str, said: str, tmp_path: Path) -> None:
    text = faulty("{kill: {replica: 1, at_s: 1}}", f"{{{check}}}")
    assert any(said in line for line in problems(text, tmp_path))


def test_a_baseline_leaves_out_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    text = faulty(
        "{slow: {replica: 1, factor: 2}}",
        more="baseline:\n  without_faults: true\n  without_traffic: [large]\n"
        "  models: {accel: {policy: {impact: Another one.}}}\n",
    ).replace("target:", "  - {name: large, model: accel, arrivals: {poisson: {rps: 1}}}\ntarget:", 1)
    text = text.replace("target: {replicas: 3}", "target: {replicas: 3, models: {accel: {policy: {versions: ['1']}}}}")
    scenario = load(text, tmp_path)
    before = scenario.before()
    assert before is not None
    assert ([each.name for each in before.spec.traffic], len(before.arrivals)) == (["reads"], 1)
    assert before.spec.faults == ()
    assert before.overrides == {"accel": {"versions": ["1"], "impact": "Another one."}}
    assert scenario.overrides == {"accel": {"versions": ["1"]}}
    assert len(scenario.spec.faults) == 1
    assert load(faulty("{slow: {replica: 1, factor: 2}}"), tmp_path).before() is None


def test_what_a_baseline_leaves_out_cannot_be_compared_with(tmp_path: Path) -> None:
    two = "  - {name: large, model: accel, arrivals: {poisson: {rps: 1}}}\ntarget:"
    text = FAULTY.replace("target:", two, 1) + "baseline: {without_traffic: [large]}\n"
    check = "checks: [{figure: large.p99_ms, max: 1, times_baseline: true}]\n"
    assert any("the baseline has no traffic `large`" in line for line in problems(text + check, tmp_path))


def test_a_baseline_of_nothing_is_told(tmp_path: Path) -> None:
    told = problems(FAULTY + "baseline: {without_traffic: [reads, writes]}\n", tmp_path)
    assert any("there is no traffic `writes`" in line for line in told)
    assert any("nothing is left" in line for line in told)


def test_what_a_baseline_says_of_a_policy_is_checked_as_a_policy(tmp_path: Path) -> None:
    told = problems(FAULTY + "baseline: {models: {accel: {policy: {impct: x}}}}\n", tmp_path)
    assert any("did you mean `impact`" in line for line in told)


def test_a_length_that_faults_or_windows_do_not_fit_in_is_refused(tmp_path: Path) -> None:
    scenario = load(faulty("{kill: {replica: 1, at_s: 3}}", "{figure: p99_ms, max: 1, window: {to_s: 4}}"), tmp_path)
    assert scenario.changed(duration_s=50).spec.duration_s == 50
    with pytest.raises(UsageError, match=r"checks\[0\].window: .* ask for a longer run"):
        scenario.changed(duration_s=3.5)
    with pytest.raises(UsageError, match=r"faults\[0\]: it begins at 3 s, and the run ends at 2 s"):
        scenario.changed(duration_s=2)


def test_the_windows_of_the_checks_are_counted_once_each(tmp_path: Path) -> None:
    checks = [
        "{figure: p99_ms, max: 1, window: {from_s: 1, to_s: 2}}",
        "{figure: p50_ms, max: 1, window: {from_s: 1, to_s: 2}}",
        "{figure: p50_ms, max: 1, window: {from_s: 1}}",
        "{figure: p50_ms, max: 1}",
    ]
    assert windows(load(faulty("", ", ".join(checks)), tmp_path).spec) == [(1.0, 2.0), (1.0, 5.0)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GOOD, ""),
        (GOOD + "checks: [{figure: p99_ms, max: 1, window: {to_s: 2}}]\n", ""),
        (faulty("{slow: {replica: 1, factor: 2}}"), "it has faults"),
        (GOOD + "baseline: {}\n", "it has a baseline or a capacity"),
        (GOOD + "capacity: {rps: 5}\n", "it has a baseline or a capacity"),
        (GOOD + "checks: [{figure: attempts_per_call, max: 1}]\n", "it checks attempts_per_call"),
        (GOOD + "checks: [{figure: replica-0.executions, max: 1}]\n", "it checks replica-0.executions"),
    ],
)
def test_what_only_chaos_can_run_is_known(text: str, why: str, tmp_path: Path) -> None:
    assert needs_chaos(load(text, tmp_path).spec) == why


def test_the_lab_has_the_scenarios_of_the_design_and_each_kind_of_fault() -> None:
    wanted = ["stragglers", "busy", "slow-replica", "burst", "overload", "oversize"]
    wanted += ["kill", "freeze", "blackhole", "all-down", "expired"]
    assert set(wanted) <= set(scenario_names())
    specs = [load_scenario(find_scenario(name)).spec for name in wanted]
    assert {fault_of(fault)[0] for spec in specs for fault in spec.faults} == set(FAULT_KINDS)
    for spec in specs:
        runs_s = (spec.duration_s + spec.warm_up_s) * (2 if spec.baseline is not None else 1)
        assert runs_s < 400, "a scenario is done within ten minutes, once more if the generator was late"


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_plan_is_in_order_of_time_and_has_each_replica() -> None:
    faults = [
        FaultSpec(freeze=FreezeFault(at_s=4, for_s=2, all=True)),
        FaultSpec(kill=KillFault(at_s=1, replica=1, restart_after_s=1.5)),
        FaultSpec(slow=SlowFault(factor=3, replica=0)),
    ]
    made = [(each.index, each.kind, each.replica, each.begin_s, each.end_s) for each in plan(faults, 2)]
    assert made == [
        (2, "slow", 0, 0.0, None),
        (1, "kill", 1, 1.0, 2.5),
        (0, "freeze", 0, 4.0, 6.0),
        (0, "freeze", 1, 4.0, 6.0),
    ]
    assert [each.from_start for each in plan(faults, 2)] == [True, False, False, False]
    assert blackholed(faults, 2) == []
    assert blackholed([FaultSpec(blackhole=BlackholeFault(at_s=1, for_s=1, all=True))], 3) == [0, 1, 2]


def test_a_replica_has_one_outage_at_a_time_and_may_be_slow_meanwhile() -> None:
    freeze = FaultSpec(freeze=FreezeFault(at_s=1, for_s=2, replica=0))
    late = FaultSpec(kill=KillFault(at_s=3, replica=0))
    early = FaultSpec(kill=KillFault(at_s=2.5, replica=0))
    elsewhere = FaultSpec(kill=KillFault(at_s=2, replica=1))
    slow = FaultSpec(slow=SlowFault(factor=2, replica=0))
    assert clash(plan([freeze, late, elsewhere, slow], 2)) is None
    found = clash(plan([freeze, early], 2))
    assert found is not None
    assert [each.kind for each in found] == ["freeze", "kill"]
    assert clash(plan([slow, slow], 2)) is not None


# --- who makes them ---------------------------------------------------------------------------------------------------


ROUNDING_S = 0.001
LIMIT_S = 30.0


class FakeServer:
    """Writes down what is done to it, and when."""

    def __init__(self, folder: Path, name: str = "triton-0") -> None:
        self.spec = type("Spec", (), {"accel_control": folder / f"{name}.json", "name": name, "log": folder / "log"})()
        self.done: list[str] = []
        self.now = "running"
        self.ready_after = 0

    def state(self) -> str:
        return self.now

    def alive(self) -> bool:
        return self.now != "stopped"

    def ready(self) -> bool:
        self.ready_after -= 1
        return self.ready_after < 0

    def kill(self) -> None:
        self.done.append("kill")
        self.now = "stopped"

    def start(self) -> None:
        self.done.append("start")
        self.now = "running"

    def freeze(self) -> None:
        self.done.append("freeze")
        self.now = "frozen"

    def thaw(self) -> None:
        self.done.append("thaw")
        self.now = "running"

    @property
    def control(self) -> Any:
        file = self.spec.accel_control
        return json.loads(file.read_text()) if file.exists() else None


class FakeBlackhole:
    def __init__(self) -> None:
        self.done: list[str] = []

    def begin(self) -> None:
        self.done.append("begin")

    def end(self) -> None:
        self.done.append("end")


def injector(
    faults: list[FaultSpec], servers: list[FakeServer], blackholes: dict[int, FakeBlackhole] | None = None
) -> Injector:
    return Injector(plan(faults, len(servers)), servers, blackholes or {})  # type: ignore[arg-type]


def moment(elapsed_s: float) -> Moment:
    return Moment(elapsed_s, 0, 0, 0, 0, None, None)


async def run_until(made: Injector, condition: Callable[[], object]) -> None:
    """As a run with a short warm-up does it, that lasts until what is expected of its faults has come."""
    made.begin()
    started_s = time.monotonic()
    made.on_second(moment(-0.05))
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)
            made.on_second(moment(time.monotonic() - started_s - 0.05))


def never() -> bool:
    return False


async def test_faults_begin_and_end_in_their_order_and_their_real_times_are_known(tmp_path: Path) -> None:
    servers = [FakeServer(tmp_path, "triton-0"), FakeServer(tmp_path, "triton-1")]
    servers[1].ready_after = 2
    hole = FakeBlackhole()
    faults = [
        FaultSpec(freeze=FreezeFault(at_s=0.1, for_s=0.1, replica=0)),
        FaultSpec(kill=KillFault(at_s=0.1, replica=1, restart_after_s=0.1)),
        FaultSpec(blackhole=BlackholeFault(at_s=0.2, for_s=0.1, replica=0)),
    ]
    made = injector(faults, servers, {0: hole})
    await run_until(made, lambda: [span.end_s is not None for span in made.spans] == [True] * 3)
    assert servers[0].done == ["freeze", "thaw"]
    assert servers[1].done == ["kill", "start"]
    assert hole.done == ["begin", "end"]
    spans = {span.kind: span for span in made.spans}
    assert set(spans) == {"freeze", "kill", "blackhole"}
    for kind, begin_s, end_s in (("freeze", 0.1, 0.2), ("kill", 0.1, 0.2), ("blackhole", 0.2, 0.3)):
        span = spans[kind]
        assert span.end_s is not None
        assert (span.begin_s >= begin_s - ROUNDING_S, span.end_s >= end_s - ROUNDING_S) == (True, True)
    await made.finish()


async def test_a_fault_from_the_start_is_there_before_the_warm_up_and_gone_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(tmp_path)
    made = injector(
        [
            FaultSpec(slow=SlowFault(factor=10, replica=0)),
            FaultSpec(stragglers=StragglersFault(share=0.5, factor=3, at_s=0.1, for_s=0.5, replica=0)),
        ],
        [server],
    )
    seen: list[Any] = []

    def write(path: Path, text: str) -> None:
        write_atomically(path, text)
        seen.append(server.control)

    monkeypatch.setattr(injecting, "write_atomically", write)
    await run_until(made, lambda: len(seen) >= 3)
    slow = {"slow_factor": 10.0}
    assert seen == [slow, {"slow_factor": 10.0, "straggler_fraction": 0.5, "straggler_factor": 3.0}, slow]
    await made.finish()
    assert server.control is None
    assert next((span.kind, span.begin_s) for span in made.spans) == ("slow", 0.0)


async def test_whatever_ends_a_run_thaws_what_is_frozen_and_opens_what_is_cut_off(tmp_path: Path) -> None:
    servers = [FakeServer(tmp_path, "triton-0"), FakeServer(tmp_path, "triton-1")]
    hole = FakeBlackhole()
    made = injector(
        [
            FaultSpec(freeze=FreezeFault(at_s=0, for_s=60, replica=0)),
            FaultSpec(blackhole=BlackholeFault(at_s=0, for_s=60, replica=1)),
        ],
        servers,
        {1: hole},
    )
    await run_until(made, lambda: servers[0].done and hole.done)
    assert servers[0].now == "frozen"
    await made.finish()
    assert (servers[0].now, servers[0].done, hole.done) == ("running", ["freeze", "thaw"], ["begin", "end"])
    assert [span.end_s for span in made.spans] == [None, None]


async def test_a_replica_that_ends_by_itself_is_known_and_one_that_was_killed_is_not_meant(tmp_path: Path) -> None:
    servers = [FakeServer(tmp_path, f"triton-{index}") for index in range(3)]
    made = injector([FaultSpec(kill=KillFault(at_s=0, replica=0))], servers)
    await run_until(made, lambda: servers[0].done)
    servers[2].now = "stopped"
    await made.finish()
    assert ([server.now for server in servers], made.died) == (["stopped", "running", "stopped"], [2])


async def test_a_fault_that_cannot_be_made_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    class Gone(FakeServer):
        def freeze(self) -> None:
            raise LocalFleetError("triton-0 is not running", "start it")

    made = injector([FaultSpec(freeze=FreezeFault(at_s=0, for_s=1, replica=0))], [Gone(tmp_path)])
    with pytest.raises(LoadError, match="a fault could not be made: triton-0 is not running"):
        await run_until(made, never)
    await made.finish()


async def test_a_replica_that_does_not_come_back_is_told(tmp_path: Path) -> None:
    class Dead(FakeServer):
        def start(self) -> None:
            self.ready_after = 1_000_000

    made = injector([FaultSpec(kill=KillFault(at_s=0, replica=0, restart_after_s=0.1))], [Dead(tmp_path)])
    with pytest.raises(LoadError, match="did not come back"):
        await run_until(made, never)
    await made.finish()
