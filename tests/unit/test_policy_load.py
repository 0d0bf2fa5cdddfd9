"""Loading a directory of policies: the set, its revision, the files it names, and what is not a policy."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from deploy.local.layout import MODELS
from gateway.policy.load import load_policies, revision
from gateway.policy.problems import PolicyError, PolicyProblem
from tests.unit.policy_tree import FLEET, MODEL, problems_of, write

ROOT = Path(__file__).resolve().parents[2]
REQUEST = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]}]}'


def _texts(folder: Path) -> list[str]:
    return [str(problem).replace(f"{folder}/", "") for problem in problems_of(folder)]


def test_the_policies_that_come_with_the_project_load() -> None:
    policies = load_policies(str(ROOT / "policies"))
    assert set(policies.models) == set(MODELS), "each of the demo's models, or `sluice demo` would wait for ever"
    assert policies.models["streamer"].admission.slots_per_replica == 64
    assert policies.models["fraud"].split == {"2": 100.0}
    static = policies.fleet.pools["cpu"].replicas.static
    assert static is not None
    assert [replica.grpc for replica in static] == ["127.0.0.1:18001", "127.0.0.1:18011"]
    assert set(policies.warmup_requests) == {"fraud", "fraud-lite"}


def test_a_smallest_set_gets_the_defaults_of_the_schema(tmp_path: Path) -> None:
    policies = load_policies(str(write(tmp_path)))
    model = policies.models["fraud"]
    assert model.deadline.max_ms == 30_000
    assert model.default_deadline_s == 1.0
    assert model.split is None
    assert policies.fleet.gateway.listen.http == "0.0.0.0:8000"
    assert policies.base_dir == str(tmp_path)
    assert len(policies.revision) == 12


@pytest.mark.parametrize(
    ("text", "value"), [("1e3", 1000), ("1000", 1000), ("+1000", 1000), ("0x3e8", 1000), ("0o1750", 1000)]
)
def test_a_whole_number_may_be_written_in_any_exact_way(text: str, value: int, tmp_path: Path) -> None:
    policies = load_policies(str(write(tmp_path, model=f"{MODEL}deadline: {{max_ms: {text}}}\n")))
    assert policies.models["fraud"].deadline.max_ms == value


@pytest.mark.parametrize(("text", "value"), [("5", 5.0), ("0.5", 0.5), (".5", 0.5), ("5e-1", 0.5), ("1e3", 1000.0)])
def test_a_number_may_be_whole_or_not(text: str, value: float, tmp_path: Path) -> None:
    model = MODEL.replace("p99_ms: 50", f"p99_ms: {text}")
    assert load_policies(str(write(tmp_path, model=model))).models["fraud"].objective.p99_ms == value


def test_words_that_older_yaml_takes_for_other_things_are_text(tmp_path: Path) -> None:
    model = MODEL.replace("model: fraud", "model: no").replace("Payments wait for a manual review", "12:30:45.5")
    policies = load_policies(str(write(tmp_path, model=model)))
    assert policies.models["no"].impact == "12:30:45.5"


def test_weights_are_taken_as_written_and_zero_stays_zero(tmp_path: Path) -> None:
    policies = load_policies(str(write(tmp_path, model=MODEL + "split: {'1': 0, '2': 60, '3': 33.3}\n")))
    assert policies.models["fraud"].split == {"1": 0.0, "2": 60.0, "3": 33.3}


def test_windows_line_ends_and_a_byte_order_mark_change_no_position(tmp_path: Path) -> None:
    text = "\ufeff" + (MODEL + "wrong: 1\n").replace("\n", "\r\n")
    assert [(problem.line, problem.column) for problem in problems_of(write(tmp_path, model=text))] == [(6, 1)]


def test_all_problems_of_all_files_come_together_in_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        fleet=FLEET + "redis: {}\n",
        model=MODEL + "deadline:\n  default_s: 5\n  max_ms: 5s\nsplit: {'1': 0}\n",
        models__other_dot_yaml=MODEL.replace("pool: cpu", "pool: gpu").replace("model: fraud", "model: other"),
    )
    problems = problems_of(tmp_path)
    assert [(os.path.relpath(problem.file, tmp_path), problem.line, problem.path) for problem in problems] == [
        ("fleet.yaml", 6, "redis"),
        ("models/fraud.yaml", 7, "deadline.default_s"),
        ("models/fraud.yaml", 8, "deadline.max_ms"),
        ("models/fraud.yaml", 9, "split"),
        ("models/other.yaml", 2, "pool"),
    ]


def test_an_error_reads_as_file_line_column_key_message_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "policies", model=MODEL + "deadline:\n  default_s: 5\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError) as caught:
        load_policies("policies")
    assert str(caught.value) == (
        "policies/models/fraud.yaml:7:3: deadline.default_s: unknown key; did you mean `default_ms` (milliseconds)? "
        "Write `default_ms: 5000`; allowed: default_ms, max_ms, first_response_s, idle_s, total_s, stages"
    )
    assert caught.value.problems == (
        PolicyProblem(
            "policies/models/fraud.yaml",
            7,
            3,
            "deadline.default_s",
            "unknown key",
            "did you mean `default_ms` (milliseconds)? Write `default_ms: 5000`",
            ("default_ms", "max_ms", "first_response_s", "idle_s", "total_s", "stages"),
        ),
    )


def test_a_wrong_value_is_not_reported_again_by_checks_across_keys(tmp_path: Path) -> None:
    problems = problems_of(write(tmp_path, model=MODEL + "deadline: {default_ms: 900000000, max_ms: 1}\n"))
    assert [problem.path for problem in problems] == ["objective.p99_ms", "deadline.default_ms"]


def test_two_files_for_one_model_are_refused_at_the_second(tmp_path: Path) -> None:
    write(tmp_path, models__zoo_dot_yaml=MODEL)
    assert _texts(tmp_path)[0].startswith("models/zoo.yaml:1:8: model: `fraud` has a policy already, in ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("models/other.yml", "models/other.yml:1:1: would not be read; call it `other.yaml`"),
        ("models/other.YAML", "models/other.YAML:1:1: would not be read; call it `other.yaml`"),
        ("models/other.json", "models/other.json:1:1: would not be read; call it `other.yaml`"),
        ("models/README.md", "models/README.md:1:1: would not be read; only `.yaml` files belong here"),
        ("models/fraud.yaml.bak", "models/fraud.yaml.bak:1:1: would not be read"),
        ("models/deeper/other.yaml", "models/deeper:1:1: is a directory and would not be read"),
        ("fleet.yml", "fleet.yml:1:1: would not be read; call it `fleet.yaml`"),
        ("model/other.yaml", "model:1:1: would not be read; call it `models`"),
    ],
)
def test_a_file_that_would_not_be_read_is_a_problem(name: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path) / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(MODEL)
    assert [text[: len(said)] for text in _texts(tmp_path)] == [said]


def test_hidden_files_and_backup_copies_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path)
    for name in (".fraud.yaml.swp", "fraud.yaml~", "#fraud.yaml#", "..data"):
        (tmp_path / "models" / name).write_text("not: [yaml")
    assert problems_of(tmp_path) == ()


def test_symbolic_links_are_followed_as_mounted_config_maps_have_them(tmp_path: Path) -> None:
    write(tmp_path / "..2024_11_01")
    (tmp_path / "policies" / "models").mkdir(parents=True)
    (tmp_path / "policies" / "fleet.yaml").symlink_to(tmp_path / "..2024_11_01" / "fleet.yaml")
    (tmp_path / "policies" / "models" / "fraud.yaml").symlink_to(tmp_path / "..2024_11_01" / "models" / "fraud.yaml")
    assert set(load_policies(str(tmp_path / "policies")).models) == {"fraud"}


def test_a_missing_directory_says_so(tmp_path: Path) -> None:
    problems = problems_of(tmp_path / "nowhere")
    assert [problem.message for problem in problems] == ["there is no such directory"]


def test_a_missing_fleet_file_does_not_hide_problems_of_models(tmp_path: Path) -> None:
    write(tmp_path, model=MODEL + "wrong: 1\n")
    (tmp_path / "fleet.yaml").unlink()
    assert [(text.split(":")[0], "wrong" in text) for text in _texts(tmp_path)] == [
        ("fleet.yaml", False),
        ("models/fraud.yaml", True),
    ]


def test_a_directory_without_models_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "models" / "fraud.yaml").unlink()
    assert ["there is no model in it" in text for text in _texts(tmp_path)] == [True]
    (tmp_path / "models").rmdir()
    assert ["there is no such directory" in text for text in _texts(tmp_path)] == [True]


def test_something_that_is_no_file_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    write(tmp_path)
    os.mkfifo(tmp_path / "models" / "pipe.yaml")
    (tmp_path / "models" / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "models" / "gone.yaml").symlink_to("nothing")
    texts = _texts(tmp_path)
    assert len(texts) == 3
    assert any("pipe.yaml:1:1: cannot be read: not a regular file" in text for text in texts)
    assert any("loop.yaml:1:1: cannot be read: too many levels of symbolic links" in text for text in texts)
    assert any("gone.yaml:1:1: there is no such file" in text for text in texts)


def test_text_that_is_not_utf_8_is_placed(tmp_path: Path) -> None:
    problems = problems_of(write(tmp_path, model=MODEL.encode() + b"# caf\xe9\n"))
    assert [(problem.line, problem.column, problem.message) for problem in problems] == [
        (6, 6, "the file is not UTF-8 (byte 0xe9)")
    ]


def test_utf_16_is_refused_as_a_whole(tmp_path: Path) -> None:
    problems = problems_of(write(tmp_path, model=MODEL.encode("utf-16")))
    assert [problem.message[:24] for problem in problems] == ["the file is not UTF-8 (b"]


# --- files that policies name ---------------------------------------------------------------------------------------


def _with_request(tmp_path: Path, content: str | bytes, more: str = "") -> Path:
    model = MODEL + "warmup: {request_file: ../warmup/r.json}\n" + more
    return write(tmp_path, model=model, warmup__r_dot_json=content)


def test_a_request_file_comes_with_the_set(tmp_path: Path) -> None:
    policies = load_policies(str(_with_request(tmp_path, REQUEST)))
    assert policies.warmup_requests == {"fraud": REQUEST.encode()}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a KServe v2 request"),
        ("{}", "is not a KServe v2 request: Object missing required field `inputs`"),
        ("[1]", "is not a KServe v2 request"),
        ('{"inputs": []}', "has no inputs"),
        ('{"inputs": [{"name": "x"}]}', "missing required field `datatype`"),
        ('{"inputs": [{"name": "x", "datatype": "FP32", "shape": ["a"]}]}', "is not a KServe v2 request"),
        ("[" * 100_000, "is not a KServe v2 request"),
        (b"\xff", "is not a KServe v2 request"),
        (" " * 300 + REQUEST, "is larger than 200 bytes"),
    ],
)
def test_a_request_file_that_is_no_request_is_refused(content: str | bytes, said: str, tmp_path: Path) -> None:
    problems = problems_of(
        _with_request(tmp_path, content, "limits: {body_bytes_max: 200}\n" if "larger" in said else "")
    )
    assert [(problem.line, problem.column, said in problem.message) for problem in problems] == [(6, 24, True)]


KEYS = f"- {{tenant: shop, sha256: {'ab' * 32}}}\n"
WITH_KEYS = FLEET + "identity: {mode: api_key, keys_file: keys.yaml}\n"


def test_problems_of_the_key_file_come_with_the_others(tmp_path: Path) -> None:
    write(tmp_path, fleet=WITH_KEYS, keys_dot_yaml="- {tenant: shop, sha: 1}\n")
    assert _texts(tmp_path)[0].startswith("keys.yaml:1:18: [0].sha: unknown key; did you mean")
    write(tmp_path, keys_dot_yaml=KEYS, fleet=WITH_KEYS)
    assert problems_of(tmp_path) == ()


def test_an_empty_metrics_address_means_not_scraped(tmp_path: Path) -> None:
    fleet = FLEET.replace('"}', '", metrics: ""}')
    static = load_policies(str(write(tmp_path, fleet=fleet))).fleet.pools["cpu"].replicas.static
    assert static is not None
    assert static[0].metrics == ""


# --- revision -------------------------------------------------------------------------------------------------------


def test_the_revision_does_not_depend_on_the_place_or_the_order(tmp_path: Path) -> None:
    one = load_policies(str(_with_request(tmp_path / "a", REQUEST))).revision
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
    assert load_policies(str(tmp_path / "b" / "c")).revision == one
    parts = [("a", b"1"), ("b", b"2")]
    assert revision(parts) == revision(parts[::-1])


@pytest.mark.parametrize("name", ["fleet.yaml", "models/fraud.yaml", "warmup/r.json"])
def test_a_single_byte_anywhere_changes_the_revision(name: str, tmp_path: Path) -> None:
    before = load_policies(str(_with_request(tmp_path, REQUEST))).revision
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert load_policies(str(tmp_path)).revision != before


def test_a_renamed_file_changes_the_revision(tmp_path: Path) -> None:
    before = load_policies(str(write(tmp_path))).revision
    (tmp_path / "models" / "fraud.yaml").rename(tmp_path / "models" / "other.yaml")
    assert load_policies(str(tmp_path)).revision != before


def test_a_change_of_keys_does_not_change_the_revision(tmp_path: Path) -> None:
    write(tmp_path, fleet=WITH_KEYS, keys_dot_yaml=KEYS)
    before = load_policies(str(tmp_path)).revision
    (tmp_path / "keys.yaml").write_text(KEYS.replace("ab", "cd"))
    assert load_policies(str(tmp_path)).revision == before


def test_names_and_contents_cannot_be_shifted_into_one_another() -> None:
    assert revision([("ab", b"c")]) != revision([("a", b"bc")])
    assert revision([("a", b"b"), ("c", b"d")]) != revision([("a", b"bcd")])


def test_the_revision_is_the_documented_hash() -> None:
    expected = hashlib.sha256(b"1 2\na" + b"xy" + b"1 0\nb").hexdigest()[:12]
    assert revision([("b", b""), ("a", b"xy")]) == expected
