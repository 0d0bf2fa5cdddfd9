"""HTTP for the differential tests: requests as bytes, answers as they came, nothing in between that repairs them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 20.0
Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class HttpSent:
    """One request. `data` is all of it, byte for byte; the rest says what it holds, as far as it is well-formed."""

    data: bytes
    method: str = "POST"
    target: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The first header of that name, in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass(frozen=True)
class HttpAnswer:
    """One answer. `framing` is `length`, `chunked`, `close` (the end of the connection ends the body), or `nothing`
    where the connection ended without an answer. `interim` are statuses that came before it.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    framing: str = "nothing"
    interim: tuple[int, ...] = ()
    ended: bool = False
    """The server ended the connection behind it."""

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} stands {len(values)} times"
        return values[0] if values else None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.headers)

    @property
    def says_close(self) -> bool:
        """It announces the end of the connection."""
        return (self.header("connection") or "").lower() == "close"

    @property
    def reason(self) -> str:
        """Why the gateway refused it, in its own word; "" if it did not, or if this is Triton."""
        return self.header("x-sluice-reason") or ""

    @property
    def error(self) -> str | None:
        """The text of an error in Triton's shape; None for anything else."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return None
        if isinstance(document, dict) and list(document) == ["error"] and isinstance(document["error"], str):
            return document["error"]
        return None


NO_ANSWER = HttpAnswer(0, ended=True)
SILENCE = HttpAnswer(0, framing="silence")


def request(
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | Headers = (),
    *,
    method: str = "",
    host: str | None = "differential",
    version: str = "1.1",
    chunks: Iterable[int] | None = None,
) -> HttpSent:
    """POST if there is a body, else GET, unless `method` says otherwise. `chunks` are the sizes in which the body is
    sent (what is left is the last one); without it there is a Content-Length.
    """
    method = method or ("GET" if body is None else "POST")
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if host is not None:
        pairs.insert(0, ("Host", host))
    encoded = body or b""
    if chunks is not None:
        pairs.append(("Transfer-Encoding", "chunked"))
        encoded = chunked(encoded, chunks)
    elif body is not None:
        pairs.append(("Content-Length", str(len(body))))
    head = f"{method} {target} HTTP/{version}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return HttpSent(head.encode("latin-1") + b"\r\n" + encoded, method, target, tuple(pairs), body or b"")


def chunked(body: bytes, sizes: Iterable[int]) -> bytes:
    """`body` in chunks of these sizes, and one more for what is left."""
    pieces = []
    for size in sizes:
        pieces.append(body[:size])
        body = body[size:]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, body] if piece) + b"0\r\n\r\n"


@dataclass
class HttpSide:
    """One server, asked over a kept connection where the request allows it."""

    address: str
    _socket: socket.socket | None = None
    _held: bytearray = field(default_factory=bytearray)

    def ask(self, sent: HttpSent) -> HttpAnswer:
        """The answer to one request. A kept connection that the server has ended meanwhile is opened anew."""
        kept = self._socket is not None
        answer = self._ask(sent)
        if kept and answer == NO_ANSWER:
            answer = self._ask(sent)
        return answer

    def _ask(self, sent: HttpSent) -> HttpAnswer:
        connection = self._socket or self._connect()
        self._socket = connection
        try:
            connection.sendall(sent.data)
            answer = self._read(connection, sent.method)
        except (BrokenPipeError, ConnectionResetError):
            answer = NO_ANSWER
        if answer.ended or answer.says_close or self._held:
            self.close()
        return answer

    def talk(
        self,
        data: bytes,
        count: int = 1,
        *,
        head: bool = False,
        half_close: bool = False,
        last_wait_s: float = WAIT_S,
        ends: bool = False,
    ) -> list[HttpAnswer]:
        """All answers to `data` on a connection of its own: `count` of them (`SILENCE` from where one did not come in
        time, for the last one within `last_wait_s`). In the last one is seen whether the server then ends the
        connection by itself: at once, or in `WAIT_S` where it has announced that, or has to (the client has closed its
        half), or is expected to (`ends`). `head`: to a HEAD, so without a body.
        """
        self.close()
        answers: list[HttpAnswer] = []
        with self._connect() as connection:
            try:
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                for left in reversed(range(count)):
                    connection.settimeout(WAIT_S if left else last_wait_s)
                    answers.append(self._read(connection, "HEAD" if head else ""))
                    if answers[-1].ended:
                        break
                else:
                    patient = ends or half_close or answers[-1].says_close
                    answers[-1] = self._seen_to_end(connection, answers[-1], WAIT_S if patient else QUIET_S)
            except (BrokenPipeError, ConnectionResetError):
                answers.append(NO_ANSWER)
            except TimeoutError:
                answers += [SILENCE] * (count - len(answers))
        self._held.clear()
        return answers

    def _seen_to_end(self, connection: socket.socket, last: HttpAnswer, wait_s: float) -> HttpAnswer:
        connection.settimeout(wait_s)
        try:
            more = connection.recv(1 << 16)
        except TimeoutError:
            return last
        except ConnectionResetError:
            more = b""
        assert bytes(self._held) + more == b"", "bytes behind the last answer"
        return HttpAnswer(last.status, last.headers, last.body, last.framing, last.interim, ended=True)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._held.clear()

    def _connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _more(self, connection: socket.socket) -> bool:
        piece = connection.recv(1 << 20)
        self._held += piece
        return bool(piece)

    def _read(self, connection: socket.socket, method: str) -> HttpAnswer:
        interim: list[int] = []
        while True:
            while (end := self._held.find(b"\r\n\r\n")) < 0:
                if not self._more(connection):
                    assert not self._held, f"half an answer: {bytes(self._held)[:200]!r}"
                    return NO_ANSWER
            first, *lines = self._held[:end].decode("latin-1").split("\r\n")
            del self._held[: end + 4]
            status = int(first.split(" ")[1])
            if status >= 200:
                break
            interim.append(status)
        pairs = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
        head = HttpAnswer(status, pairs)
        length, coding = head.header("content-length"), head.header("transfer-encoding")
        ended = False
        if coding is not None:
            assert coding == "chunked"
            assert length is None, "a length beside chunks"
            framing, body = "chunked", self._chunks(connection)
        elif length is not None:
            framing, body = "length", b"" if method == "HEAD" else self._exactly(connection, int(length))
        else:
            while self._more(connection):
                pass
            framing, body, ended = "close", bytes(self._held), True
            self._held.clear()
        return HttpAnswer(status, pairs, body, framing, tuple(interim), ended)

    def _exactly(self, connection: socket.socket, size: int) -> bytes:
        while len(self._held) < size:
            assert self._more(connection), f"{len(self._held)} bytes of a body of {size}"
        body = bytes(self._held[:size])
        del self._held[:size]
        return body

    def _chunks(self, connection: socket.socket) -> bytes:
        body = bytearray()
        while True:
            while (end := self._held.find(b"\r\n")) < 0:
                assert self._more(connection), "chunks without an end"
            size = int(self._held[:end], 16)
            del self._held[: end + 2]
            body += self._exactly(connection, size)
            assert self._exactly(connection, 2) == b"\r\n"
            if not size:
                return bytes(body)


QUIET_S = 0.05
"""So long a connection must stay open to count as kept, where nothing says that it will be ended."""


def infer_target(model: str = "identity", version: str = "") -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"


def infer(document: Any, tail: bytes = b"", *, model: str = "identity", version: str = "", **options: Any) -> HttpSent:
    """An inference: a JSON document (or its bytes), with binary tensors behind it if there are any."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers = list(options.pop("headers", ()))
    if options.pop("framed", False) or tail:
        headers.append(("Inference-Header-Content-Length", str(len(text))))
    return request(infer_target(model, version), text + tail, headers, **options)
