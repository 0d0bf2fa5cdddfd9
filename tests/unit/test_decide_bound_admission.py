"""BoundAdmission: lanes are apart, shared bounds hold, nobody who waits is forgotten, whatever comes in which order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Attempt
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.snapshot import Candidate
from gateway.decide.bound_admission import BoundAdmission, Lane
from gateway.decide.lanes import Lanes, LaneSettings, LanesSettings
from gateway.decide.memory_budget import ModelMemory
from gateway.decide.shared_bounds import SharedBounds
from gateway.decide.ticket import Granted, Queued, Refused, Ticket
from gateway.decide.tuning import Tuning

LARGE = (LaneSettings("large", 10, 0.4),)
FAR_S = 1e9
LIMIT = 100


@dataclass
class Pool:
    """The admissions of a pool, asked in turn when something stirs, as `layers/bounds.py` does it."""

    members: list[BoundAdmission] = field(default_factory=list)
    shared: SharedBounds | None = None
    now_s: float = 1.0
    running: list[tuple[BoundAdmission, Permit, float]] = field(default_factory=list)
    waiting: list[tuple[BoundAdmission, Ticket]] = field(default_factory=list)

    def model(self, name: str, *, lanes: bool = True, apart: str = "replica", queue_max: int | None = None) -> None:
        def made(lane: Lane | None, first: BoundAdmission | None) -> BoundAdmission:
            member = BoundAdmission(
                random.Random(1), queue_max, Tuning(), model=name, lane=lane, first=first, shared=self.shared
            )
            self.members.append(member)
            return member

        if not lanes:
            made(None, None)
            return
        books = Lanes(LanesSettings(LARGE, apart))  # type: ignore[arg-type]
        first = made(Lane(books, 0), None)
        made(Lane(books, 1, 0.4), first)

    def fleet(self, slots: dict[str, int]) -> None:
        if self.shared is not None:
            self.shared.update({replica: [("a", "1"), ("b", "1")] for replica in slots})
        candidates = tuple(Candidate(*each) for each in slots.items())
        for member in self.members:
            member.update(candidates, self.now_s)
        self.settle()

    def settle(self) -> None:
        again = True
        while again:
            again = False
            for member in self.members:
                before = member.waiting
                member.look(self.now_s)
                again = again or member.waiting < before
        for member in self.members:
            decided, member.decided = member.decided, []
            for ticket in decided:
                self.waiting.remove((member, ticket))
                if ticket.permit is not None:
                    self.running.append((member, ticket.permit, ticket.work))

    def ask(self, index: int, work: float = 1.0) -> str:
        member = self.members[index]
        permit = member.take(FAR_S, self.now_s) if work == 1.0 else None
        if permit is not None:
            self.running.append((member, permit, work))
            return "granted"
        ticket = Ticket(self.now_s, FAR_S, work=work)
        decision = member.offer(ticket, self.now_s)
        if isinstance(decision, Granted):
            self.running.append((member, decision.permit, work))
            return "granted"
        if isinstance(decision, Refused):
            return decision.why
        assert isinstance(decision, Queued)
        self.waiting.append((member, ticket))
        self.settle()
        return "granted" if ticket.permit is not None else "queued"

    def end(self, number: int = 0, outcome: Outcome = Outcome.OK) -> None:
        member, permit, _ = self.running.pop(number)
        permit.attempt = attempt = Attempt(permit.replica, self.now_s)
        self.now_s += 0.01
        attempt.outcome, attempt.ended_s = outcome, self.now_s
        member.give_back(permit, self.now_s)
        self.settle()

    def withdraw(self, number: int) -> None:
        member, ticket = self.waiting.pop(number)
        assert member.withdraw(ticket)
        self.settle()

    def on(self, replica: str) -> list[int]:
        """Which members' calls run there."""
        return [self.members.index(member) for member, permit, _ in self.running if permit.replica == replica]


