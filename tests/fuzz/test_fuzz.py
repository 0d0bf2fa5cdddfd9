"""The fuzz harness on every codec for some seconds, from fixed seeds; and that it would find something.

Runs are counted in inputs and not in time, so that the same inputs are tried on every machine. The longer runs are
`python -m tests.fuzz TARGET --seconds 300`.
"""

from __future__ import annotations

import random
from io import BytesIO
from pathlib import Path

import pytest

from tests.fuzz import runner
from tests.fuzz.footprint import footprint
from tests.fuzz.found import FOUND
from tests.fuzz.frames import change_frames, frame, split_frames
from tests.fuzz.runner import fuzz, main
from tests.fuzz.shrink import failure, shrink
from tests.fuzz.target import PLANTED, TARGETS, assert_same, cuttings, load
from tests.fuzz.targets.planted import PlantedFault

RUNS = {
    "hpack": 600,
    "http2_server": 800,
    "http2_client": 800,
    "grpc_messages": 3000,
    "grpc_fields": 8000,
    "http1_server": 1500,
    "kserve": 5000,
}
"""Inputs: some seconds each."""
EDGES_MIN = {
    "hpack": 100,
    "http2_server": 300,
    "http2_client": 300,
    "grpc_messages": 50,
    "grpc_fields": 100,
    "http1_server": 300,
    "kserve": 300,
}
"""Places in the code that even a short run reaches; fewer, and the codec was not what was run."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing_and_reaches_much(name: str, tmp_path: Path) -> None:
    outcome = fuzz(name, runs=RUNS[name], seed=1, crashes=tmp_path)
    assert outcome.found is None, "\n".join(outcome.log[-60:])
    assert outcome.runs >= RUNS[name]
    assert outcome.edges >= EDGES_MIN[name]
    assert outcome.kept > 10


def test_the_same_seed_tries_the_same_inputs(tmp_path: Path) -> None:
    shown: list[str] = []
    first, second, other = (
        fuzz("grpc_fields", runs=1000, seed=seed, crashes=tmp_path, show=shown.append) for seed in (3, 3, 4)
    )
    assert len(shown) > 3
    assert all(line.startswith("#") for line in shown)
    assert (first.edges, first.kept) == (second.edges, second.kept)
    assert (first.edges, first.kept) != (other.edges, other.kept)


def test_a_planted_fault_is_found_replayed_and_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [PLANTED, "--runs", "1000000", "--seed", "5", "--crashes", str(tmp_path)]
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    assert "PlantedFault" in shown
    (found,) = tmp_path.iterdir()
    assert f"--replay {found}" in shown
    target = load(PLANTED)
    assert isinstance(failure(target, found.read_bytes()), PlantedFault)
    assert main([PLANTED, "--replay", str(found)]) == 1
    assert main([PLANTED, "--shrink", str(found)]) == 1
    small = found.with_name(found.name + ".small").read_bytes()
    assert small == b"\x04open\x04shut" + small[10:11] + bytes(101)
    assert small[10] > 100
    Path(tmp_path, "good").write_bytes(b"\x04open")
    assert main([PLANTED, "--replay", str(tmp_path / "good")]) == 0
    assert main([PLANTED, "--shrink", str(tmp_path / "good")]) == 0


def test_a_run_gathers_a_corpus_and_begins_with_it(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    first = fuzz("grpc_fields", runs=300, seed=1, corpus=corpus, crashes=tmp_path)
    kept = len(list(corpus.iterdir()))
    assert 0 < kept <= 300
    again = fuzz("grpc_fields", runs=kept, seed=2, corpus=corpus, crashes=tmp_path)
    assert again.edges >= first.edges * 9 // 10


def test_an_engine_that_fails_is_no_clean_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "ENGINE", "tests.fuzz.no_such_engine")
    assert main([PLANTED, "--runs", "5", "--crashes", str(tmp_path)]) == 2
    assert "No module named" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["hpack", "--seconds", "0"], ["hpack", "--runs", "-1"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data"),
    [pytest.param(name, data, id=f"{name}: {what}") for name, inputs in FOUND.items() for what, data in inputs],
)
def test_what_was_found_once_is_not_found_again(name: str, data: bytes) -> None:
    load(name).check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_pass_and_mutations_are_many_and_repeat_with_their_chance(name: str) -> None:
    target = load(name)
    seeds = target.seeds()
    assert len(set(seeds)) > 10
    for seed in seeds:
        target.check(seed)
    target.check(b"")
    made = [target.mutate(seeds[number % len(seeds)], random.Random(number)) for number in range(200)]
    assert made == [target.mutate(seeds[number % len(seeds)], random.Random(number)) for number in range(200)]
    assert len(set(made) - set(seeds)) > 150


def test_nothing_is_ever_too_small_to_be_mutated() -> None:
    for name in (*TARGETS, PLANTED):
        mutate = load(name).mutate
        for number in range(300):
            mutate(bytes(number % 12), random.Random(number))


def test_cuttings_are_all_of_the_bytes_and_the_same_each_time() -> None:
    for size in (0, 1, 2, 50, 1000):
        data = random.Random(size).randbytes(size)
        ways = cuttings(data)
        assert ways == cuttings(data)
        assert all(b"".join(pieces) == data for pieces in ways)
    assert any(all(len(piece) == 1 for piece in cuttings(bytes((n, n)))[-1]) for n in range(50))


def test_a_difference_is_shown_where_it_begins() -> None:
    assert_same([1, 2], [1, 2], [b"a"])
    with pytest.raises(AssertionError, match=r"cut into \[1, 2\]") as caught:
        assert_same(["a" * 1000, "b"], ["a" * 1000, "c"], [b"a", b"bc"])
    assert len(str(caught.value)) < 2000


class Holding:
    """Something with slots of its own."""

    __slots__ = ("a", "b", "unset")

    def __init__(self, a: object, b: object) -> None:
        self.a = a
        self.b = b


Holding.__module__ = "gateway.somewhere"


def test_a_footprint_counts_what_is_held_once() -> None:
    text = b"x" * 1000
    assert footprint(Holding(None, 5)) == (0, 0)
    assert footprint(Holding(text, text)) == (1000, 0)
    assert footprint(Holding([text, "y" * 10], {b"ab": (1, 2, 3)})) == (1012, 2 + 1 + 3)
    assert footprint(Holding(memoryview(text)[5:6], Holding(text, None))) == (1000, 0)
    buffer = BytesIO()
    buffer.write(bytes(5000))
    assert 5000 < footprint(Holding(buffer, bytearray(700))).size < 8000
    assert footprint(Holding(Holding(b"abc", None).__init__, print)).size == 3  # type: ignore[misc]


def test_changed_frames_are_frames_again_but_for_the_last() -> None:
    pieces = [frame(0, 0, 1, b"abc"), frame(4, 0, 0), frame(1, 4, 3, bytes(30))]
    data = b"".join(pieces) * 3
    assert split_frames(data) == pieces * 3
    kinds = set()
    for number in range(500):
        changed = change_frames(data, random.Random(number), pieces)
        assert b"".join(split_frames(changed)) == changed
        kinds |= {each[3] for each in split_frames(changed) if len(each) >= 9}
    assert {0, 1, 4, 9, 255} <= kinds


def test_shrinking_keeps_the_place_of_the_fault() -> None:
    target = load(PLANTED)
    long = b"\x03abc" * 20 + b"\x04open\x02xx\x04shut" + b"\xff" + b"z" * 255
    assert shrink(target, long) == b"\x04open\x04shut\xff" + bytes(101)
