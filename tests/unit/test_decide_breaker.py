"""The breaker: what opens it, for how long, what closes it, and what does not count."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from gateway.core.outcome import Verdict
from gateway.decide.breaker import Breaker, BreakerSettings, Move, Probe

S, F, N = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL
WORDS = {"S": S, "F": F, "N": N}


class Drawn:
    """Chance that always draws the same."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


def breaker(now_s: float = 0.0, chance: float = 0.0, **changes: Any) -> Breaker:
    return Breaker(BreakerSettings(**changes), Drawn(chance), now_s)


def tell(subject: Breaker, verdicts: str, now_s: float, duration_s: float = 0.0) -> list[str]:
    """Note one call after the other; returns why the breaker moved."""
    moves = [subject.note(WORDS[each], duration_s, now_s) for each in verdicts]
    return [move.why for move in moves if move is not None]


def state(subject: Breaker) -> str:
    """Asked anew each time: a type checker would believe the last answer for ever."""
    return subject.state


def opened(now_s: float = 0.0, chance: float = 0.0, **changes: Any) -> Breaker:
    """Open since `now_s`."""
    subject = breaker(now_s, chance, **changes)
    tell(subject, "F" * 5, now_s)
    assert subject.state == "open"
    return subject


def half_open(chance: float = 0.0, **changes: Any) -> Breaker:
    """Half open since 1.0."""
    subject = opened(0.0, chance, **changes)
    assert subject.half_open(1.0) is not None
    return subject


def probe(subject: Breaker, verdict: Verdict, now_s: float, duration_s: float = 0.0) -> Move | None:
    permit = subject.begin(now_s)
    assert permit is not None
    return subject.note(verdict, duration_s, now_s, permit)


# --- what opens it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "moved"),
    [
        ("FFFF", []),
        ("FFFFF", ["failures_in_row"]),
        ("FFFFSFFFF", []),  # nine calls are too few for a share
        ("FFFFNFNN", ["failures_in_row"]),
        ("NNNNNNNNNNNN", []),
        ("SSSSSSSSFF", []),  # 80 % is enough
        ("SSSSSSSFFF", ["success_rate"]),
        ("FFSSFFSSF", []),  # 44 % of nine
        ("FFSSFFSSSF", ["success_rate"]),
        ("FFFFSSSSSS", []),  # 60 % of ten, but the last one was good
        ("FFFFSSSSSSF", ["success_rate"]),
        ("FSSSFNNNNNNNSSSFSN", []),  # neutral ones do not fill the ten
    ],
)
def test_failures_open_it_in_a_row_or_by_their_share(verdicts: str, moved: list[str]) -> None:
    subject = breaker()
    assert tell(subject, verdicts, 100.0) == moved
    assert subject.state == ("open" if moved else "closed")


@pytest.mark.parametrize(("later_s", "moved"), [(9.99, ["success_rate"]), (10.0, [])])
def test_the_ring_forgets_what_is_ten_seconds_old(later_s: float, moved: list[str]) -> None:
    subject = breaker()
    tell(subject, "FFF", 100.5)
    assert tell(subject, "S" * 9 + "F", 100.0 + later_s) == moved


def test_the_ring_forgets_bucket_by_bucket_and_after_any_gap() -> None:
    def counts(now_s: float) -> tuple[int, int, int]:
        figures = subject.statistics(now_s)
        return figures["calls"], figures["failures"], figures["slow"]

    subject = breaker(success_min=0.0, slow_max=1.0)
    subject.expect(0.1)
    for second in range(10):
        tell(subject, "SFS", 100.0 + second)
        tell(subject, "S", 100.0 + second, 0.6)
    assert counts(109.0) == (40, 10, 10)
    assert counts(112.5) == (28, 7, 7), "reading counts what is still in the ring"
    tell(subject, "S", 113.0)
    assert counts(113.0) == (25, 6, 6)
    tell(subject, "F", 1e9)
    assert counts(1e9) == (1, 1, 0)
    assert counts(2e9) == (0, 0, 0)


def test_slow_calls_leave_the_ring_as_failures_do() -> None:
    subject = breaker()
    subject.expect(0.1)
    tell(subject, "S" * 9, 100.0, 0.6)
    tell(subject, "S" * 5, 110.0)
    assert tell(subject, "S" * 5, 110.0, 0.6) == []
    assert tell(subject, "S", 110.0, 0.6) == ["slow_rate"]


