"""`sluice infer`: one call from the shell, and the story of how it was answered.

A decoupled model's responses are shown as they come, each with its time; a stateful model's call says which step of
which sequence it is.
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
import urllib.parse
from contextlib import closing
from typing import Any

from gateway.cli.infer_request import STREAM, prepare
from gateway.cli.infer_story import parsed, path, response_line, story
from gateway.cli.output import fail, write_json
from gateway.runtime.clock import SystemClock
from gateway.wire.sse import SseDecoder, SseTooLarge

EXAMPLE = """examples:
  sluice infer fraud                          zeros in the model's shapes
  sluice infer fraud --version 1 --timeout-ms 200
  sluice infer fraud --request policies/warmup/fraud.json
  sluice infer fraud --url https://gateway:8000 --tls-ca ca.pem --bearer token.jwt
  sluice infer fraud --input 'features=[[0.1, 2, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0]]'
  sluice infer streamer --input 'text_input="Beautiful is"' --input delay_ms=200
  sluice infer accumulator --sequence 7 --start --input value=5
  sluice infer accumulator --sequence 7 --end --input value=2

exit codes: 0 an answer came, of a stream all of it; 1 the gateway or the model refused, or the stream broke off;
2 the command was used wrongly"""

SILENCE_S = 60.0
"""How long to wait for something to come where the caller names no time."""
_READ_BYTES = 65_536


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("model", help="the model's name")
    parser.add_argument("--version", default="", help="a version (default: the policy chooses)")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="an input's values, nested as its shape or flat; other inputs are left out",
    )
    parser.add_argument("--request", metavar="FILE", help="a whole KServe v2 JSON request (`-`: standard input)")
    parser.add_argument(
        "--sequence",
        metavar="ID",
        help="the sequence that the call belongs to, for a stateful model: a number, or a text",
    )
    parser.add_argument("--start", action="store_true", help="the call begins its sequence")
    parser.add_argument("--end", action="store_true", help="the call ends its sequence")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the gateway (default: %(default)s)")
    parser.add_argument("--timeout-ms", type=int, help="the call's deadline; of a stream for all of it")
    parser.add_argument("--api-key", default=None, help="a key, where the gateway asks for one")
    parser.add_argument("--bearer", default=None, metavar="FILE", help="a file with a token (`-`: standard input)")
    parser.add_argument("--tls-ca", default=None, metavar="FILE", help="authorities to believe, for an https:// --url")
    parser.add_argument("--tls-cert", default=None, metavar="FILE", help="a client certificate, PEM, to show")
    parser.add_argument("--tls-key", default=None, metavar="FILE", help="its key, if it is in another file")
    parser.add_argument(
        "--json", metavar="OUT", help="write answer, headers and explanation as JSON (`-`: standard output)"
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        address = urllib.parse.urlsplit(arguments.url)
        secure = address.scheme == "https"
        host, port = address.hostname, address.port or (443 if secure else 80)
    except ValueError:
        host = None
    if host is None or address.scheme not in ("http", "https"):
        return fail(f"--url: {arguments.url!r} is not an address like http://127.0.0.1:8000")
    tls = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    if any(tls) and not secure:
        return fail("--tls-ca, --tls-cert and --tls-key want --url to begin with https://")
    if arguments.timeout_ms is not None and arguments.timeout_ms < 1:
        return fail("--timeout-ms must be 1 or more")
    if not arguments.model:
        return fail("the model's name is empty")
    if (arguments.start or arguments.end) and arguments.sequence is None:
        return fail("--start and --end say something of a sequence: name it with --sequence")
    if arguments.request and arguments.input:
        return fail("--request and --input exclude each other: the file is the whole request")
    if arguments.request and arguments.sequence is not None:
        return fail("--request and --sequence exclude each other: the file's `parameters` have a `sequence_id`")
    wait_s = 10.0 + (SILENCE_S if arguments.timeout_ms is None else arguments.timeout_ms / 1000)
    try:
        key = _credentials(arguments)
        connection = _connection(host, port, wait_s, _tls(*tls) if secure else None)
    except ValueError as error:
        return fail(str(error))
    base = "/v2/models/" + urllib.parse.quote(arguments.model, safe="")
    if arguments.version:
        base += "/versions/" + urllib.parse.quote(arguments.version, safe="")
    clock = SystemClock()
    with closing(connection):
        try:
            asked = prepare(arguments, connection, base, key)
            headers = {"content-type": "application/json", "x-sluice-explain": "1", **key}
            if arguments.timeout_ms is not None:
                headers["x-request-timeout-ms"] = str(arguments.timeout_ms)
            began_s = clock.now_s()
            connection.request("POST", f"{base}/{asked.route}", body=asked.body, headers=headers)
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            if "x-request-id" not in told:
                return fail(f"{_not_the_port(arguments.url)} (HTTP {response.status} without x-request-id)", 1)
            streams = asked.route == STREAM and response.status == 200
            text = b"" if streams else response.read()
        except ssl.SSLError as error:  # before ValueError, which some of them are too
            why = getattr(error, "verify_message", "") or error.reason or error
            return fail(f"no TLS with {arguments.url} ({why}); see --tls-ca, and whether the port speaks TLS", 1)
        except ValueError as error:
            return fail(str(error))
        except http.client.HTTPException as error:
            return fail(f"{_not_the_port(arguments.url)} ({type(error).__name__})", 1)
        except OSError as error:
            return fail(
                f"no gateway answers at {arguments.url} ({error}); is `sluice serve` or `sluice demo` running?", 1
            )
        if streams:
            return _Streamed(arguments, told, clock, began_s).read(response)
    answer = parsed(text)
    explanation = parsed(told.get("x-sluice-explain", "{}").encode())
    if arguments.json:
        document = {"status": response.status, "headers": told, "explanation": explanation, "answer": answer}
        write_json(arguments.json, document)
    if arguments.json != "-":
        print("\n".join(story(arguments.model, response.status, told, explanation, answer)))
    return 0 if response.status == 200 else 1


class _Streamed:
    """Shows the responses of one stream as they come."""

    def __init__(self, arguments: argparse.Namespace, told: dict[str, str], clock: SystemClock, began_s: float) -> None:
        self._model = arguments.model
        self._json = arguments.json
        self._told = told
        self._events = SseDecoder()
        self._clock = clock
        self._began_s = began_s
        self._count = 0
        self._first_ms = self._last_ms = 0.0
        self._kept: list[dict[str, Any]] = []
        """For `--json` alone: a stream may be long."""

    def read(self, response: http.client.HTTPResponse) -> int:
        """Returns the exit code. A break is no error of the connection's any more: part of the answer is there."""
        version = self._told.get("x-sluice-model-version", "?")
        self._say(f"{self._model} version {version} answers with a stream  (request {self._told['x-request-id']})")
        failure = ""
        while not failure:
            arrived, failure = self._arrived(response)
            if not arrived:
                break
            for each in arrived:
                failure = failure or self._take(each)
        return self._end(failure)

    def _arrived(self, response: http.client.HTTPResponse) -> tuple[list[dict[str, Any]], str]:
        """What came next, nothing at the end, and what went wrong. Nothing is printed here: a reader of ours that has
        gone is something else than a gateway that has.
        """
        try:
            while data := response.read1(_READ_BYTES):
                if found := self._events.feed(data):
                    return [parsed(event.data) for event in found], ""
        except TimeoutError:
            return [], "nothing more came for too long; what came is not all"
        except SseTooLarge as error:
            return [], str(error)
        except (http.client.HTTPException, OSError):
            return [], "the connection broke; what came is not all"
        return [], ""

    def _take(self, response: dict[str, Any]) -> str:
        """The error text if the event says that the stream has failed; it is the last one then."""
        if "error" in response and "model_name" not in response:
            return str(response["error"])
        at_ms = (self._clock.now_s() - self._began_s) * 1000
        self._first_ms, self._last_ms = self._first_ms or at_ms, at_ms
        self._count += 1
        self._say(response_line(at_ms, response))
        if self._json:
            self._kept.append({"at_ms": round(at_ms, 3), "response": response})
        return ""

    def _end(self, failure: str) -> int:
        explanation = parsed(self._told.get("x-sluice-explain", "{}").encode())
        told = f"{self._count} response{'' if self._count == 1 else 's'}"
        if self._count:
            told += f", the first after {self._first_ms:.2f} ms, the last after {self._last_ms:.2f} ms"
        self._say(f"  ended     {told}" if not failure else f"  failed    after {told}\n  error     {failure}")
        for line in path(self._told, explanation):
            self._say(line)
        if self._json:
            document = {
                "status": 200, "headers": self._told, "explanation": explanation, "responses": self._kept,
                "error": failure or None,
            }  # fmt: skip
            write_json(self._json, document)
        return 1 if failure else 0

    def _say(self, line: str) -> None:
        if self._json != "-":
            print(line, flush=True)


