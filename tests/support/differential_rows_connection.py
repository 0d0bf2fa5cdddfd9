"""Rows of the table of deviations that are about connections, codings, `generate` and streams."""

from __future__ import annotations

import re

from tritonclient.grpc import service_pb2

from tests.support.differential_compare import Comparison
from tests.support.differential_row_kit import ANSWER, CONNECTION, NOTHING, Aspects, is_http, path_of, refused, row


@row("too-large")
def _too_large(c: Comparison) -> Aspects:
    large = is_http(c) and c.through.reason == "too_large" and c.through.status in (413, 414, 431)
    return CONNECTION if large else NOTHING


@row("http-deadline")
def _http_deadline(c: Comparison) -> Aspects:
    limited = is_http(c) and c.sent.header("x-request-timeout-ms") is not None
    return ANSWER if limited and ((refused(c, 504) and c.through.reason == "deadline") or refused(c, 400)) else NOTHING


# --- the connection ----------------------------------------------------------------------------------------------


@row("framing")
def _framing(c: Comparison) -> Aspects:
    """The gateway refuses what is badly framed and ends the connection, or serves what Triton's server chokes on."""
    if not is_http(c):
        return NOTHING
    if c.through.status in (400, 417, 501, 505) and c.through.reason == "bad_request" and c.through.ended:
        return CONNECTION
    kept_open = c.direct.status == c.through.status and not c.direct.ended and c.through.ended
    if kept_open and re.search(rb"(?im)^connection:.*,", c.sent.data):
        return frozenset({"end"})
    tolerated = c.direct.status == 0 and re.match(rb"(?is)\r\n|OPTIONS \* |.*\r\n[0-9a-f]+;", c.sent.data)
    return CONNECTION if tolerated else NOTHING


@row("split-bytes")
def _split_bytes(c: Comparison) -> Aspects:
    split = is_http(c) and c.direct.status == 400 and c.through.status == 200
    return ANSWER if split and "string length indicator is in one buffer" in (c.direct.error or "") else NOTHING


@row("pipelining")
def _pipelining(c: Comparison) -> Aspects:
    piped = is_http(c) and c.sent.data.count(b" HTTP/1.1\r\n") > 1
    return CONNECTION if piped and c.direct.framing == "silence" and c.through.status else NOTHING


@row("expect")
def _expect(c: Comparison) -> Aspects:
    return frozenset({"interim"}) if is_http(c) and re.search(rb"(?im)^expect: *100-continue", c.sent.data) else NOTHING


@row("half-close")
def _half_close(c: Comparison) -> Aspects:
    return CONNECTION if is_http(c) and c.through.status == 0 and path_of(c).endswith("/infer") else NOTHING


@row("compressed-body")
def _compressed_body(c: Comparison) -> Aspects:
    packed = is_http(c) and c.sent.header("content-encoding") in ("gzip", "deflate")
    return ANSWER if packed and refused(c, 400) and "cannot be decompressed" in c.through.error else NOTHING


@row("coding-headers")
def _coding_headers(c: Comparison) -> Aspects:
    if not is_http(c):
        return NOTHING
    names = [name.lower() for name, _ in c.sent.headers]
    if names.count("content-encoding") > 1:
        return ANSWER if refused(c, 501) else NOTHING
    odd = re.search(r"q=(0x|inf)", c.sent.header("accept-encoding") or "")
    return frozenset({"coding", "headers", "packed"}) if odd or names.count("accept-encoding") > 1 else NOTHING


@row("compression-level")
def _compression_level(c: Comparison) -> Aspects:
    """Other bytes of the same content."""
    packed = is_http(c) and c.direct.header("content-encoding") == c.through.header("content-encoding") is not None
    return frozenset({"packed"}) if packed else NOTHING


# --- generate and streams ----------------------------------------------------------------------------------------


def _generates(c: Comparison, *, stream: bool = False) -> bool:
    return path_of(c).endswith("/generate_stream" if stream else "/generate")


@row("generate-framing")
def _generate_framing(c: Comparison) -> Aspects:
    if _generates(c) and c.direct.framing == "chunked" and c.through.framing == "length":
        return frozenset({"framing"})
    old = _generates(c, stream=True) and b" HTTP/1.0\r\n" in c.sent.data
    return frozenset({"framing", "end"}) if old and c.through.framing == "close" else NOTHING


@row("generate-one-response")
def _generate_one_response(c: Comparison) -> Aspects:
    failed = (
        _generates(c) and c.direct.status in (200, 400) and c.direct.error is not None and c.through.error is not None
    )
    return ANSWER if failed and c.through.status >= 400 else NOTHING


@row("generate-errors")
def _generate_errors(c: Comparison) -> Aspects:
    if not _generates(c, stream=True):
        return NOTHING
    first = (
        c.direct.header(
            "content-type",
        ).startswith("text/event-stream")
        and c.direct.status == 400
        if c.direct.status
        else False
    )
    return ANSWER if first and c.through.error is not None else NOTHING


@row("generate-reserved-names")
def _generate_reserved_names(c: Comparison) -> Aspects:
    reserved = any(name.startswith("triton_") for name in (c.document or {})) if isinstance(c.document, dict) else False
    return ANSWER if reserved and (_generates(c) or _generates(c, stream=True)) and refused(c, 400) else NOTHING


@row("stream-end-version")
def _stream_end_version(c: Comparison) -> Aspects:
    pairs = c.differences.get("messages")
    if is_http(c) or not c.sent.streams or pairs is None or len(pairs[0]) != len(pairs[1]):
        return NOTHING
    same = all(_without_end_version(a) == _without_end_version(b) for a, b in zip(*pairs, strict=True))
    return frozenset({"messages"}) if same else NOTHING


def _without_end_version(message: bytes) -> bytes:
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    if not response.infer_response.outputs and response.infer_response.parameters["triton_final_response"].bool_param:
        response.infer_response.model_version = ""
    return bytes(response.SerializeToString(deterministic=True))


@row("grpc-strict")
def _grpc_strict(c: Comparison) -> Aspects:
    strict = not is_http(c) and c.through.code == "INTERNAL" and c.through.text.startswith("unable to parse")
    return ANSWER if strict and c.direct.code != "INTERNAL" else NOTHING
