"""Medians with their spread, slopes, the three verdicts, and that CPU is counted for all threads."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from load import accounting
from load.verdict import Limit, Verdict, judge, judge_why, passed, slope, spread, unchanged, worst

LOW, HIGH = Limit(1.0), Limit(1.0, at_most=False)


@pytest.mark.parametrize(
    ("limit", "values", "disturbed", "verdict"),
    [
        (LOW, [0.9, 0.95, 0.92], 0, "pass"),
        (LOW, [1.0, 1.0, 1.0], 0, "pass"),
        (LOW, [1.1, 1.2, 1.3, 1.1], 0, "fail"),
        (LOW, [0.97, 0.98, 1.01, 1.02, 1.03], 0, "inconclusive"),
        (HIGH, [1.2, 1.1, 1.15], 0, "pass"),
        (HIGH, [0.5, 0.6, 0.7], 0, "fail"),
        (HIGH, [0.5, 0.6, 0.7], 1, "fail"),
        (HIGH, [0.5, 0.6, 0.7], 2, "inconclusive"),
        (LOW, [0.5, 0.7], 0, "inconclusive"),
        (LOW, [], 0, "inconclusive"),
    ],
)
def test_a_limit_is_missed_only_when_it_is_clear(
    limit: Limit, values: list[float], disturbed: int, verdict: str
) -> None:
    assert judge(values, limit, rounds_min=3, disturbed=disturbed) == verdict


def test_rounds_that_disagree_prove_nothing_unless_the_whole_interval_is_on_one_side() -> None:
    wild = [0.4, 0.9, 1.6, 0.5, 1.7, 0.8, 0.6]
    assert spread(wild).disagree
    assert judge(wild, Limit(1.0), rounds_min=7) == "inconclusive"
    assert judge(wild, Limit(2.0), rounds_min=7) == "pass"
    assert judge(wild, Limit(0.3), rounds_min=7) == "fail"


def test_unchanged_takes_five_pairs_and_ten_per_cent() -> None:
    assert unchanged([1.09] * 5) == ("pass", "")
    assert unchanged([1.12] * 5) == ("fail", "")
    assert unchanged([1.0] * 4) == ("inconclusive", "4 pairs have it; 5 are needed")


@pytest.mark.parametrize(
    ("values", "disturbed", "said"),
    [
        ([], 0, "0 rounds have it; 3 are needed"),
        ([0.5, 0.6, 0.7], 2, "more than half of the rounds were disturbed by other work"),
        ([0.4, 0.9, 1.6], 0, "the rounds disagree, with the limit between them: 0.40 to 1.60"),
        ([0.97, 0.98, 1.01, 1.02, 1.03], 0, "too near the limit: only 3 of 5 rounds miss it, and 75% make a failure"),
    ],
)
def test_what_is_inconclusive_says_why(values: list[float], disturbed: int, said: str) -> None:
    assert judge_why(values, LOW, rounds_min=3, disturbed=disturbed) == ("inconclusive", said)


def test_a_check_that_measures_no_change_seldom_fails_by_noise() -> None:
    """The point of the third verdict: with rounds that scatter by 5 % around no change, a failure is rare."""
    dice = random.Random(7)
    found = [judge([dice.gauss(1.0, 0.05) for _ in range(7)], Limit(1.0), rounds_min=7) for _ in range(300)]
    assert found.count("fail") <= 0.1 * len(found)
    worse = [judge([dice.gauss(1.3, 0.05) for _ in range(7)], Limit(1.0), rounds_min=7) for _ in range(300)]
    assert worse.count("fail") >= 0.99 * len(worse)


def test_the_spread_of_the_same_values_is_the_same_and_holds_the_median() -> None:
    dice = random.Random(3)
    values = [dice.lognormvariate(0, 0.3) for _ in range(9)]
    first = spread(values)
    assert first == spread(list(values))
    assert min(values) <= first.low <= first.median <= first.high <= max(values)
    assert spread([2.0]) == spread([2.0, 2.0, 2.0])
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_the_interval_of_the_median_holds_the_true_one_about_as_often_as_it_says() -> None:
    dice = random.Random(11)
    held = 0
    for _ in range(200):
        found = spread([dice.gauss(10.0, 1.0) for _ in range(9)])
        held += found.low <= 10.0 <= found.high
    assert held >= 0.85 * 200


def test_outliers_do_not_move_a_slope() -> None:
    points = [(float(x), 3.0 * x + 5.0) for x in range(20)]
    assert slope(points).per_x == pytest.approx(3.0)
    spoiled = [(x, 1e6 if x % 5 == 0 else y) for x, y in points]
    assert slope(spoiled).per_x == pytest.approx(3.0)


def test_noise_around_a_flat_line_has_an_interval_that_holds_zero_and_growth_does_not() -> None:
    dice = random.Random(5)
    flat = slope([(float(x), 100.0 + dice.gauss(0, 1)) for x in range(60)])
    assert flat.low < 0 < flat.high
    growing = slope([(float(x), 100.0 + 0.2 * x + dice.gauss(0, 1)) for x in range(60)])
    assert 0 < growing.low < 0.2 < growing.high


def test_a_slope_needs_two_instants() -> None:
    with pytest.raises(ValueError, match="two different"):
        slope([(1.0, 2.0), (1.0, 3.0)])


def test_one_failure_fails_all_and_else_one_open_question_leaves_all_open() -> None:
    fine: list[Verdict] = ["pass", "pass"]
    assert worst(fine) == "pass"
    assert worst([*fine, "inconclusive"]) == "inconclusive"
    assert worst([*fine, "inconclusive", "fail"]) == "fail"
    assert [passed(verdict) for verdict in (*fine, "fail", "inconclusive")] == [True, True, False, None]


BURNER = """
import sys, threading, time

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
ended = threading.Thread(target=burn, args=(0.2,))
ended.start()
ended.join()
def live():
    burn(0.2)
    print("burnt", flush=True)
    sys.stdin.read()
threading.Thread(target=live).start()
"""


def test_the_cpu_of_a_process_includes_its_threads_those_that_have_ended_too() -> None:
    child = subprocess.Popen([sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"
        ticks = os.sysconf("SC_CLK_TCK")
        used_s = accounting.cpu_s(child.pid)
        with open(f"/proc/{child.pid}/stat", encoding="ascii") as file:
            user, system = map(int, file.read().rpartition(") ")[2].split()[11:13])
        assert used_s >= 0.4
        assert abs(used_s - (user + system) / ticks) < 0.1
    finally:
        child.kill()
        child.communicate()
