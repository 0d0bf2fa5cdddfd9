"""The parts of the local fleet and its demo models that need no Triton."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local import MODELS, LocalFleet, LocalFleetError, Ports, ServerSpec, free_ports, preflight
from deploy.local.__main__ import chosen_models, main, parser
from deploy.local.layout import CORE_MODELS, write_atomically
from deploy.local.models.accel.behaviour import Control, Settings, duration_ms
from deploy.local.models.accumulator.sums import SequenceError, Sums
from deploy.local.models.command import Command
from deploy.local.models.embedder.ngrams import embed, projection
from deploy.local.models.execution_log import ExecutionLog
from deploy.local.models.fraud.trees import Forest
from deploy.local.models.fraud_lite.logistic import Logistic
from deploy.local.models.mixed.logarithm import logarithm
from deploy.local.models.ranker.bilinear import Bilinear, order
from deploy.local.models.ranker.train import NOISE, train
from deploy.local.models.ranker.train import draw as draw_ratings
from deploy.local.models.streamer.markov import WORD, Chain, zen
from deploy.local.models.streamer.orders import CRASH, ERROR_CODES, Order
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


def test_a_slow_replica_takes_so_many_times_longer_and_its_stragglers_too() -> None:
    settings = Settings(s0_ms=4, s1_ms=2, slow_factor=10)
    assert duration_ms(settings, 8, 15, random.Random(1)) == 215
    assert duration_ms(replace(settings, straggler_fraction=1.0, straggler_factor=2), 8, 0, random.Random(1)) == 400


def test_a_control_file_changes_accel_while_it_is_there(tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    control = Control(Settings(s0_ms=4, control=str(file)))
    assert control.settings().slow_factor == 1.0
    write_atomically(file, '{"slow_factor": 10, "straggler_fraction": 0.5}')
    assert (control.settings().slow_factor, control.settings().straggler_fraction) == (10.0, 0.5)
    write_atomically(file, '{"s0_ms": 7}')
    assert (control.settings().slow_factor, control.settings().s0_ms) == (1.0, 7.0), "it replaces the one before"
    file.unlink()
    assert control.settings() == Settings(s0_ms=4, control=str(file))
    assert Control(Settings(s0_ms=3)).settings().s0_ms == 3, "without a file"


@pytest.mark.parametrize("text", ["slow", "[]", '{"seed": 2}', '{"s0_ms": "1"}', '{"s0_ms": -1}', '{"s0_ms": true}'])
def test_a_control_file_that_makes_no_sense_is_refused_each_time(text: str, tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    file.write_text(text)
    control = Control(Settings(control=str(file)))
    for _ in range(2):
        with pytest.raises(ValueError, match="control file"):
            control.settings()


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


# --- streamer ----------------------------------------------------------------------------------------------------


def test_the_chain_is_trained_from_the_zen_of_python_and_every_step_stands_in_it() -> None:
    text = zen()
    assert text.startswith("Beautiful is better than ugly.\n")
    assert text.count("\n") == 19
    words = WORD.findall(text)
    assert "".join(words) == text
    steps = set(zip(words, [*words[1:], words[0]], strict=True))
    said = [token.decode() for token in islice(Chain(text).tokens(b"Explicit is"), 300)]
    assert (" is", said[0]) in steps
    assert set(pairwise(said)) <= steps


def test_equal_prompts_go_on_equally_and_others_do_not() -> None:
    chain = Chain(zen())

    def said(prompt: bytes) -> list[bytes]:
        return list(islice(chain.tokens(prompt), 50))

    assert said(b"one") == said(b"one")
    assert said(b"one") != said(b"two")
    assert said(b"\xff\xfe")[0].decode() in {line.split(" ")[0] for line in zen().splitlines()}


@settings(deadline=None)
@given(kind=st.sampled_from([b"echo:", b"chars:", b"bytes:"]), argument=st.binary(max_size=60))
def test_pieces_of_a_text_are_together_the_text(kind: bytes, argument: bytes) -> None:
    pieces = list(Order(text=kind + argument).tokens(Chain(zen())))
    assert b"".join(pieces) == argument
    assert all(pieces)
    assert list(Order(text=kind + argument, max_tokens=2).tokens(Chain(zen()))) == pieces[:2]
    if kind == b"echo:":
        assert all(piece.count(b"\n") == piece.endswith(b"\n") for piece in pieces)
        assert all(piece.endswith(b"\n") for piece in pieces[:-1])


@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_characters_come_one_at_a_time_whatever_their_number_of_bytes(text: str) -> None:
    pieces = Order(text=b"chars:" + text.encode()).tokens(Chain(zen()))
    assert [piece.decode() for piece in pieces] == list(text)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": -1},
        {"delay_ms": -1.0},
        {"delay_ms": math.nan},
        {"first_delay_ms": 60_001.0},
        {"fail_at": -2},
        {"fail_with": "OK"},
        {"final": ""},
    ],
)
def test_an_order_that_makes_no_sense_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} is "):
        Order(text=b"", **options)


def test_an_order_takes_every_error_code_and_a_crash() -> None:
    assert [Order(text=b"", fail_with=code).fail_with for code in (*ERROR_CODES, CRASH)] == [*ERROR_CODES, CRASH]


# --- accumulator -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([1, 2, "1", "b"]), st.integers(-(10**6), 10**6), st.booleans(), st.booleans()),
        max_size=40,
    )
)
def test_sums_answer_as_a_list_per_sequence_would(steps: list[tuple[int | str, int, bool, bool]]) -> None:
    sums = Sums(idle_s=60)
    values: dict[int | str, list[int]] = {}
    for sequence, value, start, end in steps:
        if not start and sequence not in values:
            with pytest.raises(SequenceError, match="say start"):
                sums.add(sequence, value, start=start, end=end, now_s=0)
            continue
        kept = [] if start else values[sequence]
        values[sequence] = [*kept, value]
        expected = (sum(values[sequence]), len(values[sequence]))
        assert sums.add(sequence, value, start=start, end=end, now_s=0) == expected
        if end:
            del values[sequence]
    assert len(sums) == len(values)


def test_a_sequence_that_was_silent_for_too_long_is_forgotten_and_no_other() -> None:
    sums = Sums(idle_s=10)
    sums.add(1, 5, start=True, end=False, now_s=0)
    sums.add(2, 5, start=True, end=False, now_s=1)
    sums.add(1, 5, start=False, end=False, now_s=9)
    assert sums.add(3, 5, start=True, end=True, now_s=12) == (5, 1)
    assert len(sums) == 1
    with pytest.raises(SequenceError, match="no sequence 2"):
        sums.add(2, 5, start=False, end=False, now_s=12)
    assert sums.add(1, 5, start=False, end=False, now_s=19) == (15, 3)


def test_a_sum_outside_int64_is_refused_and_adds_nothing() -> None:
    sums = Sums(idle_s=10)
    sums.add("s", -(2**63), start=True, end=False, now_s=0)
    with pytest.raises(SequenceError, match="leaves INT64"):
        sums.add("s", -1, start=False, end=False, now_s=0)
    assert sums.add("s", 1, start=False, end=False, now_s=0) == (1 - 2**63, 2)


# --- ranker, embedder, mixed -------------------------------------------------------------------------------------


def test_the_ranker_learns_the_hidden_taste_as_well_as_the_noise_lets_it(tmp_path: Path) -> None:
    train(tmp_path)
    model = Bilinear.load(tmp_path / "1" / "bilinear.npz")
    fresh = draw_ratings(1_000, seed=99)
    assert NOISE * 0.9 < fresh.rmse(model) < NOISE * 1.1
    assert float(np.std(fresh.ratings)) > 3 * NOISE
    model.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "1" / "bilinear.npz").read_bytes()


@settings(deadline=None)
@given(seed=st.integers(0, 1_000), items=st.integers(0, 6))
def test_scores_are_the_bilinear_form_of_user_and_item(seed: int, items: int) -> None:
    rng = np.random.default_rng(seed)
    model = Bilinear(users=rng.normal(size=(16, 4)), items=rng.normal(size=(16, 4)))
    user, offered = rng.normal(size=16).astype(np.float32), rng.normal(size=(items, 16)).astype(np.float32)
    scores = model.scores(user, offered)
    assert scores.dtype == np.float32
    expected = [float(user @ model.users @ model.items.T @ item) for item in offered]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    assert sorted(order(scores).tolist(), key=lambda position: -scores[position]) == order(scores).tolist()


def test_of_items_with_equal_scores_the_earlier_comes_first() -> None:
    assert order(np.asarray([1, 2, 1, 2], dtype=np.float32)).tolist() == [1, 3, 0, 2]


def test_similar_texts_are_nearer_to_each_other_than_different_ones() -> None:
    texts = ["a card was declined in the shop", "the card was declined in a shop", "embeddings of quiet mountains"]
    rows = embed(texts, projection())
    cosine = rows @ rows.T
    assert cosine[0, 1] > 0.7
    assert cosine[0, 1] > cosine[0, 2] + 0.3


@settings(deadline=None)
@given(texts=st.lists(st.text(max_size=40), max_size=4))
def test_an_embedding_has_length_one_and_does_not_depend_on_its_batch(texts: list[str]) -> None:
    signs = projection()
    rows = embed(texts, signs)
    assert rows.shape == (len(texts), 64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
    for row, text in zip(rows, texts, strict=True):
        assert np.array_equal(row, embed([text], signs)[0])


def test_case_and_white_space_make_no_difference_to_an_embedding() -> None:
    plain, spaced = embed(["Readability counts", "  readability\n COUNTS "], projection())
    assert np.array_equal(plain, spaced)


def test_the_logarithm_is_seen_in_three_datatypes() -> None:
    y, z, h = logarithm(np.asarray([[8.0, 0.0, -1.0, 7e4, np.inf]], dtype=np.float32))
    assert [array.dtype.name for array in (y, z, h)] == ["float32", "int32", "float16"]
    np.testing.assert_allclose(y[0, [0, 3]], [math.log(8.0), math.log(7e4)], rtol=1e-6)
    assert np.isneginf(y[0, 1])
    assert np.isnan(y[0, 2])
    assert z.tolist() == [[4, 0, 1, 17, 0]]
    assert h.tolist() == [[8.0, 0.0, -1.0, math.inf, math.inf]]


# --- the fleet ---------------------------------------------------------------------------------------------------


def test_each_source_names_the_model_of_its_configuration_and_files_that_exist() -> None:
    assert tuple(source.name for source in SOURCES) == MODELS
    for source in SOURCES:
        folder = SOURCES_DIR / source.folder
        assert f'name: "{source.name}"' in (folder / source.config).read_text()
        assert all(file.exists() for file in (*source.files(), *(folder / name for name in source.labels)))


def test_a_fleet_serves_the_core_models_unless_it_is_told_otherwise() -> None:
    assert LocalFleet(1).specs[0].models == CORE_MODELS
    assert chosen_models(["core"]) == CORE_MODELS
    assert chosen_models(["all"]) == MODELS
    assert chosen_models(["streamer", "core", "accel"]) == ("streamer", *CORE_MODELS)
    assert chosen_models(parser().parse_args(["up"]).models) == MODELS


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
