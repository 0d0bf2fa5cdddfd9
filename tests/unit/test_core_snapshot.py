"""The snapshot that is made from the one before: the same as one made of everything, without a look at everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.snapshot import Candidate, FleetSnapshot, ModelState, ModelView, ReplicaState, ReplicaView

Key = tuple[str, str]

KEYS: tuple[Key, ...] = (("m", "1"), ("m", "2"), ("m", "10"), ("m", "blue"), ("n", "1"))
POOLS = ("cpu", "gpu")
IDS = tuple(f"{pool}/{host}:1" for pool in POOLS for host in ("a", "b", "c"))

MODELS = st.dictionaries(
    st.sampled_from(KEYS),
    st.builds(
        ModelView,
        name=st.just(""),
        version=st.just(""),
        state=st.sampled_from((ModelState.WARMED, ModelState.READY, ModelState.UNAVAILABLE)),
        slots=st.integers(0, 2),
        pending=st.integers(0, 2),
        decoupled=st.booleans(),
        text_outputs=st.sampled_from((frozenset[str](), frozenset({"out"}))),
        sequence_idle_s=st.sampled_from((None, 1.0, 60.0)),
    ),
)
STATES = st.sampled_from((ReplicaState.LIVE, ReplicaState.DOWN))
CHANGES = st.lists(st.tuples(st.sampled_from(IDS), st.none() | st.tuples(STATES, MODELS)), max_size=4)


def view(replica_id: str, state: ReplicaState, models: Mapping[Key, ModelView]) -> ReplicaView:
    named = {key: replace(each, name=key[0], version=key[1]) for key, each in models.items()}
    pool, address = replica_id.split("/")
    return ReplicaView(replica_id, pool, address, state, named)


def answers(snapshot: FleetSnapshot) -> object:
    """To every question that the request path may ask."""
    every = [(pool, *key) for pool in POOLS for key in KEYS]
    return (
        [snapshot.candidates(*key) for key in every],
        [snapshot.decoupled(*key) for key in every],
        [snapshot.sequence_idle_s(*key) for key in every],
        [snapshot.text_outputs(*key) for key in every],
        [(snapshot.known_versions(*key[:2]), snapshot.ready_versions(*key[:2])) for key in every],
        set(snapshot.keys),
        [each.id for each in snapshot.replicas],
    )


@settings(max_examples=300)
@given(st.lists(CHANGES, max_size=6))
def test_made_from_the_one_before_it_answers_like_one_made_of_everything(steps: list[list[tuple[str, object]]]) -> None:
    there: dict[str, ReplicaView] = {}
    chain, number = FleetSnapshot(0, ()), 0
    for step in steps:
        for replica_id, change in step:
            match change:
                case None:
                    there.pop(replica_id, None)
                case (ReplicaState() as state, dict(models)):
                    there[replica_id] = view(replica_id, state, models)
        before, number = chain, number + 1
        seen = answers(before)
        replicas = tuple(there[each] for each in sorted(there))
        chain = FleetSnapshot(number, replicas, before)
        assert answers(chain) == answers(FleetSnapshot(number, replicas))
        assert answers(before) == seen, "what was published has changed"
        if chain.steers_like(before):
            assert answers(chain) == seen, "who listens was not told"


class Watched(Mapping[Key, ModelView]):
    """The models of a replica, which count how often one of them is looked at."""

    def __init__(self, models: dict[Key, ModelView]) -> None:
        self._models = models
        self.looks = 0

    def __getitem__(self, key: Key) -> ModelView:
        self.looks += 1
        return self._models[key]

    def __iter__(self) -> Iterator[Key]:
        self.looks += len(self._models)
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


REPLICAS, NAMES = 16, 100


def large() -> tuple[ReplicaView, ...]:
    models = {
        (f"m{number:03}", "1"): ModelView(f"m{number:03}", "1", ModelState.WARMED, slots=4) for number in range(NAMES)
    }
    return tuple(
        ReplicaView(f"gpu/{number:02}:1", "gpu", f"{number:02}:1", ReplicaState.LIVE, Watched(dict(models)))
        for number in range(REPLICAS)
    )


def with_model(replica: ReplicaView, key: Key, model: ModelView) -> ReplicaView:
    return replace(replica, models={**replica.models, key: model})


def looks(replicas: tuple[ReplicaView, ...]) -> int:
    found = 0
    for replica in replicas:
        assert isinstance(replica.models, Watched)
        found += replica.models.looks
        replica.models.looks = 0
    return found


KEY: Key = ("m007", "1")


def test_of_one_version_on_one_replica_that_changes_nothing_else_is_looked_at() -> None:
    first, *others = large()
    before = FleetSnapshot(1, (first, *others))
    changed = with_model(first, KEY, replace(first.models[KEY], state=ModelState.READY))
    looks((first, *others))
    after = FleetSnapshot(2, (changed, *others), before)
    assert looks(tuple(others)) == 0
    assert looks((first,)) <= 3 * NAMES, "the one that has changed is compared with itself"
    assert not after.steers_like(before)
    assert after.candidates("gpu", *KEY) == before.candidates("gpu", *KEY)[1:]
    for name in (f"m{number:03}" for number in range(NAMES) if number != 7):
        assert after.candidates("gpu", name, "1") is before.candidates("gpu", name, "1")


def test_what_is_only_shown_shares_the_whole_index() -> None:
    first, *others = large()
    before = FleetSnapshot(1, (first, *others))
    figures = replace(first.models[KEY], pending=3, queue_us=5.0)
    after = FleetSnapshot(2, (replace(with_model(first, KEY, figures), last_error="late"), *others), before)
    assert after.steers_like(before)
    assert after.replicas[0].models[KEY].pending == 3
    assert after.candidates("gpu", *KEY) is before.candidates("gpu", *KEY)


def test_a_replica_that_goes_down_costs_a_look_at_its_own_models() -> None:
    first, *others = large()
    before = FleetSnapshot(1, (first, *others))
    looks((first, *others))
    after = FleetSnapshot(2, (replace(first, state=ReplicaState.DOWN), *others), before)
    assert looks(tuple(others)) == 0
    assert [each.replica for each in after.candidates("gpu", *KEY)] == [each.id for each in others]
    back = FleetSnapshot(3, (first, *others), after)
    assert looks(tuple(others)) == 0
    assert back.candidates("gpu", *KEY) == before.candidates("gpu", *KEY)


def test_a_replica_without_models_is_news_all_the_same() -> None:
    empty = ReplicaView("gpu/a:1", "gpu", "a:1", ReplicaState.SEEN)
    before = FleetSnapshot(0, ())
    after = FleetSnapshot(1, (empty,), before)
    assert not after.steers_like(before), "metrics learn of it from the snapshot"
    assert not FleetSnapshot(2, (), after).steers_like(after)


def test_slots_that_change_are_in_the_candidates() -> None:
    first, *others = large()
    before = FleetSnapshot(1, (first, *others))
    after = FleetSnapshot(2, (with_model(first, KEY, replace(first.models[KEY], slots=9)), *others), before)
    assert after.candidates("gpu", *KEY)[0] == Candidate(first.id, 9)
    assert not after.steers_like(before)
