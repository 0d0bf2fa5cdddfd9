"""KeptRound: what is kept of a replica's slots for higher classes, for how long, and never for nobody."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.snapshot import Candidate
from gateway.decide.balance import Balance
from gateway.decide.kept_round import KEEP_SHARE, STAYS_S, KeptRound

BATCH_S = 0.06
ONE = (Candidate("gpu/a", 16, batch_max=8),)
TWO = (*ONE, Candidate("gpu/b", 16, batch_max=8))


def of_two_classes(now_s: float = 1.0) -> KeptRound:
    subject = KeptRound()
    subject.offered(0, now_s)
    subject.offered(2, now_s)
    return subject


def test_the_second_round_is_kept_for_most_of_the_running_batch() -> None:
    subject = of_two_classes()
    subject.ended("gpu/a", 8, 1.0)
    until_s = 1.0 + KEEP_SHARE * BATCH_S
    assert subject.kept(2, {"gpu/a": 8}, ONE, BATCH_S, 1.0) == {"gpu/a": pytest.approx(until_s)}
    assert subject.kept(2, {"gpu/a": 8}, ONE, BATCH_S, until_s - 0.001)
    assert not subject.kept(2, {"gpu/a": 8}, ONE, BATCH_S, until_s + 0.001)


def test_the_first_round_is_never_kept() -> None:
    subject = of_two_classes()
    subject.ended("gpu/a", 7, 1.0)
    assert not subject.kept(2, {"gpu/a": 7}, ONE, BATCH_S, 1.0)
    assert not subject.kept(2, {}, ONE, BATCH_S, 1.0)


def test_a_batch_that_is_not_full_keeps_it_for_a_shorter_time() -> None:
    subject = of_two_classes()
    subject.ended("gpu/a", 2, 1.0)
    kept = subject.kept(2, {"gpu/a": 9}, ONE, BATCH_S, 1.0)
    assert kept == {"gpu/a": pytest.approx(1.0 + KEEP_SHARE * BATCH_S / 4)}


def test_of_several_instances_one_ends_every_part_of_a_batch_time() -> None:
    subject = of_two_classes()
    subject.ended("gpu/a", 32, 1.0)
    kept = subject.kept(2, {"gpu/a": 32}, (Candidate("gpu/a", 64, batch_max=8),), BATCH_S, 1.0)
    assert kept == {"gpu/a": pytest.approx(1.0 + KEEP_SHARE * BATCH_S / 4)}


@pytest.mark.parametrize(("asking", "others", "kept"), [(0, 2, False), (2, 0, True), (2, 3, False), (3, 2, True)])
def test_it_is_kept_for_higher_classes_only(asking: int, others: int, kept: bool) -> None:
    subject = KeptRound()
    subject.offered(others, 1.0)
    subject.offered(asking, 1.0)
    subject.ended("gpu/a", 8, 1.0)
    assert bool(subject.kept(asking, {"gpu/a": 8}, ONE, BATCH_S, 1.0)) is kept


def test_a_class_that_stays_away_is_not_waited_for() -> None:
    subject = of_two_classes(1.0)
    later_s = 1.0 + STAYS_S
    subject.offered(2, later_s - 0.01)
    subject.ended("gpu/a", 8, later_s + 0.01)
    assert not subject.kept(2, {"gpu/a": 8}, ONE, BATCH_S, later_s + 0.01)


def test_where_one_class_comes_nothing_is_to_be_told_of() -> None:
    subject = KeptRound()
    for step in range(100):
        subject.offered(1, float(step))
        assert subject.until_s < step
    assert not subject.kept(1, {"gpu/a": 8}, ONE, BATCH_S, 100.0)


def test_what_is_known_of_replicas_that_have_gone_is_dropped() -> None:
    subject = of_two_classes()
    subject.ended("gpu/a", 8, 1.0)
    subject.only(("gpu/b",))
    assert not subject.kept(2, {"gpu/a": 8}, ONE, BATCH_S, 1.0)


def balance_of(candidates: tuple[Candidate, ...]) -> Balance:
    balance = Balance(random.Random(1))
    balance.update(candidates, (), 1.0, candidates)
    return balance


def test_a_call_goes_to_a_replica_that_is_not_kept() -> None:
    subject, balance = of_two_classes(), balance_of(TWO)
    subject.ended("gpu/a", 8, 1.0)
    in_flight = {"gpu/a": 8, "gpu/b": 12}
    kept = subject.kept(2, in_flight, TWO, BATCH_S, 1.0)
    assert subject.elsewhere({}, balance, lambda: balance.pick(in_flight, 1.0)) == "gpu/a", "the less busy one"
    assert subject.elsewhere(kept, balance, lambda: balance.pick(in_flight, 1.0)) == "gpu/b"
    assert subject.look_s == float("inf")
    assert balance.allowed is None


def test_who_finds_all_of_them_kept_is_told_when_to_look_again() -> None:
    subject, balance = of_two_classes(), balance_of(TWO)
    subject.ended("gpu/a", 8, 1.0)
    subject.ended("gpu/b", 8, 1.01)
    in_flight = {"gpu/a": 8, "gpu/b": 8}
    kept = subject.kept(2, in_flight, TWO, BATCH_S, 1.02)
    assert subject.elsewhere(kept, balance, lambda: balance.pick(in_flight, 1.02)) is None
    assert subject.look_s == pytest.approx(1.0 + KEEP_SHARE * BATCH_S)


def test_what_else_forbids_a_replica_holds_too_and_is_as_it_was_afterwards() -> None:
    subject, balance = of_two_classes(), balance_of(TWO)

    def allowed(replica: str) -> bool:
        return replica == "gpu/a"

    balance.allowed = allowed
    assert subject.elsewhere({"gpu/a": 2.0}, balance, lambda: balance.pick({}, 1.0)) is None
    assert balance.allowed is allowed
    with pytest.raises(ZeroDivisionError):
        subject.elsewhere({"gpu/a": 2.0}, balance, lambda: str(1 // 0))
    assert balance.allowed is allowed


@given(
    st.lists(
        st.tuples(st.sampled_from(("offered", "ended")), st.integers(0, 3), st.integers(0, 16), st.floats(0, 0.2)),
        max_size=40,
    ),
    st.integers(0, 3),
    st.integers(0, 16),
)
def test_nothing_is_kept_longer_than_a_batch_takes(
    events: list[tuple[str, int, int, float]], asking: int, in_flight: int
) -> None:
    subject, now_s, last_s = KeptRound(), 100.0, 0.0
    for what, rank, left, passed_s in events:
        now_s += passed_s
        if what == "offered":
            subject.offered(rank, now_s)
        else:
            subject.ended("gpu/a", left, now_s)
            last_s = now_s
    for until_s in subject.kept(asking, {"gpu/a": in_flight}, ONE, BATCH_S, now_s).values():
        assert asking > 0
        assert in_flight >= 8
        assert now_s < until_s <= last_s + BATCH_S
