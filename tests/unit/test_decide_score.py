"""The picker that scores: load times service time, suspects left alone but for tries, and never a wait without end."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.outcome import Latency
from gateway.core.snapshot import Candidate
from gateway.decide.score import ScoredPicker, ScoreSettings
from gateway.decide.service_time import ServiceTimeSettings
from gateway.decide.standing import StandingSettings
from tests.support.admission import Desk, replica_of, waits

THREE = (Candidate("a", 8), Candidate("b", 8), Candidate("c", 8))
TEN = tuple(Candidate(f"r{number}", 16) for number in range(10))


def scored(**standing: Any) -> ScoredPicker:
    return ScoredPicker(random.Random(1), ScoreSettings(standing=StandingSettings(**standing)))


def taught(costs: dict[str, float], candidates: tuple[Candidate, ...] = THREE, now_s: float = 0.0) -> ScoredPicker:
    """A picker that has seen one call of each of these service times."""
    subject = scored()
    subject.pick(candidates, {}, now_s=now_s)
    for replica, cost_s in costs.items():
        subject.observe(replica, Latency.RECORD, cost_s, now_s)
    return subject


def why(subject: ScoredPicker) -> str:
    """A function, lest the type checker remember it across picks."""
    return subject.why


def estimate_s(subject: ScoredPicker, replica: str) -> float:
    found: float = subject.statistics(0.0)["replicas"][replica]["estimate_s"]
    return found


def full(*replicas: str, slots: int = 8) -> dict[str, int]:
    return dict.fromkeys(replicas, slots)


# --- the score --------------------------------------------------------------------------------------------------------


def test_of_equal_replicas_the_least_loaded_by_slots_is_chosen() -> None:
    subject = scored()
    candidates = (Candidate("a", 4), Candidate("b", 2), Candidate("c", 4))
    assert subject.pick(candidates, {"a": 2, "b": 1, "c": 1}) == "c"
    assert subject.pick(candidates, {"a": 1, "c": 1}) == "b"
    assert why(subject) == "least"
    assert subject.pick(candidates, {"a": 4, "b": 2, "c": 4}) is None
    assert why(subject) == "full"


def test_ties_fall_by_chance_and_evenly() -> None:
    subject = taught({"a": 1.0, "b": 1.4, "c": 0.8})
    found = Counter(subject.pick(THREE, {}) for _ in range(3000))
    assert all(900 < found[each] < 1100 for each in "abc"), found
    found = Counter(subject.pick(THREE, {"a": 1, "b": 1, "c": 2}) for _ in range(2000))
    assert found["c"] == 0
    assert all(900 < found[each] < 1100 for each in "ab"), found


def test_a_replica_that_takes_twice_as_long_gets_its_first_call_when_the_others_have_one_each() -> None:
    subject = taught({"a": 1.0, "b": 1.0, "c": 2.1})
    assert "c" not in {subject.pick(THREE, {"a": 1, "b": 1}) for _ in range(50)}
    assert subject.pick(THREE, {"a": 2, "b": 2}) == "c"
    assert subject.pick(THREE, {"a": 4, "b": 4, "c": 1}) == "c", "5 against 4.2"
    assert subject.pick(THREE, {"a": 4, "b": 3, "c": 1}) == "b", "4 against 4.2"


def test_without_slots_or_candidates_nobody_is_chosen() -> None:
    subject = scored()
    assert subject.pick((), {}) is None
    assert subject.pick((Candidate("a", 0), Candidate("b", 0)), {}) is None
    assert subject.pick((Candidate("a", 0), Candidate("b", 1)), {}) == "b"


def test_a_call_goes_neither_where_it_has_been_nor_where_the_breaker_forbids() -> None:
    subject = scored()
    assert {subject.pick(THREE, {}, exclude=("a",)) for _ in range(50)} == {"b", "c"}
    assert subject.pick(THREE, {"c": 7}, exclude=("a",), admissible={"a", "c"}.__contains__) == "c"
    assert subject.pick(THREE, {}, exclude=("a", "b", "c")) is None
    assert why(subject) == "full"


def test_a_replica_in_slow_start_gets_a_call_at_once_and_the_next_ones_slowly() -> None:
    subject = scored()
    weight = {"a": 1.0, "b": 1.0, "c": 0.1}.__getitem__
    assert subject.pick(THREE, {"a": 1, "b": 1}, weight=weight) == "c"
    assert subject.pick(THREE, {"a": 7, "b": 7, "c": 1}, weight=weight) != "c", "its one call is a load of ten"
    assert subject.pick(THREE, {**full("a", "b"), "c": 1}, weight=weight) == "c", "a free slot is a free slot"
    assert subject.pick(THREE, {"a": 1, "b": 1, "c": 1}, weight=lambda replica: 0.0) is not None


def test_a_mutable_list_of_candidates_is_looked_at_every_time() -> None:
    subject = scored()
    candidates = [Candidate("a", 1)]
    assert subject.pick(candidates, {}) == "a"
    candidates.append(Candidate("b", 1))
    assert subject.pick(candidates, {"a": 1}) == "b"


# --- doubt and suspicion ----------------------------------------------------------------------------------------------


def suspect() -> ScoredPicker:
    """c takes ten times as long: one call of 1.0 s ended at 1 s, another that was sent then at 2 s, and so did its try,
    at 3 s. Nothing is known of it later.
    """
    subject = taught({"a": 0.1, "b": 0.1, "c": 1.0}, now_s=1.0)
    subject.observe("c", Latency.RECORD, 1.0, 2.0)
    assert subject.pick(THREE, {}, now_s=2.0) == "c"
    assert why(subject) == "try"
    subject.observe("c", Latency.RECORD, 1.0, 3.0)
    return subject


def test_one_slow_call_makes_a_doubt_that_costs_three_times_the_pools_at_most() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 2.0}, now_s=5.0)
    assert subject.trusted("c")
    assert subject.pick(THREE, {"a": 1, "b": 1}) in ("a", "b")
    assert subject.pick(THREE, {"a": 3, "b": 3}) == "c", "4 against 3"
    subject.observe("c", Latency.RECORD, 1.9, 5.0)
    subject.observe("c", Latency.RECORD, 2.0, 6.9)
    assert subject.trusted("c"), "these were sent before doubt arose"
    assert subject.explain(THREE, {})[2]["cost_s"] == pytest.approx(0.3)


def test_good_calls_sent_since_settle_a_doubt_and_a_bad_one_confirms_it() -> None:
    def doubted() -> ScoredPicker:
        return taught({"a": 0.1, "b": 0.1, "c": 2.0}, now_s=5.0)

    subject = doubted()
    subject.observe("c", Latency.RECORD, 0.1, 5.05)
    assert estimate_s(subject, "c") > 1.8, "sent before: an ordinary observation"
    subject.observe("c", Latency.RECORD, 0.1, 5.11)
    assert 0.1 < estimate_s(subject, "c") < 0.1 + 1.9 / 4
    subject.observe("c", Latency.RECORD, 0.1, 5.12)
    assert estimate_s(subject, "c") < 0.22
    subject = doubted()
    subject.observe("c", Latency.RECORD, 0.5, 5.51)
    assert not subject.trusted("c")


def test_a_suspect_is_tried_once_at_once_then_left_alone_however_idle_it_is() -> None:
    subject = suspect()
    for _ in range(20):
        assert subject.pick(THREE, {"a": 7, "b": 7}, now_s=4.0) in ("a", "b")
    assert why(subject) == "least"
    assert not subject.trusted("c")
    assert subject.trusted("a")
    assert subject.trusted("never heard of")


def test_a_try_is_alone_there_and_never_a_second_attempt() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 1.0}, now_s=1.0)
    subject.observe("c", Latency.RECORD, 1.0, 2.0)
    assert subject.pick(THREE, {"c": 1}) in ("a", "b")
    assert subject.pick(THREE, {}, exclude=("a",)) == "b"
    assert subject.pick(THREE, {}) == "c"
    assert subject.pick(THREE, {}) in ("a", "b"), "one try"


def test_it_is_tried_again_after_retry_s_or_when_the_estimate_has_drifted_to_the_ratio() -> None:
    subject = suspect()  # tried at 2 s, heard of at 3 s; retry_s is 15, and 0.9 e^-(t/10) = 0.2 after 15.04 s
    assert subject.pick(THREE, {}, now_s=16.9) in ("a", "b")
    assert subject.pick(THREE, {}, now_s=17.1) == "c"
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.5}, now_s=1.0)
    subject.observe("c", Latency.RECORD, 0.5, 1.5)
    assert subject.pick(THREE, {}, now_s=1.5) == "c"
    subject.observe("c", Latency.RECORD, 0.5, 2.0)
    assert subject.pick(THREE, {}, now_s=2.0 + 6.8) in ("a", "b")
    assert subject.pick(THREE, {}, now_s=2.0 + 7.2) == "c", "0.4 e^-(t/10) = 0.2 after 6.9 s"


def test_good_tries_follow_one_another_and_two_of_them_clear_a_tenfold_estimate() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 1.0}, now_s=1.0)
    subject.observe("c", Latency.RECORD, 1.0, 2.0)
    assert subject.pick(THREE, {}, now_s=2.0) == "c"
    subject.observe("c", Latency.RECORD, 0.1, 2.1)
    assert not subject.trusted("c"), "0.1 + 0.9 / 4 is still above three times 0.1"
    assert subject.pick(THREE, {}, now_s=2.1) == "c"
    subject.observe("c", Latency.RECORD, 0.1, 2.2)
    assert subject.trusted("c")


def test_calls_sent_before_suspicion_arose_say_nothing_about_it() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 1.0}, now_s=5.0)
    subject.observe("c", Latency.RECORD, 1.0, 6.0)
    before_s = estimate_s(subject, "c")
    subject.observe("c", Latency.RECORD, 0.1, 6.05)
    assert estimate_s(subject, "c") > 0.9 * before_s, "an ordinary observation, no good try"
    subject.observe("c", Latency.RECORD, 1.0, 6.1)
    assert subject.pick(THREE, {}, now_s=6.1) == "c", "its first try is still due"


@pytest.mark.parametrize(("lost_s", "word"), [(0.0, "try"), (5e-7, "try"), (1e-4, "least")])
def test_a_try_that_is_sent_in_the_instant_of_suspicion_counts_though_its_start_is_computed(
    lost_s: float, word: str
) -> None:
    """End minus duration may lie a rounding error before the instant at which it was sent."""
    subject = taught({"a": 0.1, "b": 0.1, "c": 1.0})
    subject.observe("c", Latency.RECORD, 1.0, 2.0)
    assert subject.pick(THREE, {}, now_s=2.0) == "c"
    subject.observe("c", Latency.RECORD, 0.1 + lost_s, 2.1)
    subject.pick(THREE, {}, now_s=2.1)
    assert why(subject) == word, "a good try is followed by the next"


def test_only_suspects_free_the_call_waits_until_the_line_is_longer_than_the_suspect_is_slow() -> None:
    """16 slots elsewhere: 1.0 (1 + c/8) <= 2 x 0.1 x (1 + (w + 1) / 16) from w = 63 on for the first call there."""
    subject = suspect()
    busy = full("a", "b")
    assert subject.pick(THREE, busy, now_s=4.0) is None
    assert why(subject) == "held"
    assert subject.pick(THREE, busy, now_s=4.0, waiting=62) is None
    assert subject.pick(THREE, busy, now_s=4.0, waiting=64) == "c"
    assert why(subject) == "overflow"
    assert subject.pick(THREE, {**busy, "c": 4}, now_s=4.0, waiting=64) is None
    assert subject.pick(THREE, {**busy, "c": 4}, now_s=4.0, waiting=104) == "c"


def test_a_call_that_cannot_wait_takes_the_suspect() -> None:
    subject = suspect()
    assert subject.pick(THREE, full("a", "b"), now_s=4.0, hold=False) == "c"
    assert subject.pick(THREE, full("b"), now_s=4.0, exclude=("a",), hold=False) == "c"
    assert subject.pick(THREE, full("b"), now_s=4.0, exclude=("a",)) is None


def test_nobody_waits_for_a_replica_that_may_not_be_asked() -> None:
    subject = suspect()
    assert subject.pick(THREE, full("a", "b"), now_s=4.0, admissible={"c"}.__contains__) == "c"
    assert subject.pick(THREE, full("a"), now_s=4.0, exclude=("a", "b")) == "c"
    assert why(subject) == "overflow"


def test_a_drifted_reading_lets_one_call_through_and_no_flood() -> None:
    subject = suspect()
    assert subject.pick(THREE, full("a", "b"), now_s=60.0) == "c"
    assert why(subject) == "try"
    for count in range(1, 8):
        assert subject.pick(THREE, {**full("a", "b"), "c": count}, now_s=60.0) is None


def test_where_most_are_slow_nobody_is_suspect() -> None:
    subject = taught({"a": 0.1, "b": 1.0, "c": 1.0}, now_s=1.0)
    for replica in "bc":
        subject.observe(replica, Latency.RECORD, 1.0, 3.0)
    assert all(map(subject.trusted, "abc"))
    assert subject.pick(THREE, {"a": 2}) == "a", "0.1 has drifted to 0.26 in two seconds: 0.8 against 1.0"
    assert subject.pick(THREE, full("a")) in ("b", "c")


def test_what_the_pool_takes_is_known_from_the_first_answer_on_and_anew_when_somebody_leaves() -> None:
    subject = taught({"a": 0.05})
    assert subject.statistics(0.0)["reference_s"] == 0.05
    subject.observe("b", Latency.RECORD, 0.1, 0.0)
    assert subject.pick(THREE[1:], {}, now_s=0.0) is not None
    assert subject.statistics(0.0)["reference_s"] == 0.1


def test_where_all_become_slower_together_nobody_is_doubted_for_it() -> None:
    subject = taught(dict.fromkeys("abc", 0.1), now_s=1.0)
    subject.pick(THREE, {}, now_s=1.0)
    for replica in "ab":
        subject.observe(replica, Latency.RECORD, 0.4, 1.01)
    shown = subject.statistics(1.01)
    assert shown["reference_s"] == 0.4
    assert not any(each["doubted"] for each in shown["replicas"].values())


def test_of_two_the_slow_one_is_the_suspect_and_one_alone_never_is() -> None:
    two = THREE[:2]
    subject = taught({"a": 0.1, "b": 1.0}, two, now_s=1.0)
    subject.observe("b", Latency.RECORD, 1.0, 2.0)
    assert not subject.trusted("b")
    subject = taught({"a": 0.1}, THREE[:1])
    for now_s in (1.0, 200.0):
        subject.observe("a", Latency.RECORD, 100.0, now_s)
    assert subject.pick(THREE[:1], {"a": 7}, now_s=200.0) == "a"
    assert why(subject) == "least"


# --- what endings teach -----------------------------------------------------------------------------------------------


def test_a_failure_is_a_peak_of_five_seconds_and_its_hint_counts() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1})
    subject.observe("c", Latency.PENALTY, 0.001, 1.0)
    assert estimate_s(subject, "c") == 5.0
    assert subject.trusted("c"), "one is an accident"
    subject.observe("c", Latency.PENALTY, 0.001, 1.01, hint_s=20.0)
    assert estimate_s(subject, "c") == 20.0
    assert not subject.trusted("c")
    assert subject.statistics(1.0)["reference_s"] == 0.1


def test_a_penalty_never_lowers_an_estimate() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 60.0})
    subject.observe("c", Latency.PENALTY, 0.001, 0.0)
    assert estimate_s(subject, "c") == 60.0


def test_when_good_answers_have_settled_the_doubt_the_penalty_is_forgotten() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1})
    subject.observe("c", Latency.PENALTY, 0.001, 1.0)
    for _ in range(2):
        subject.observe("c", Latency.RECORD, 0.1, 1.2)
        assert estimate_s(subject, "c") > 0.3
    subject.observe("c", Latency.RECORD, 0.1, 1.2)
    assert estimate_s(subject, "c") == pytest.approx(0.1)


def test_a_try_that_fails_is_the_last_one_until_retry_s() -> None:
    subject = taught({"a": 0.1, "b": 0.1})
    subject.observe("c", Latency.PENALTY, 0.001, 1.0)
    subject.observe("c", Latency.PENALTY, 0.001, 1.5)
    assert subject.pick(THREE, {}, now_s=1.5) == "c"
    subject.observe("c", Latency.PENALTY, 0.001, 1.51)
    assert subject.pick(THREE, {}, now_s=16.4) in ("a", "b")
    assert subject.pick(THREE, {}, now_s=16.6) == "c"


def test_a_pool_that_fails_as_a_whole_still_gets_its_calls_and_its_penalties_do_not_grow() -> None:
    subject = taught(dict.fromkeys("abc", 0.1))
    for number in range(1, 50):
        for replica in "abc":
            subject.observe(replica, Latency.PENALTY, 0.001, number / 10)
    assert [estimate_s(subject, replica) for replica in "abc"] == [5.0, 5.0, 5.0]
    in_flight: Counter[str] = Counter()
    for _ in range(24):
        chosen = subject.pick(THREE, in_flight, now_s=5.0)
        assert chosen is not None
        in_flight[chosen] += 1
        assert max(in_flight[each] for each in "abc") - min(in_flight[each] for each in "abc") <= 1


def test_one_failure_makes_nobody_wait_while_two_in_a_row_do() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1})
    subject.observe("c", Latency.PENALTY, 0.001, 1.0)
    subject.observe("c", Latency.PENALTY, 0.001, 1.5)
    assert subject.pick(THREE, {**full("a", "b"), "c": 1}, now_s=2.0) is None
    assert why(subject) == "held"
    subject.observe("c", Latency.RECORD, 0.1, 2.0)
    assert not subject.trusted("c")
    assert subject.pick(THREE, {**full("a", "b"), "c": 1}, now_s=2.0) == "c"
    assert why(subject) == "overflow"


def test_what_was_cut_short_only_raises() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1})
    subject.observe("c", Latency.LOWER_BOUND, 0.05, 1.0)
    assert estimate_s(subject, "c") == 0.1
    subject.observe("c", Latency.LOWER_BOUND, 0.5, 1.0)
    assert estimate_s(subject, "c") == 0.5


def test_a_first_call_that_was_cut_short_early_is_no_measure_for_the_pool() -> None:
    subject = scored()
    subject.pick(THREE, {}, now_s=1.0)
    subject.observe("a", Latency.LOWER_BOUND, 0.0002, 1.0)
    assert subject.statistics(1.0)["reference_s"] == 0.1, "still nothing is known"
    for replica in "bc":
        subject.observe(replica, Latency.RECORD, 0.01, 1.1)
        assert subject.statistics(1.1)["reference_s"] == 0.01
    subject = scored()
    subject.pick(THREE, {}, now_s=1.0)
    subject.observe("a", Latency.LOWER_BOUND, 30.0, 31.0)
    assert estimate_s(subject, "a") == 30.0, "but it is known to take so long"


def test_a_try_that_was_cut_short_early_says_nothing_and_the_next_one_keeps_its_distance() -> None:
    subject = suspect()
    assert subject.pick(THREE, {}, now_s=20.0) == "c"
    subject.observe("c", Latency.LOWER_BOUND, 0.05, 20.05)
    assert subject.pick(THREE, {}, now_s=20.9) in ("a", "b")
    assert subject.pick(THREE, {}, now_s=21.1) == "c"
    subject.observe("c", Latency.LOWER_BOUND, 0.5, 21.6)
    assert subject.pick(THREE, {}, now_s=23.0) in ("a", "b"), "that was long enough to say something"


def test_no_estimate_is_longer_than_a_day_however_slow_the_pool_is() -> None:
    subject = taught(dict.fromkeys("abc", 80_000.0))
    subject.observe("a", Latency.RECORD, 100_000.0, 0.05)
    assert estimate_s(subject, "a") == 86_400.0


def test_what_is_skipped_or_told_of_a_stranger_teaches_nothing() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1})
    subject.observe("c", Latency.SKIP, 9.0, 1.0)
    subject.observe("stranger", Latency.RECORD, 9.0, 1.0)
    subject.report("stranger", 9, 0, 1.0)
    subject.forget("stranger")
    assert all(map(subject.trusted, "abc"))
    assert set(subject.statistics(1.0)["replicas"]) == {"a", "b", "c"}


def test_work_and_the_line_before_a_call_are_no_slowness() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1})
    subject.observe("c", Latency.RECORD, 1.9, 2.0, work=10.0, in_flight=8)
    assert estimate_s(subject, "c") == pytest.approx(0.19 / 1.875)


def test_a_new_server_starts_without_the_old_ones_history() -> None:
    subject = suspect()
    subject.forget("c")
    assert subject.trusted("c")
    assert subject.pick(THREE, {"a": 1, "b": 1}, now_s=4.0) == "c"
    assert why(subject) == "least"


def test_a_newcomer_counts_as_the_pools_and_whoever_left_is_forgotten() -> None:
    subject = suspect()
    four = (*THREE[:2], Candidate("d", 8))
    assert subject.pick(four, {"a": 1, "b": 1}, now_s=4.0) == "d"
    assert set(subject.statistics(4.0)["replicas"]) == {"a", "b", "d"}
    assert subject.pick(THREE, {"a": 1, "b": 1}, now_s=4.0) == "c", "back without a history"
    assert why(subject) == "least"


def test_calls_to_a_former_server_of_that_name_say_nothing_about_the_new_one() -> None:
    subject = taught({"a": 0.1, "b": 0.1, "c": 0.1}, now_s=5.0)
    subject.observe("a", Latency.RECORD, 0.1, 7.0)
    subject.pick(THREE[:2], {}, now_s=7.0)
    subject.pick(THREE, {}, now_s=8.0)
    subject.observe("c", Latency.LOWER_BOUND, 2.0, 8.5)
    subject.observe("c", Latency.PENALTY, 1.6, 8.5)
    assert estimate_s(subject, "c") is None
    subject.observe("c", Latency.RECORD, 0.2, 8.5)
    assert estimate_s(subject, "c") == 0.2
    subject.observe("a", Latency.RECORD, 0.1, 9.0)
    subject.forget("a")
    subject.observe("a", Latency.PENALTY, 0.5, 9.4)
    assert estimate_s(subject, "a") is None
    subject.observe("a", Latency.RECORD, 0.4, 9.4)
    assert estimate_s(subject, "a") == 0.4


def test_a_profiled_service_time_stands_in_until_something_is_known() -> None:
    subject = scored(service_time=ServiceTimeSettings(seed_s=0.01))
    subject.pick(THREE, {})
    assert subject.statistics(0.0)["reference_s"] == 0.01
    subject.observe("a", Latency.RECORD, 0.1, 1.0)
    subject.observe("a", Latency.RECORD, 0.1, 2.0)
    assert not subject.trusted("a"), "ten times what was profiled, and the others have not said otherwise"


# --- other gateways' calls --------------------------------------------------------------------------------------------


def test_a_load_is_the_larger_of_our_own_count_and_what_triton_said_plus_what_we_did_since() -> None:
    subject = scored()
    subject.pick(THREE, {}, now_s=10.0)
    subject.report("a", pending=5, in_flight=2, now_s=10.0)  # three are not ours
    subject.report("b", pending=1, in_flight=4, now_s=10.0)  # all are ours
    subject.report("c", pending=6, in_flight=1, now_s=10.0)
    seen = {each["replica"]: each for each in subject.explain(THREE, {"a": 3, "b": 2})}
    assert [seen[each]["load"] for each in "abc"] == [6.0, 2.0, 5.0]
    assert subject.pick(THREE, {"a": 0, "b": 4, "c": 0}, now_s=10.1) == "a"


def test_a_report_older_than_half_a_second_is_ignored() -> None:
    subject = scored()
    subject.pick(THREE, {}, now_s=10.0)
    for replica in "ab":
        subject.report(replica, pending=9, in_flight=0, now_s=10.0)
    assert subject.pick(THREE, {"c": 4}, now_s=10.49) == "c"
    assert subject.pick(THREE, {"c": 4}, now_s=10.5) in ("a", "b")
    assert subject.statistics(10.5)["replicas"]["a"]["foreign"] == 0


def test_reports_count_until_they_are_old_whatever_their_order_and_however_rarely_readings_are_refreshed() -> None:
    subject = scored(refresh_s=5.0)
    subject.pick(THREE, {}, now_s=10.0)
    subject.report("a", pending=9, in_flight=0, now_s=10.0)
    subject.report("a", pending=1, in_flight=1, now_s=9.9)  # counted before, told later
    assert subject.pick(THREE, {"b": 4, "c": 5}, now_s=10.4) == "b"
    assert subject.pick(THREE, {"b": 4, "c": 5}, now_s=10.5) == "a"
    subject.report("a", pending=9, in_flight=0, now_s=10.2)
    assert subject.pick(THREE, {"b": 4, "c": 5}, now_s=10.8) == "a", "too old when it was told"


# --- hot and cold -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "word", "replica"), [(10, "guarded", "r9"), (8, "guarded", "r7"), (7, "least", "r0")]
)
def test_from_eight_replicas_on_a_low_estimate_cannot_flood_a_replica(count: int, word: str, replica: str) -> None:
    pool = TEN[:count]
    subject = taught({each.replica: 0.1 if each.replica == "r0" else 1.0 for each in pool}, pool)
    in_flight = {each.replica: 3 for each in pool} | {"r0": 6, f"r{count - 1}": 2}
    assert subject.pick(pool, in_flight) == replica
    assert why(subject) == word


def test_a_load_at_the_quantile_is_not_hot() -> None:
    """Of ten, the ninth smallest load is the quantile's: two that are equally high are both cold."""
    subject = taught({each.replica: 0.1 if each.replica == "r0" else 1.0 for each in TEN}, TEN)
    in_flight = {each.replica: 3 for each in TEN} | {"r0": 6, "r1": 6}
    assert subject.pick(TEN, in_flight) == "r0"
    assert why(subject) == "least"


