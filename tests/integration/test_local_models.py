"""The demo models beyond the core, on a real Triton: streams, sequences, ranking, embedding, several outputs."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from deploy.local import MODELS, LocalFleet, TritonServer, free_ports
from deploy.local.layout import CORE_MODELS, REPOSITORY_DIR
from deploy.local.models.embedder.ngrams import embed, projection
from deploy.local.models.mixed.logarithm import logarithm
from deploy.local.models.ranker.bilinear import Bilinear, order
from deploy.local.models.streamer.markov import Chain, zen
from deploy.local.models.streamer.orders import ERROR_CODES

Array = np.ndarray[Any, Any]
OTHERS = tuple(model for model in MODELS if model not in CORE_MODELS)
ids = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """One server with all models that the shared fleet lacks."""
    logs = tmp_path_factory.mktemp("models-triton-logs")
    with LocalFleet(1, OTHERS, ports=free_ports(1), log_dir=logs) as servers:
        yield servers["triton-0"]


@pytest.fixture
def client(server: TritonServer) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(server.spec.grpc_address) as client:
        yield client


def tensor(name: str, value: Any, datatype: str, module: Any = triton_grpc) -> Any:
    kinds = {"BYTES": np.object_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
    array: Array = np.asarray(value, dtype=kinds[datatype])
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


# --- streamer ----------------------------------------------------------------------------------------------------

KINDS = {"max_tokens": "INT32", "fail_at": "INT32", "fail_with": "BYTES", "final": "BYTES"}


def stream_inputs(text: bytes, **options: Any) -> list[Any]:
    given = {name: value.encode() if isinstance(value, str) else value for name, value in options.items()}
    return [
        tensor("text_input", [text], "BYTES"),
        *(tensor(name, [value], KINDS.get(name, "FP32")) for name, value in given.items()),
    ]


class Stream:
    """One gRPC stream; a message is (token, index, final), or the text of an error."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.messages: Queue[Any] = Queue()
        client.start_stream(self._take)

    def _take(self, result: Any, error: Any) -> None:
        if error is not None:
            self.messages.put(str(error))
            return
        token, index = result.as_numpy("text_output"), result.as_numpy("index")
        final = result.get_response().parameters["triton_final_response"].bool_param
        self.messages.put((token.item(), index.item(), final) if token is not None else (None, None, final))

    def ask(self, text: bytes, request_id: str = "", **options: Any) -> None:
        inputs = stream_inputs(text, **options)
        self.client.async_stream_infer("streamer", inputs, request_id=request_id, enable_empty_final_response=True)

    def whole(self, text: bytes, **options: Any) -> list[Any]:
        """All messages of one answer, its end included."""
        self.ask(text, **options)
        return self.through_the_end()

    def through_the_end(self) -> list[Any]:
        messages: list[Any] = []
        while not messages or not isinstance(messages[-1], tuple) or not messages[-1][2]:
            messages.append(self.messages.get(timeout=30))
        return messages


END = (None, None, True)


@pytest.fixture
def stream(client: Any) -> Iterator[Stream]:
    stream = Stream(client)
    yield stream
    client.stop_stream(cancel_requests=True)


def stream_log(server: TritonServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.spec.stream_log.read_text().splitlines()]


def wait_for_line(server: TritonServer, request_id: str, event: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        for line in stream_log(server):
            if line["id"] == request_id and line["event"] == event:
                return line
        time.sleep(0.01)
    raise AssertionError(f"no {event} of {request_id} in the log of the streamer")


def post(server: TritonServer, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.spec.http_address, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]


def test_the_streamer_sends_the_tokens_that_its_chain_computes_and_then_the_end(stream: Stream) -> None:
    tokens = Chain(zen()).tokens(b"Explicit is")
    expected = [(next(tokens), index, False) for index in range(40)]
    assert stream.whole(b"Explicit is", max_tokens=40) == [*expected, END]
    assert len(stream.whole(b"")) == 16 + 1


def test_the_streamer_answers_with_no_one_or_many_responses(stream: Stream) -> None:
    assert stream.whole(b"x", max_tokens=0) == [END]
    assert len(stream.whole(b"x", max_tokens=1)) == 2
    many = stream.whole(b"x", max_tokens=500)
    assert [message[1] for message in many] == [*range(500), None]


def test_the_end_of_an_answer_can_come_with_its_last_response(stream: Stream) -> None:
    messages = stream.whole(b"x", max_tokens=3, final="joined")
    assert [(index, final) for _, index, final in messages] == [(0, False), (1, False), (2, True)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b"echo:data: x\n\n: \r\nid: \xc3\xa4\xff", [b"data: x\n", b"\n", b": \r\n", b"id: \xc3\xa4\xff"]),
        ("chars:aä€𝄞\n".encode(), [b"a", "ä".encode(), "€".encode(), "𝄞".encode(), b"\n"]),
        (b"bytes:\xc3\xa4", [b"\xc3", b"\xa4"]),
        (b"echo:", []),
    ],
)
def test_the_streamer_gives_a_text_back_verbatim_in_pieces(stream: Stream, text: bytes, tokens: list[bytes]) -> None:
    assert stream.whole(text) == [*((token, index, False) for index, token in enumerate(tokens)), END]


