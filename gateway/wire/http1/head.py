"""One request head: bytes up to the blank line -> RequestHead, or a refusal.

The common case takes as few steps as possible: llhttp judges the grammar, one expression the request line. Whenever
anything is unusual, `HeadScan` is asked first, so that a fault does not depend on how the bytes arrived.
"""

from __future__ import annotations

import contextlib
import re
from typing import NoReturn, TypeVar

import httptools

from gateway.wire.http1.events import Refusal, RequestHead
from gateway.wire.http1.limits import Http1Limits
from gateway.wire.http1.request_line import AUTHORITY, ORIGIN_FORM_LINE, request_line
from gateway.wire.http1.scan import HeadScan

K = TypeVar("K")
V = TypeVar("V")

_HOST = re.compile(AUTHORITY)
_RARE = frozenset({b"transfer-encoding", b"expect", b"connection"})
_MEMO_MAX = 512
_LINE_BYTES_MAX = 256
_HOST_BYTES_MAX = 64


class _Sink:
    """Receives llhttp's callbacks. Only this one exists on it: httptools skips what it does not find."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name.lower(), value.rstrip(b" \t")))  # llhttp strips in front only


class _CompleteSink(_Sink):
    """Knows besides whether the header section came to its end."""

    __slots__ = ("complete",)

    def __init__(self) -> None:
        super().__init__()
        self.complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(head: bytes, limits: Http1Limits, safe_bytes: int) -> RequestHead:
    """Parse one head, blank line included. Raises Refusal.

    `safe_bytes` is a size below which no line and no total can be over its limit (see `safe_head_bytes`).
    """
    if len(head) > safe_bytes:
        HeadScan(limits).check(head)
    sink = _Sink()
    try:
        httptools.HttpRequestParser(sink).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an Upgrade we do not take, or CONNECT, refused below
    except httptools.HttpParserError as error:
        _refuse(head, limits, str(error))
    pairs = sink.pairs
    if len(pairs) > limits.header_count_max:
        HeadScan(limits).check(head)
    end = head.find(b"\r\n")
    line = head[:end]
    known = _lines.get(line)
    if known is None:
        known = _request_line(head, line, limits)
    return _build(*known, pairs, limits)


_lines: dict[bytes, tuple[bytes, bytes, int]] = {}
"""Request lines seen before and found good: method, target, minor version. Clients ask for the same again and again."""


def _request_line(head: bytes, line: bytes, limits: Http1Limits) -> tuple[bytes, bytes, int]:
    common = ORIGIN_FORM_LINE.fullmatch(line)
    if common is None:
        HeadScan(limits).check(head)  # llhttp lets a bare LF pass here, as the end of an HTTP/0.9 line
        return request_line(line)
    method, target, minor = common.groups()
    known = (method, target, 1 if minor == b"1" else 0)
    if len(line) <= _LINE_BYTES_MAX:
        _remember(_lines, line, known)
    return known


def safe_head_bytes(limits: Http1Limits) -> int:
    """The size up to which a head cannot break a length limit, whatever its lines are."""
    return min(limits.request_line_max_bytes, limits.header_line_max_bytes, limits.head_max_bytes)


def _build(
    method: bytes, target: bytes, http_minor: int, pairs: list[tuple[bytes, bytes]], limits: Http1Limits
) -> RequestHead:
    index = dict(pairs)
    if len(index) != len(pairs):
        index = _joined(pairs)
    host = index.get(b"host")
    if host not in _hosts:
        _check_host(host, http_minor)
    if _RARE.isdisjoint(index):
        length = index.get(b"content-length")
        size = None if length is None else _content_length(length, limits.body_max_bytes)
        return RequestHead(method, target, http_minor, pairs, index, size, False, False, http_minor == 1)

    content_length = None
    chunked = False
    coding = index.get(b"transfer-encoding")
    length = index.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise Refusal(400, "Content-Length and Transfer-Encoding exclude each other")
        _check_transfer_coding(coding, http_minor)
        chunked = True
    elif length is not None:
        content_length = _content_length(length, limits.body_max_bytes)

    expect = index.get(b"expect")
    expect_continue = False
    if expect is not None and http_minor:  # HTTP/1.0 has no expectations: ignored, RFC 9110 section 10.1.1
        if expect.lower() != b"100-continue":
            raise Refusal(417, "the only expectation served is 100-continue")
        expect_continue = chunked or bool(content_length)

    connection = index.get(b"connection")
    if connection is None:
        keep_alive = http_minor == 1
    elif connection == b"keep-alive":
        keep_alive = True
    else:
        options = {option.strip(b" \t") for option in connection.lower().split(b",")}
        keep_alive = b"close" not in options and (http_minor == 1 or b"keep-alive" in options)
    return RequestHead(method, target, http_minor, pairs, index, content_length, chunked, expect_continue, keep_alive)


_hosts: dict[bytes | None, bool] = {}
"""Values of Host seen before and found good."""


def _check_host(host: bytes | None, http_minor: int) -> None:
    if host is None:
        if http_minor:
            raise Refusal(400, "an HTTP/1.1 request needs a Host header")
    elif _HOST.fullmatch(host) is None:
        raise Refusal(400, "the Host header is repeated, empty or malformed")
    elif len(host) <= _HOST_BYTES_MAX:
        _remember(_hosts, host, True)


def _remember(memo: dict[K, V], key: K, value: V) -> None:
    if len(memo) >= _MEMO_MAX:
        memo.clear()
    memo[key] = value


def _joined(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(several) for name, several in values.items()}


def _content_length(value: bytes, body_max_bytes: int) -> int:
    if not value.isdigit():  # bytes.isdigit is ASCII only
        raise Refusal(400, "Content-Length must be one decimal number")
    if len(value) > 20:  # int() of thousands of digits is slow, and refused by Python past 4300
        if len(value.lstrip(b"0")) > 20:
            raise _too_large(body_max_bytes)
        raise Refusal(400, "Content-Length must be one decimal number of at most 20 digits")
    length = int(value)
    if length > body_max_bytes:
        raise _too_large(body_max_bytes)
    return length


def _too_large(body_max_bytes: int) -> Refusal:
    return Refusal(413, f"the request body is larger than the limit of {body_max_bytes} bytes")


def _check_transfer_coding(value: bytes, http_minor: int) -> None:
    if http_minor == 0:
        raise Refusal(400, "Transfer-Encoding is not part of HTTP/1.0")
    if value.lower() == b"chunked":
        return
    codings = [coding.strip(b" \t").lower() for coding in value.split(b",")]
    if b"" in codings or b"chunked" in codings[:-1]:
        raise Refusal(400, "Transfer-Encoding must end with chunked, named once")
    raise Refusal(501, "the only transfer coding served is chunked")


def _refuse(head: bytes, limits: Http1Limits, complaint: str) -> NoReturn:
    """llhttp refused a whole head: find the most telling reason. Raises Refusal always."""
    HeadScan(limits).check(head)
    sink = _CompleteSink()
    with contextlib.suppress(httptools.HttpParserError):
        httptools.HttpRequestParser(sink).feed_data(head)
    if sink.complete:  # it dislikes the framing, not the syntax
        method, target, http_minor = request_line(head[: head.find(b"\r\n")])
        _build(method, target, http_minor, sink.pairs, limits)
    else:
        _refuse_huge_length(head, limits)
    raise Refusal(400, f"malformed request head: {complaint}")


def _refuse_huge_length(head: bytes, limits: Http1Limits) -> None:
    """A length beyond 64 bits is a syntax error to llhttp; by the grammar it is a number, and too large."""
    lengths = []
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"transfer-encoding":
            return
        if name.lower() == b"content-length":
            lengths.append(value.strip(b" \t"))
    if len(lengths) == 1 and lengths[0].isdigit():
        _content_length(lengths[0], limits.body_max_bytes)
