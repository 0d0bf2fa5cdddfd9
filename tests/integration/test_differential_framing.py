"""Bytes on a socket, to Triton and to the gateway: framing, pipelining, what connections do afterwards, odd heads."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from tests.support.differential import Differential
from tests.support.differential_http import chunked, infer, request

INFER = "/v2/models/identity/infer"
BODY = json.dumps({"inputs": [{"name": "INPUT_INT32", "datatype": "INT32", "shape": [2], "data": [1, 2]}]}).encode()
HOST = "Host: differential"
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKS = "Transfer-Encoding: chunked"


def raw(line: str, headers: tuple[str, ...] = (HOST,), body: bytes = b"") -> bytes:
    return "".join(f"{part}\r\n" for part in (line, *headers, "")).encode("latin-1") + body


def post(*headers: str, body: bytes = BODY, version: str = "1.1") -> bytes:
    return raw(f"POST {INFER} HTTP/{version}", headers, body)


def get(target: str = "/v2/health/live", *headers: str) -> bytes:
    return raw(f"GET {target} HTTP/1.1", (HOST, *headers))


SAME: dict[str, bytes] = {
    "a length": post(HOST, LENGTH),
    "a length with zeros": post(HOST, f"Content-Length: 00{len(BODY)}"),
    "one chunk": post(HOST, CHUNKS, body=chunked(BODY, [])),
    "many chunks": post(HOST, CHUNKS, body=chunked(BODY, [1, 2, 3, 4, 5, 6, 7])),
    "chunks of one byte": post(HOST, CHUNKS, body=chunked(BODY, [1] * len(BODY))),
    "chunks in capitals": post(HOST, "TRANSFER-ENCODING: Chunked", body=chunked(BODY, [5])),
    "sizes in capitals": post(HOST, CHUNKS, body=chunked(BODY, []).replace(b"%x" % len(BODY), b"%X" % len(BODY))),
    "trailers": post(HOST, CHUNKS, body=chunked(BODY, [])[:-2] + b"X-Trailer: y\r\n\r\n"),
    "no body": post(HOST, "Content-Length: 0", body=b""),
    "no length": post(HOST, body=b""),
    "names in any case": post("hOST: a", f"CONTENT-length: {len(BODY)}"),
    "no space before a value": post("Host:a", f"Content-Length:{len(BODY)}"),
    "space behind a value": post("Host: a ", f"Content-Length: {len(BODY)}  "),
    "absolute form": raw(f"POST http://differential{INFER} HTTP/1.1", (HOST, LENGTH), BODY),
    "Connection: close": post(HOST, LENGTH, "Connection: close"),
    "Connection: Close": post(HOST, LENGTH, "connection: Close"),
    "Connection: keep-alive": post(HOST, LENGTH, "Connection: keep-alive"),
    "HTTP/1.0": post(LENGTH, version="1.0"),
    "HTTP/1.0 kept": post(LENGTH, "Connection: keep-alive", version="1.0"),
    "HTTP/1.0 with a host": post(HOST, LENGTH, version="1.0"),
    "any content type": post(HOST, LENGTH, "Content-Type: text/nonsense"),
    "a value beyond ASCII": post(HOST, LENGTH, "X-Any: \xe9\xff"),
    "an empty value": post(HOST, LENGTH, "X-Any:"),
    "a long value": post(HOST, LENGTH, "X-Any: " + "a" * 7000),
    "a body for a GET": get("/v2/health/live", "Content-Length: 3") + b"abc",
    "two lengths": post(HOST, LENGTH, "Content-Length: 3"),
    "a failed call": post(HOST, "Content-Length: 60", body=b"{" + b" " * 58 + b"}"),
}


@pytest.mark.parametrize("case", SAME)
def test_what_is_well_framed_is_answered_alike_and_the_connection_goes_on_alike(
    differential: Differential, case: str
) -> None:
    rows = ("bad-json",) if case == "a failed call" else ()
    differential.talk(SAME[case], *rows)


REFUSED: dict[str, bytes] = {
    "a length and chunks": post(HOST, LENGTH, CHUNKS, body=chunked(BODY, [])),
    "another coding": post(HOST, "Transfer-Encoding: gzip, chunked", body=chunked(BODY, [])),
    "no coding": post(HOST, "Transfer-Encoding: identity", LENGTH),
    "two equal lengths": post(HOST, LENGTH, LENGTH),
    "a list of lengths": post(HOST, f"Content-Length: {len(BODY)}, {len(BODY)}"),
    "a length with a sign": post(HOST, f"Content-Length: +{len(BODY)}"),
    "a negative length": post(HOST, "Content-Length: -1"),
    "a hexadecimal length": post(HOST, "Content-Length: 0x58"),
    "no host": post(LENGTH),
    "two hosts": post(HOST, HOST, LENGTH),
    "an empty host": post("Host:", LENGTH),
    "an odd host": post("Host: a b", LENGTH),
    "absolute form without a host": raw(f"POST http://differential{INFER} HTTP/1.1", (LENGTH,), BODY),
    "HTTP/2.0": post(HOST, LENGTH, version="2.0"),
    "HTTP/1.2": post(HOST, LENGTH, version="1.2"),
    "bare LF": post(HOST, LENGTH).replace(b"\r\n", b"\n"),
    "a folded header": post(HOST, "X-Any: a\r\n b", LENGTH),
    "a space before the colon": post(HOST, "X-Any : a", LENGTH),
    "no colon": post(HOST, "X-Any", LENGTH),
    "a zero byte": post(HOST, "X-Any: a\0b", LENGTH),
    "another expectation": post(HOST, LENGTH, "Expect: something"),
    "a method in small letters": raw(f"post {INFER} HTTP/1.1", (HOST, LENGTH), BODY),
    "an unknown method": raw(f"FOO {INFER} HTTP/1.1"),
    "CONNECT": raw(f"CONNECT {INFER} HTTP/1.1"),
    "two spaces": raw(f"POST  {INFER} HTTP/1.1", (HOST, LENGTH), BODY),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "extensions of a chunk": post(HOST, CHUNKS, body=b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "OPTIONS *": raw("OPTIONS * HTTP/1.1"),
    "several options": post(HOST, LENGTH, "Connection: x, close"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_deviation_framing(differential: Differential, case: str) -> None:
    differential.talk(REFUSED[case], "framing")


def test_deviation_framing_an_empty_line_before_a_request(differential: Differential) -> None:
    differential.talk(b"\r\n" + post(HOST, LENGTH), "framing", direct_wait_s=0.5)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_405_alike(differential: Differential, method: str) -> None:
    targets = [INFER, "/v2/health/live"][: 1 if method == "GET" else 2]
    for target in targets:
        differential.talk(raw(f"{method} {target} HTTP/1.1"))
    differential.talk(raw("POST /v2/health/live HTTP/1.1", (HOST, "Content-Length: 0")))


def test_answers_to_head_have_no_body(differential: Differential) -> None:
    for target in ("/v2/health/live", "/v2", INFER, "/nosuch"):
        differential.talk(raw(f"HEAD {target} HTTP/1.1"), head=True)


@pytest.mark.parametrize("count", [2, 3, 20])
def test_pipelined_inferences_are_answered_in_order(differential: Differential, count: int) -> None:
    texts = [BODY.replace(b"[1, 2]}", b"[%d, 2]}" % number) for number in range(count)]
    data = b"".join(post(HOST, f"Content-Length: {len(text)}", body=text) for text in texts)
    found = differential.talk(data, count=count)
    values = [json.loads(each.through.body)["outputs"][0]["data"][0] for each in found]
    assert values == list(range(count))


def test_what_is_pipelined_behind_inferences_is_answered(differential: Differential) -> None:
    differential.talk(post(HOST, LENGTH) + get(), count=2)
    differential.talk(post(HOST, LENGTH) + post(HOST, LENGTH, "Connection: close"), count=2)
    differential.talk(post(HOST, LENGTH) + get("/nosuch"), count=2)


def test_deviation_pipelining(differential: Differential) -> None:
    for first in (get(), get("/nosuch"), get("/v2/models/identity")):
        found = differential.talk(first + post(HOST, LENGTH), "pipelining", count=2, direct_wait_s=0.5)
        assert found[1].through.status == 200


def test_expectations_are_granted_before_the_body(differential: Differential) -> None:
    for value in ("100-continue", "100-Continue"):
        differential.talk(post(HOST, LENGTH, f"Expect: {value}"), "expect")
    differential.talk(post(LENGTH, "Expect: 100-continue", version="1.0"), "expect")


def test_a_client_that_closes_its_half(differential: Differential) -> None:
    slow = {
        "inputs": [{"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
        "parameters": {"straggle_ms": 1000},
    }
    differential.talk(infer(slow, model="accel").data, "half-close", half_close=True)
    differential.talk(get(), half_close=True)
    differential.talk(post(HOST, "Content-Length: 1000"), half_close=True)


# --- the header that says where the JSON ends --------------------------------------------------------------------

NAME = "Inference-Header-Content-Length"


def test_the_header_length_in_every_form(differential: Differential) -> None:
    size = len(BODY)
    for name in (NAME, NAME.lower(), NAME.upper()):
        for value in (str(size), f" {size}", f"{size} ", f"00{size}", str(size + 1), str(10**9)):
            differential.check(request(INFER, BODY, [(name, value)]))
        differential.check(request(INFER, BODY, [(name, "5")]), "bad-json")
        for value in ("0", "00"):
            differential.check(request(INFER, BODY, [(name, value)]))


@pytest.mark.parametrize("value", ["", "abc", "-1", "+5", "0x5", "1e2", f"{len(BODY)};", "5, 5", "99999999999", "5 5"])
def test_deviation_bad_header_length(differential: Differential, value: str) -> None:
    comparison = differential.check_any(request(INFER, BODY, [(NAME, value)]))
    assert comparison.through.status == 400


def test_deviation_bad_header_length_of_two_the_first(differential: Differential) -> None:
    differential.check(request(INFER, BODY, [(NAME, str(len(BODY)))] * 2), "bad-header-length")


def test_raw_bodies(differential: Differential) -> None:
    for model in ("mixed", "embedder", "identity", "ranker"):
        for body in (b"", b"abc", b"abcd", b"\x00\x00\x80?" * 3, "text é".encode()):
            differential.check(request(f"/v2/models/{model}/infer", body, [(NAME, "0")]))
        differential.check(request(f"/v2/models/{model}/infer", b""))


# --- bodies in other ways ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_bodies(differential: Differential, coding: str) -> None:
    packs: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress}
    pack = packs[coding]
    for body in (pack(BODY), pack(BODY + b" " * 100_000)):
        for chunks in (None, (3, 20)):
            differential.check(request(INFER, body, [("Content-Encoding", coding)], chunks=chunks))
    differential.check(request(INFER, pack(BODY)[:-3], [("Content-Encoding", coding)]), "compressed-body")
    differential.check(request(INFER, b"", [("Content-Encoding", coding)]))
    differential.check(request(INFER, pack(b"not json"), [("Content-Encoding", coding)]), "bad-json")
    differential.check(request(INFER, pack(BODY), [("Content-Encoding", coding)] * 2), "coding-headers")
    differential.check(request(INFER, BODY, [("Content-Encoding", "br")]))


@pytest.mark.parametrize("wish", ["gzip", "deflate", "identity", "br", "gzip, deflate, br", "*", "gzip;q=0", ""])
def test_the_coding_of_answers(differential: Differential, wish: str) -> None:
    text = json.dumps(
        {"inputs": [{"name": "INPUT_INT32", "datatype": "INT32", "shape": [500], "data": list(range(500))}]}
    )
    packed = differential.check_any(infer(text.encode(), headers=[("Accept-Encoding", wish)]))
    assert set(packed.differences) <= {"more", "packed"}
    differential.check_any(infer(b"{", headers=[("Accept-Encoding", wish)]))


def test_deviation_coding_headers(differential: Differential) -> None:
    both = [("Accept-Encoding", "identity"), ("Accept-Encoding", "gzip;q=0.5, identity;q=0")]
    differential.check_any(infer(BODY, headers=both))
    differential.check(infer(BODY, headers=[("Accept-Encoding", "gzip;q=0x1, identity;q=0.5")]), "coding-headers")


# --- limits of heads ---------------------------------------------------------------------------------------------


def test_deviation_too_large_of_heads(differential: Differential) -> None:
    differential.talk(get(f"/v2?{'a' * 9000}"), "too-large")
    differential.talk(get("/v2", "X-Any: " + "a" * 40_000), "too-large")
    differential.talk(get("/v2/health/live", *["X-Any: a"] * 150), "too-large")