def test_among_cold_ones_of_one_score_chance_decides() -> None:
    subject = taught({each.replica: 0.1 if each.replica == "r0" else 1.0 for each in TEN}, TEN)
    in_flight = {each.replica: 3 for each in TEN} | {"r0": 6}
    found = Counter(subject.pick(TEN, in_flight) for _ in range(1800))
    assert set(found) == {each.replica for each in TEN[1:]}
    assert all(140 < count < 260 for count in found.values()), found


def test_a_cold_one_is_chosen_by_its_score_and_only_where_the_call_may_go() -> None:
    costs = {each.replica: 1.0 for each in TEN} | {"r0": 0.1, "r1": 2.0, "r2": 0.6}
    subject = taught(costs, TEN)
    in_flight = {each.replica: 6 for each in TEN} | {"r0": 9, "r1": 1, "r2": 4}
    assert subject.pick(TEN, in_flight) == "r2", "5 x 0.6 against 2 x 2.0"
    assert why(subject) == "guarded"
    assert subject.pick(TEN, in_flight, exclude=("r2",)) == "r1"
    assert subject.pick(TEN, in_flight, admissible=lambda replica: replica != "r2") == "r1"
    assert why(subject) == "guarded"


def test_a_cold_one_without_a_free_slot_is_no_choice() -> None:
    """In slow start a few calls are a high load, and the full one looks cold beside them."""
    subject = taught({each.replica: 0.1 if each.replica == "r0" else 1.0 for each in TEN}, TEN)
    in_flight = {each.replica: 9 for each in TEN} | {"r0": 10, "r9": 16}
    found = {subject.pick(TEN, in_flight, weight=lambda replica: 1.0 if replica == "r9" else 0.5) for _ in range(50)}
    assert why(subject) == "guarded"
    assert found <= {each.replica for each in TEN[1:9]}