def test_several_requests_of_one_stream_are_served_side_by_side(stream: Stream) -> None:
    stream.ask(b"x", max_tokens=2, first_delay_ms=3000.0)
    stream.ask(b"chars:" + b"y" * 200)
    first = [stream.messages.get(timeout=30) for _ in range(201)]
    assert [token for token, _, _ in first] == [*[b"y"] * 200, None]
    assert len(stream.through_the_end()) == 3


@pytest.mark.parametrize("fail_at", [0, 2, 3])
@pytest.mark.parametrize("final", ["usual", "apart"])
def test_the_streamer_fails_at_the_response_that_it_is_told(stream: Stream, fail_at: int, final: str) -> None:
    stream.ask(b"x", max_tokens=3, fail_at=fail_at, final=final)
    assert [stream.messages.get(timeout=30)[1] for _ in range(fail_at)] == list(range(fail_at))
    assert stream.messages.get(timeout=30) == f"bad input: fail_at is {fail_at}"
    if final == "apart":
        assert stream.messages.get(timeout=30) == END
    # Nothing more came of the first answer.
    assert [index for _, index, _ in stream.whole(b"x", max_tokens=2)] == [0, 1, None]


GRPC_STATUS = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}


@pytest.mark.parametrize("code", ERROR_CODES)
def test_the_streamer_fails_with_every_code_that_a_model_can_give(server: TritonServer, client: Any, code: str) -> None:
    told: Queue[Any] = Queue()
    # The metadata makes the stream end with the status of its first error: so the code can be seen.
    client.start_stream(lambda result, error: told.put(error), headers={"triton_grpc_error": "true"})
    inputs = stream_inputs(b"x", fail_at=0, fail_with=code)
    client.async_stream_infer("streamer", inputs)
    assert str(told.get(timeout=30).status()) == f"StatusCode.{GRPC_STATUS.get(code, code)}"
    client.stop_stream()
    # Over HTTP this Triton knows one status only for all that comes as an event.
    path = "/v2/models/streamer/generate_stream"
    failing = {"text_input": "x", "max_tokens": 3, "fail_with": code}
    status, body = post(server, path, {**failing, "fail_at": 0})
    assert (status, events(body)) == (400, [{"error": "bad input: fail_at is 0"}])
    status, body = post(server, path, {**failing, "fail_at": 1})
    assert (status, events(body)[1:]) == (200, [{"error": "bad input: fail_at is 1"}])


def test_the_streamer_answers_generate_over_http(server: TritonServer) -> None:
    path = "/v2/models/streamer/generate"
    asked = {"text_input": "echo:a\nb\n"}
    status, body = post(server, f"{path}_stream", asked)
    assert status == 200
    assert [(event["text_output"], event["index"]) for event in events(body)] == [("a\n", 0), ("b\n", 1)]
    status, body = post(server, path, {**asked, "max_tokens": 1, "final": "joined"})
    assert (status, json.loads(body)["text_output"]) == (200, "a\n")
    assert "error" in json.loads(post(server, path, asked)[1])


@pytest.mark.parametrize(
    "options", [{"max_tokens": -1}, {"delay_ms": -1.0}, {"fail_at": -2}, {"fail_with": "bad luck"}, {"final": "never"}]
)
def test_an_option_of_the_streamer_that_makes_no_sense_is_refused_by_name(
    stream: Stream, options: dict[str, Any]
) -> None:
    stream.ask(b"x", **options)
    assert stream.messages.get(timeout=30).startswith(f"{next(iter(options))} is ")


def test_a_cancelled_stream_ends_its_execution_between_two_tokens(server: TritonServer, client: Any) -> None:
    name = f"cancelled-{next(ids)}"
    stream = Stream(client)
    stream.ask(b"x", name, max_tokens=1000, delay_ms=30_000.0)
    assert stream.messages.get(timeout=30)[1] == 0
    started = wait_for_line(server, name, "start")
    client.stop_stream(cancel_requests=True)
    ended = wait_for_line(server, name, "end")
    assert (ended["outcome"], ended["sent"]) == ("cancelled", 1)
    assert started["start_s"] == ended["start_s"] < ended["end_s"] < ended["start_s"] + 25


