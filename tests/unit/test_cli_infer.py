"""`sluice infer` before a scripted gateway: which route and body fit a model, and what a stream's end means."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.cli import main
from gateway.cli.infer_request import sequence_id

STREAMER: dict[str, Any] = {
    "config": {
        "model_transaction_policy": {"decoupled": True},
        "input": [{"name": "text_input"}, {"name": "max_tokens", "optional": True}],
    },
    "inputs": [
        {"name": "text_input", "datatype": "BYTES", "shape": [1]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1]},
    ],
}
SUMS: dict[str, Any] = {
    "config": {"sequence_batching": {"control_input": []}, "input": [{"name": "value"}]},
    "inputs": [{"name": "value", "datatype": "INT64", "shape": [-1, 1]}],
}
HALVES: dict[str, Any] = {
    "config": {"input": [{"name": "x"}]},
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}, {"name": "h", "datatype": "FP16", "shape": [-1]}],
}
ANYTHING: dict[str, Any] = {
    "config": {"input": [{"name": "half", "optional": True}, {"name": "whole", "optional": True}]},
    "inputs": [
        {"name": "half", "datatype": "FP16", "shape": [-1]},
        {"name": "whole", "datatype": "INT8", "shape": [-1]},
    ],
    "outputs": [
        {"name": "half", "datatype": "FP16", "shape": [-1]},
        {"name": "whole", "datatype": "INT8", "shape": []},
    ],
}
MODELS = {"streamer": STREAMER, "sums": SUMS, "halves": HALVES, "anything": ANYTHING}
TOKENS = b'data: {"model_name":"streamer","model_version":"1","text":"a"}\n\n'


class Gateway(ThreadingHTTPServer):
    """Knows MODELS, keeps what was posted, and answers `parts` as the chunks of the reply."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        self.parts = [b'{"outputs":[]}']
        self.whole = True
        """The chunked body has an end."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_GET(self) -> None:
        _, _, _, name, *more = self.path.split("/")
        model = MODELS[name]
        self.answer(200, [json.dumps(model["config"] if more == ["config"] else model).encode()])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.posted.append((self.path, json.loads(body)))
        self.answer(self.server.status, self.server.parts, whole=self.server.whole)

    def answer(self, status: int, parts: list[bytes], *, whole: bool = True) -> None:
        self.send_response(status)
        self.send_header("x-request-id", "r-1")
        self.send_header("x-sluice-model-version", "1")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not whole

    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def infer(gateway: Gateway, *words: str) -> int:
    return main(["infer", *words, "--url", gateway.url])


def test_a_decoupled_model_is_called_by_generate_stream_with_flat_inputs(gateway: Gateway) -> None:
    gateway.parts = [TOKENS]
    assert infer(gateway, "streamer", "--input", 'text_input="x"', "--input", "max_tokens=[3]") == 0
    assert gateway.posted == [
        ("/v2/models/streamer/generate_stream", {"text_input": ["x"], "max_tokens": [3]}),
    ]


def test_without_inputs_only_what_the_model_cannot_do_without_is_sent(gateway: Gateway) -> None:
    gateway.parts = [TOKENS]
    assert infer(gateway, "streamer") == 0
    assert gateway.posted[0][1] == {"text_input": [""]}


def test_where_all_inputs_are_optional_those_with_a_form_in_json_are_sent(gateway: Gateway) -> None:
    assert infer(gateway, "anything") == 0
    assert gateway.posted[0][1] == {"inputs": [{"name": "whole", "datatype": "INT8", "shape": [1], "data": [0]}]}


def test_outputs_without_a_form_in_json_are_not_asked_for(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(gateway, "halves", "--input", "x=[1, 2]") == 0
    assert gateway.posted[0][1]["outputs"] == [{"name": "y"}]
    assert capsys.readouterr().err == "not asked for, as FP16 and BF16 have no JSON form: h\n"


def test_a_request_file_for_infer_is_made_flat_for_a_decoupled_model(gateway: Gateway, tmp_path: Any) -> None:
    gateway.parts = [TOKENS]
    request = tmp_path / "request.json"
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [["x"]]}
    request.write_text(json.dumps({"id": "7", "parameters": {"p": 1}, "inputs": [tensor]}))
    assert infer(gateway, "streamer", "--request", str(request)) == 0
    request.write_text('{"text_input": "y"}')
    assert infer(gateway, "streamer", "--request", str(request)) == 0
    assert [body for _, body in gateway.posted] == [
        {"id": "7", "parameters": {"p": 1}, "text_input": ["x"]},
        {"text_input": "y"},
    ]


def test_responses_are_shown_one_a_line_and_counted(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.parts = [TOKENS[:20], TOKENS[20:] + TOKENS]  # a chunk is no event
    assert infer(gateway, "streamer") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ms  ")[2] for line in lines[1:3]] == ['text "a"', 'text "a"']
    assert lines[3].startswith("  ended     2 responses, the first after ")


def test_a_stream_without_responses_is_an_answer_too(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.parts = []
    assert infer(gateway, "streamer") == 0
    assert "ended     0 responses" in capsys.readouterr().out


def test_an_error_inside_a_stream_is_a_failure(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.parts = [TOKENS, b'data: {"error":"the model broke"}\n\n']
    assert infer(gateway, "streamer", "--json", "-") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["error"] == "the model broke"
    assert [each["response"]["text"] for each in told["responses"]] == ["a"]


def test_a_stream_that_breaks_off_is_not_taken_for_whole(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.parts, gateway.whole = [TOKENS], False
    assert infer(gateway, "streamer") == 1
    out = capsys.readouterr().out
    assert "failed    after 1 response," in out
    assert "what came is not all" in out


def test_a_refused_stream_is_told_like_any_refused_call(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.status, gateway.parts = 503, [b'{"error":"no room"}']
    assert infer(gateway, "streamer") == 1
    assert "streamer was not answered: HTTP 503" in capsys.readouterr().out


def test_what_a_model_says_cannot_command_the_terminal(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.parts = [TOKENS.replace(b'"a"', b'"\\u009b31m"')]
    assert infer(gateway, "streamer") == 0
    out = capsys.readouterr().out
    assert "\x9b" not in out
    assert "31m" in out


def test_a_step_of_a_sequence_says_which_one_it_is(gateway: Gateway) -> None:
    assert infer(gateway, "sums", "--sequence", "7", "--start", "--input", "value=5") == 0
    assert infer(gateway, "sums", "--sequence", "till-7", "--end") == 0
    assert [body["parameters"] for _, body in gateway.posted] == [
        {"sequence_id": 7, "sequence_start": True, "sequence_end": False},
        {"sequence_id": "till-7", "sequence_start": False, "sequence_end": True},
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sums"], "--sequence ID"),
        (["halves", "--sequence", "7"], "halves keeps no sequences"),
        (["sums", "--start"], "name it with --sequence"),
        (["sums", "--sequence", "0", "--start"], "names no sequence"),
        (["sums", "--sequence", "7", "--request", "x.json"], "exclude each other"),
        (["streamer", "--input", "text_input=x"], "text stands in quotes"),
        (["streamer", "--input", "text=1"], "it has text_input, max_tokens"),
    ],
)
def test_a_misuse_is_said_before_anything_is_sent(
    gateway: Gateway, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(gateway, *words) == 2
    assert told in capsys.readouterr().err
    assert gateway.posted == []


@pytest.mark.parametrize(
    ("word", "text", "wanted"),
    [
        ("7", False, 7),
        ("18446744073709551615", False, 2**64 - 1),
        ('"7"', False, "7"),
        ("7", True, "7"),
        ("till-7", False, "till-7"),
        ("007", False, "007"),
        ("1.5", False, "1.5"),
        ("true", False, "true"),
    ],
)
def test_an_id_is_a_number_where_it_looks_like_one(word: str, text: bool, wanted: int | str) -> None:
    assert sequence_id(word, text=text) == wanted


@pytest.mark.parametrize("word", ["0", "-1", "18446744073709551616", "", '""'])
def test_an_id_that_triton_takes_for_none_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="--sequence"):
        sequence_id(word)
