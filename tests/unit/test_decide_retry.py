"""Which failed attempts are tried again: each reason against it alone, what always holds of a yes, and what it adds up
to when everything fails (field cases FH-08 and FH-11: one try elsewhere at most, and no wave).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.outcome import TEACHINGS, Outcome
from gateway.decide.attempt_budget import AttemptBudget, DownAllowance
from gateway.decide.quarantine import Quarantine
from gateway.decide.retry import RetrySettings, RetryView, RetryWord, backoff_s, retry_verdict

FAILED = RetryView(
    elsewhere=True,
    answered=False,
    sent=True,
    read_only=True,
    replayable=True,
    stateful=False,
    decoupled=False,
    tried=("a",),
    target="b",
    remaining_s=1.0,
    delay_s=0.005,
    p50_s=0.02,
)
"""A first attempt that may be tried again."""

TABLE: list[tuple[dict[str, Any], RetryWord]] = [
    ({}, "retry"),
    ({"answered": True}, "answered"),
    ({"elsewhere": False}, "final"),
    ({"deaths": 1}, "retry"),
    ({"deaths": 2}, "quarantined"),
    ({"deaths": 2, "died": True, "read_only": False}, "quarantined"),
    ({"stateful": True}, "stateful"),
    ({"stateful": True, "sent": False}, "stateful"),
    ({"decoupled": True}, "decoupled"),
    ({"decoupled": True, "sent": False}, "decoupled"),
    ({"replayable": False}, "not_replayable"),
    ({"replayable": False, "sent": False}, "not_replayable"),
    ({"read_only": False}, "not_read_only"),
    ({"read_only": False, "died": True}, "not_read_only"),
    ({"read_only": False, "sent": False}, "retry"),
    ({"rival_out": True, "tried": ("a", "c")}, "rival_out"),
    ({"rival_out": True, "tried": ("a", "c"), "died": True}, "rival_out"),
    ({"tried": ("a", "c")}, "attempts"),
    ({"tried": ("a", "c"), "sent": False}, "attempts"),
    ({"resent": True, "tried": ("a", "c")}, "attempts"),
    ({"died": True, "deaths": 1}, "retry"),
    ({"died": True, "deaths": 1, "tried": ("a", "c")}, "retry"),
    ({"died": True, "resent": True, "tried": ("a", "c")}, "resent"),
    ({"pushback_s": -1.0}, "pushback"),
    ({"pushback_s": float("nan")}, "pushback"),
    ({"pushback_s": 0.0}, "retry"),
    ({"pushback_s": 0.9}, "retry"),
    ({"pushback_s": 0.99}, "deadline"),
    ({"pushback_s": float("inf"), "remaining_s": float("inf")}, "deadline"),
    ({"target": ""}, "no_replica"),
    ({"target": "", "died": True}, "no_replica"),
    ({"target": "a"}, "same_replica"),
    ({"target": "c", "died": True, "tried": ("c", "a")}, "same_replica"),
    ({"remaining_s": 0.025}, "deadline"),
    ({"remaining_s": 0.0251}, "retry"),
    ({"remaining_s": 0.025, "died": True}, "deadline"),
    ({"remaining_s": 0.006, "p50_s": 0.0}, "retry"),
    ({"remaining_s": -1.0, "p50_s": 0.0, "delay_s": 0.0}, "deadline"),
    ({"remaining_s": float("inf")}, "retry"),
    ({"p50_s": float("nan")}, "deadline"),
    ({"remaining_s": float("nan")}, "deadline"),
]


@pytest.mark.parametrize(("change", "word"), TABLE, ids=str)
def test_the_verdict_on(change: dict[str, Any], word: RetryWord) -> None:
    assert retry_verdict(FAILED._replace(**change)) == word


def test_the_table_has_every_word() -> None:
    assert {word for _, word in TABLE} == set(get_args(RetryWord))


@pytest.mark.parametrize("outcome", Outcome)
def test_only_outcomes_that_another_replica_may_better_are_tried_again(outcome: Outcome) -> None:
    verdict = retry_verdict(FAILED._replace(elsewhere=TEACHINGS[outcome].elsewhere))
    again = {Outcome.OVERLOAD, Outcome.NOT_LOADED, Outcome.BROKEN, Outcome.TRANSPORT}
    assert verdict == ("retry" if outcome in again else "final")


def test_where_retries_are_off_only_what_died_with_its_replica_is_sent_again() -> None:
    off = RetrySettings(retries_max=0)
    assert retry_verdict(FAILED, off) == "attempts"
    assert retry_verdict(FAILED._replace(died=True, deaths=1), off) == "retry"


def test_the_wait_is_the_back_off_or_the_pushback_where_that_is_longer() -> None:
    assert FAILED.wait_s == 0.005
    assert FAILED._replace(pushback_s=0.001).wait_s == 0.005
    assert FAILED._replace(pushback_s=0.3).wait_s == 0.3
    assert FAILED._replace(pushback_s=-1.0).wait_s == 0.005


times = st.floats(-1, 3) | st.sampled_from([0.0, float("inf"), float("nan")])
views = st.builds(
    RetryView,
    elsewhere=st.just(True) | st.booleans(),
    answered=st.just(False) | st.booleans(),
    sent=st.booleans(),
    read_only=st.booleans(),
    replayable=st.just(True) | st.booleans(),
    stateful=st.just(False) | st.booleans(),
    decoupled=st.just(False) | st.booleans(),
    tried=st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map(tuple),
    target=st.sampled_from(["", "a", "b", "c", "d", "e"]),
    remaining_s=times,
    delay_s=st.floats(0, 0.2),
    p50_s=st.floats(0, 1) | st.sampled_from([0.0, float("nan")]),
    pushback_s=st.none() | times,
    rival_out=st.just(False) | st.booleans(),
    died=st.booleans(),
    resent=st.booleans(),
    deaths=st.integers(0, 3),
)


@settings(deadline=None)
@given(views)
def test_a_yes_is_safe_whatever_else_is_so(view: RetryView) -> None:
    word = retry_verdict(view)
    assert word in get_args(RetryWord)
    if word != "retry":
        return
    assert view.elsewhere
    assert not view.answered
    assert view.replayable
    assert view.read_only or not view.sent
    assert not view.stateful
    assert not view.decoupled
    assert not view.rival_out
    assert view.deaths < 2
    assert not (view.died and view.resent)
    assert view.died or len(view.tried) == 1
    assert view.target
    assert view.target not in view.tried
    assert view.remaining_s > view.delay_s + view.p50_s
    assert view.pushback_s is None or 0 <= view.pushback_s < view.remaining_s
    assert retry_verdict(view._replace(remaining_s=view.remaining_s + 1)) == "retry"
    assert retry_verdict(view._replace(target="z")) == "retry"


def test_the_back_off_is_full_jitter_from_ten_milliseconds_doubling_to_two_hundred() -> None:
    chance = random.Random(3)
    for number, most_s in ((1, 0.010), (2, 0.020), (3, 0.040), (5, 0.160), (6, 0.200), (10**9, 0.200)):
        waits = [backoff_s(number, chance) for _ in range(2000)]
        assert 0 <= min(waits) < 0.01 * most_s
        assert 0.99 * most_s < max(waits) < most_s
        assert sum(waits) / len(waits) == pytest.approx(most_s / 2, rel=0.05)


def test_where_nothing_was_sent_there_is_no_wait_and_no_draw() -> None:
    chance = random.Random(3)
    state = chance.getstate()
    assert backoff_s(1, chance, sent=False) == 0.0
    assert chance.getstate() == state


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries_max": -1},
        {"retries_max": 2},
        {"backoff_base_s": -0.001},
        {"backoff_base_s": 0.3},
        {"backoff_base_s": float("nan")},
        {"backoff_cap_s": float("inf")},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetrySettings(**wrong)  # type: ignore[arg-type]


def test_with_every_replica_failing_no_call_is_tried_more_than_twice_and_sends_are_at_most_a_tenth_more() -> None:
    """The stress table's `all-down`: 5,000 calls, each attempt of which finds its replica's queue full."""
    chance, budget = random.Random(11), AttemptBudget(20)
    replicas, sends, words = ("a", "b", "c"), list[int](), Counter[str]()
    for _ in range(5000):
        tried = [chance.choice(replicas)]
        budget.primary()
        while True:
            target = next((replica for replica in replicas if replica not in tried), "")
            view = FAILED._replace(tried=tuple(tried), target=target, delay_s=backoff_s(len(tried), chance))
            word: str = retry_verdict(view)
            if word == "retry" and (paid := budget.retry()) != "granted":
                word = paid
            words[word] += 1
            if word != "retry":
                break
            tried.append(target)
        assert len(tried) <= 2
        sends.append(len(tried))
    assert max(sum(sends[start : start + 1000]) for start in range(4001)) <= 1100
    assert sum(sends) >= 5490, "the budget is used"
    assert words["retry"] == words["attempts"], "each retry failed too, and was the last"


class _Pool:
    """Four replicas with four slots each; calls are out until a replica dies, then what was lost goes elsewhere."""

    SLOTS = 4

    def __init__(self) -> None:
        self.out: dict[str, list[_Call]] = {name: [] for name in "abcd"}
        self.allowance, self.quarantine, self.ends = DownAllowance(), Quarantine(), Counter[str]()

    def kill(self, replica: str, now_s: float) -> None:
        lost = self.out.pop(replica)
        self.allowance.open(replica, self.SLOTS, now_s)
        for call in lost:
            call.tried.append(replica)
            free = [name for name, calls in self.out.items() if len(calls) < self.SLOTS and name not in call.tried]
            view = FAILED._replace(
                tried=tuple(call.tried),
                target=min(free, default=""),
                died=True,
                resent=call.resent,
                deaths=self.quarantine.note_death(call.digest, replica, now_s),
            )
            word: str = retry_verdict(view)
            if word == "retry" and not self.allowance.take(replica, now_s):
                word = "no_allowance"
            if word == "retry":
                call.resent = True
                self.out[view.target].append(call)
            else:
                self.ends[word] += 1


class _Call:
    def __init__(self, digest: bytes) -> None:
        self.digest, self.resent, self.tried = digest, False, list[str]()


def test_what_a_dead_replica_had_is_sent_again_once_and_a_second_death_ends_it() -> None:
    pool = _Pool()
    pool.out["a"] = [_Call(bytes([number])) for number in range(1, 5)]
    pool.kill("a", 10.0)
    assert [len(calls) for calls in pool.out.values()] == [4, 0, 0], "all four, on the one that is offered"
    assert not pool.ends
    pool.kill("b", 10.5)
    assert pool.ends == {"quarantined": 4}
    assert [len(calls) for calls in pool.out.values()] == [0, 0]


def test_one_input_that_kills_takes_two_replicas_and_not_the_pool() -> None:
    """It is sent again after the first death; afterwards nobody's call with it is sent at all."""
    for victim in "abcd":
        pool, now_s = _Pool(), 10.0
        for _ in range(20):
            now_s += 0.1
            if pool.quarantine.blocked(b"poison", now_s) is None:
                pool.out[victim].append(_Call(b"poison"))
            while killer := next((name for name, calls in pool.out.items() if calls), None):
                pool.kill(killer, now_s)
        assert len(pool.out) == 2
        assert pool.ends == {"quarantined": 1}
