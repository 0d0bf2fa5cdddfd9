"""The parts of the local fleet and its demo models that need no Triton."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local import MODELS, LocalFleet, LocalFleetError, Ports, ServerSpec, free_ports, preflight
from deploy.local.__main__ import main, parser
from deploy.local.models.accel.behaviour import Command, ExecutionLog, Settings, duration_ms
from deploy.local.models.fraud.trees import Forest
from deploy.local.models.fraud_lite.logistic import Logistic
from deploy.local.models.transactions import FEATURE_NAMES, FEATURE_SCHEMA_ID, Window, draw
from deploy.local.ports import holder, require_free
from deploy.local.processes import ProcessRef, remove_shm_files
from deploy.local.repository import SOURCES, SOURCES_DIR

# --- fraud, fraud-lite -------------------------------------------------------------------------------------------


def _random_forest(rng: np.random.Generator, trees: int, depth: int) -> Forest:
    """Trees of uneven depth: every node is a leaf with some chance, and always at `depth`."""
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[float] = []

    def grow(level: int) -> int:
        node = len(feature)
        feature.append(int(rng.integers(0, 12)))
        threshold.append(float(rng.normal()))
        left.append(node)
        right.append(node)
        value.append(float(rng.normal()))
        if level == depth or rng.random() < 0.3:
            feature[node], threshold[node] = 0, np.inf
        else:
            left[node] = grow(level + 1)
            right[node] = grow(level + 1)
        return node

    roots = [grow(0) for _ in range(trees)]
    return Forest(
        roots=np.asarray(roots, dtype=np.int32),
        feature=np.asarray(feature, dtype=np.int32),
        threshold=np.asarray(threshold),
        left=np.asarray(left, dtype=np.int32),
        right=np.asarray(right, dtype=np.int32),
        value=np.asarray(value),
        depth=depth,
        base=-0.5,
        decision_threshold=0.5,
    )


def _walk(forest: Forest, row: npt.NDArray[np.float32]) -> float:
    """The same forest, one node at a time."""
    logit = forest.base
    for root in forest.roots:
        node = int(root)
        while forest.left[node] != node:
            goes_left = row[forest.feature[node]] <= forest.threshold[node]
            node = int((forest.left if goes_left else forest.right)[node])
        logit += float(forest.value[node])
    return float(1.0 / (1.0 + np.exp(-logit)))


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), trees=st.integers(1, 5), depth=st.integers(0, 4), rows=st.integers(0, 6))
def test_the_vectorised_forest_answers_as_a_walk_through_each_tree(
    seed: int, trees: int, depth: int, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    forest = _random_forest(rng, trees, depth)
    features = rng.normal(size=(rows, 12)).astype(np.float32)
    expected = np.asarray([_walk(forest, row) for row in features], dtype=np.float32)
    answered = forest.probability(features)
    assert answered.shape == (rows,)
    assert answered.dtype == np.float32
    np.testing.assert_allclose(answered, expected, atol=1e-6)


def test_a_row_that_equals_a_threshold_goes_left() -> None:
    forest = _random_forest(np.random.default_rng(0), 1, 0)
    split = Forest(
        roots=np.asarray([0], dtype=np.int32),
        feature=np.asarray([3, 0, 0], dtype=np.int32),
        threshold=np.asarray([2.0, np.inf, np.inf]),
        left=np.asarray([1, 1, 2], dtype=np.int32),
        right=np.asarray([2, 1, 2], dtype=np.int32),
        value=np.asarray([0.0, -9.0, 9.0]),
        depth=1,
        base=0.0,
        decision_threshold=forest.decision_threshold,
    )
    rows = np.zeros((2, 12), dtype=np.float32)
    rows[:, 3] = [2.0, np.nextafter(np.float32(2.0), np.float32(3.0))]
    assert list(split.probability(rows) > 0.5) == [False, True]


def test_a_saved_forest_is_read_back_equal_and_saved_to_equal_bytes(tmp_path: Path) -> None:
    forest = _random_forest(np.random.default_rng(7), 3, 3)
    forest.save(tmp_path / "a.npz")
    Forest.load(tmp_path / "a.npz").save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_the_logistic_model_reads_only_its_columns(tmp_path: Path) -> None:
    model = Logistic(
        columns=np.asarray([1, 4], dtype=np.int32),
        mean=np.asarray([1.0, 0.0]),
        scale=np.asarray([2.0, 1.0]),
        weight=np.asarray([1.0, -1.0]),
        bias=0.25,
        decision_threshold=0.5,
    )
    model.save(tmp_path / "m.npz")
    row = np.full((1, 12), 99.0, dtype=np.float32)
    row[0, [1, 4]] = [3.0, 0.5]
    expected = 1.0 / (1.0 + np.exp(-(1.0 - 0.5 + 0.25)))
    assert Logistic.load(tmp_path / "m.npz").probability(row)[0] == pytest.approx(expected, abs=1e-6)


def test_the_same_window_and_seed_give_the_same_transactions_and_others_do_not() -> None:
    window = Window(first_day=60, end_day=120, rows=4_000)
    first, again = draw(window), draw(window)
    assert np.array_equal(first.features, again.features)
    assert np.array_equal(first.fraud, again.fraud)
    assert not np.array_equal(first.features, draw(window, seed=1).features)
    assert first.features.shape == (4_000, len(FEATURE_NAMES))
    assert first.features.dtype == np.float32
    assert np.isfinite(first.features).all()
    assert 0.02 < first.fraud.mean() < 0.08
    assert FEATURE_SCHEMA_ID.startswith("transactions/")


def test_card_testing_makes_new_data_differ_from_old() -> None:
    column = FEATURE_NAMES.index("transactions_last_hour")
    old, new = draw(Window(0, 40, 4_000)), draw(Window(100, 140, 4_000))
    assert new.features[new.fraud == 1, column].mean() > 2 * old.features[old.fraud == 1, column].mean()


# --- accel -------------------------------------------------------------------------------------------------------


def test_environment_variables_override_the_parameters_of_accel() -> None:
    settings = Settings.read({"s0_ms": "7", "seed": "3"}, {"SLUICE_ACCEL_S0_MS": "2.5", "OTHER": "1"})
    assert (settings.s0_ms, settings.s1_ms, settings.seed) == (2.5, 1.0, 3)


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "inf"])
def test_a_setting_of_accel_that_makes_no_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="SLUICE_ACCEL_S1_MS"):
        Settings.read({}, {"SLUICE_ACCEL_S1_MS": text})


def test_a_batch_takes_a_fixed_part_and_a_part_per_work() -> None:
    settings = Settings(s0_ms=4, s1_ms=2, max_ms=100)
    chance = random.Random(1)
    assert duration_ms(settings, 8, 0, chance) == 20
    assert duration_ms(settings, 8, 15, chance) == 35
    assert duration_ms(settings, 8, 1e9, chance) == 100


def test_stragglers_come_as_often_as_asked_and_the_same_with_the_same_seed() -> None:
    settings = Settings(s0_ms=1, s1_ms=0, straggler_fraction=0.02, straggler_factor=20)

    def sample(seed: int) -> list[float]:
        chance = random.Random(seed)
        return [duration_ms(settings, 1, 0, chance) for _ in range(20_000)]

    times = sample(5)
    assert set(times) == {1.0, 20.0}
    assert 300 <= times.count(20.0) <= 500
    assert times == sample(5)


def test_a_request_commands_accel_by_its_parameters() -> None:
    assert Command.read("") == Command()
    text = json.dumps({"fail": "crash", "straggle_ms": 20, "poll_cancel_ms": "5", "unrelated": True})
    assert Command.read(text) == Command(fail="crash", straggle_ms=20.0, poll_cancel_ms=5.0)


@pytest.mark.parametrize("parameters", [{"fail": "maybe"}, {"straggle_ms": -1}, {"straggle_ms": "x"}])
def test_a_command_that_makes_no_sense_is_refused_by_name(parameters: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Command.read(json.dumps(parameters))


def test_the_execution_log_moves_aside_at_its_bound_and_loses_no_line_before(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path / "logs" / "accel.jsonl", max_bytes=100)
    for number in range(10):
        log.write([{"id": str(number), "outcome": "ok"}])
    log.close()
    newer = [json.loads(line)["id"] for line in log.path.read_text().splitlines()]
    older = [json.loads(line)["id"] for line in Path(f"{log.path}.1").read_text().splitlines()]
    assert older + newer == [str(number) for number in range(10)][-len(older + newer) :]
    assert log.path.stat().st_size <= 100
    assert len(older) >= 1


# --- the fleet ---------------------------------------------------------------------------------------------------


def test_each_source_names_the_model_of_its_configuration_and_files_that_exist() -> None:
    assert tuple(source.name for source in SOURCES) == MODELS
    for source in SOURCES:
        folder = SOURCES_DIR / source.folder
        assert f'name: "{source.name}"' in (folder / "config.pbtxt").read_text()
        assert all(file.exists() for file in source.files())


def test_a_server_spec_survives_json() -> None:
    spec = ServerSpec(
        name="triton-3",
        ports=Ports.numbered(3),
        models=("accel",),
        environment={"SLUICE_ACCEL_S0_MS": "9"},
        arguments=("--log-verbose=1",),
    )
    assert ServerSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert tuple(spec.ports) == (18030, 18031, 18032)


def test_a_fleet_of_impossible_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LocalFleet(0)
    with pytest.raises(ValueError, match="unknown models"):
        LocalFleet(1, ["frodo"])
    with pytest.raises(ValueError, match="as many entries"):
        LocalFleet(2, ports=[Ports.numbered(0)])


def test_a_port_in_use_is_named_with_its_holder_and_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"process {os.getpid()}" in holder(port)
        with pytest.raises(LocalFleetError, match=rf"port {port} is in use by .*\n  remedy: kill {os.getpid()}"):
            require_free([port])
        problems = preflight(1, [port])
        assert [f"port {port} " in problem.what for problem in problems].count(True) == 1
    require_free([port])


def test_free_ports_are_distinct() -> None:
    ports = [port for triple in free_ports(4) for port in triple]
    assert len(set(ports)) == 12


def test_a_process_with_a_recycled_pid_is_never_signalled() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        true = ProcessRef.of(child.pid)
        earlier = ProcessRef(child.pid, true.start_ticks - 1)
        assert true.alive()
        assert not earlier.alive()
        assert not earlier.signal(signal.SIGKILL, group=True)
        assert child.poll() is None
        assert true.signal(signal.SIGKILL, group=True)
        assert true.wait_gone(10)
    finally:
        child.kill()
        child.wait()
    assert not true.signal(signal.SIGKILL, group=True)


def test_shared_memory_of_others_is_never_removed() -> None:
    with pytest.raises(ValueError, match="not ours"):
        remove_shm_files("")
    with pytest.raises(ValueError, match="not ours"):
        remove_shm_files("sem.")


@pytest.mark.parametrize("command", ["up", "check", "build", "status", "start", "kill", "down", "clean"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args([command, "--help"])
    assert end.value.code == 0
    assert f"example:\n  python -m deploy.local {command}" in capsys.readouterr().out


def test_the_command_check_says_what_is_missing_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        base = next(iter(free_ports(1))).http
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the search does: old connections do not count
        taken.bind(("127.0.0.1", base + 1))
        taken.listen()
        code = main(["check", "--replicas", "1", "--base-port", str(base), "--json", "-"])
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert code == 3
    assert any(f"port {base + 1} " in each["what"] and each["remedy"] for each in problems)
