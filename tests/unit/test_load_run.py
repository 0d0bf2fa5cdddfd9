"""The command `python -m load run`, from its words to its exit code, on a small server of the test's own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from load.__main__ import main
from load.drive import Target, sender_of
from load.open_loop import Moment
from load.run import ProgressLine
from load.scenario import find_scenario, load_scenario, scenario_names
from load.senders import Multiplexed, Pool
from load.streams import EventStreams, GrpcStreams
from load.verdict import EXIT_CODES

SCENARIO = """\
description: For the test.
traffic:
  - name: reads
    model: identity
    deadline_ms: 20000
    arrivals: {constant: {rps: 100}}
duration_s: 1
warm_up_s: 0.2
checks:
  - {figure: error_share, max: 0}
"""


class Echo(asyncio.Protocol):
    """Answers `identity` over HTTP; with `wrong` each answer has another first value."""

    wrong = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found or len(rest) < int(head.split(b"content-length: ")[1].split(b"\r\n")[0]):
            return
        self._data = b""
        values = json.loads(rest)["inputs"][0]["data"]
        if self.wrong:
            values[0] += 1
        output = {"name": "OUTPUT_FP32", "datatype": "FP32", "shape": [12], "data": values}
        body = json.dumps({"outputs": [output]}).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


class WrongLater(Echo):
    """Right until the run has begun."""

    answered = 0

    def data_received(self, data: bytes) -> None:
        WrongLater.answered += 1
        self.wrong = WrongLater.answered > 40
        super().data_received(data)


def _serving(protocol: type[Echo]) -> Iterator[str]:
    ready, stop = threading.Event(), asyncio.Event()
    found: list[tuple[asyncio.AbstractEventLoop, int]] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, "127.0.0.1", 0)
        found.append((loop, server.sockets[0].getsockname()[1]))
        ready.set()
        async with server:
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        loop, port = found[0]
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)


@pytest.fixture
def echo() -> Iterator[str]:
    yield from _serving(Echo)


@pytest.fixture
def wrong_later() -> Iterator[str]:
    WrongLater.answered = 0
    yield from _serving(WrongLater)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "example.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def test_a_run_against_an_address_gives_json_pictures_and_the_verdicts_exit_code(
    echo: str, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pictures = tmp_path / "out.json", tmp_path / "pictures"
    words = ["run", scenario, "--address", echo, "--json", str(out), "--pictures", str(pictures), "--scale", "2"]
    code = main(words)
    result = json.loads(out.read_text())
    assert code == EXIT_CODES[result["verdict"]]
    assert result["verdict"] in ("pass", "inconclusive"), result["checks"]
    assert (result["figures"]["offered"], result["figures"]["right"]) == (200, 200)
    assert result["figures"]["gateway_cpu_us_per_call"] is None
    assert result["setting"]["target"] == echo
    assert len(list(pictures.glob("*.svg"))) == 3
    shown = capsys.readouterr()
    assert f"verdict: {result['verdict']}" in shown.out
    assert "\r" not in shown.err, "a progress line is for terminals"


def test_wrong_answers_fail_a_run_even_one_that_the_generator_spoiled(
    wrong_later: str, scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("load.run_figures.LATE_SHARE_MAX", -1.0)
    assert main(["run", scenario, "--address", f"http={wrong_later}", "--json", "-"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "fail"
    assert result["figures"]["wrong"] > 50
    assert result["setting"]["attempts"] == 1, "a second run would not make it good"
    assert result["checks"][0] == {
        "name": "no wrong answer", "figure": "wrong", "limit": 0, "measured": result["figures"]["wrong"], "pass": False,
    }  # fmt: skip


def test_a_run_that_the_generator_spoiled_is_done_once_more_and_then_inconclusive(
    echo: str, scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("load.run_figures.LATE_SHARE_MAX", -1.0)
    assert main(["run", scenario, "--address", echo, "--json", "-", "--seconds", "0.3"]) == 3
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert (result["verdict"], result["setting"]["attempts"]) == ("inconclusive", 2)
    assert [check["pass"] for check in result["checks"]] == [None, None]
    assert shown.err.count("done once more") == 1


def test_a_target_that_does_not_answer_is_told_before_anything_is_measured(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("load.drive.SETTLE_S", 0.1)
    assert main(["run", scenario, "--address", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "nothing answers at 127.0.0.1:1, where the traffic reads goes (identity over http)" in said
    assert "nothing listens on that port" in said
    assert "--keep" not in said, "nothing was started here"


def test_a_folder_for_pictures_that_cannot_be_used_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for command in (["run", "steady", "--address", "127.0.0.1:1"], ["soak", "--seconds", "10"]):
        assert main([*command, "--pictures", str(blocked / "pictures")]) == 2
        assert f"--pictures: nothing can be written into {blocked}" in capsys.readouterr().err


class Hangup(Echo):
    """Takes connections, and ends them when something comes."""

    def data_received(self, data: bytes) -> None:
        self._transport.abort()


def test_a_target_that_hangs_up_is_told_apart_from_one_that_does_not_listen(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("load.drive.SETTLE_S", 0.1)
    with contextmanager(_serving)(Hangup) as address:
        assert main(["run", scenario, "--address", address]) == 1
    said = capsys.readouterr().err
    assert "gives no right answer to the traffic reads (identity over http): it takes connections and ends" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "steady", "--scale", "abc"], "argument --scale: 'abc' is not a number above 0"),
        (["run", "steady", "--warm-up", "x"], "argument --warm-up: 'x' is not a number from 0"),
        (["compare", "--limit", "cpu=x"], "argument --limit: 'x' is not a number above 0"),
        (["compare", "--rounds", "1.5"], "argument --rounds: '1.5' is not a whole number from 1"),
        (["throughput", "--concurrency", "a"], "argument --concurrency: 'a' is not a whole number from 1"),
    ],
)
def test_a_wrong_value_is_told_in_words_of_its_user(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a scenario; python -m load run --list shows them"),
        (["stedy"], "did you mean steady?"),
        (["poisson", "--address", "127.0.0.1:1"], "the scenario speaks http and grpc"),
        (["poisson", "--address", "http=127.0.0.1:1"], "the scenario speaks grpc; add --address grpc=HOST:PORT"),
        (["steady", "--address", "nowhere"], "--address nowhere: write as 127.0.0.1:8000"),
        (["steady", "--json", "/nonexistent/folder/out.json"], "there is no folder for /nonexistent/folder"),
        (["step", "--target", "direct"], "--target direct is one Triton, and step wants 2"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_remedy(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--scale", "0"], ["--seconds", "x"], ["--target", "moon"], ["--warm-up", "-1"]])
def test_words_that_mean_nothing_end_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "steady", *wrong])
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_help_has_examples_and_list_has_all_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    assert "python -m load run steady" in capsys.readouterr().out
    assert main(["run", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == scenario_names()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("steady", [Pool]), ("poisson", [Pool, Pool, Multiplexed]), ("stream", [GrpcStreams, EventStreams])],
)
async def test_each_kind_of_traffic_has_the_sender_of_its_protocol(name: str, kinds: list[type]) -> None:
    target = Target("nowhere", {"http": "127.0.0.1:1", "grpc": "127.0.0.1:1"})
    senders = [sender_of(each, target) for each in load_scenario(find_scenario(name)).spec.traffic]
    assert [type(each) for each in senders] == kinds
    for each in senders:
        await each.aclose()


def test_the_progress_line_tells_where_the_run_stands() -> None:
    line = ProgressLine(load_scenario(find_scenario("steady"))).line
    assert line(Moment(-1.9, 0, 0, 0, 1, None, None)) == "steady: warming up, 2 s left"
    assert line(Moment(3.0, 600, 590, 2, 8, 1.234, 5.678)) == (
        "steady: 3/20 s, offered 600, done 590, failed 2, in flight 8, last second p50 1.2 p99 5.7 ms"
    )


PLAIN = ("poisson", "steady", "step", "stream", "trace")
"""Scenarios in which every call has its answer. The others are those of `load chaos`, and `burst`."""


@pytest.mark.field
@pytest.mark.parametrize("name", PLAIN)
def test_each_scenario_runs_on_real_servers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", name, "--seconds", "5", "--json", "-"])
    result = json.loads(capsys.readouterr().out)
    assert code == EXIT_CODES[result["verdict"]]
    assert result["figures"]["wrong"] == 0
    assert result["figures"]["right"] > 0.9 * result["figures"]["offered"] > 0