def _connection(host: str, port: int, wait_s: float, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=wait_s)
    return http.client.HTTPSConnection(host, port, timeout=wait_s, context=tls)


def _tls(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Raises ValueError."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ValueError(f"--tls-ca: {ca} holds no certificates that can be read ({error})") from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key)
        elif key:
            raise ValueError("--tls-key is of no use without --tls-cert")
    except OSError as error:
        raise ValueError(f"--tls-cert, --tls-key: not a certificate and its key ({error})") from error
    return context


def _credentials(arguments: argparse.Namespace) -> dict[str, str]:
    """The headers that say who calls. A token is read from a file: arguments can be seen by everybody on the machine.
    Raises ValueError.
    """
    headers = {"x-api-key": arguments.api_key} if arguments.api_key else {}
    if arguments.bearer:
        try:
            if arguments.bearer == "-":
                token = sys.stdin.read().strip()
            else:
                with open(arguments.bearer, encoding="ascii") as file:
                    token = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--bearer: {arguments.bearer} holds no token that can be read ({error})") from error
        if not token or not token.isprintable() or " " in token:
            raise ValueError(f"--bearer: {arguments.bearer} does not hold one token and nothing else")
        headers["authorization"] = f"Bearer {token}"
    return headers


def _not_the_port(url: str) -> str:
    return f"what answers at {url} is not the gateway's HTTP port; name that with --url"
