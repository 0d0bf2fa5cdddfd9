"""Inference over HTTP as bytes, directly and through the gateway: what a request may say, and ways to say it wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.differential import Differential
from tests.support.differential_documents import ITEMS, PLAIN, USER, Json, X, document, region, tensor, without
from tests.support.differential_http import infer
from tests.support.tensors import packed_bytes

# --- outputs -----------------------------------------------------------------------------------------------------

THREE_STATES: tuple[Any, ...] = (None, {"binary_data": True}, {"binary_data": False})
LISTS: list[list[Any]] = [
    [], ["y"], ["z", "y"], ["y", "y"], ["h"], ["y", "h"], ["nosuch"], ["y", "nosuch"], [""],
]  # fmt: skip


def listed(names: Iterable[str], parameters: Any = None) -> list[Json]:
    return [{"name": name} if parameters is None else {"name": name, "parameters": parameters} for name in names]


@pytest.mark.parametrize("wish", [None, True, False])
@pytest.mark.parametrize("names", LISTS, ids=str)
def test_each_output_comes_in_the_form_that_was_asked_for(
    differential: Differential, names: list[str], wish: bool | None
) -> None:
    parameters = None if wish is None else {"binary_data_output": wish}
    good = bool(names) and not {"nosuch", ""} & set(names)
    for state in THREE_STATES:
        rows = ["binary-default"] if wish and good and state is None else []
        differential.check(infer(document((X,), listed(names, state), parameters), model="mixed"), *rows)
    differential.check(infer(document((X,), None, parameters), model="mixed"))


def test_of_an_output_listed_twice_the_first_counts(differential: Differential) -> None:
    for first in THREE_STATES:
        for second in THREE_STATES:
            differential.check(infer(document((X,), [*listed("y", first), *listed("y", second)]), model="mixed"))
    for first, second in ((1, None), (None, 1), (1, 2), (2, 1)):
        both = [{"name": "y", "parameters": {} if k is None else {"classification": k}} for k in (first, second)]
        differential.check(infer(document((X,), both), model="mixed"))


def test_parameters_of_tensors_that_are_no_objects_are_overlooked(differential: Differential) -> None:
    for value in (5, 0, [], [1], "s", "", True, None, {}, {"unknown": 1}, {"binary_data_size": 4}):
        differential.check(infer(document((X,), [{"name": "y", "parameters": value}]), model="mixed"))
    for value in (5, [], [1], "s", True, None, {}, {"unknown": 1}, {"shared_memory_byte_size": 4}):
        differential.check(infer(document(({**PLAIN, "parameters": value},))))


BAD_OUTPUTS: list[Any] = [
    [{}], [1], ["y"], [None], [[]], {}, "y", 5, True, [{"name": 5}], [{"name": None}], [{"name": "y",
    "parameters": {"binary_data": 1}}],
    [{"name": "y", "parameters": {"binary_data": "true"}}], [{"name": "y", "parameters": {"binary_data": None}}],
]  # fmt: skip


def test_outputs_that_are_no_list_of_names_are_refused_by_both(differential: Differential) -> None:
    for outputs in BAD_OUTPUTS:
        differential.check(infer(document((X,), outputs), model="mixed"), "bad-json")
    differential.check(
        infer(document((X,), [{"name": "y", "parameters": region("r")}]), model="mixed"), "shared-memory"
    )


# --- classification ----------------------------------------------------------------------------------------------


def classified(name: str, k: Any, **more: Any) -> list[Json]:
    return [{"name": name, "parameters": {"classification": k, **more}}]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 100, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_classification_gives_the_best_k(differential: Differential, k: int) -> None:
    for name in ("y", "z", "h"):
        for more in ({}, {"binary_data": True}):
            differential.check(infer(document((X,), classified(name, k, **more)), model="mixed"))
    for name in ("scores", "factors", "order"):
        differential.check(infer(document((USER, ITEMS), classified(name, k)), model="ranker"))
    three = tensor("x", "FP32", [3, 2], [5, 6, 1, 0, -1, float("nan")])
    differential.check(infer(json.dumps(document((three,), classified("y", k))).encode(), model="mixed"))


@pytest.mark.parametrize("k", [-1, 1.0, "1", True, None, [], {}, 2**64])
def test_a_classification_that_is_no_count_is_refused_by_both(differential: Differential, k: Any) -> None:
    differential.check(infer(document((X,), classified("y", k)), model="mixed"), "bad-json")


# --- parameters, ids, other members ------------------------------------------------------------------------------

VALUES: list[Any] = [
    0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**300, 1.5, -0.0, 1e300, True, False, "", "é", "a\0b",
    None, [], {}, [1],
    {"a": 1},
]  # fmt: skip
NAMES = (
    "own", "", "é", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers",
    "binary_data_output",
    "triton_x", "triton_enable_empty_final_response", "classification", "binary_data", "id", "model_name",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_every_kind_are_taken_or_refused_alike(differential: Differential, name: str) -> None:
    for value in VALUES:
        comparison = differential.check_any(infer(document(parameters={name: value})))
        nul = name == "sequence_id" and value == "a\0b"
        assert nul or set(comparison.differences) <= {"more", "type", "status"}
        if name in ("priority", "timeout"):
            differential.check_any(infer(document((X,), listed("y"), {name: value}), model="mixed"))


def test_parameters_that_are_no_object_are_refused_by_both(differential: Differential) -> None:
    for value in (5, "s", True, [], [1], None):
        differential.check_any(infer(document(parameters=value) | {"parameters": value}))
    for word in ("NaN", "Infinity", "-Inf"):
        text = json.dumps(document(parameters={"own": 1})).replace('"own": 1', f'"own": {word}')
        differential.check(infer(text.encode()))


def test_sequence_flags_on_a_model_without_sequences_are_parameters(differential: Differential) -> None:
    for name in (0, "", 1, "a", 2**63, 2**64 - 1, "x" * 128, "x" * 129, "é" * 64, "é" * 65):
        for start, end in ((True, True), (True, False), (False, False), (False, True)):
            parameters = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
            differential.check(infer(document(parameters=parameters)))


def test_ids_come_back_as_they_went(differential: Differential) -> None:
    for text in ("", "a", "é☃", "\0", "a\0b", "a\nb", '"', "\\", "x" * 10_000):
        differential.check(infer(document(id=text)))
    wrongs: tuple[Any, ...] = (0, 1, -1, 1.5, 2**64, None, True, [], {})
    for wrong in wrongs:
        differential.check(infer(document(id=wrong)), "bad-json")


def test_members_that_nobody_knows_are_overlooked(differential: Differential) -> None:
    for more in ({"model_name": "x"}, {"model_version": "7"}, {"unknown": {"deep": [1]}}, {"é": None}):
        differential.check(infer(document(**more)))
        differential.check(infer(document(({**PLAIN, **more},))))


def test_of_equal_members_one_counts(differential: Differential) -> None:
    text = json.dumps(document()).encode()
    twice = text[:-1] + b',"inputs":[{"name":"INPUT_INT32","datatype":"INT32","shape":[2],"data":[7,8]}]}'
    differential.check(infer(twice), "duplicate-members")


# --- inputs ------------------------------------------------------------------------------------------------------

REFUSED: list[Any] = [
    [], [X, X], [X, {**X, "data": [3, 4]}], [X, {**X, "name": "nosuch"}], [{**X, "name": "nosuch"}], [{**X,
    "name": ""}],
    [{**X, "datatype": "INT32"}], [{**X, "datatype": "FP64"}], [{**X, "datatype": "nosuch"}], [{**X, "datatype": ""}],
    [{**X, "datatype": "fp32"}], [{**X, "datatype": "TYPE_FP32"}], [{**X, "shape": [2]}], [{**X, "shape": [1, 1, 2]}],
    [{**X, "shape": [9, 1], "data": [1] * 9}], [{**X, "shape": [0, 2], "data": []}], [1], [None], ["x"], [[]],
]  # fmt: skip
MALFORMED: list[Any] = [
    [{**X, "name": 5}], [{**X, "name": None}], [without(X, "name")], [{**X, "datatype": 5}], [without(X, "datatype")],
    [without(X, "shape")],
]  # fmt: skip
TAKEN: list[Any] = [[X], [{**X, "shape": [2, 1]}], [{**X, "shape": [8, 1], "data": [1] * 8}], [{**X, "extra": 1}]]


def test_inputs_that_the_model_does_not_take_are_refused_by_both(differential: Differential) -> None:
    for inputs in (*REFUSED, *TAKEN):
        comparison = differential.check(infer(document(inputs, listed("y")), model="mixed"))
        assert comparison.direct.status == (200 if inputs in TAKEN else 400)
    for inputs in MALFORMED:
        differential.check_any(infer(document(inputs, listed("y")), model="mixed"))
    differential.check(infer(document((PLAIN, PLAIN))))
    differential.check(infer(document((USER,)), model="ranker"))
    differential.check(infer(document((ITEMS, USER)), model="ranker"))
    differential.check(infer(document((USER, {**ITEMS, "shape": [0, 16], "data": []})), model="ranker"))
    differential.check(infer(document(({**USER, "shape": [4, 4]}, ITEMS)), model="ranker"))


def test_models_own_errors_keep_their_status_and_words(differential: Differential) -> None:
    text = tensor("text", "BYTES", [1, 1], ["é"])
    differential.check(infer(document((text,)), model="embedder"))
    differential.check(infer(document(({**text, "shape": [33, 1], "data": ["é"] * 33},)), model="embedder"))
    binary = tensor("text", "BYTES", [1, 1], binary_data_size=5)
    differential.check(infer(document((binary,)), packed_bytes(b"\xff"), model="embedder"))
    items = tensor("items", "FP32", [1, 16], [float("nan")] * 16)
    differential.check(infer(json.dumps(document((USER, items))).encode(), model="ranker"))


DOCUMENTS = [
    b"[]", b"null", b"1", b'"x"', b"{}", b'{"inputs":{}}', b'{"inputs":null}', b'{"inputs":5}', b" ", b"{",
    b"not json", b"{} {}",
    json.dumps(document()).encode() + b"x", json.dumps(document()).encode()[:-1],
    b"//\n" + json.dumps(document()).encode(),
    json.dumps(document()).encode("utf-16"), json.dumps(document()).encode().replace(b'"INPUT_INT32"',
    b'"INPUT\n_INT32"'),
]  # fmt: skip


@pytest.mark.parametrize("body", DOCUMENTS)
def test_bodies_that_are_no_request_are_refused_by_both(differential: Differential, body: bytes) -> None:
    differential.check(infer(body), "bad-json")


def test_bodies_that_are_a_request_all_the_same(differential: Differential) -> None:
    text = json.dumps(document()).encode()
    for body in (
        b"\xef\xbb\xbf" + text,
        b" \r\n\t" + text + b"\n ",
        json.dumps(document(), indent=7).encode(),
        b'{"inputs":[]}',
        b"",
    ):
        differential.check(infer(body))


# --- models and versions -----------------------------------------------------------------------------------------


def test_infer_of_a_decoupled_model_is_told_so_whatever_the_body_is(differential: Differential) -> None:
    text = json.dumps(document()).encode()
    named = "Inference-Header-Content-Length"
    cases: list[tuple[bytes, list[tuple[str, str]]]] = [
        (text, []),
        (b"raw", [(named, "0")]),
        (b"", []),
        (b"{", []),
        (json.dumps(document(({**PLAIN, "shape": [3]},))).encode(), []),
        (json.dumps(document(parameters={"sequence_id": -1})).encode(), []),
        (text, [(named, str(len(text) + 1))]),
        (text, [(named, "none")]),
        (b"no gzip", [("Content-Encoding", "gzip")]),
        (text, [("Content-Encoding", "br")]),
        (json.dumps(document(({**PLAIN, "parameters": region("r")},))).encode(), []),
    ]
    for body, headers in cases:
        for version in ("", "1"):
            found = differential.check(infer(body, model="streamer", version=version, headers=headers))
            assert found.through.status == 501
            assert str(found.through.error).replace("ModelInfer RPC", "HTTP end point") == found.direct.error


def test_models_and_versions_are_found_or_not_alike(differential: Differential) -> None:
    for model in ("identity", "nosuch", "streamer"):
        for version in ("", "1", "2", "7", "0", "9223372036854775807"):
            differential.check_any(infer(document(), model=model, version=version))
    for version in ("01", "-1", "a", "1.0", "+1", "9223372036854775808"):
        differential.check_any(infer(document(), version=version))
    for version in ("01", "-1", "a"):
        differential.check(infer(document(), version=version), "version-form")
