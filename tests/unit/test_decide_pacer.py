"""Pacer: what it says of the servers, and how it comes back from bad times."""

from __future__ import annotations

import math

import pytest

from gateway.decide.pacer import Pacer, PacerSettings
from gateway.decide.waiting_room import Pace

NOTHING = Pace(4, 0.0, 0.0, 0.0)


def told(pacer: Pacer, *durations_s: float, now_s: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        for duration_s in durations_s:
            pacer.answered(duration_s, 1, 8, now_s)


def test_nothing_is_told_of_a_few_calls() -> None:
    pacer = Pacer()
    told(pacer, 0.1, times=49)
    assert pacer.pace(8, 1.0) == NOTHING
    told(pacer, 0.1)
    assert pacer.pace(8, 1.2) == NOTHING, "the estimate is not read anew for each call"
    pace = pacer.pace(8, 1.25)
    assert pace.instances == 4
    assert pace.batch_s == pytest.approx(0.1)
    assert pace.need_s == pace.service_s == pacer.need_s == pytest.approx(0.1, rel=0.03)
    assert pacer.pace(8, 1.4) is pace
    assert pacer.pace(10, 1.4).instances == 5, "but for other slots"
    assert pacer.pace(1, 1.4).instances == 1


def test_a_replica_has_its_share_of_the_pace() -> None:
    pacer = Pacer()
    told(pacer, 0.1, times=60)
    whole = pacer.pace(16, 1.0)
    own = pacer.pace_of(4, 1.0)
    assert own == Pace(2, whole.batch_s, whole.service_s, whole.need_s, whole.worst_s)
    assert pacer.pace_of(1, 1.0).instances == 1
    assert pacer.pace(16, 1.0) is whole


def test_need_is_the_95th_percentile_and_at_most_twice_the_median() -> None:
    pacer = Pacer()
    told(pacer, *[0.1] * 9, 0.15, times=10)
    pacer.pace(8, 1.0)
    assert (pacer.least_s, pacer.median_s, pacer.need_s) == pytest.approx((0.1, 0.1, 0.15), rel=0.03)
    told(pacer, *[0.1] * 8, 1.0, 1.0, times=10)
    pacer.pace(8, 2.0)
    assert pacer.need_s == 2 * pacer.median_s
    told(pacer, *[0.01] * 8, times=10)
    pacer.pace(8, 3.0)
    assert pacer.least_s == pytest.approx(0.01, rel=0.03), "hardly any call takes less"
    assert pacer.median_s == pytest.approx(0.1, rel=0.03)


def test_a_round_is_what_is_left_of_a_call_without_those_before_it() -> None:
    pacer = Pacer()
    for _ in range(30):
        pacer.answered(0.1, 1, 8, 1.0)
        pacer.answered(0.15, 5, 8, 1.0)
    assert pacer.pace(8, 1.0).batch_s == pytest.approx(0.1)
    large = Pacer()
    for _ in range(60):
        large.answered(0.5, 1, 8, 1.0, work=20.0)  # four fill a batch
    assert large.pace(8, 1.0).batch_s == pytest.approx(0.1)


def test_the_mean_of_rounds_is_plain_at_first_and_then_forgets() -> None:
    pacer = Pacer()
    told(pacer, 0.1, 0.3, times=25)
    assert pacer.pace(8, 1.0).batch_s == pytest.approx(0.2)
    told(pacer, 0.4, times=50)
    pacer.pace(8, 2.0)
    told(pacer, 1.0, times=64)
    found_s = pacer.pace(8, 3.0).batch_s
    assert found_s == pytest.approx(1.0 - 0.7 * (63 / 64) ** 64, rel=0.05)


def test_calls_that_were_cut_short_speak_for_slowness_until_the_servers_are_well_again() -> None:
    """All run out of time after 0.4 s: then nothing says that less would do; the few that are tried on idle replicas
    tell soon when it does again.
    """
    pacer = Pacer()
    told(pacer, 0.01, times=60)
    for _ in range(600):
        pacer.cut_short(0.4, 2.0)
    pace = pacer.pace(8, 2.0)
    assert pacer.least_s == pacer.median_s == pytest.approx(0.4, rel=0.03)
    assert pace.need_s == pytest.approx(0.4, rel=0.03)
    assert pace.batch_s == pytest.approx(0.01), "of none of these is it known what a round took"
    told(pacer, 0.01, times=20, now_s=2.3)
    pacer.pace(8, 2.3)
    assert pacer.least_s == pytest.approx(0.01, rel=0.03)
    assert pacer.pace(8, 2.0 + 6 * 5.0) == NOTHING, "what nobody has confirmed for half a minute is forgotten"
    assert (pacer.least_s, pacer.median_s, pacer.need_s) == (0.0, 0.0, 0.0)


def test_calls_of_hasty_callers_do_not_make_the_servers_look_quick() -> None:
    pacer = Pacer()
    told(pacer, 0.1, times=40)
    for _ in range(60):
        pacer.cut_short(0.02, 1.0)
    pacer.pace(8, 1.0)
    assert (pacer.least_s, pacer.median_s) == pytest.approx((0.1, 0.1), rel=0.03)


@pytest.mark.parametrize(
    "values", [{"samples_min": 0}, {"memory": 0}, {"refresh_s": 0.0}, {"refresh_s": math.inf}, {"refresh_s": math.nan}]
)
def test_settings_out_of_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PacerSettings(**values)  # type: ignore[arg-type]


def test_a_round_is_what_was_seen_when_replicas_were_filled() -> None:
    """Small batches are short; after a quiet time a burst is to be told how long full ones take."""
    subject = Pacer()
    for number in range(200):
        subject.answered(0.06 * (1 + 15 / 16), 16, 16, number / 100)
    assert subject.pace(16, 2.0).batch_s == pytest.approx(0.06)
    for number in range(2000):
        subject.answered(0.02, 1, 16, 2.0 + number / 10)
    pace = subject.pace(16, 203.0)
    assert pace.batch_s == pytest.approx(0.06)
    assert pace.need_s < 0.03, "what a call needs is what calls need now"
    assert pace.worst_s == pytest.approx(0.06)


def test_until_replicas_have_been_filled_a_round_is_what_is_seen() -> None:
    subject = Pacer()
    for number in range(200):
        subject.answered(0.02, 1, 16, number / 100)
    assert subject.pace(16, 2.0).batch_s == pytest.approx(0.02)
    assert subject.pace(16, 2.0).worst_s == pytest.approx(0.02)
    subject.batch_max = 8
    assert subject.pace(32, 2.0).worst_s == pytest.approx(0.16), "a batch of eight takes no longer than eight of one"
    assert subject.pace(32, 2.0).batch_s == pytest.approx(0.02)