def laned(slots: dict[str, int], **keys: object) -> Pool:
    pool = Pool()
    pool.model("a", **keys)  # type: ignore[arg-type]
    pool.fleet(slots)
    return pool


def test_small_calls_go_round_a_large_one() -> None:
    pool = laned({"x": 4, "y": 4})
    assert pool.ask(1, 20) == "granted"
    large = pool.running[0][1].replica
    assert [pool.ask(0) for _ in range(4)] == ["granted"] * 4
    assert pool.on(large) == [1]
    assert pool.ask(0) == "queued", "the slots that are left are on the large call's replica"
    assert pool.ask(1, 20) == "queued"
    pool.end(0)
    assert pool.on(large) == [1], "the second large call had kept nothing, and has the replica now"


def test_a_large_call_waits_for_the_few_that_run_and_not_for_those_that_come() -> None:
    pool = laned({"x": 2, "y": 2})
    for _ in range(3):
        pool.ask(0)
    assert pool.ask(1, 20) == "queued"
    emptier = min("xy", key=lambda replica: len(pool.on(replica)))
    for _ in range(20):
        pool.ask(0)
        small = next(number for number, each in enumerate(pool.running) if each[0] is pool.members[0])
        pool.end(small)
        if any(member is pool.members[1] for member, _, _ in pool.running):
            break
    assert 1 in pool.on(emptier)
    assert set(pool.on(emptier)) == {1}


def test_work_of_a_large_call_is_learnt_by_the_unit() -> None:
    pool = laned({"x": 4, "y": 4})
    pool.ask(1, 20)
    (_, permit, _) = pool.running[0]
    assert permit.special is not None
    assert permit.special.work == 20
    pool.end(0)
    picker = pool.members[0].balance.picker.statistics(pool.now_s)["replicas"][permit.replica]
    assert picker["estimate_s"] == pytest.approx(0.01 / 20)


def test_a_replica_in_doubt_is_not_kept_for_a_large_call() -> None:
    pool = laned({"x": 2, "y": 2, "z": 2})
    balance = pool.members[0].balance
    for _ in range(40):
        for _ in range(6):
            pool.ask(0)
        while pool.running:
            pool.end(0, Outcome.BROKEN if pool.running[0][1].replica == "x" else Outcome.OK)
        if not balance.picker.trusted("x"):
            break
    assert not balance.picker.trusted("x")
    while len(pool.on("y") + pool.on("z")) < 4:
        pool.ask(0)
        for number in [n for n, each in enumerate(pool.running) if each[1].replica == "x"]:
            pool.end(number, Outcome.BROKEN)  # a try
    assert pool.ask(1, 20) == "queued"
    books = pool.members[0].lane
    assert books is not None
    assert books.books.may_run(0, "x") == "ok"
    while all(member is pool.members[0] for member, _, _ in pool.running):
        pool.end(0)
    assert pool.on("x") == []


def test_a_hedge_of_a_large_call_keeps_to_its_lane() -> None:
    pool = laned({"x": 2, "y": 2, "z": 2})
    pool.ask(1, 20)
    first = pool.running[0][1].replica
    assert pool.members[1].another("hedge", (first,), pool.now_s, 20) is None, "its lane has its share"
    pool.ask(0)
    permit = pool.members[0].another("hedge", (pool.running[1][1].replica,), pool.now_s)
    assert permit is not None
    assert permit.replica != first


def test_each_lane_has_its_own_queue() -> None:
    pool = laned({"x": 1, "y": 1}, queue_max=5)
    pool.ask(1, 20)
    assert [pool.ask(1, 20) for _ in range(3)] == ["queued", "queued", "queue_full"]
    assert pool.ask(0) == "granted"
    assert [pool.ask(0) for _ in range(6)] == ["queued"] * 5 + ["queue_full"]