@pytest.mark.parametrize(
    ("durations_s", "median_s", "moved"),
    [
        ([0.1] * 4 + [0.6] * 6, 0.1, ["slow_rate"]),
        ([0.1] * 5 + [0.6] * 5, 0.1, []),  # half is allowed
        ([0.6] * 9, 0.1, []),  # too few
        ([0.5] * 20, 0.1, []),  # five times the median is not more than five times
        ([9.0] * 20, None, []),
        ([9.0] * 20, 0.0, []),
        ([9.0] * 20, math.nan, []),
        ([9.0] * 20, math.inf, []),
        ([9.0] * 20, -1.0, []),
        ([0.009] * 20, 0.001, []),  # below the floor
        ([0.011] * 10, 0.001, ["slow_rate"]),
    ],
)
def test_slow_calls_open_it_by_their_share(durations_s: list[float], median_s: float | None, moved: list[str]) -> None:
    subject = breaker()
    subject.expect(median_s)
    moves = [subject.note(S, duration_s, 100.0) for duration_s in durations_s]
    assert [move.why for move in moves if move is not None] == moved


def test_what_counts_in_the_share_only_is_no_part_of_the_row() -> None:
    subject = breaker()
    moves = [subject.note(F, 0.0, 100.0, ratio_only=True) for _ in range(10)]
    assert moves[:9] == [None] * 9
    assert moves[9] is not None
    assert moves[9].why == "success_rate"
    subject = breaker()
    tell(subject, "FFFF", 100.0)
    subject.note(F, 0.0, 100.0, ratio_only=True)
    assert subject.state == "closed"
    assert tell(subject, "F", 100.0) == ["failures_in_row"], "it does not interrupt the row either"


def test_calls_that_began_before_the_last_move_do_not_count() -> None:
    subject = breaker(100.0)
    tell(subject, "F" * 20, 101.0, 1.5)
    assert state(subject) == "closed", "they began before this breaker did"
    subject = half_open()
    tell(subject, "S" * 20, 1.5, 1.0)
    assert state(subject) == "half_open", "they were sent while it was still open"
    for _ in range(3):
        probe(subject, S, 2.0)
    assert state(subject) == "closed"
    tell(subject, "F" * 20, 2.5, 1.0)
    assert state(subject) == "closed"
    assert tell(subject, "F" * 5, 2.5, 0.5) == ["failures_in_row"], "they began at the very moment"


def test_a_call_of_much_work_may_take_longer_and_still_begins_when_it_began() -> None:
    subject = breaker(100.0)
    subject.expect(0.1)
    assert [subject.note(S, 4.0, 110.0, work=8.0) for _ in range(20)] == [None] * 20, "five times 0.1 for each unit"
    assert tell(subject, "F" * 20, 101.0, 1.5) == [], "they began before this breaker did"
    for work in (1.0, 0.5, math.nan):
        subject = breaker()
        subject.expect(0.1)
        moves = [subject.note(S, 0.6, 100.0, work=work) for _ in range(10)]
        assert moves[-1] is not None, work
    subject = breaker()
    subject.expect(0.1)
    moves = [subject.note(S, 4.1, 100.0, work=8.0) for _ in range(10)]
    assert moves[-1] is not None
    assert moves[-1].why == "slow_rate"


def test_a_probe_of_much_work_has_more_time_and_may_take_longer() -> None:
    subject = half_open()
    subject.expect(4.0)
    permit = subject.begin(1.0, 8.0)
    assert permit is not None
    assert permit.until_s == 161.0
    assert subject.note(S, 150.0, 151.0, permit, work=8.0) is None
    permit = subject.begin(151.0, 0.1)
    assert permit is not None
    assert permit.until_s == 171.0
    for work in (math.inf, math.nan, 8.0):
        subject = half_open()
        permit = subject.begin(1.0, work)
        assert permit is not None
        assert permit.until_s == 11.0, "without a median there is nothing to multiply"


def test_figures_of_an_earlier_instant_count_nothing_twice() -> None:
    subject = breaker()
    tell(subject, "SSF", 100.5)
    for now_s in (100.5, 90.0, 3.0):
        figures = subject.statistics(now_s)
        assert (figures["calls"], figures["failures"]) == (3, 1)


# --- pauses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999999])
def test_a_replica_that_fails_each_time_it_returns_waits_longer_each_time(chance: float) -> None:
    subject, now_s, pauses_s = opened(chance=chance), 0.0, []
    for _ in range(10):
        pauses_s.append(subject.pause_s)
        assert subject.half_open(subject.retry_s - 0.001) is None
        now_s = subject.retry_s
        assert subject.half_open(now_s) is not None
        move = probe(subject, F, now_s)
        assert move == Move(now_s, "half_open", "open", "probe_failed", subject.pause_s)
    bases_s = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert pauses_s == pytest.approx([base_s * (1 + chance) / 2 for base_s in bases_s])


