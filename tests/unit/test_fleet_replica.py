"""The state machine of one replica, without a loop: literal facts in, states out, and what holds for any facts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.faces import Endpoints, IndexEntry, ModelConfigBytes
from gateway.core.snapshot import ModelState, ModelView, ReplicaState
from gateway.fleet.metrics_text import read_page
from gateway.fleet.model_record import Description, Key
from gateway.fleet.replica import MODELS_MAX, Replica
from gateway.policy.schema import Health
from gateway.wire.kserve.model_config import ModelConfigSummary

KEY: Key = ("m", "1")
ONLY_M = frozenset({"m"})
DESCRIPTION = Description(b"metadata", ModelConfigBytes(b"proto", b"{}"), ModelConfigSummary())


def replica(health: Health | None = None, last: bool = False) -> Replica:
    endpoints = Endpoints("h:1", "h:2", "h:3")
    return Replica("p/h:1", "p", endpoints, health or Health(), 100.0, lambda key: last)


def entry(state: str = "READY", key: Key = KEY, reason: str = "") -> IndexEntry:
    return IndexEntry(key[0], key[1], state, reason)


def serving(last: bool = False, health: Health | None = None) -> Replica:
    """Live since 101 s, its one model warmed at 104 s."""
    it = replica(health, last)
    it.live(101.0)
    assert it.index([entry()], 101.5, 102.0) == [KEY]
    it.readiness(KEY, True, 102.0, 102.5)
    it.described(KEY, it.models[KEY].epoch, DESCRIPTION, 8, 103.0)
    it.warmed(KEY, it.models[KEY].epoch, "3 calls", 104.0)
    assert model_state(it) is ModelState.WARMED
    return it


def state(it: Replica) -> ReplicaState:
    return it.state


def model_state(it: Replica) -> ModelState:
    return it.models[KEY].state


def doubtful(it: Replica) -> bool:
    return it.doubtful


def unanswered(it: Replica, asked_s: float, now_s: float) -> None:
    it.not_live("no answer", asked_s, now_s, answered=False, lost=False)


def test_a_replica_that_never_answered_is_only_seen() -> None:
    it = replica()
    for turn in range(10):
        unanswered(it, 101.0 + turn, 102.0 + turn)
    assert state(it) is ReplicaState.SEEN
    assert it.view().last_error == "no answer"


def test_an_answer_that_is_not_yes_connects_and_does_not_make_live() -> None:
    it = replica()
    it.not_live("not live", 101.0, 101.1, answered=True, lost=False)
    assert state(it) is ReplicaState.CONNECTED
    for turn in range(5):
        it.not_live("not live", 102.0 + turn, 102.1 + turn, answered=True, lost=False)
    assert state(it) is ReplicaState.CONNECTED
    it.live(110.0)
    assert state(it) is ReplicaState.LIVE
    assert (it.phases.connected_s, it.phases.live_s) == (101.1, 110.0)


def test_two_unanswered_calls_in_a_row_make_it_down_and_an_answer_between_them_does_not() -> None:
    it = serving()
    unanswered(it, 105.0, 106.0)
    assert state(it) is ReplicaState.LIVE
    assert doubtful(it)
    it.live(106.1)
    unanswered(it, 107.0, 108.0)
    assert state(it) is ReplicaState.LIVE
    unanswered(it, 107.25, 108.25)
    assert state(it) is ReplicaState.DOWN
    assert model_state(it) is ModelState.UNAVAILABLE
    assert it.life == 1


def test_a_lost_connection_makes_it_down_at_once() -> None:
    it = serving()
    it.not_live("connection refused", 105.0, 105.1, answered=False, lost=True)
    assert state(it) is ReplicaState.DOWN


def test_a_good_answer_to_a_call_stands_for_an_unanswered_liveness_call() -> None:
    it = serving()
    for turn in range(10):
        it.answered(KEY, 105.5 + turn)
        unanswered(it, 105.0 + turn, 106.0 + turn)
    assert state(it) is ReplicaState.LIVE
    unanswered(it, 120.0, 121.0)
    unanswered(it, 120.25, 121.25)
    assert state(it) is ReplicaState.DOWN


def test_a_good_answer_does_not_stand_against_what_the_server_itself_says() -> None:
    it = serving()
    it.answered(KEY, 105.5)
    it.not_live("Server exiting", 105.0, 105.6, answered=True, lost=True)
    assert state(it) is ReplicaState.DOWN


def test_what_comes_back_starts_a_new_life_with_new_phases() -> None:
    it = serving()
    it.answered(KEY, 104.5)
    it.not_live("refused", 105.0, 105.1, answered=False, lost=True)
    it.live(109.0)
    assert state(it) is ReplicaState.LIVE
    phases = it.phases
    assert (phases.seen_s, phases.connected_s, phases.live_s) == (105.1, 109.0, 109.0)
    assert (phases.ready_s, phases.warmed_s, phases.first_answer_s) == (None, None, None)
    assert model_state(it) is ModelState.UNAVAILABLE
    it.index([entry()], 109.0, 109.1)
    it.readiness(KEY, True, 109.1, 109.2)
    assert model_state(it) is ModelState.READY
    assert it.models[KEY].description is None
    assert [key for key, _ in it.to_describe(109.3, 30.0)] == [KEY]
    assert not it.to_warm(), "first it is described"


@pytest.mark.parametrize(
    "against",
    [
        lambda it, s: it.index([entry("UNAVAILABLE", reason="unloaded")], s, s + 0.1),
        lambda it, s: it.index([entry("UNLOADING")], s, s + 0.1),
        lambda it, s: it.index([], s, s + 0.1),
        lambda it, s: it.readiness(KEY, False, s, s + 0.1),
    ],
)
def test_two_findings_in_a_row_take_a_model_off_and_one_does_not(against: Callable[[Replica, float], object]) -> None:
    it = serving()
    against(it, 105.0)
    assert model_state(it) is ModelState.WARMED
    assert doubtful(it)
    it.readiness(KEY, True, 105.3, 105.4)
    assert not doubtful(it)
    against(it, 106.0)
    assert model_state(it) is ModelState.WARMED
    against(it, 106.25)
    assert model_state(it) is not ModelState.WARMED
    assert state(it) is ReplicaState.LIVE


def test_a_version_gone_from_the_index_is_forgotten_once_it_is_out_of_service() -> None:
    it = serving()
    for turn in range(3):
        it.index([], 105.0 + turn, 105.1 + turn)
    assert KEY not in it.models


def test_the_last_replica_is_kept_while_it_answers_and_the_reason_says_so() -> None:
    it = serving(last=True)
    for turn in range(10):
        it.answered(KEY, 105.05 + turn)
        it.readiness(KEY, False, 105.0 + turn, 105.1 + turn)
    assert model_state(it) is ModelState.WARMED
    assert it.models[KEY].reason.startswith("kept as the last one")
    it.readiness(KEY, True, 120.0, 120.1)
    assert it.models[KEY].reason == ""
    it.readiness(KEY, False, 121.0, 121.1)
    it.readiness(KEY, False, 121.25, 121.3)
    assert model_state(it) is ModelState.UNAVAILABLE, "nothing answered since the findings began"


def test_one_that_is_not_the_last_is_not_kept() -> None:
    it = serving(last=False)
    for turn in range(2):
        it.answered(KEY, 105.05 + turn)
        it.readiness(KEY, False, 105.0 + turn, 105.1 + turn)
    assert model_state(it) is ModelState.UNAVAILABLE


def test_bad_trials_in_a_row_send_a_model_back_to_be_warmed_unless_a_call_succeeds() -> None:
    it = serving()
    epoch = it.models[KEY].epoch
    it.tried(KEY, epoch, False, "INTERNAL: dead", 105.0)
    it.answered(KEY, 105.5)
    it.tried(KEY, epoch, False, "INTERNAL: dead", 106.0)
    assert model_state(it) is ModelState.WARMED
    it.readiness(KEY, True, 106.1, 106.2)
    it.tried(KEY, epoch, False, "INTERNAL: dead", 106.3)
    assert model_state(it) is ModelState.READY
    assert "INTERNAL: dead" in it.models[KEY].reason
    assert [key for key, _ in it.to_warm()] == [KEY]


def warm_again(it: Replica, now_s: float) -> None:
    it.readiness(KEY, True, now_s, now_s)
    it.described(KEY, it.models[KEY].epoch, DESCRIPTION, 8, now_s)
    it.warmed(KEY, it.models[KEY].epoch, "3 calls", now_s)


def test_one_refused_call_takes_a_version_out_at_once_unless_it_is_the_last() -> None:
    it = serving()
    assert it.refused(KEY, 105.0, 105.1, "gone")
    assert model_state(it) is ModelState.UNAVAILABLE
    assert it.models[KEY].reason == "it refused a call: gone"
    assert not it.refused(KEY, 105.05, 105.2, "gone"), "it is out already"
    last = serving(last=True)
    assert not last.refused(KEY, 105.0, 105.1, "gone")
    assert model_state(last) is ModelState.WARMED


def test_a_refusal_of_a_call_sent_before_the_version_was_loaded_anew_counts_for_nothing() -> None:
    it = serving()
    assert it.refused(KEY, 105.0, 105.1, "gone")
    it.readiness(KEY, True, 105.05, 105.3)
    assert model_state(it) is ModelState.UNAVAILABLE, "this answer may be older than the refusal"
    warm_again(it, 106.0)
    assert not it.refused(KEY, 105.9, 106.2, "gone")
    assert model_state(it) is ModelState.WARMED


def test_a_version_that_refuses_again_and_again_is_held_out_for_longer_each_time() -> None:
    it, now_s, held_s = serving(), 110.0, []
    for _ in range(7):
        assert it.refused(KEY, now_s, now_s, "gone")
        refused_s = now_s
        while model_state(it) is not ModelState.WARMED:
            now_s += 0.5
            warm_again(it, now_s)
        held_s.append(now_s - refused_s)
        now_s += 1.0
    assert held_s == [0.5, 8.0, 16.0, 32.0, 32.0, 32.0, 32.0]
    now_s += 60.0
    assert it.refused(KEY, now_s, now_s, "gone")
    warm_again(it, now_s + 0.5)
    assert model_state(it) is ModelState.WARMED, "it served for long, so this is a refusal like the first"


def test_a_version_whose_readiness_comes_and_goes_is_held_out_as_well_unless_it_is_the_last() -> None:
    for last, expected_s in ((False, [0.5, 8.0, 16.0]), (True, [0.5, 0.5, 0.5])):
        it, now_s, held_s = serving(last), 110.0, []
        for _ in range(3):
            for _ in range(2):
                it.readiness(KEY, False, now_s, now_s)
            assert model_state(it) is ModelState.UNAVAILABLE
            left_s = now_s
            while model_state(it) is not ModelState.WARMED:
                now_s += 0.5
                warm_again(it, now_s)
            held_s.append(now_s - left_s)
            now_s += 1.0
        assert held_s == expected_s


def test_work_that_was_begun_in_an_earlier_epoch_changes_nothing() -> None:
    it = serving()
    old = it.models[KEY].epoch
    for asked_s in (105.0, 105.25):
        it.readiness(KEY, False, asked_s, asked_s + 0.1)
    it.readiness(KEY, True, 106.0, 106.1)
    it.described(KEY, old, DESCRIPTION, 99, 107.0)
    it.warmed(KEY, old, "late", 107.0)
    it.not_warmed(KEY, old, "late")
    it.tried(KEY, old, False, "late", 107.0)
    record = it.models[KEY]
    assert (record.state, record.description, record.reason) == (ModelState.READY, None, "")


def test_an_index_of_endless_models_is_cut_and_said_to_be() -> None:
    it = replica()
    it.live(101.0)
    it.index([entry(key=("m", str(number))) for number in range(1, MODELS_MAX + 50)], 101.0, 101.1)
    assert len(it.models) == MODELS_MAX
    assert str(MODELS_MAX) in it.last_error


def test_figures_are_means_between_pages_and_a_restart_counts_from_zero() -> None:
    it = serving()
    it.scraped(read_page(_page(success=10, count=20, execs=5, queue=1000, compute=50_000, pending=3), ONLY_M), 105.0)
    view = it.view().models[KEY]
    assert (view.pending, view.queue_us, view.compute_us, view.batch_fill) == (3, None, None, None)
    it.scraped(read_page(_page(success=14, count=36, execs=7, queue=1400, compute=58_000, pending=0), ONLY_M), 107.0)
    view = it.view().models[KEY]
    assert (view.pending, view.queue_us, view.compute_us, view.batch_fill) == (0, 100.0, 2000.0, 8.0)
    it.scraped(read_page(_page(success=2, count=2, execs=2, queue=20, compute=6000, pending=1), ONLY_M), 109.0)
    view = it.view().models[KEY]
    assert (view.queue_us, view.compute_us, view.batch_fill) == (10.0, 3000.0, 1.0)


def test_counters_of_an_earlier_life_are_not_compared_with_those_of_the_next() -> None:
    it = serving()
    it.scraped(read_page(_page(success=10, count=10, execs=10, queue=1000, compute=1000, pending=0), ONLY_M), 105.0)
    it.not_live("refused", 106.0, 106.1, answered=False, lost=True)
    it.live(107.0)
    it.index([entry()], 107.0, 107.1)
    it.readiness(KEY, True, 107.1, 107.2)
    it.scraped(read_page(_page(success=20, count=20, execs=20, queue=9000, compute=9000, pending=0), ONLY_M), 108.0)
    assert it.view().models[KEY].queue_us is None


def test_warming_twice_changes_nothing() -> None:
    it = serving()
    it.warmed(KEY, it.models[KEY].epoch, "again", 200.0)
    assert (it.models[KEY].note, it.models[KEY].warmed_s) == ("3 calls", 104.0)


def test_series_of_an_unloaded_version_are_not_believed() -> None:
    it = serving()
    page = read_page(_page(success=1, count=1, execs=1, queue=1, compute=1, pending=7), ONLY_M)
    it.scraped(page, 105.0)
    assert it.view().models[KEY].pending == 7
    for asked_s in (106.0, 106.25):
        it.readiness(KEY, False, asked_s, asked_s + 0.1)
    it.scraped(page, 107.0)
    assert it.view().models[KEY].pending is None


def _page(**values: int) -> str:
    names = {
        "success": "nv_inference_request_success",
        "count": "nv_inference_count",
        "execs": "nv_inference_exec_count",
        "queue": "nv_inference_queue_duration_us",
        "compute": "nv_inference_compute_infer_duration_us",
        "pending": "nv_inference_pending_request_count",
    }
    return "".join(f'{names[key]}{{model="m",version="1"}} {value}\n' for key, value in values.items())


def test_whatever_changes_is_in_the_next_view() -> None:
    it = serving(last=True)

    def seen() -> ModelView:
        assert it.changed
        it.changed = False
        return it.view().models[KEY]

    assert seen().state is ModelState.WARMED
    it.answered(KEY, 105.0)
    assert seen().phases.first_answer_s == 105.0
    for asked_s in (104.5, 104.75):
        it.readiness(KEY, False, asked_s, asked_s + 0.1)
    assert "kept as the last one" in seen().reason
    it.readiness(KEY, True, 106.0, 106.1)
    assert seen().reason == ""
    it.scraped(read_page(_page(pending=3, count=1, execs=1), ONLY_M), 107.0)
    assert seen().pending == 3
    it.forget_figures()
    assert seen().pending is None
    it.described(KEY, it.models[KEY].epoch, DESCRIPTION, 99, 108.0)
    assert seen().slots == 99
    for asked_s in (109.0, 109.25):
        it.readiness(KEY, False, asked_s, asked_s + 0.1)
    assert seen().state is ModelState.UNAVAILABLE
    it.readiness(KEY, True, 110.0, 110.1)
    it.described(KEY, it.models[KEY].epoch, DESCRIPTION, 99, 110.2)
    assert seen().state is ModelState.READY
    it.not_warmed(KEY, it.models[KEY].epoch, "silence")
    assert seen().reason == "warm-up: silence"
    it.warmed(KEY, it.models[KEY].epoch, "by hand", 111.0)
    view = seen()
    assert (view.state, view.warmup) == (ModelState.WARMED, "by hand")


# --- any facts in any order -----------------------------------------------------------------------------------------

KEYS = [("m", "1"), ("m", "2"), ("n", "1")]
STATES = ["READY", "LOADING", "UNLOADING", "UNAVAILABLE", "UNKNOWN", ""]
FACTS = st.one_of(
    st.tuples(st.just("live")),
    st.tuples(st.just("not_live"), st.booleans(), st.booleans()),
    st.tuples(st.just("index"), st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(STATES)), max_size=4)),
    st.tuples(st.just("readiness"), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just("describe")),
    st.tuples(st.just("warm"), st.integers(-1, 0)),
    st.tuples(st.just("not_warmed"), st.sampled_from(("slow", "silent"))),
    st.tuples(st.just("try"), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just("scraped"), st.integers(0, 3)),
    st.tuples(st.just("forget_figures")),
    st.tuples(st.just("answered"), st.sampled_from(KEYS)),
    st.tuples(st.just("refused"), st.sampled_from(KEYS), st.floats(0.0, 90.0)),
)


@settings(max_examples=300)
@given(st.lists(FACTS, max_size=40), st.booleans(), st.integers(1, 3), st.integers(1, 3))
def test_whatever_happens_the_rules_hold(facts: list[tuple[object, ...]], last: bool, down: int, unready: int) -> None:
    it = replica(Health(failures_to_down=down, failures_to_unready=unready), last)
    now_s, life, failures_since_live = 200.0, 0, 0
    for fact in facts:
        now_s += 1.0
        before = it.state
        match fact:
            case ("live",):
                it.live(now_s)
                failures_since_live = 0
            case ("not_live", bool(answered), bool(lost)):
                it.not_live("text", now_s - 0.5, now_s, answered=answered, lost=lost)
                failures_since_live += 1
                if it.state is ReplicaState.DOWN and before is not ReplicaState.DOWN:
                    assert lost or failures_since_live >= down
            case ("index", list(entries)):
                it.index([entry(state, key) for key, state in entries], now_s - 0.5, now_s)
            case ("readiness", tuple(key), bool(ready)):
                it.readiness(key, ready, now_s - 0.5, now_s)
            case ("describe",):
                for key, epoch in it.to_describe(now_s, 30.0):
                    it.described(key, epoch, DESCRIPTION, 4, now_s)
            case ("warm", int(offset)):
                for key, epoch in it.to_warm():
                    it.warmed(key, epoch + offset, "note", now_s)
                    assert (it.models[key].state is ModelState.WARMED) == (offset == 0)
            case ("not_warmed", str(text)):
                for key, epoch in it.to_warm():
                    it.not_warmed(key, epoch, text)
            case ("scraped", int(pending)):
                it.scraped(read_page(_page(pending=pending, count=pending, execs=pending), ONLY_M), now_s)
            case ("forget_figures",):
                it.forget_figures()
            case ("try", tuple(key), bool(good)):
                if key in it.models:
                    it.tried(key, it.models[key].epoch, good, "text", now_s - 0.5)
            case ("answered", tuple(key)):
                it.answered(key, now_s)
            case ("refused", tuple(key), float(age_s)):
                served, warmed_s = it.serves(key), it.models[key].warmed_s if key in it.models else None
                taken = it.refused(key, now_s - age_s, now_s, "text")
                assert taken == (served and not last and warmed_s is not None and now_s - age_s >= warmed_s)
                assert it.serves(key) == (served and not taken)
        view = it.view()
        made = {key: copy(record) for key, record in it.models.items()}
        for record in made.values():
            record.stale()
        assert view.models == {key: record.view(key) for key, record in made.items()}, "what it keeps is what it is"
        assert it.life >= life
        life = it.life
        if before is ReplicaState.SEEN:
            assert it.state is not ReplicaState.DOWN, "what never answered cannot have gone"
        for model in view.models.values():
            phases = model.phases
            times = [
                s for s in (phases.seen_s, phases.ready_s, phases.warmed_s, phases.first_answer_s) if s is not None
            ]
            assert times == sorted(times)
            if model.state is ModelState.WARMED:
                assert state(it) is ReplicaState.LIVE
                assert phases.ready_s is not None
                assert phases.warmed_s is not None
                assert model.slots == 4
        if it.state is not ReplicaState.LIVE:
            assert all(model.state is ModelState.UNAVAILABLE for model in view.models.values())
        phases = view.phases
        times = [s for s in (phases.seen_s, phases.connected_s, phases.live_s) if s is not None]
        assert times == sorted(times)
    names = [(each.before, each.after) for each in it.take_transitions() if each.key is None]
    assert all(after == following for (_, after), (following, _) in itertools.pairwise(names))
