"""The client's side of the HTTP edge: what it sends, and how it reads the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from gateway.wire.kserve import protobuf as pb
from tests.support.http_answer import Answer

WAIT_S = 20.0
"""No test waits longer than this for anything: what has not come then will not come."""


def infer_body(values: list[float] | None = None, **more: Any) -> bytes:
    """A small JSON inference request."""
    values = [1.0, 2.0] if values is None else values
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}], **more}
    ).encode()


def infer_response(model: str = "fraud", version: str = "1", elements: int = 1) -> bytes:
    """A serialized `ModelInferResponse` with one FP32 output of zeros."""
    output = pb.text_field(1, "y") + pb.text_field(2, "FP32") + pb.len_field(3, pb.varint(1) + pb.varint(elements))
    return (
        pb.text_field(1, model)
        + pb.text_field(2, version)
        + pb.len_field(5, output)
        + pb.len_field(6, b"\0\0\0\0" * elements)
    )


def text_response(text: str | bytes, model: str = "fraud", version: str = "1") -> bytes:
    """A serialized `ModelInferResponse` with one BYTES output, `text`, of one element."""
    element = text.encode() if isinstance(text, str) else text
    output = pb.text_field(1, "text") + pb.text_field(2, "BYTES") + pb.len_field(3, b"\x01")
    return (
        pb.text_field(1, model)
        + pb.text_field(2, version)
        + pb.len_field(5, output)
        + pb.len_field(6, len(element).to_bytes(4, "little") + element)
    )


def post(target: str = "/v2/models/fraud/infer", body: bytes | None = None, **headers: str) -> bytes:
    """A whole request. Header names are given with `_` for `-`."""
    body = infer_body() if body is None else body
    lines = [f"POST {target} HTTP/1.1", "Host: sluice"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Transfer_Encoding" not in headers and "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def get(target: str, **headers: str) -> bytes:
    lines = [f"GET {target} HTTP/1.1", "Host: sluice"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


LIVE = get("/v2/health/live")


def read_answers(data: bytes) -> list[Answer]:
    """Every final answer in `data`, which must hold whole ones only; 100s are left out. Answers must have a length."""
    answers = []
    while data:
        head, blank, rest = data.partition(b"\r\n\r\n")
        assert blank, f"a cut answer: {data!r}"
        line, *lines = head.decode("latin-1").split("\r\n")
        assert line.startswith("HTTP/1.1 ")
        status = int(line.split(" ")[1])
        if status == 100:
            data = rest
            continue
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        length = int(headers["content-length"])
        assert len(rest) >= length, "a cut body"
        answers.append(Answer(status, headers, rest[:length]))
        data = rest[length:]
    return answers


async def talk(address: tuple[str, int], data: bytes, *, finish: bool = False) -> list[Answer]:
    """Send `data`, read until the server closes, and return the answers. With `finish`, half-close after sending."""
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(data)
            if finish:
                writer.write_eof()
            return read_answers(await reader.read())
        finally:
            writer.close()


class Client:
    """A keep-alive client on a raw socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Client:
        return cls(*await asyncio.open_connection(*address))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next final answer; `bodiless` if it is one to HEAD."""
        async with asyncio.timeout(WAIT_S):
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 100 "):
                    break
            lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines[1:-2])}
            body = b"" if bodiless else await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(lines[0].split(" ")[1]), headers, body)

    async def ended(self) -> bool:
        """Wait for the server's end of the connection; whether nothing came before it."""
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