def test_steps_of_sequences_are_in_no_lane() -> None:
    pool = laned({"x": 4, "y": 4})
    pool.ask(1, 20)
    large = pool.running[0][1].replica
    ticket = Ticket(pool.now_s, FAR_S, pinned=large)
    decision = pool.members[0].offer(ticket, pool.now_s)
    assert isinstance(decision, Granted)
    pool.members[0].give_back(decision.permit, pool.now_s)
    assert pool.members[0].idle
    pool.end(0)
    assert all(member.idle for member in pool.members)


# --- what is shared ---------------------------------------------------------------------------------------------------


def sharing(in_flight_max: int | None = None, memory: int | None = None, *, fixed: int = 10, unit: float = 5) -> Pool:
    models = {name: ModelMemory(fixed, unit) for name in "ab"}
    pool = Pool(shared=SharedBounds(in_flight_max=in_flight_max, memory_bytes=memory, models=models))
    pool.model("a", lanes=False)
    pool.model("b", lanes=False)
    return pool


def test_models_share_the_ceiling_and_are_served_in_turn() -> None:
    pool = sharing(2)
    pool.fleet({"x": 8})
    assert [pool.ask(0), pool.ask(0), pool.ask(1), pool.ask(0)] == ["granted", "granted", "queued", "queued"]
    pool.end(0)
    pool.end(0)
    assert sorted(pool.on("x")) == [0, 1]
    assert not pool.waiting


def test_memory_that_one_model_frees_wakes_another() -> None:
    pool = sharing(memory=LIMIT)  # 20 of it fixed, so 16 units
    pool.fleet({"x": 8})
    assert pool.ask(0, 10) == "granted"
    assert pool.ask(1, 10) == "queued"
    assert pool.members[1].held_up_by(10) == "full"
    pool.end(0)
    assert pool.on("x") == [1]


def test_a_step_is_served_whatever_was_asked_for_before() -> None:
    """The step whose turn it is fits, though the last that asked does not."""
    pool = sharing(memory=LIMIT)  # 80 of it for 16 units
    pool.fleet({"x": 8})
    member = pool.members[0]
    works = (8.0, 8.0, 2.0, 16.0)
    first, second, small, large = (
        Ticket(pool.now_s, FAR_S + number, work=work, pinned="x") for number, work in enumerate(works)
    )
    assert isinstance(member.offer(first, pool.now_s), Granted)
    assert isinstance(member.offer(second, pool.now_s), Granted)
    assert isinstance(member.offer(small, pool.now_s), Queued)
    assert isinstance(member.offer(large, pool.now_s), Queued)
    for ended, served in ((first, small), (second, None), (small, large)):
        assert ended.permit is not None
        member.give_back(ended.permit, pool.now_s)
        member.look(pool.now_s)
        assert [each for each in (small, large) if each in member.decided] == ([] if served is None else [served])
        member.decided.clear()


def test_a_large_step_is_not_passed_by_small_ones_that_come_later() -> None:
    pool = sharing(memory=LIMIT)
    pool.fleet({"x": 8})
    member = pool.members[0]
    works = (8.0, 16.0, 2.0)
    first, large, late = (
        Ticket(pool.now_s, FAR_S + number, work=work, pinned="x") for number, work in enumerate(works)
    )
    hurried = Ticket(pool.now_s, FAR_S - 1, work=2.0, pinned="x")
    assert isinstance(member.offer(first, pool.now_s), Granted)
    assert isinstance(member.offer(large, pool.now_s), Queued)
    stirs = []
    for ticket in (late, hurried):
        member.stirred = False
        assert isinstance(member.offer(ticket, pool.now_s), Queued)
        stirs.append(member.stirred)
    assert stirs == [False, True], "the turn of the last is before theirs, and it may fit"
    member.look(pool.now_s)
    assert member.decided == [hurried]


def test_a_call_that_no_replica_could_hold_is_refused_for_good() -> None:
    pool = sharing(memory=LIMIT)
    pool.fleet({"x": 8, "y": 8})
    assert pool.ask(0, 16.5) == "too_large"
    assert pool.ask(0, 16) == "granted"