def test_more_streams_than_the_streamer_serves_at_once_wait_and_are_served(stream: Stream) -> None:
    for _ in range(80):
        stream.ask(b"x", max_tokens=1, first_delay_ms=500.0)
    messages = [stream.messages.get(timeout=30) for _ in range(160)]
    assert messages.count(END) == 80


def test_after_a_crash_in_the_middle_of_a_stream_that_stream_stays_silent_and_the_model_refuses_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    logs = tmp_path_factory.mktemp("crash-logs")
    with LocalFleet(1, ["streamer"], ports=free_ports(1), log_dir=logs, progress=lambda line: None) as own:
        broken = own["triton-0"]
        with triton_grpc.InferenceServerClient(broken.spec.grpc_address) as client:
            stream = Stream(client)
            stream.ask(b"x", "last words", max_tokens=5, fail_at=2, fail_with="CRASH", delay_ms=1000.0)
            assert [stream.messages.get(timeout=30)[1] for _ in range(2)] == [0, 1]
            line = wait_for_line(broken, "last words", "end")
            assert (line["outcome"], line["sent"]) == ("crash", 2)
            stream.ask(b"x")
            assert "not healthy" in stream.messages.get(timeout=30)
            assert broken.ready()
            client.stop_stream(cancel_requests=True)


# --- accumulator -------------------------------------------------------------------------------------------------

Add = Callable[..., tuple[int, int, Any]]


def adder(server: TritonServer, model: str, protocol: str) -> Add:
    """A function (sequence, value, **flags) -> (sum, count, corrid)."""
    module: Any = triton_grpc if protocol == "grpc" else triton_http
    address = server.spec.grpc_address if protocol == "grpc" else server.spec.http_address

    def add(sequence: int | str, value: int, start: bool = False, end: bool = False, **parameters: Any) -> Any:
        with module.InferenceServerClient(address) as client:
            result = client.infer(
                model,
                [tensor("value", [[value]], "INT64", module)],
                sequence_id=sequence,
                sequence_start=start,
                sequence_end=end,
                parameters=parameters or None,
            )
        return tuple(result.as_numpy(name).item() for name in ("sum", "count", "corrid"))

    return add


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    ("model", "names"),
    [("accumulator", (11, 2**63 - 1)), ("accumulator-text", ("a", "größer")), ("accumulator-text", (11, "11"))],
)
def test_sequences_keep_their_sums_apart(
    server: TritonServer, protocol: str, model: str, names: tuple[Any, Any]
) -> None:
    add = adder(server, model, protocol)
    shown = [name if model == "accumulator" else str(name).encode() for name in names]
    assert [add(name, 1, start=True) for name in names] == [(1, 1, each) for each in shown]
    assert [add(name, factor, end=False) for factor, name in enumerate(names, 5)] == [
        (6, 2, shown[0]),
        (7, 2, shown[1]),
    ]
    assert add(names[0], 100, start=True) == (100, 1, shown[0])
    assert [add(name, -2, end=True) for name in names] == [(98, 2, shown[0]), (5, 3, shown[1])]
    with pytest.raises(InferenceServerException, match="START flag"):
        add(names[0], 1)


def test_a_sequence_id_of_more_than_128_bytes_is_refused(server: TritonServer) -> None:
    add = adder(server, "accumulator-text", "grpc")
    assert add("n" * 128, 3, start=True, end=True) == (3, 1, b"n" * 128)
    with pytest.raises(InferenceServerException, match="128"):
        add("n" * 129, 3, start=True, end=True)


def test_a_request_that_fails_adds_nothing_and_its_sequence_goes_on(server: TritonServer) -> None:
    add = adder(server, "accumulator", "grpc")
    add(21, 1, start=True)
    with pytest.raises(InferenceServerException, match="failed on command"):
        add(21, 50, fail="error")
    with pytest.raises(InferenceServerException, match="leaves INT64"):
        add(21, 2**63 - 1)
    assert add(21, 1, end=True) == (2, 2, 21)


def test_eight_sequences_live_at_once_and_a_ninth_waits_for_the_end_of_one(server: TritonServer) -> None:
    add = adder(server, "accumulator", "grpc")
    names = range(31, 39)
    for name in names:
        add(name, name, start=True)
    with ThreadPoolExecutor(9) as pool:
        ninth = pool.submit(add, 39, 39, start=True, end=True)
        assert list(pool.map(lambda name: add(name, 1), names)) == [(name + 1, 2, name) for name in names]
        assert not ninth.done()
        assert add(31, 1, end=True) == (33, 3, 31)
        assert ninth.result(timeout=30) == (39, 1, 39)
    for name in names[1:]:
        add(name, 0, end=True)