# --- what it shows, and where it stands -------------------------------------------------------------------------------


def test_explain_lists_the_parts_of_every_score_and_why_one_was_no_choice() -> None:
    four = (*THREE, Candidate("d", 16))
    subject = taught({"a": 0.1, "b": 0.2, "c": 1.0, "d": 0.1}, four, now_s=1.0)
    subject.observe("c", Latency.RECORD, 1.0, 2.0)
    before = subject.statistics(0.0)
    seen = subject.explain(
        four,
        {"a": 8, "b": 4, "d": 3},
        exclude=("d",),
        admissible={"a", "b", "c", "d"}.__contains__,
        weight=lambda _: 0.5,
    )
    assert subject.statistics(0.0) == before, "asking changes nothing"
    assert [each["standing"] for each in seen] == ["full", "open", "suspect", "excluded"]
    b = seen[1]
    assert (b["in_flight"], b["slots"], b["foreign"], b["weight"], b["estimate_s"]) == (4, 8, 0, 0.5, 0.2)
    assert b["load"] == pytest.approx(4 * (10 / 8) / 0.5)
    assert b["score"] == pytest.approx((b["load"] + 1) * b["cost_s"])
    assert subject.explain(THREE, {}, admissible={"a"}.__contains__)[1]["standing"] == "not_admitted"


