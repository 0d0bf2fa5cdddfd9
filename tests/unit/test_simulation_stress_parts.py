"""The parts of the stress table in simulation: the cut of time, what is checked in each seed, how seeds add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import msgspec
import pytest

from gateway.core.call import Attempt
from load.arrivals import Burst, Constant, Poisson, Step
from load.errors import UsageError
from load.executions import Execution
from load.fault_schema import KillFault, Recovery, fault_of
from load.scenario import LoadedScenario, find_scenario, load_scenario
from load.scenario_schema import CheckSpec
from tests.simulation.stress.callers import Ended
from tests.simulation.stress.invariants import broken
from tests.simulation.stress.play import Played
from tests.simulation.stress.policies import setting_of
from tests.simulation.stress.pool import Pooled
from tests.simulation.stress.rows import row_of
from tests.simulation.stress.timeline import Cut, _arrivals, cut_short

REPLICAS = ("cpu/127.0.0.1:8001", "cpu/127.0.0.1:8011", "cpu/127.0.0.1:8021")


def loaded(name: str) -> LoadedScenario:
    return load_scenario(find_scenario(name))


# --- the cut ----------------------------------------------------------------------------------------------------------


def test_what_is_kept_moves_together_and_what_is_left_out_becomes_one_moment() -> None:
    cut = Cut(((2, 4), (10, 15)))
    assert cut.length_s == 7
    assert [cut.at(whole_s) for whole_s in (0, 2, 3, 4, 7, 10, 12, 15, 20)] == [0, 0, 1, 2, 2, 2, 4, 7, 7]
    assert cut.words() == "2-4, 10-15"


@pytest.mark.parametrize("pieces", [(), ((3, 3),), ((3, 2),), ((0, 2), (1, 3))])
def test_pieces_that_are_none_or_out_of_order_are_refused(pieces: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="no pieces of a time line"):
        Cut(pieces)


def test_a_step_keeps_the_rates_of_the_pieces() -> None:
    steps = Step(((0, 10), (5, 100), (6, 20), (20, 200), (21, 30)))
    assert _arrivals(steps, Cut(((4, 7), (19.5, 22)))) == Step(
        ((0, 10), (1, 100), (2, 20), (3, 20), (3.5, 200), (4.5, 30))
    )


def test_a_burst_keeps_its_bursts() -> None:
    burst = Burst(base_rps=60, burst_rps=400, burst_s=2, every_s=8, first_s=4)
    assert _arrivals(burst, Cut(((3, 7), (11, 13)))) == Step(((0, 60), (1, 400), (3, 60), (4, 60), (5, 400)))


def test_an_even_rate_stays_what_it_is() -> None:
    for process in (Constant(5), Poisson(5)):
        assert _arrivals(process, Cut(((1, 2), (3, 4)))) == process


def test_faults_windows_and_recovery_move_with_the_time_line() -> None:
    short = cut_short(loaded("kill"), Cut(((7, 11), (15.5, 18))), 1.0)
    _, fault = fault_of(short.spec.faults[0])
    assert isinstance(fault, KillFault)
    assert (fault.at_s, fault.restart_after_s) == (1.0, 3.5)
    window = short.spec.checks[1].window
    assert window is not None
    assert (window.from_s, window.to_s) == (3.0, 4.5)
    recovery = cut_short(loaded("overload"), Cut(((9, 14), (29, 33))), 1.0).spec.checks[3].recovery
    assert recovery is not None
    assert (recovery.after_s, recovery.before_s) == (6.0, 1.0)


def test_a_window_that_is_left_out_is_refused() -> None:
    with pytest.raises(UsageError, match="window"):
        cut_short(loaded("kill"), Cut(((7, 9), (17, 20))), 1.0)


def test_a_row_has_the_rates_and_checks_of_its_scenario() -> None:
    row = row_of("burst")
    offsets = list(takewhile(lambda each: each[0] < 7.5, row.scenario().arrivals[0].offsets("seed")))
    inside = [sum(from_s <= at_s < from_s + 1 for at_s, _ in offsets) for from_s in (0.5, 3.0, 5.5)]
    assert inside == [pytest.approx(rps, rel=0.15) for rps in (400, 800, 1200)]
    assert len(row.scenario().spec.checks) + len(row.not_here()) == len(loaded("burst").spec.checks)
    assert {check.figure for check in row.not_here()} == {"gateway_cpu_us_per_call"}


# --- what the gateway and its Tritons are -----------------------------------------------------------------------------


def test_the_policy_and_the_model_are_those_of_the_scenario() -> None:
    setting = setting_of(loaded("stragglers"))
    policy, spec = setting.policies.models["accel"], setting.spec
    assert (policy.read_only, policy.objective.p99_ms, policy.deadline.max_ms) == (True, 100, 2000)
    assert (spec.s0_s, spec.s1_s, spec.max_batch_size, spec.instances, spec.noise) == (0.008, 0.002, 8, 1, 0.0)
    assert (spec.straggler_share, spec.straggler_factor, spec.max_queue_delay_s) == (0.02, 20.0, 0.001)
    assert [f"cpu/{each}" for each in setting.machines] == list(REPLICAS)


def test_another_model_or_stragglers_of_one_replica_are_refused() -> None:
    with pytest.raises(ValueError, match="not about accel alone"):
        setting_of(loaded("steady"))
    scenario = loaded("stragglers")
    fault = scenario.spec.faults[0]
    assert fault.stragglers is not None
    late = msgspec.structs.replace(fault, stragglers=msgspec.structs.replace(fault.stragglers, at_s=1.0))
    with pytest.raises(ValueError, match="all the time"):
        setting_of(replace(scenario, spec=msgspec.structs.replace(scenario.spec, faults=(late,))))


# --- what must hold in every seed -------------------------------------------------------------------------------------

KILL = row_of("kill").scenario()


def ended(number: int, *, at_s: float = 0.5, took_s: float = 0.01, error: str = "", to: int = 0) -> Ended:
    sent = Attempt(REPLICAS[to], 100.0 + at_s)
    return Ended(number, 0, at_s, took_s, error, "", (sent,))


def played(
    *calls: Ended, executions: tuple[Execution, ...] = (), wrong: tuple[str, ...] = (), made: int | None = None
) -> Played:
    made = max(each.number for each in calls) if made is None else made
    return Played(1, list(calls), made, list(executions), [], 100.0, REPLICAS, list(wrong))


def found(*calls: Ended, executions: tuple[Execution, ...] = (), wrong: tuple[str, ...] = ()) -> str:
    return "\n".join(broken(KILL, played(*calls, executions=executions, wrong=wrong)))


def test_a_sound_run_breaks_nothing() -> None:
    before = Execution(1, "reads/2", 2.4, 0.01, 1)
    assert found(ended(1), ended(2, at_s=2.4, to=1), ended(3, at_s=3.6, to=1), executions=(before,)) == ""


def test_each_thing_that_must_never_happen_is_found() -> None:
    assert "call 1 has ended 2 times" in found(ended(1), ended(1))
    assert list(broken(KILL, played(ended(1), made=2))) == ["call 2 has ended 0 times"]
    assert "1 calls have ended after their deadline: call 1 of 0.500 s" in found(ended(1, took_s=1.01))
    assert "no client sees an error: 1 calls: call 2" in found(ended(1), ended(2, error="code UNAVAILABLE"))
    assert "no wrong answer: 1 calls" in found(ended(1, error="wrong answer"))
    assert "no new call to it after 2 s: 1 attempts on it, the last at 3.100 s" in found(ended(1, at_s=3.1, to=1))
    later = Execution(1, "reads/1", 3.2, 0.01, 1)
    assert "nor does it execute one: 1 executions on it" in found(ended(1), executions=(later,))
    assert "left behind: a timer" in found(ended(1), wrong=("left behind: a timer",))


def test_a_call_of_the_warm_up_counts_for_deadlines_alone() -> None:
    assert found(ended(1, at_s=-0.5, error="code UNAVAILABLE")) == ""
    assert "after their deadline" in found(ended(1, at_s=-0.5, took_s=2.0))


def test_a_check_of_nothing_that_is_not_known_is_no_check_that_holds() -> None:
    strange = msgspec.structs.replace(KILL.spec, checks=(CheckSpec(figure="held", max=0),))
    with pytest.raises(KeyError):
        list(broken(replace(KILL, spec=strange), played(ended(1))))


# --- the sum ----------------------------------------------------------------------------------------------------------


def test_seeds_add_up_whatever_the_order_and_percentiles_are_of_all_together() -> None:
    runs = [
        played(
            *(ended(number, at_s=number / 100, took_s=seed * number / 1e5) for number in range(1, 101)),
            executions=tuple(
                Execution(number % 3, f"reads/{number}", number / 100, 0.01, 1) for number in range(1, 101)
            ),
        )
        for seed in (1, 2, 3)
    ]
    together, first, second = Pooled.of(KILL), Pooled.of(KILL), Pooled.of(KILL)
    for run in runs:
        together.add(run)
    second.add(runs[2])
    first.add(runs[1])
    first.add(runs[0])
    first.merge(second)
    assert first.figures() == together.figures()
    assert first.rows() == together.rows()
    figures = together.figures()
    assert (figures["offered"], figures["executed_calls"], figures["attempts_per_call"]) == (300, 300, 1.0)
    assert figures["p50_ms"] == pytest.approx(0.82, rel=0.01)
    assert figures["max_ms"] == 3.0
    assert figures["replicas"]["replica-1"]["execution_share"] == pytest.approx(1 / 3, abs=0.01)


def test_extra_executions_and_expired_work_are_shares_of_the_whole() -> None:
    pooled = Pooled.of(KILL)
    twice = (Execution(0, "reads/1", 0.6, 0.03, 1), Execution(2, "reads/1", 0.7, 0.01, 1))
    too_late = Execution(0, "reads/2", 1.6, 0.02, 2)
    pooled.add(played(ended(1), ended(2), executions=(*twice, too_late)))
    figures = pooled.figures()
    assert figures["extra_execution_share"] == 0.5
    assert figures["expired_work_share"] == pytest.approx(0.01 / 0.05)


def test_recovery_is_when_the_p99_of_all_calls_is_back_and_a_call_that_failed_counts_as_one_that_never_ends() -> None:
    def recovery_s(*late: Ended) -> float | None:
        pooled = Pooled.of(KILL)
        calm = [ended(number, at_s=(number + 0.5) * 0.01) for number in range(round(KILL.spec.duration_s * 100))]
        pooled.add(played(*calm, *late))
        return pooled.recovery_s(Recovery(after_s=1.0, times=1.2, before_s=0.5))

    assert recovery_s() == 0.0
    assert recovery_s(ended(9001, at_s=1.3, took_s=0.5)) == 0.5
    assert recovery_s(ended(9001, at_s=2.1, error="code UNAVAILABLE")) == 1.25
    assert recovery_s(ended(9001, at_s=KILL.spec.duration_s - 0.1, error="code UNAVAILABLE")) is None
    assert recovery_s(ended(9001, at_s=-0.1, error="code UNAVAILABLE")) == 0.0


def test_one_failure_in_a_thousand_does_not_keep_a_p99_from_being_back() -> None:
    pooled, calls = Pooled.of(KILL), round(KILL.spec.duration_s * 100)
    for _ in range(20):
        pooled.add(played(*(ended(number, at_s=(number + 0.5) * 0.01) for number in range(calls))))
    pooled.add(played(ended(9001, at_s=2.1, error="code UNAVAILABLE")))
    assert pooled.recovery_s(Recovery(after_s=1.0, p99_ms=12.0)) == 0.0
    assert pooled.recovery_s(Recovery(after_s=1.0, p99_ms=9.0)) is None
