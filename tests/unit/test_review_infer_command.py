"""`sluice infer`: whatever is wrong, a sentence that is true and an exit code, never a traceback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.cli import main

ANSWER = b'HTTP/1.1 200 OK\r\nx-request-id: 1\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{"outputs":[]}'


@contextmanager
def server(answer: bytes, connections: int = 1) -> Iterator[str]:
    """Answers each connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            for _ in range(connections):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(10)


def test_a_request_file_that_is_not_there_is_not_a_missing_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "fraud", "--request", "/nonexistent/request.json"]) == 2
    said = capsys.readouterr().err
    assert "--request" in said
    assert "gateway" not in said


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1", "ftp://a", "a:8000"])
def test_a_bad_url_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "fraud", "--url", url]) == 2
    assert "--url" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", b"SSH-2.0-x\r\n"])
def test_a_port_that_speaks_something_else_is_said_to(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with server(answer) as url:
        assert main(["infer", "fraud", "--url", url]) == 1
    assert "not the gateway's HTTP port" in capsys.readouterr().err


@pytest.mark.parametrize("timeout_ms", ["0", "-1", "-20000"])
def test_a_deadline_that_is_none_is_refused_here(timeout_ms: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "fraud", "--timeout-ms", timeout_ms]) == 2
    assert "--timeout-ms" in capsys.readouterr().err


def test_an_answer_that_cannot_be_saved_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    request.write_text("{}")
    with server(ANSWER, connections=2) as url:  # the model's configuration is asked for first
        words = ["infer", "fraud", "--url", url, "--request", str(request), "--json", str(tmp_path / "no" / "out")]
        assert main(words) == 2
    assert "--json" in capsys.readouterr().err