def test_a_call_that_is_held_gets_the_next_good_slot() -> None:
    subject = taught({"a": 0.1, "b": 1.0}, THREE[:2], now_s=1.0)
    subject.observe("b", Latency.RECORD, 1.0, 2.0)
    desk = Desk(*THREE[:2])
    desk.admission.balance.picker, desk.now_s = subject, 2.0
    running = [desk.ask() for _ in range(9)]
    assert Counter(replica_of(ticket) for ticket in running) == {"a": 8, "b": 1}, "b got its try"
    held = desk.ask()
    assert waits(held)
    on_a = next(ticket for ticket in running if replica_of(ticket) == "a")
    on_b = next(ticket for ticket in running if replica_of(ticket) == "b")
    assert desk.end(on_b) == [], "a free slot on the suspect is not for it"
    assert desk.end(on_a) == [held]
    assert waits(desk.ask())


def test_a_pool_that_works_is_never_held_up() -> None:
    desk = Desk(*THREE)
    assert not any(waits(desk.ask()) for _ in range(24))
    assert waits(desk.ask())


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ScoreSettings, "hot_quantile", 0.0),
        (ScoreSettings, "hot_quantile", math.nan),
        (ScoreSettings, "hot_from", 1),
        (StandingSettings, "even_ratio", 0.9),
        (StandingSettings, "even_ratio", 3.5),
        (StandingSettings, "suspect_ratio", math.inf),
        (StandingSettings, "retry_s", 0.0),
        (StandingSettings, "retry_min_s", -1.0),
        (StandingSettings, "report_age_s", math.nan),
        (StandingSettings, "refresh_s", 11.0),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(kind: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        kind(**{name: value})


# --- whatever happens -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(("a", "b", "c", "d"))
POOLS = st.lists(st.builds(Candidate, NAMES, st.integers(0, 3)), max_size=4, unique_by=lambda each: each.replica)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pick"), st.sets(NAMES, max_size=2), st.sets(NAMES), st.integers(0, 40), st.booleans()),
        st.tuples(
            st.just("end"), NAMES, st.sampled_from(Latency), st.floats(0, 100) | st.sampled_from((math.nan, math.inf))
        ),
        st.tuples(st.just("report"), NAMES, st.integers(0, 50), st.integers(0, 50)),
        st.tuples(st.just("fleet"), POOLS),
        st.tuples(st.just("wait"), st.sampled_from((0.0, 0.05, 0.3, 2.0, 20.0))),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(events=EVENTS, seed=st.integers(0, 3))
def test_whatever_happens_a_pick_is_allowed_and_a_wait_has_an_end(events: Any, seed: int) -> None:
    subject = ScoredPicker(random.Random(seed))
    pool: tuple[Candidate, ...] = (Candidate("a", 2), Candidate("b", 2))
    in_flight: Counter[str] = Counter()
    now_s = 0.0
    for what, *rest in events:
        if what == "pick":
            exclude, admitted, waiting, hold = rest
            eligible = [each for each in pool if each.replica not in exclude and each.replica in admitted]
            chosen = subject.pick(
                pool,
                in_flight,
                now_s=now_s,
                exclude=exclude,
                admissible=admitted.__contains__,
                waiting=waiting,
                hold=hold,
            )
            free = {each.replica for each in eligible if in_flight[each.replica] < each.slots}
            if chosen is not None:
                assert chosen in free
                assert why(subject) in ("least", "guarded", "try", "overflow")
                assert subject.trusted(chosen) == (why(subject) in ("least", "guarded"))
                if why(subject) == "try":
                    assert in_flight[chosen] == 0
                    assert not exclude
                in_flight[chosen] += 1
            elif why(subject) == "held":
                assert hold
                assert free
                assert not any(map(subject.trusted, free))
                others = [each for each in eligible if subject.trusted(each.replica)]
                assert any(in_flight[each.replica] >= each.slots > 0 for each in others), "nobody would come back"
            else:
                assert why(subject) == "full"
                assert not free
        elif what == "end":
            replica, lesson, elapsed_s = rest
            if in_flight[replica]:
                subject.observe(replica, lesson, elapsed_s, now_s, in_flight=in_flight[replica])
                in_flight[replica] -= 1
        elif what == "report":
            replica, pending, own = rest
            subject.report(replica, pending, own, now_s)
        elif what == "fleet":
            pool = tuple(rest[0])
            subject.pick(pool, dict.fromkeys("abcd", 9), now_s=now_s)
        else:
            now_s += rest[0]
        shown = subject.statistics(now_s)
        assert 0 < shown["reference_s"] < math.inf
        assert len(shown["replicas"]) <= 4
        for each in subject.explain(pool, in_flight):
            assert 0 < each["cost_s"] < math.inf
            assert 0 < each["score"] < math.inf