def test_memory_is_kept_for_the_one_that_waits_for_most() -> None:
    pool = sharing(memory=LIMIT)
    pool.fleet({"x": 100})
    for _ in range(12):
        pool.ask(0)
    assert pool.ask(1, 12) == "queued"
    assert pool.ask(0) == "queued", "what is free is kept for the other"
    for _ in range(8):
        pool.ask(0)
        pool.end(0)
    assert 1 in pool.on("x")


# --- any order of events ----------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("bad"), st.integers(0, 50)),
        st.tuples(st.just("gone"), st.integers(0, 50)),
        st.tuples(st.just("fleet"), st.integers(1, 15)),
    ),
    max_size=80,
)


@given(
    EVENTS,
    st.sampled_from(["replica", "slots"]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, LIMIT]),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_any_order_of_events_keeps_every_bound_and_serves_everybody(
    events: list[tuple[str, int]], apart: str, ceiling: int | None, memory: int | None, seed: int
) -> None:
    chance = random.Random(seed)
    models = {name: ModelMemory(10, 2) for name in "ab"}
    pool = Pool(shared=SharedBounds(in_flight_max=ceiling, memory_bytes=memory, models=models))
    pool.model("a", apart=apart)
    pool.model("b", lanes=False)
    slots = {f"r{n}": 1 + n % 3 for n in range(4)}
    pool.fleet(slots)
    for kind, number in events:
        pool.now_s += 0.05
        before = list(pool.running)
        if kind == "call":
            pool.ask(number, 20.0 if number == 1 else chance.choice((1.0, 1.0, 3.0)))
        elif kind == "end" and pool.running:
            pool.end(number % len(pool.running))
        elif kind == "bad" and pool.running:
            pool.end(number % len(pool.running), Outcome.BROKEN)
        elif kind == "gone" and pool.waiting:
            pool.withdraw(number % len(pool.waiting))
        elif kind == "fleet":
            slots = {f"r{n}": 1 + n % 3 for n in range(4) if number >> n & 1}
            pool.fleet(slots)
        for replica in slots:
            there = [each for each in pool.running if each[1].replica == replica]
            started = [each for each in there if each not in before]
            lanes = {pool.members.index(member) for member, _, _ in there} - {2}
            assert apart == "slots" or len(lanes) <= 1, "two lanes on one replica"
            if started:
                assert ceiling is None or len(there) <= ceiling
                assert memory is None or 20 + sum(2 * work for _, _, work in there) <= memory
    # Everything ends, and whoever waits is served.
    for _ in range(20 * (len(pool.running) + len(pool.waiting)) + 20):
        pool.now_s += 3.0  # pauses of breakers and of suspects pass
        pool.settle()
        if pool.running:
            pool.end(0)
    assert not pool.waiting
    assert not pool.running
    assert all(member.idle for member in pool.members)
    assert pool.shared is not None
    told = pool.shared.statistics(0.0)
    assert told["in_flight"] == {}
    assert told["kept"] is None
    assert all(not account["in_flight_bytes"] for account in told["memory"].values())
    books = pool.members[0].lane
    assert books is not None
    assert all(not each["in_flight"] and not each["waiting"] for each in books.books.statistics(0.0)["lanes"].values())


def test_a_step_that_fits_does_not_wait_for_what_a_larger_one_behind_it_needs() -> None:
    pool = sharing(memory=100)  # of which the models themselves take 20
    pool.fleet({"x": 8})
    assert [pool.ask(1, 6), pool.ask(1, 10)] == ["granted", "granted"]
    steps = [Ticket(pool.now_s, 10.0 + work, work=work, pinned="x") for work in (2.0, 10.0)]
    for step in steps:
        assert isinstance(pool.members[0].offer(step, pool.now_s), Queued)
        pool.waiting.append((pool.members[0], step))
    pool.end(0)  # room for the first of them, and not for the second
    assert steps[0].permit is not None
    assert steps[1].permit is None
    pool.end(0)
    assert steps[1].permit is not None
