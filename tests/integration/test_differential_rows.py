"""Every row of the table of deviations is met by a call that is made here, or it is said why no call can meet it."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.edge.deviations import DEVIATIONS
from tests.integration.conftest import ABSENT
from tests.support.differential import COMPANIONS, Differential
from tests.support.differential_compare import Comparison
from tests.support.differential_grpc import infer_request, stream, tensor, unary
from tests.support.differential_http import HttpSent, infer, request
from tests.support.differential_rows import CANNOT, ROWS

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"name": "INPUT_INT32", "datatype": "INT32", "shape": [2], "data": [1, 2]}
TEXTS = {"name": "INPUT_BYTES", "datatype": "BYTES", "shape": [4], "parameters": {"binary_data_size": 16}}
X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
WORK = {"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [1]}
BODY = json.dumps({"inputs": [PLAIN]}).encode()
HEAD = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: differential\r\nContent-Length: {len(BODY)}\r\n".encode()
INSIDE = "see /opt/models/secret.py on 10.1.2.3:8001"
Sent = Any

SENT: dict[str, list[Sent]] = {
    "bad-json": [infer(b"{")],
    "bad-header-length": [request("/v2/models/mixed/infer", b"\0\0\0\0", [("Inference-Header-Content-Length",
    "none")])],
    "binary-default": [infer({"inputs": [X], "outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}},
    model="mixed")],
    "json-range": [infer({"inputs": [{**PLAIN, "data": [1, 2**31]}]})],
    "json-doubles": [infer({"inputs": [{"name": "INPUT_FP64", "datatype": "FP64", "shape": [1],
    "data": [0.9680488278733529]}]})],
    "json-text": [infer(json.dumps({"inputs": [PLAIN], "id": "_"}).encode().replace(b"_", b"\xff"))],
    "duplicate-members": [infer(BODY[:-1] + b"," + BODY[1:].replace(b"[1, 2]", b"[3, 4]"))],
    "path": [request("/v2/models/id%65ntity")],
    "version-form": [
        request("/v2/models/identity/versions/01"),
        unary("ModelMetadata", infer_request((), model_version="01")),
    ],
    "sequence-nul": [
        infer({"inputs": [PLAIN], "parameters": {"sequence_id": "a\0b"}}),
        unary("ModelInfer", infer_request((), parameters={"sequence_id": "a\0b"})),
    ],
    "split-bytes": [infer({"inputs": [TEXTS]}, bytes(16), chunks=[len(json.dumps({"inputs": [TEXTS]})) + 1])],
    "no-replica": [request(f"/v2/models/{ABSENT}"), infer(BODY, model=ABSENT), unary("ModelInfer", infer_request((),
    model=ABSENT))],
    "fault-order": [
        infer(b"{", version="9"),
        unary("ModelInfer", infer_request((), model_version="9", parameters={"sequence_id": True})),
    ],
    "unknown-model-ready": [request("/v2/models/nosuch/ready")],
    "extensions": [request("/v2"), unary("ServerMetadata", b"")],
    "shared-memory": [
        infer({"inputs": [{**PLAIN, "parameters": {"shared_memory_region": "r"}}]}),
        request("/v2/systemsharedmemory/status"),
        unary("CudaSharedMemoryStatus", b""),
    ],
    "server-settings": [request("/v2/logging"), request("/v2/trace/setting"), unary("LogSettings", b"")],
    "repository-name": [request("/v2/repository/own/index", b"")],
    "repository-index": [request("/v2/repository/index", b""), unary("RepositoryIndex", b"")],
    "statistics": [request("/v2/models/stats"), unary("ModelStatistics", b"")],
    "too-large": [],
    "http-deadline": [
        infer({"inputs": [WORK], "parameters": {"straggle_ms": 1000}}, model="accel", headers=[("x-request-timeout-ms",
        "50")]),
        infer(BODY, headers=[("x-request-timeout-ms", "soon")]),
    ],
    "error-text": [
        infer({"inputs": [WORK], "parameters": {"fail": INSIDE}}, model="accel"),
        unary("ModelInfer", infer_request([tensor("work", "FP32", [1, 1], [1])], model="accel",
        parameters={"fail": INSIDE})),
    ],
    "compressed-body": [infer(gzip.compress(BODY)[:-1], headers=[("Content-Encoding", "gzip")])],
    "coding-headers": [infer(gzip.compress(BODY), headers=[("Content-Encoding", "gzip")] * 2)],
    "compression-level": [
        infer(
            {"inputs": [{"name": "INPUT_INT32", "datatype": "INT32", "shape": [3000],
            "data": [i * i % 997 for i in range(3000)]}]},
            headers=[("Accept-Encoding", "gzip")],
        )
    ],
    "grpc-strict": [unary("ModelInfer", b"\x08\x01")],
    "stream-end-version": [
        stream([infer_request([tensor("text_input", "BYTES", [1], [b"x"])], model="streamer",
                              parameters={"triton_enable_empty_final_response": True})])
    ],
    "generate-framing": [request("/v2/models/identity/generate", b'{"INPUT_INT32":[1]}')],
    "generate-one-response": [
        request("/v2/models/streamer/generate", b'{"text_input":"x","max_tokens":2}'),
        request("/v2/models/streamer/generate", b'{"text_input":"x","max_tokens":0}'),
        request("/v2/models/streamer/generate", b'{"text_input":"x","max_tokens":1,"fail_at":0}'),
    ],
    "generate-errors": [request("/v2/models/streamer/generate_stream", b'{"text_input":"x","fail_at":0}')],
    "generate-reserved-names": [request("/v2/models/identity/generate", b'{"INPUT_INT32":[1],"triton_x":1}')],
}  # fmt: skip

TALKED: dict[str, Callable[[Differential], list[Comparison]]] = {
    "framing": lambda pair: pair.talk(HEAD.replace(b"Host: differential\r\n", b"") + b"\r\n" + BODY, "framing"),
    "expect": lambda pair: pair.talk(HEAD + b"Expect: 100-continue\r\n\r\n" + BODY, "expect"),
    "too-large": lambda pair: pair.talk(
        b"GET /v2?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: differential\r\n\r\n", "too-large"
    ),
    "pipelining": lambda pair: pair.talk(
        b"GET /v2/health/live HTTP/1.1\r\nHost: differential\r\n\r\n" + HEAD + b"\r\n" + BODY,
        "pipelining",
        count=2,
        direct_wait_s=0.5,
    ),
    "half-close": lambda pair: pair.talk(
        infer({"inputs": [WORK], "parameters": {"straggle_ms": 1000}}, model="accel").data,
        "half-close",
        half_close=True,
    ),
}
ALWAYS: dict[str, list[Sent]] = {
    "error-type": [request("/nosuch")],
    "more-headers": [infer(BODY), unary("ServerLive", b"")],
}
GENERATES = frozenset({"generate-one-response", "generate-reserved-names", "generate-errors"})
"""Rows whose calls meet `generate-framing` as well."""


@pytest.mark.parametrize("row", [row.id for row in DEVIATIONS if row.id not in CANNOT])
def test_each_row_is_met(differential: Differential, row: str) -> None:
    assert row in ROWS, "the row explains nothing: write it in tests/support/differential_rows.py, or add it to CANNOT"
    met = [differential.check_rows(sent) for sent in [*SENT.get(row, []), *ALWAYS.get(row, [])]]
    if row in TALKED:
        TALKED[row](differential)
        met.append({row})
    assert met, "no call meets this row: add one to SENT or TALKED, or say in CANNOT why there is none"
    for rows in met:
        assert row in rows
        assert rows - COMPANIONS - ({"generate-framing"} if row in GENERATES else set()) <= {row}


def test_rows_that_no_call_can_meet_are_shown_by_a_test() -> None:
    known = {row.id for row in DEVIATIONS}
    for row, (why, where) in CANNOT.items():
        assert row in known
        assert why
        file, _, name = where.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), f"{row}: {where} does not exist"
    assert not set(CANNOT) & set(ROWS)


def test_every_row_is_of_a_protocol_that_its_calls_use() -> None:
    protocols = {row.id: row.on for row in DEVIATIONS}
    for row, calls in SENT.items():
        used = {"HTTP" if isinstance(sent, HttpSent) else "gRPC" for sent in calls}
        assert used == ({"HTTP", "gRPC"} if protocols[row] == "both" else {protocols[row]}) or not used, row


def test_what_is_not_in_the_table_fails(differential: Differential) -> None:
    """The judge judges: answers to two different requests are told apart in every aspect."""
    first = differential.compare(infer(BODY))
    values = {"tensors": [{**PLAIN, "data": [1, 3]}], "head": [PLAIN]}
    for aspect, inputs in values.items():
        other = differential.compare(infer({"inputs": inputs, **({"id": "x"} if aspect == "head" else {})}))
        with pytest.raises(AssertionError, match=rf"not in the table of deviations: \['{aspect}'\]"):
            differential.judge(Comparison(first.sent, first.direct, other.through))
    failed = differential.compare(infer({"inputs": [{**PLAIN, "name": "nosuch"}]}))
    with pytest.raises(AssertionError, match="status"):
        differential.judge(Comparison(first.sent, first.direct, failed.through))
    with pytest.raises(AssertionError, match="rows met"):
        differential.judge(first, "bad-json")
    raw = struct.pack("<2i", 1, 2)
    calls = [
        differential.compare(unary("ModelInfer", infer_request([tensor("INPUT_INT32", "INT32", [n])], [raw[: 4 * n]])))
        for n in (1, 2)
    ]
    with pytest.raises(AssertionError, match=r"\['messages'\]"):
        differential.judge(Comparison(calls[0].sent, calls[0].direct, calls[1].through))
