"""One HTTP request on a socket of its own, answered byte by byte as it came: nothing is unpacked or believed."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

from tests.support.gateway_process import GatewayProcess
from tests.support.http_answer import Answer, unchunked

WAIT_S = 30.0


def ask(
    address: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str = ""
) -> Answer:
    """POST if there is a body, else GET, unless `method` says otherwise. The connection ends with the answer, so that
    what is sent behind it would be seen.
    """
    host, _, port = address.rpartition(":")
    method = method or ("GET" if body is None else "POST")
    lines = [f"{method} {path} HTTP/1.1", "Host: field", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))
        received = bytearray()
        while piece := connection.recv(1 << 20):
            received += piece
    return read_answer(bytes(received), bodiless=method == "HEAD")


def read_answer(data: bytes, *, bodiless: bool = False) -> Answer:
    """The one answer in `data`, whose framing must hold: a Content-Length that equals what came, or chunks that end."""
    head, blank, body = data.partition(b"\r\n\r\n")
    assert blank, f"no whole head: {data[:200]!r}"
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        assert name.lower() not in headers, f"{name} stands twice"
        headers[name.lower()] = value.strip()
    status = int(first.split(" ")[1])
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    assert (coding is None) != (length is None), "either a length or chunks"
    if coding is not None:
        assert coding == "chunked"
        chunks, after = unchunked(body)
        assert after == b"", "the last chunk is missing, or bytes stand behind it"
        return Answer(status, headers, b"".join(chunks))
    assert length is not None
    assert len(body) == (0 if bodiless else int(length)), f"{len(body)} bytes came, {length} were announced"
    return Answer(status, headers, body)


def record_of(gateway: GatewayProcess, request_id: str) -> dict[str, Any]:
    """The prediction record of that call, as soon as it is in a file."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        found = [record for record in gateway.records() if record["request_id"] == request_id]
        if found:
            assert len(found) == 1
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no record of {request_id} within {WAIT_S} s")
