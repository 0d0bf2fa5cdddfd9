"""Quarantine: two deaths put an input away, deaths and not calls are counted, and nothing piles up."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.decide.quarantine import DIGEST_MAX, Quarantine, QuarantineSettings

A, B = b"a" * 32, b"b" * 32


def test_the_second_death_blocks_an_input_and_no_other() -> None:
    subject = Quarantine()
    assert subject.idle
    assert subject.note_death(A, "r1#1", 10.0) == 1
    assert subject.blocked(A, 10.0) is None, "the first death may be anything"
    assert subject.note_death(A, "r2#1", 20.0) == 2
    assert subject.blocked(A, 20.0) == 600.0
    assert subject.blocked(A, 500.0) == 120.0
    assert subject.blocked(B, 20.0) is None
    assert not subject.idle


def test_many_calls_lost_in_one_death_are_one_death() -> None:
    """A load test sends the same input in every call: a replica that is killed has many of them."""
    subject = Quarantine()
    assert [subject.note_death(A, "r1#1", 10.0 + number) for number in range(16)] == [1] * 16
    assert subject.blocked(A, 30.0) is None
    assert subject.statistics(30.0)["deaths"] == 1
    assert subject.note_death(A, "r1#2", 30.0) == 2, "the same replica, dead a second time, is a second death"


def test_an_entry_is_forgotten_after_its_time() -> None:
    subject = Quarantine(QuarantineSettings(ttl_s=60.0))
    subject.note_death(A, "r1", 10.0)
    subject.note_death(A, "r2", 69.0)
    left_s = subject.blocked(A, 128.5)
    assert left_s == 0.5
    assert subject.blocked(A, 129.0) is None
    assert subject.idle
    subject.note_death(A, "r1", 200.0)
    assert subject.note_death(A, "r2", 260.0) == 1, "the first death is a minute ago, and forgotten"


def test_a_call_that_is_told_late_of_a_known_death_does_not_renew_it() -> None:
    subject = Quarantine(QuarantineSettings(ttl_s=60.0))
    subject.note_death(A, "r1", 10.0)
    subject.note_death(A, "r2", 20.0)
    subject.note_death(A, "r1", 30.0)
    subject.note_death(A, "r2", 30.0)
    assert subject.blocked(A, 30.0) == 50.0


def test_a_third_death_renews_a_quarantine() -> None:
    subject = Quarantine(QuarantineSettings(ttl_s=60.0))
    for number in range(3):
        deaths = subject.note_death(A, f"r{number}", 10.0 * number)
    assert deaths == 2, "two, and more"
    assert subject.blocked(A, 30.0) == 50.0


def test_a_success_clears_a_single_death_and_not_a_quarantine() -> None:
    subject = Quarantine()
    subject.note_death(A, "r1", 10.0)
    subject.note_success(A)
    assert subject.idle
    subject.note_success(A)
    assert subject.note_death(A, "r2", 11.0) == 1
    subject.note_death(A, "r3", 12.0)
    subject.note_success(A)
    assert subject.blocked(A, 12.0) == 600.0
    assert subject.statistics(12.0)["cleared"] == 1


def test_at_the_bound_the_entry_that_expires_first_goes() -> None:
    subject = Quarantine(QuarantineSettings(max_entries=2))
    subject.note_death(A, "r1", 10.0)
    subject.note_death(B, "r1", 11.0)
    subject.note_death(A, "r2", 12.0)
    subject.note_death(b"c", "r2", 13.0)
    assert subject.blocked(A, 13.0) == 599.0, "its last death is the younger one"
    assert subject.note_death(B, "r2", 14.0) == 1, "it was forgotten"
    assert subject.blocked(A, 14.0) is None
    assert subject.statistics(14.0) == {
        "suspected": 2,
        "quarantined": 0,
        "deaths": 5,
        "cleared": 0,
        "refused": 1,
        "evicted": 2,
    }


@pytest.mark.parametrize("digest", [b"", b"x" * (DIGEST_MAX + 1)], ids=len)
def test_what_is_no_digest_is_refused(digest: bytes) -> None:
    subject = Quarantine()
    with pytest.raises(ValueError, match="digest"):
        subject.note_death(digest, "r1", 10.0)
    assert subject.idle


@pytest.mark.parametrize("wrong", [{"max_entries": 0}, {"ttl_s": 0.0}, {"ttl_s": float("nan")}], ids=str)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        QuarantineSettings(**wrong)  # type: ignore[arg-type]


class AnyDeaths(RuleBasedStateMachine):
    """Deaths, successes and time in any order, beside a ledger that never forgets before time."""

    TTL, MOST = 10, 3

    @initialize()
    def begin(self) -> None:
        self.subject = Quarantine(QuarantineSettings(max_entries=self.MOST, ttl_s=float(self.TTL)))
        self.now = 0
        self.deaths: dict[bytes, tuple[set[str], int]] = {}
        """Of each input: the distinct deaths since the last one expired or was cleared, and when the last came."""

    @rule(later=st.integers(1, 12))
    def wait(self, later: int) -> None:
        self.now += later

    def _known(self, digest: bytes) -> set[str]:
        names, last = self.deaths.get(digest, (set(), 0))
        return names if self.now < last + self.TTL else set()

    @rule(digest=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), death=st.sampled_from("uvwxyz"))
    def die(self, digest: bytes, death: str) -> None:
        known = self._known(digest)
        counted = self.subject.note_death(digest, death, float(self.now))
        self.deaths[digest] = (known | {death}, self.now)
        assert 1 <= counted <= len(known | {death}), "never more deaths than there were"

    @rule(digest=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
    def succeed(self, digest: bytes) -> None:
        self.subject.note_success(digest)
        if len(self._known(digest)) == 1:
            del self.deaths[digest]

    @invariant()
    def nothing_is_blocked_that_has_not_killed_twice(self) -> None:
        quarantined = 0
        for digest in (b"a", b"b", b"c", b"d", b"e"):
            left_s = self.subject.blocked(digest, float(self.now))
            if left_s is not None:
                quarantined += 1
                assert len(self._known(digest)) >= 2
                assert 0 < left_s <= self.TTL
        statistics = self.subject.statistics(float(self.now))
        assert statistics["quarantined"] == quarantined
        assert 0 <= statistics["suspected"] <= self.MOST - quarantined


TestAnyDeaths = AnyDeaths.TestCase
TestAnyDeaths.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
