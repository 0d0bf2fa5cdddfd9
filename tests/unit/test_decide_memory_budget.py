"""The memory of devices: summed over models, never over the limit, and what was taken is what goes back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.memory_budget import BYTES_MAX, DeviceMemory, MemoryBudget, ModelMemory

MODELS = {"a": ModelMemory(100, 10), "b": ModelMemory(200, 1.5), "free": ModelMemory()}


def budget(limit: int = 1000, models: tuple[str, ...] = ("a", "b")) -> MemoryBudget:
    subject = MemoryBudget()
    subject.update({"gpu0": DeviceMemory(limit, models)}, MODELS)
    return subject


def test_models_on_one_device_share_its_limit() -> None:
    subject = budget()
    assert subject.take("gpu0", "a", 50) == 500
    assert subject.may_take("gpu0", "a", 20) == "ok", "300 fixed, 500 in flight, 200 left"
    assert subject.may_take("gpu0", "a", 21) == "full"
    assert subject.take("gpu0", "b", 100) == 150
    assert subject.may_take("gpu0", "a", 6) == "full"
    assert subject.may_take("gpu0", "a", 5) == "ok"
    subject.give_back("gpu0", "a", 500)
    assert subject.may_take("gpu0", "a", 55) == "ok"


def test_devices_have_accounts_of_their_own() -> None:
    subject = MemoryBudget()
    subject.update({"x": DeviceMemory(500, ("a",)), "y": DeviceMemory(500, ("a",))}, MODELS)
    subject.take("x", "a", 40)
    assert subject.may_take("x", "a", 1) == "full"
    assert subject.may_take("y", "a", 40) == "ok"


def test_a_call_that_alone_exceeds_the_limit_has_its_own_word() -> None:
    subject = budget()
    assert subject.may_take("gpu0", "a", 70) == "ok"
    assert subject.may_take("gpu0", "a", 70.05) == "too_large"
    subject.take("gpu0", "a", 1)
    assert subject.may_take("gpu0", "a", 70) == "full", "it fits later"
    with pytest.raises(ValueError, match="too_large"):
        subject.take("gpu0", "a", 71)
    with pytest.raises(ValueError, match="full"):
        subject.take("gpu0", "a", 70)


def test_bytes_are_rounded_up() -> None:
    subject = budget()
    assert subject.bytes_of("b", 1) == 2
    assert subject.bytes_of("b", 2) == 3
    assert subject.bytes_of("b", 0) == 0
    assert subject.bytes_of("b", 1e300) == BYTES_MAX


def test_a_model_without_figures_is_not_held_back() -> None:
    subject = budget(301)
    for model in ("free", "unheard-of"):
        assert subject.take("gpu0", model, 1e12) == 0
        subject.give_back("gpu0", model, 0)


def test_an_unknown_device_is_named_as_that() -> None:
    subject = budget()
    assert subject.may_take("gpu9", "a", 1) == "unknown"
    assert subject.may_take("gpu9", "free", 1) == "unknown"
    with pytest.raises(ValueError, match="unknown"):
        subject.take("gpu9", "a", 1)


def test_only_what_was_taken_goes_back() -> None:
    subject = budget()
    taken = subject.take("gpu0", "a", 5)
    for device, model, count in (("gpu0", "b", 50), ("gpu9", "a", 50), ("gpu0", "a", 51), ("gpu0", "a", -1)):
        with pytest.raises(ValueError, match="given back"):
            subject.give_back(device, model, count)
    subject.give_back("gpu0", "a", taken)
    with pytest.raises(ValueError, match="given back"):
        subject.give_back("gpu0", "a", taken)
    assert subject.statistics(0.0)["gpu0"]["in_flight_bytes"] == 0


def test_new_figures_change_what_calls_take_and_not_what_they_took() -> None:
    subject = budget()
    taken = subject.take("gpu0", "a", 50)
    subject.update({"gpu0": DeviceMemory(400, ("a",))}, {"a": ModelMemory(0, 1)})
    assert subject.may_take("gpu0", "a", 1) == "full", "500 are still in flight, over the new limit"
    subject.give_back("gpu0", "a", taken)
    assert subject.may_take("gpu0", "a", 400) == "ok"
    assert subject.may_take("gpu0", "a", 401) == "too_large"


def test_a_device_that_left_is_remembered_until_its_calls_have_ended() -> None:
    subject = budget()
    taken = subject.take("gpu0", "a", 50)
    subject.update({}, MODELS)
    assert subject.may_take("gpu0", "a", 1) == "unknown"
    assert set(subject.statistics(0.0)) == {"gpu0"}
    subject.update({"gpu0": DeviceMemory(1000, ("a", "b"))}, MODELS)
    assert subject.may_take("gpu0", "a", 21) == "full", "it came back with the call still running"
    subject.update({}, MODELS)
    subject.give_back("gpu0", "a", taken)
    assert subject.statistics(0.0) == {}


def test_a_model_may_be_loaded_only_beside_what_is_there() -> None:
    subject = budget(1000, ("a",))
    assert subject.may_load("gpu0", "b") == "ok"
    taken = subject.take("gpu0", "a", 71)
    assert subject.may_load("gpu0", "b") == "full"
    subject.give_back("gpu0", "a", taken)
    subject.update({"gpu0": DeviceMemory(299, ("a",))}, MODELS)
    assert subject.may_load("gpu0", "b") == "too_large"
    assert subject.may_load("gpu9", "b") == "unknown"


def test_figures_tell_the_highest_and_the_refusals() -> None:
    subject = budget()
    subject.give_back("gpu0", "a", subject.take("gpu0", "a", 30))
    subject.take("gpu0", "b", 100)
    for why in ("full", "full", "too_large", "ok"):
        subject.refused("gpu0", why)
    subject.refused("gpu9", "unknown")
    assert subject.statistics(0.0) == {
        "gpu0": {
            "limit_bytes": 1000,
            "fixed_bytes": 300,
            "in_flight_bytes": 150,
            "by_model": {"b": 150},
            "high_bytes": 600,
            "full": 2,
            "too_large": 1,
        }
    }


@pytest.mark.parametrize("work", [math.nan, math.inf, -1.0])
def test_work_is_an_amount(work: float) -> None:
    with pytest.raises(ValueError, match="work must be"):
        budget().may_take("gpu0", "a", work)


def test_figures_that_mean_nothing_are_refused_by_name() -> None:
    for fixed, unit in ((-1, 0.0), (BYTES_MAX + 1, 0.0)):
        with pytest.raises(ValueError, match="fixed_bytes"):
            ModelMemory(fixed, unit)
    for unit in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="bytes_per_unit"):
            ModelMemory(0, unit)
    for limit in (0, -1, BYTES_MAX + 1):
        with pytest.raises(ValueError, match="limit_bytes"):
            DeviceMemory(limit)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 2), st.sampled_from("ab"), st.floats(0, 120)),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(""), st.just(0.0)),
        st.tuples(st.just("fleet"), st.integers(0, 7), st.sampled_from(["a", "b", "ab", ""]), st.floats(1, 2000)),
    ),
    max_size=100,
)


@given(EVENTS)
@settings(max_examples=120, deadline=None)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int, str, float]]) -> None:
    subject = MemoryBudget()
    present = {f"d{n}": DeviceMemory(1000, ("a", "b")) for n in range(3)}
    subject.update(present, MODELS)
    running: list[tuple[str, str, int]] = []
    for kind, number, models, amount in events:
        if kind == "take":
            device = f"d{number}"
            why = subject.may_take(device, models, amount)
            if device not in present:
                assert why == "unknown"
                continue
            limit = present[device].limit_bytes
            fixed = sum(MODELS[model].fixed_bytes for model in present[device].models)
            needed = math.ceil(amount * MODELS[models].bytes_per_unit)
            used = sum(taken for where, _, taken in running if where == device)
            if not needed or fixed + used + needed <= limit:
                assert why == "ok"
                assert subject.take(device, models, amount) == needed
                running.append((device, models, needed))
            else:
                assert why == ("too_large" if fixed + needed > limit else "full")
        elif kind == "end" and running:
            subject.give_back(*running.pop(number % len(running)))
        elif kind == "fleet":
            present = {f"d{n}": DeviceMemory(int(amount), tuple(models)) for n in range(3) if number >> n & 1}
            subject.update(present, MODELS)
        figures = subject.statistics(0.0)
        assert set(figures) == set(present) | {device for device, _, taken in running if taken}
        for device, each in figures.items():
            assert each["in_flight_bytes"] == sum(taken for where, _, taken in running if where == device)
            assert sum(each["by_model"].values()) == each["in_flight_bytes"]
    for device, model, taken in running:
        subject.give_back(device, model, taken)
    assert all(each["in_flight_bytes"] == 0 for each in subject.statistics(0.0).values())