def test_a_sequence_can_run_over_one_grpc_stream(client: Any) -> None:
    answers: Queue[Any] = Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    for value in range(1, 6):
        client.async_stream_infer(
            "accumulator",
            [tensor("value", [[value]], "INT64")],
            sequence_id=41,
            sequence_start=value == 1,
            sequence_end=value == 5,
        )
    sums = [answers.get(timeout=30).as_numpy("sum").item() for _ in range(5)]
    client.stop_stream()
    assert sums == [1, 3, 6, 10, 15]


# --- ranker, embedder, mixed -------------------------------------------------------------------------------------


def rank(client: Any, user: Array, items: Array, outputs: Any = None) -> Any:
    return client.infer("ranker", [tensor("user", user, "FP32"), tensor("items", items, "FP32")], outputs=outputs)


@pytest.mark.parametrize("items", [0, 1, 37])
def test_the_ranker_orders_any_number_of_items_as_its_artifact_scores_them(client: Any, items: int) -> None:
    rng = np.random.default_rng(items)
    user, offered = rng.normal(size=16).astype(np.float32), rng.normal(size=(items, 16)).astype(np.float32)
    result = rank(client, user, offered)
    model = Bilinear.load(REPOSITORY_DIR / "ranker" / "1" / "bilinear.npz")
    scores = model.scores(user, offered)
    np.testing.assert_allclose(result.as_numpy("scores"), scores, atol=1e-5)
    assert result.as_numpy("order").tolist() == order(result.as_numpy("scores")).tolist()
    np.testing.assert_allclose(result.as_numpy("factors"), model.factors(user), atol=1e-5)


def test_the_ranker_can_be_asked_for_the_best_as_classes(client: Any) -> None:
    rng = np.random.default_rng(8)
    user, offered = rng.normal(size=16).astype(np.float32), rng.normal(size=(9, 16)).astype(np.float32)
    wanted = [triton_grpc.InferRequestedOutput(name, class_count=2) for name in ("scores", "factors")]
    classes = rank(client, user, offered, wanted)
    best = rank(client, user, offered)
    positions = [text.decode().split(":")[1] for text in classes.as_numpy("scores")]
    assert positions == [str(position) for position in best.as_numpy("order")[:2]]
    first = classes.as_numpy("factors")[0].decode().split(":")
    assert first[2] == ("first", "second", "third", "fourth")[int(first[1])]


def test_the_ranker_refuses_numbers_that_are_not_finite(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="finite"):
        rank(client, np.full(16, np.nan, dtype=np.float32), np.zeros((1, 16), dtype=np.float32))


def test_the_embedder_answers_as_its_arithmetic_and_fails_only_the_text_that_is_not_utf8(client: Any) -> None:
    texts = ["simple is better than complex", "Simple is better than complicated", "Zürich", ""]
    result = client.infer("embedder", [tensor("text", [[text.encode()] for text in texts], "BYTES")])
    assert result.as_numpy("embedding").shape == (4, 64)
    np.testing.assert_allclose(result.as_numpy("embedding"), embed(texts, projection()), atol=1e-6)
    with pytest.raises(InferenceServerException, match="not UTF-8"):
        client.infer("embedder", [tensor("text", [[b"\xff"]], "BYTES")])


def test_mixed_answers_in_three_datatypes_with_values_that_are_not_finite(client: Any) -> None:
    x = np.asarray([[1.0, 0.0, -1.0], [7e4, np.inf, np.nan]], dtype=np.float32)
    result = client.infer("mixed", [tensor("x", x, "FP32")])
    wanted: list[tuple[str, Array]] = list(zip(("y", "z", "h"), logarithm(x), strict=True))
    for name, expected in wanted:
        answered = result.as_numpy(name)
        assert answered.dtype == expected.dtype
        np.testing.assert_allclose(answered, expected, rtol=1e-6)
    assert np.isneginf(result.as_numpy("y")[0, 1])
    assert np.isposinf(result.as_numpy("h")[1, 0])


def test_mixed_answers_an_empty_row_with_empty_rows(client: Any) -> None:
    result = client.infer("mixed", [tensor("x", np.empty((3, 0)), "FP32")])
    assert [result.as_numpy(name).shape for name in ("y", "z", "h")] == [(3, 0)] * 3
