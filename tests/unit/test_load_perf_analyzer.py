"""perf_analyzer's options and reports, and what its set-up says when something is missing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.local import MODELS
from load import perf_tool
from load.__main__ import main
from load.errors import LoadError
from load.perf_analyzer import document, options, table
from load.perf_inputs import DATA, WORDS, model_words
from load.perf_tool import PerfAnalyzer, PerfFigures, ensure_perf_analyzer, figures, run_perf_analyzer

REPORT = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "4,5604.18,45,194,186,25,211,45,0,693,910,1000,1224\n"
)
SAID = """\
Request concurrency: 4
  Client:
    Request count: 20909
    Throughput: 5604.18 infer/sec
    Avg latency: 709 usec (standard deviation 225 usec)
  Server:
    Inference count: 20910
    Execution count: 11041
    Successful request count: 20909
"""


def _figures(rate: float) -> PerfFigures:
    found = figures(REPORT.replace("5604.18", str(rate)), SAID)
    assert found.inferences_per_s == rate
    return found


def test_a_report_is_read_with_what_is_only_printed() -> None:
    assert figures(REPORT, SAID) == PerfFigures(
        requests=20909,
        inferences_per_s=5604.18,
        responses_per_s=None,
        avg_us=709.0,
        p50_us=693.0,
        p90_us=910.0,
        p95_us=1000.0,
        p99_us=1224.0,
        server_inferences=20910,
        server_executions=11041,
        server_queue_us=186.0,
        server_compute_us=281.0,
    )


def test_a_report_without_the_servers_statistics_has_none_of_them() -> None:
    found = figures("Concurrency,Inferences/Second,p50 latency\n1,10.5,900\n", "")
    assert (found.inferences_per_s, found.p50_us, found.p99_us) == (10.5, 900.0, None)
    assert (found.requests, found.server_queue_us, found.server_compute_us) == (None, None, None)


@pytest.mark.parametrize("report", ["", "Concurrency,p50 latency\n1,5\n", REPORT + "8,1,1,1,1,1,1,1,1,1,1,1,1\n"])
def test_what_is_no_report_of_one_level_is_an_error_with_its_last_words(report: str) -> None:
    with pytest.raises(LoadError, match="Throughput"):
        figures(report, SAID)


def _options(streaming: bool, *more: str) -> list[str]:
    return options(
        model="fraud-lite",
        address="127.0.0.1:1",
        protocol="grpc",
        streaming=streaming,
        concurrency=4,
        interval_ms=500,
        stability_percent=50,
        more=more,
    )


def test_streams_take_the_options_that_perf_analyzer_wants_for_them() -> None:
    assert "--streaming" not in _options(False)
    assert _options(False)[:6] == ["-m", "fraud-lite", "-u", "127.0.0.1:1", "-i", "grpc"]
    assert _options(True, "-v")[-3:] == ["--streaming", "--async", "-v"]


def test_several_peers_have_medians_and_their_rate_over_the_direct_one_round_by_round() -> None:
    runs = {
        "direct": [_figures(1000.0), _figures(2000.0), _figures(4000.0)],
        "sluice": [_figures(500.0), _figures(1000.0), _figures(1000.0)],
    }
    result = json.loads(json.dumps(document("grpc", True, 4, "fraud-lite", runs)))
    assert result["sides"]["direct"]["inferences_per_s"] == 2000.0
    assert result["rate_ratios_to_direct"] == {"sluice": 0.5}
    assert "sluice / direct: 0.50" in table(result)
    assert document("grpc", True, 4, "fraud-lite", {"sluice": runs["sluice"]})["rate_ratios_to_direct"] == {}


def test_streams_over_http_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf-analyzer", "--peer", "direct", "--protocol", "http", "--streaming"]) == 2
    assert "only gRPC has" in capsys.readouterr().err


def test_a_decoupled_model_without_streams_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf-analyzer", "--peer", "direct", "--protocol", "grpc", "--model", "streamer"]) == 2
    assert "streamer is decoupled; add --protocol grpc --streaming" in capsys.readouterr().err


@pytest.mark.parametrize("model", sorted({*WORDS, *DATA}))
def test_models_for_which_random_inputs_will_not_do_get_others(model: str) -> None:
    assert model in MODELS
    with model_words(model, ["-v"]) as words:
        assert words[0] in ("--shape", "--input-data")
        path = Path(words[1])
        if model in DATA:
            assert json.loads(path.read_text())["data"] == [DATA[model]]
    assert not path.exists()


@pytest.mark.parametrize("more", [["--input-data", "zero"], ["--shape=items:3,16"]])
def test_who_says_what_to_send_is_not_overruled(more: list[str]) -> None:
    with model_words("ranker", more) as words:
        assert words == []


def _script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_run_that_fails_says_what_perf_analyzer_said_and_how_it_was_run(tmp_path: Path) -> None:
    tool = PerfAnalyzer(_script(tmp_path / "perf", "echo no such model >&2; exit 99"), tmp_path)
    with pytest.raises(LoadError, match=r"ended with 99(.|\n)*no such model(.|\n)*-m fraud"):
        run_perf_analyzer(tool, ["-m", "fraud"], timeout_s=10)


def test_a_run_that_hangs_is_killed(tmp_path: Path) -> None:
    tool = PerfAnalyzer(_script(tmp_path / "perf", "echo waiting; exec sleep 60"), tmp_path)
    with pytest.raises(LoadError, match=r"did not end within 3 s(.|\n)*waiting"):
        run_perf_analyzer(tool, [], timeout_s=3)  # long enough for the shell to begin on a busy machine


def test_a_run_that_ends_well_is_read(tmp_path: Path) -> None:
    script = f'while [ "$1" != -f ]; do shift; done\ncat > "$2" <<X\n{REPORT}X\ncat <<X\n{SAID}X'
    found = run_perf_analyzer(PerfAnalyzer(_script(tmp_path / "perf", script), tmp_path), ["-m", "x"], timeout_s=10)
    assert (found.requests, found.inferences_per_s) == (20909, 5604.18)


@pytest.fixture
def triton_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    libraries = tmp_path / "triton" / "libs"
    libraries.mkdir(parents=True)
    (libraries / "libb64-0123.so.0d").touch()
    (libraries / "libcudart-4567.so.12.6.77").touch()
    monkeypatch.setattr(perf_tool, "ensure_environment", lambda progress: SimpleNamespace(libraries=libraries))
    return libraries


def test_without_the_download_the_set_up_fails_with_pips_words_and_a_remedy(
    tmp_path: Path, triton_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LoadError, match=r"tritonclient(.|\n)*remedy: check the network"):
        ensure_perf_analyzer(tmp_path / "tool", progress=lambda line: None)


def _made(tool: Path, script: str) -> None:
    _script(tool / "bin" / "perf_analyzer", script)
    (tool / ".sluice-stamp").write_text(hashlib.sha256(perf_tool.LOCK_FILE.read_bytes()).hexdigest())


def test_a_whole_set_up_is_used_as_it_is_and_its_libraries_get_the_names_that_are_looked_for(
    tmp_path: Path, triton_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    _made(tmp_path / "tool", 'case "$LD_LIBRARY_PATH" in *tool/lib*) exit 0;; esac; exit 1')
    for _ in range(2):
        tool = ensure_perf_analyzer(tmp_path / "tool", progress=said.append)
    assert said == []
    links = {name: (tool.libraries / name).resolve().name for name in ("libb64.so.0d", "libcudart.so.12")}
    assert links == {"libb64.so.0d": "libb64-0123.so.0d", "libcudart.so.12": "libcudart-4567.so.12.6.77"}


def test_links_follow_a_triton_environment_that_was_built_anew(tmp_path: Path, triton_libraries: Path) -> None:
    _made(tmp_path / "tool", "exit 0")
    ensure_perf_analyzer(tmp_path / "tool", progress=lambda line: None)
    (triton_libraries / "libb64-0123.so.0d").rename(triton_libraries / "libb64-89ab.so.0d")
    tool = ensure_perf_analyzer(tmp_path / "tool", progress=lambda line: None)
    assert (tool.libraries / "libb64.so.0d").resolve().name == "libb64-89ab.so.0d"


def test_a_binary_that_does_not_start_is_an_error_with_the_loaders_words_and_a_remedy(
    tmp_path: Path, triton_libraries: Path
) -> None:
    _made(tmp_path / "tool", "echo libssl.so.3: cannot open shared object file; exit 127")
    with pytest.raises(LoadError, match=r"libssl\.so\.3(.|\n)*apt-get install -y"):
        ensure_perf_analyzer(tmp_path / "tool", progress=lambda line: None)


def test_the_lock_pins_one_wheel_with_its_hashes_and_names_no_index() -> None:
    lines = [line for line in perf_tool.LOCK_FILE.read_text().splitlines() if not line.startswith("#")]
    assert lines[0].startswith("tritonclient==")
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1:])
    assert "http" not in "".join(lines)