def test_pauses_are_drawn_from_their_upper_half() -> None:
    chance = random.Random(5)
    pauses_s = []
    for _ in range(500):
        subject = Breaker(BreakerSettings(), chance, 0.0)
        tell(subject, "F" * 5, 0.0)
        pauses_s.append(subject.pause_s)
    assert 0.5 <= min(pauses_s) < 0.52
    assert 0.98 < max(pauses_s) <= 1.0


@pytest.mark.parametrize(("closed_s", "pause_s"), [(0.0, 4.0), (59.9, 4.0), (60.0, 1.0)])
def test_offences_are_forgiven_after_a_minute_in_the_state_closed(closed_s: float, pause_s: float) -> None:
    subject = opened(chance=1.0)
    now_s = 0.0
    for verdicts in ("F", "SSS"):
        now_s = subject.retry_s
        subject.half_open(now_s)
        for verdict in verdicts:
            probe(subject, WORDS[verdict], now_s)
    assert subject.state == "closed"
    tell(subject, "F" * 5, now_s + closed_s)
    assert subject.pause_s == pause_s


# --- half open --------------------------------------------------------------------------------------------------------


def test_one_probe_at_a_time_and_three_good_ones_close_it() -> None:
    subject = half_open()
    for number in range(3):
        permit = subject.begin(1.0)
        assert permit is not None
        assert subject.begin(1.0) is None
        move = subject.note(S, 0.0, 1.0, permit)
        assert (move is None) == (number < 2)
    assert move == Move(1.0, "half_open", "closed", "probes_good", 0.0)
    assert subject.begin(1.0) is None, "a closed breaker has no permits"


def test_neither_closed_nor_open_gives_permits() -> None:
    assert breaker().begin(0.0) is None
    assert opened().begin(0.9) is None


def test_good_probes_before_a_bad_one_are_forgotten() -> None:
    subject = half_open()
    probe(subject, S, 1.0)
    probe(subject, S, 1.0)
    probe(subject, F, 1.0)
    subject.half_open(9.0)
    assert probe(subject, S, 9.0) is None
    assert probe(subject, S, 9.0) is None
    assert probe(subject, S, 9.0) is not None


def test_a_cancelled_probe_gives_its_permit_back_without_a_verdict() -> None:
    subject = half_open()
    for _ in range(5):
        assert probe(subject, N, 1.0) is None
    assert subject.state == "half_open"
    assert [probe(subject, verdict, 1.0) is None for verdict in (S, N, S, N, S)] == [True] * 4 + [False]


def test_a_slow_probe_is_a_bad_one() -> None:
    subject = half_open()
    subject.expect(0.1)
    move = probe(subject, S, 2.0, 0.6)
    assert move is not None
    assert (move.after, move.why) == ("open", "probe_slow")


def test_a_probe_that_never_reports_back_is_a_failed_one() -> None:
    subject = half_open()
    permit = subject.begin(1.0)
    assert permit is not None
    assert subject.lose_probe(10.999) is None
    move = subject.lose_probe(11.0)
    assert move == Move(11.0, "half_open", "open", "probe_expired", subject.pause_s)
    subject.half_open(20.0)
    assert subject.note(F, 19.0, 20.0, permit) is None, "its late report says nothing any more"
    following = subject.begin(20.0)
    assert subject.note(F, 19.0, 20.0, permit) is None
    assert subject.probe is following, "and does not give back the permit of another"


def test_a_report_at_its_time_limit_is_too_late_even_if_nobody_looked() -> None:
    subject = half_open()
    permit = subject.begin(1.0)
    move = subject.note(S, 10.0, 11.0, permit)
    assert move is not None
    assert (move.after, move.why) == ("open", "probe_expired")


def test_a_probe_has_time_for_the_calls_of_a_slow_model() -> None:
    subject = half_open()
    subject.expect(20.0)
    permit = subject.begin(1.0)
    assert permit is not None
    assert permit.until_s == 101.0


def test_calls_that_are_no_probes_neither_close_nor_reopen_it_by_themselves() -> None:
    subject = half_open()
    tell(subject, "SSSSSSSSS" + "FFFFFFFF" + "SSSSSSSSS", 2.0)
    assert subject.state == "half_open"


# --- a replica that had to stay in use --------------------------------------------------------------------------------


@pytest.mark.parametrize("pause_over", [False, True])
def test_ten_good_calls_in_a_row_close_it_where_it_stayed_in_use(pause_over: bool) -> None:
    subject = half_open() if pause_over else opened()
    before = subject.state
    assert tell(subject, "SSSSSSSSSF" + "SSSSSNSSSS", 1.0) == []
    move = subject.note(S, 0.0, 1.0)
    assert move == Move(1.0, before, "closed", "traffic_good", 0.0)


