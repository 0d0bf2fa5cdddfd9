"""The table of sequences: one home for each, steps in order, loss told, and a bound on everything."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.sequences import MARGIN_S, Ending, Entered, SequenceId, Sequences, Step, Turn, draw, place

REPLICAS = ("gpu/a", "gpu/b", "gpu/c")


def table(live_max: int = 1000, waiting_max: int = 8, idle_s: float = 5.0) -> Sequences:
    return Sequences("m", live_max=live_max, waiting_max=waiting_max, idle_s=idle_s)


def step(sequence_id: SequenceId = 7, kind: str = "mid", *, version: str = "1", session: object = None) -> Step:
    return Step(version, sequence_id, start=kind in ("start", "one"), end=kind in ("end", "one"), session=session)


def enter(subject: Sequences, made: Step, now_s: float = 0.0, *, versioned: bool = False) -> Step:
    assert subject.enter(made, now_s, versioned=versioned) is Entered.GO
    return made


def run(
    subject: Sequences,
    made: Step,
    now_s: float = 0.0,
    ending: Ending = Ending.GOOD,
    replicas: tuple[str, ...] = REPLICAS,
) -> Turn:
    """A step from its arrival to its end, alone."""
    enter(subject, made, now_s)
    turn = subject.turn(made, replicas)
    assert subject.leave(made, ending, now_s) == []
    return turn


def alive() -> int:
    """Objects of the table that the collector knows."""
    gc.collect()
    return sum(type(each).__module__ == "gateway.decide.sequences" for each in gc.get_objects())


# --- placement --------------------------------------------------------------------------------------------------------


def test_every_gateway_places_a_sequence_on_the_same_replica() -> None:
    for sequence_id in (1, 9007199254740993, "7", "x" * 120):
        assert place("m", sequence_id, REPLICAS) == place("m", sequence_id, reversed(REPLICAS))
    assert place("m", 42, REPLICAS) == "gpu/a", "a change of the hash would part gateways of two releases"
    assert place("m", 1, ()) == ""


def test_the_model_and_the_type_of_the_id_are_part_of_the_placement() -> None:
    numbers = [place("m", number, REPLICAS) for number in range(1, 200)]
    assert numbers != [place("m", str(number), REPLICAS) for number in range(1, 200)]
    assert numbers != [place("other", number, REPLICAS) for number in range(1, 200)]


def test_sequences_spread_evenly_and_neighbouring_ids_are_no_neighbours() -> None:
    counts = Counter(place("m", 9007199254740992 + number, REPLICAS) for number in range(3000))
    assert all(850 < counts[replica] < 1150 for replica in REPLICAS), counts


def test_when_a_replica_leaves_only_its_own_sequences_are_placed_anew() -> None:
    for number in range(500):
        before = place("m", number, REPLICAS)
        after = place("m", number, ("gpu/a", "gpu/c"))
        assert after == before or before == "gpu/b"


def test_the_draw_for_a_version_is_even_and_the_same_everywhere() -> None:
    draws = [draw("m", number) for number in range(2000)]
    assert draws == [draw("m", number) for number in range(2000)]
    assert all(0 <= each < 1 for each in draws)
    assert 0.45 < sum(draws) / len(draws) < 0.55


# --- a sequence's life ------------------------------------------------------------------------------------------------


def test_all_steps_go_where_the_first_went_whatever_comes_and_goes_elsewhere() -> None:
    subject = table()
    home = run(subject, step(kind="start")).replica
    others = tuple(f"gpu/new-{number}" for number in range(50))
    assert run(subject, step(), replicas=(home, *others)).replica == home
    subject.fleet_changed(lambda version: (home, *others))
    assert run(subject, step(kind="end"), replicas=(home, *others)).replica == home
    assert len(subject) == 0


def test_a_sequence_of_one_call_leaves_nothing() -> None:
    subject = table()
    assert run(subject, step(kind="one")).replica == place("m", 7, REPLICAS)
    assert len(subject) == 0
    assert subject.statistics(0.0)["ended"] == 1


def test_a_step_after_the_end_is_placed_by_the_hash_and_left_to_the_replica_to_refuse() -> None:
    subject = table()
    run(subject, step(kind="start"))
    run(subject, step(kind="end"))
    assert run(subject, step(kind="end"), ending=Ending.FAILED).replica == place("m", 7, REPLICAS)
    assert len(subject) == 0, "what the replica refuses is not remembered"


def test_an_end_that_failed_keeps_the_sequence() -> None:
    subject = table()
    run(subject, step(kind="start"))
    run(subject, step(kind="end"), ending=Ending.FAILED)
    assert len(subject) == 1
    assert run(subject, step(kind="end")).replica == place("m", 7, REPLICAS)
    assert len(subject) == 0


def test_a_sequence_that_another_gateway_began_is_found_where_it_put_it() -> None:
    there, here = table(), table()
    begun = run(there, step("abc", "start"))
    assert run(here, step("abc")) == begun
    assert here.statistics(0.0)["adopted"] == 1


def test_the_string_7_and_the_number_7_are_two_sequences() -> None:
    subject = table()
    run(subject, step(7, "start"))
    run(subject, step("7", "start"))
    assert len(subject) == 2
    run(subject, step("7", "end"))
    assert (subject.version("", 7), subject.version("", "7")) == ("1", "")


def test_a_sequence_keeps_the_version_it_began_with_until_it_is_begun_anew() -> None:
    subject = table()
    assert subject.version("", 7) == ""
    run(subject, step(kind="start", version="1"))
    assert subject.version("", 7) == "1"
    run(subject, step(kind="start", version="2"))
    assert subject.version("", 7) == "2"
    run(subject, step(kind="end", version="2"))
    assert subject.version("", 7) == ""


def test_sequences_of_two_named_versions_are_two() -> None:
    subject = table()
    for version in ("1", "2"):
        begun = enter(subject, step(kind="start", version=version), versioned=True)
        subject.turn(begun, REPLICAS)
        subject.leave(begun, Ending.GOOD, 0.0)
    assert [subject.version(asked, 7) for asked in ("1", "2", "3", "")] == ["1", "2", "", ""]


# --- loss -------------------------------------------------------------------------------------------------------------


def test_a_sequence_whose_replica_left_is_lost_even_when_the_replica_comes_back_until_it_is_begun_anew() -> None:
    subject = table()
    home = run(subject, step(kind="start")).replica
    rest = tuple(replica for replica in REPLICAS if replica != home)
    subject.fleet_changed(lambda version: rest)
    assert run(subject, step(), replicas=rest, ending=Ending.FAILED) == Turn("", lost=True)
    subject.fleet_changed(lambda version: REPLICAS)
    assert run(subject, step(), ending=Ending.FAILED) == Turn("", lost=True)
    assert subject.statistics(0.0)["lost"] == 1
    assert run(subject, step(kind="start")).replica == home
    assert run(subject, step()).replica == home


def test_only_the_sequences_of_the_replica_that_left_are_lost() -> None:
    subject = table()
    homes = {number: run(subject, step(number, "start")).replica for number in range(1, 101)}
    subject.fleet_changed(lambda version: ("gpu/a", "gpu/c"))
    for number, home in homes.items():
        turn = run(subject, step(number), replicas=("gpu/a", "gpu/c"), ending=Ending.FAILED)
        assert turn == (Turn("", lost=True) if home == "gpu/b" else Turn(home))


def test_a_version_that_left_its_replica_takes_its_sequences_along_and_no_others() -> None:
    subject = table()
    run(subject, step(kind="start", version="1"))
    run(subject, step(kind="start", version="2"))
    subject.fleet_changed(lambda version: REPLICAS if version == "2" else ())
    assert run(subject, step(version="2")).replica
    assert run(subject, step(version="1"), replicas=(), ending=Ending.FAILED).lost


def test_a_step_whose_connection_broke_takes_the_sequence_along() -> None:
    subject = table()
    run(subject, step(kind="start"))
    run(subject, step(), ending=Ending.LOST)
    assert run(subject, step(), ending=Ending.FAILED).lost
    assert not run(subject, step(kind="start")).lost


def test_what_an_earlier_life_comes_to_does_not_touch_the_present_one() -> None:
    subject, stream = table(), object()
    first = enter(subject, step(kind="start", session=stream))
    subject.turn(first, REPLICAS)
    subject.sent(first)
    second = enter(subject, step(kind="start", session=stream))
    subject.turn(second, REPLICAS)
    subject.sent(second)
    subject.leave(first, Ending.LOST, 0.0)
    subject.leave(second, Ending.GOOD, 0.0)
    assert not run(subject, step()).lost


def test_without_any_replica_a_step_goes_nowhere_and_leaves_nothing() -> None:
    subject = table()
    assert run(subject, step(kind="start"), replicas=(), ending=Ending.FAILED) == Turn("")
    assert run(subject, step(), replicas=(), ending=Ending.FAILED) == Turn("")
    assert len(subject) == 0


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_single_call_waits_until_the_one_before_it_has_ended() -> None:
    subject = table()
    first, second, third = step(kind="start"), step(), step(kind="end")
    assert [subject.enter(each, 0.0, versioned=False) for each in (first, second, third)] == [
        Entered.GO,
        Entered.WAIT,
        Entered.WAIT,
    ]
    subject.turn(first, REPLICAS)
    assert subject.sent(first) == [], "sent is not arrived, where the next one takes another way"
    assert subject.leave(first, Ending.GOOD, 0.0) == [second]
    assert subject.leave(second, Ending.GOOD, 0.0) == [third]


def test_calls_of_one_stream_follow_as_soon_as_the_one_before_was_sent() -> None:
    subject, stream = table(), object()
    first, second, third = (step(kind=kind, session=stream) for kind in ("start", "mid", "end"))
    alone = step()
    for each in (first, second, alone, third):
        subject.enter(each, 0.0, versioned=False)
    subject.turn(first, REPLICAS)
    assert subject.sent(first) == [second]
    assert subject.sent(second) == [], "a call that came otherwise lets nobody overtake it"
    assert subject.leave(first, Ending.GOOD, 0.0) == []
    assert subject.leave(second, Ending.GOOD, 0.0) == [alone]
    assert subject.leave(alone, Ending.GOOD, 0.0) == [third]


def test_a_waiting_step_that_gives_up_holds_up_nobody() -> None:
    subject = table()
    first, second, third = step(kind="start"), step(), step()
    for each in (first, second, third):
        subject.enter(each, 0.0, versioned=False)
    assert subject.leave(second, Ending.FAILED, 0.0) == []
    assert subject.statistics(0.0)["waiting"] == 1
    assert subject.leave(first, Ending.GOOD, 0.0) == [third]
    assert subject.statistics(0.0)["waiting"] == 0


def test_the_steps_of_one_sequence_that_wait_are_bounded() -> None:
    subject = table(waiting_max=2)
    entered = [subject.enter(step(), 0.0, versioned=False) for _ in range(4)]
    assert entered == [Entered.GO, Entered.WAIT, Entered.WAIT, Entered.FULL]
    assert subject.enter(step(8), 0.0, versioned=False) is Entered.GO


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_silent_sequence_is_kept_longer_than_the_replica_keeps_it_and_then_forgotten() -> None:
    subject = table(idle_s=5.0)
    run(subject, step(kind="start"), now_s=100.0)
    assert subject.statistics(100.0 + 5.0 + MARGIN_S - 0.01)["live"] == 1
    assert subject.statistics(100.0 + 5.0 + MARGIN_S)["live"] == 0
    assert subject.version("", 7) == ""


def test_a_sequence_with_a_step_under_way_is_not_silent() -> None:
    subject = table(idle_s=1.0)
    under_way = enter(subject, step(kind="start"), now_s=0.0)
    subject.turn(under_way, REPLICAS)
    assert subject.statistics(1000.0)["live"] == 1
    subject.leave(under_way, Ending.GOOD, 1000.0)
    assert subject.statistics(1001.0)["live"] == 1


def test_at_the_bound_the_longest_silent_sequence_is_forgotten_and_still_finds_its_replica() -> None:
    subject = table(live_max=3)
    homes = {number: run(subject, step(number, "start"), float(number)).replica for number in (1, 2, 3)}
    run(subject, step(1), now_s=4.0)
    run(subject, step(4, "start"), now_s=5.0)
    assert [subject.version("", number) for number in (1, 2, 3, 4)] == ["1", "", "1", "1"]
    assert run(subject, step(2), now_s=6.0).replica == homes[2]
    assert subject.statistics(6.0)["evicted"] == 2


def test_where_every_sequence_has_a_step_under_way_there_is_no_room() -> None:
    subject = table(live_max=2)
    enter(subject, step(1, "start"))
    enter(subject, step(2, "start"))
    assert subject.enter(step(3, "start"), 0.0, versioned=False) is Entered.NO_ROOM
    assert subject.enter(step(2), 0.0, versioned=False) is Entered.WAIT


def test_a_hundred_thousand_sequences_that_never_end_take_bounded_memory() -> None:
    subject = table(live_max=1000, idle_s=1e9)
    for number in range(2000):
        run(subject, step(number + 1, "start"), now_s=float(number))
    before = alive()
    for number in range(2000, 100_000):
        run(subject, step(number + 1, "start"), now_s=float(number))
    assert len(subject) == 1000
    assert subject.statistics(2e5)["evicted"] == 99_000
    assert alive() - before < 100, "nothing is left of those that were forgotten"


def test_a_step_is_in_the_table_once() -> None:
    subject = table()
    left = step(kind="one")
    run(subject, left)
    with pytest.raises(ValueError, match="not in the table"):
        subject.leave(left, Ending.GOOD, 0.0)


# --- any order of events ----------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_steps_go_in_order_and_the_books_balance(data: st.DataObject) -> None:
    subject = table(live_max=3, waiting_max=3, idle_s=2.0)
    streams = (None, object())
    waiting: list[Step] = []
    going: list[Step] = []
    arrived: dict[Step, int] = {}
    serving: tuple[str, ...] = REPLICAS
    now_s = 0.0

    def let_go(steps: list[Step]) -> None:
        for each in steps:
            waiting.remove(each)
            going.append(each)

    for number in range(data.draw(st.integers(1, 40))):
        now_s += data.draw(st.sampled_from((0.0, 0.5, 4.0)))
        action = data.draw(st.sampled_from(("enter", "enter", "sent", "leave", "give_up", "fleet")))
        if action == "enter":
            new = step(
                data.draw(st.one_of(st.sampled_from((1, 2, 3, 4)), st.just("1"))),
                data.draw(st.sampled_from(("start", "mid", "end", "one"))),
                version=data.draw(st.sampled_from(("1", "2"))),
                session=data.draw(st.sampled_from(streams)),
            )
            arrived[new] = number
            entered = subject.enter(new, now_s, versioned=data.draw(st.booleans()))
            if entered is Entered.GO:
                going.append(new)
            elif entered is Entered.WAIT:
                waiting.append(new)
        elif action == "sent" and going:
            chosen = data.draw(st.sampled_from(going))
            turn = subject.turn(chosen, serving)
            assert turn.lost or turn.replica in (*REPLICAS, "")
            let_go(subject.sent(chosen))
        elif action == "leave" and going:
            chosen = data.draw(st.sampled_from(going))
            going.remove(chosen)
            let_go(subject.leave(chosen, data.draw(st.sampled_from(Ending)), now_s))
        elif action == "give_up" and waiting:
            chosen = data.draw(st.sampled_from(waiting))
            waiting.remove(chosen)
            let_go(subject.leave(chosen, Ending.FAILED, now_s))
        elif action == "fleet":
            serving = tuple(replica for replica in REPLICAS if data.draw(st.booleans()))
            subject.fleet_changed(lambda version, now=serving: now)  # type: ignore[misc]
        for late in going:
            for early in (*going, *waiting):
                if (early.version, early.id) == (late.version, late.id) and arrived[early] < arrived[late]:
                    assert (early.sent, early.session) == (True, late.session or "a stream"), "overtaken"
        assert len(subject) <= 3
        assert subject.statistics(now_s)["waiting"] == len(waiting)
    while going:
        let_go(subject.leave(going.pop(), Ending.GOOD, now_s))
    assert not waiting, "everybody was let go"
    assert subject.statistics(now_s + 100.0)["live"] == 0


# --- tenants ---


def test_nobody_gets_into_another_tenant_s_sequence_and_a_lost_one_is_anybody_s_to_begin() -> None:
    table = Sequences("m", live_max=10, waiting_max=4, idle_s=10.0)

    def made(owner: str, *, start: bool = False) -> Step:
        return Step("1", 7, start=start, end=False, owner=owner)

    first = made("alice", start=True)
    assert table.enter(first, 0.0, versioned=True) is Entered.GO
    assert table.turn(first, ("a",)).replica == "a"
    for start in (True, False):
        assert table.enter(made("mallory", start=start), 0.0, versioned=True) is Entered.FOREIGN
    table.leave(first, Ending.GOOD, 0.0)
    for start in (True, False):
        assert table.enter(made("mallory", start=start), 1.0, versioned=True) is Entered.FOREIGN
    second = made("alice")
    assert table.enter(second, 1.0, versioned=True) is Entered.GO
    assert table.turn(second, ("a",)).replica == "a"
    table.leave(second, Ending.LOST, 1.0)
    assert table.enter(made("mallory"), 1.0, versioned=True) is Entered.FOREIGN
    taken = made("mallory", start=True)
    assert table.enter(taken, 1.0, versioned=True) is Entered.GO
    assert table.turn(taken, ("a",)).replica == "a"
    table.leave(taken, Ending.GOOD, 1.0)
    assert table.enter(made("alice"), 1.0, versioned=True) is Entered.FOREIGN
    later = made("alice", start=True)
    assert table.enter(later, 100.0, versioned=True) is Entered.GO, "the idle time is over"


def test_steps_that_a_stream_sends_ahead_are_never_refused_for_their_number() -> None:
    table = Sequences("m", live_max=10, waiting_max=4, idle_s=10.0)
    session = object()
    steps = [Step("1", 7, start=number == 0, end=False, session=session) for number in range(50)]
    entered = [table.enter(step, 0.0, versioned=True) for step in steps]
    assert entered == [Entered.GO] + [Entered.WAIT] * 49
    for number in range(49):
        assert table.sent(steps[number]) == [steps[number + 1]]