def test_good_calls_before_a_failed_probe_do_not_count_after_it() -> None:
    subject = half_open()
    tell(subject, "S" * 9, 1.0)
    probe(subject, F, 1.0)
    assert tell(subject, "S" * 9, 1.0) == []
    assert tell(subject, "S", 1.0) == ["traffic_good"]


def test_waiting_half_open_for_long_is_no_good_behaviour() -> None:
    subject = half_open(chance=1.0)
    probe(subject, F, 100.0)
    assert subject.pause_s == 2.0
    assert subject.opened_s == 0.0, "it has been bad since"


def test_slow_calls_do_not_close_it() -> None:
    subject = opened()
    subject.expect(0.1)
    assert tell(subject, "S" * 20, 5.0, 0.6) == []
    assert tell(subject, "S" * 10, 5.0, 0.1) == ["traffic_good"]


# --- afterwards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "weight"), [(0.0, 0.1), (0.9, 0.1), (2.5, 0.25), (5.0, 0.5), (10.0, 1.0), (99, 1)])
def test_after_closing_its_weight_grows_over_ten_seconds(after_s: float, weight: float) -> None:
    subject = half_open()
    for _ in range(3):
        probe(subject, S, 5.0)
    assert subject.weight(5.0 + after_s) == pytest.approx(weight)


def test_slow_start_can_be_turned_off_and_a_new_breaker_has_none() -> None:
    subject = half_open(slow_start_s=0.0)
    for _ in range(3):
        probe(subject, S, 5.0)
    assert subject.weight(5.0) == 1.0
    assert breaker(5.0).weight(5.0) == 1.0


def test_an_instant_that_seems_to_lie_before_the_start_of_slow_start_has_a_weight_as_well() -> None:
    for slow_start_s, weight in ((0.0, 1.0), (10.0, 0.1)):
        subject = half_open(slow_start_s=slow_start_s)
        for _ in range(3):
            probe(subject, S, 5.0)
        assert subject.weight(4.9) == weight
    assert breaker(5.0).weight(4.9) == 1.0, "a new one has no slow start"


def test_closing_forgets_the_failures_before() -> None:
    subject = half_open()
    for _ in range(3):
        probe(subject, S, 1.0)
    assert tell(subject, "FFFFSSSSS", 1.0) == []


def test_a_new_server_starts_closed_and_slowly_but_offences_are_remembered() -> None:
    subject = opened(chance=1.0)
    assert subject.restart(0.5) == Move(0.5, "open", "closed", "restarted", 0.0)
    assert subject.weight(0.5) == 0.1
    tell(subject, "F" * 5, 1.0)
    assert subject.pause_s == 2.0
    subject = breaker()
    tell(subject, "FFFF", 1.0)
    assert subject.restart(1.0) is None
    assert tell(subject, "F", 1.0) == []
    assert subject.weight(1.0) == 0.1


def test_relenting_shortens_the_pause_and_never_lengthens_it() -> None:
    subject = opened(chance=1.0)
    subject.relent(0.9)
    assert subject.retry_s == 1.0, "it was to end sooner anyway"
    for _ in range(5):
        subject.half_open(subject.retry_s)
        probe(subject, F, subject.retry_s)
    began_s = subject.changed_s
    assert subject.retry_s == began_s + 32.0
    subject.relent(began_s + 3.0)
    assert subject.half_open(began_s + 3.9) is None
    assert subject.half_open(began_s + 4.0) is not None
    probe(subject, F, began_s + 4.0)
    assert subject.pause_s == 2.0
    subject = breaker()
    subject.relent(0.0)
    assert subject.state == "closed"


@pytest.mark.parametrize(
    "changes",
    [
        {"failures_in_row": 0},
        {"requests_min": 0},
        {"buckets": 0},
        {"probes_to_close": 0},
        {"success_min": 1.1},
        {"slow_max": -0.1},
        {"slow_factor": 0.0},
        {"slow_outlier": 0.0},
        {"bucket_s": math.nan},
        {"open_s": 0.0},
        {"open_max_s": math.inf},
        {"open_s": 2.0, "open_max_s": 1.0},
        {"weight_min": 0.0},
        {"weight_min": 2.0},
        {"probe_s": -1.0},
        {"slow_start_s": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        BreakerSettings(**changes)


# --- against a simple-minded twin -------------------------------------------------------------------------------------

MOVES = {
    ("closed", "failures_in_row"): "open",
    ("closed", "success_rate"): "open",
    ("closed", "slow_rate"): "open",
    ("open", "pause_over"): "half_open",
    ("open", "traffic_good"): "closed",
    ("open", "restarted"): "closed",
    ("half_open", "probe_failed"): "open",
    ("half_open", "probe_slow"): "open",
    ("half_open", "probe_expired"): "open",
    ("half_open", "probes_good"): "closed",
    ("half_open", "traffic_good"): "closed",
    ("half_open", "restarted"): "closed",
}


class Twin(RuleBasedStateMachine):
    """The same rules over plain lists of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.subject = Breaker(BreakerSettings(), random.Random(1), 0.0)
        self.subject.expect(0.1)
        self.state = "closed"
        self.since_s = 0.0
        self.calls: list[tuple[int, bool, bool]] = []
        """Since the last move: second, failed, slow."""
        self.row = self.good = self.proved = 0
        self.given: list[Probe] = []
        self.live: Probe | None = None

    def follow(self, move: Move | None, expected: str | None) -> None:
        assert (None if move is None else move.why) == expected
        if move is None:
            assert self.subject.state == self.state
            return
        assert MOVES[self.state, move.why] == move.after == self.subject.state
        assert (move.before, move.at_s) == (self.state, self.now_s)
        if move.after == "open":
            assert 0.5 <= move.pause_s <= 60
        if self.state == "closed" or move.after == "open":
            self.good = 0
        self.state, self.since_s, self.calls, self.row, self.proved = move.after, self.now_s, [], 0, 0
        self.live = None

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        verdicts=st.lists(st.sampled_from([S, S, F, F, N]), min_size=1, max_size=12),
        duration_s=st.sampled_from([0.0, 0.25, 0.75]),
        ratio_only=st.booleans(),
    )
    def note(self, verdicts: list[Verdict], duration_s: float, ratio_only: bool) -> None:
        for verdict in verdicts:
            move = self.subject.note(verdict, duration_s, self.now_s, ratio_only=ratio_only)
            self.follow(move, self.expected(verdict, duration_s, ratio_only))

    def expected(self, verdict: Verdict, duration_s: float, ratio_only: bool) -> str | None:
        if verdict is N or self.now_s - duration_s < self.since_s - 1e-6:
            return None
        failed, slow = verdict is F, duration_s > 0.5
        if self.state != "closed":
            self.good = 0 if failed or slow else self.good + 1
            return "traffic_good" if self.good == 10 else None
        second = int(self.now_s)
        self.calls = [call for call in self.calls if call[0] > second - 10] + [(second, failed, slow)]
        self.row = self.row + (not ratio_only) if failed else 0
        if not failed and not slow:
            return None
        if self.row == 5:
            return "failures_in_row"
        count = len(self.calls)
        if count >= 10 and 10 * sum(not call[1] for call in self.calls) < 8 * count:
            return "success_rate"
        return "slow_rate" if count >= 10 and 2 * sum(call[2] for call in self.calls) > count else None

    @rule()
    def pass_time(self) -> None:
        expired = self.live is not None and self.now_s >= self.live.until_s
        self.follow(self.subject.lose_probe(self.now_s), "probe_expired" if expired else None)
        over = self.state == "open" and self.now_s >= self.subject.retry_s
        self.follow(self.subject.half_open(self.now_s), "pause_over" if over else None)

    @rule()
    def begin(self) -> None:
        permit = self.subject.begin(self.now_s)
        assert (permit is not None) == (self.state == "half_open" and self.live is None)
        if permit is not None:
            self.live = permit
            self.given.append(permit)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), verdict=st.sampled_from([S, S, S, F, N]), duration_s=st.sampled_from([0.1, 0.1, 0.75]))
    def end(self, data: st.DataObject, verdict: Verdict, duration_s: float) -> None:
        permit = self.given.pop(data.draw(st.integers(0, len(self.given) - 1)))
        expected = None
        if permit is self.live:
            self.live = None
            if self.now_s >= permit.until_s:
                expected = "probe_expired"
            elif verdict is F:
                expected = "probe_failed"
            elif verdict is S and duration_s > 0.5:
                expected = "probe_slow"
            elif verdict is S:
                self.proved += 1
                expected = "probes_good" if self.proved == 3 else None
        self.follow(self.subject.note(verdict, duration_s, self.now_s, permit), expected)

    @rule()
    def restart(self) -> None:
        expected = None if self.state == "closed" else "restarted"
        self.follow(self.subject.restart(self.now_s), expected)
        self.since_s, self.calls, self.row = self.now_s, [], 0


TestTwin = Twin.TestCase
TestTwin.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
