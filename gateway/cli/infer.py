"""`sluice infer`: one call from the shell, and the story of how it was answered."""

from __future__ import annotations

import argparse
import http.client
import json
import math
import sys
import urllib.parse
from collections.abc import Sequence
from typing import Any

from gateway.cli.output import fail, write_json

EXAMPLE = """examples:
  sluice infer fraud                          zeros in the model's shapes
  sluice infer fraud --version 1 --timeout-ms 200
  sluice infer fraud --request policies/warmup/fraud.json
  sluice infer fraud --input 'features=[[0.1, 2, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0]]'

exit codes: 0 an answer came, 1 the gateway or the model refused, 2 the command was used wrongly"""

_ZEROS: dict[str, Any] = {"BOOL": False, "BYTES": "", "FP32": 0.0, "FP64": 0.0}


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
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the gateway (default: %(default)s)")
    parser.add_argument("--timeout-ms", type=int, help="the call's deadline")
    parser.add_argument("--api-key", default=None, help="a key, where the gateway asks for one")
    parser.add_argument(
        "--json", metavar="OUT", help="write answer, headers and explanation as JSON (`-`: standard output)"
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        address = urllib.parse.urlsplit(arguments.url)
        host, port = address.hostname, address.port or 80
    except ValueError:
        host = None
    if host is None or address.scheme != "http":
        return fail(f"--url: {arguments.url!r} is not an address like http://127.0.0.1:8000")
    if arguments.timeout_ms is not None and arguments.timeout_ms < 1:
        return fail("--timeout-ms must be 1 or more")
    if not arguments.model:
        return fail("the model's name is empty")
    wait_s = 10.0 + (arguments.timeout_ms or 60_000) / 1000
    connection = http.client.HTTPConnection(host, port, timeout=wait_s)
    base = "/v2/models/" + urllib.parse.quote(arguments.model, safe="")
    if arguments.version:
        base += "/versions/" + urllib.parse.quote(arguments.version, safe="")
    key = {"x-api-key": arguments.api_key} if arguments.api_key else {}
    try:
        body = _body(arguments, connection, base, key)
        headers = {"content-type": "application/json", "x-sluice-explain": "1", **key}
        if arguments.timeout_ms is not None:
            headers["x-request-timeout-ms"] = str(arguments.timeout_ms)
        connection.request("POST", base + "/infer", body=body, headers=headers)
        response = connection.getresponse()
        text = response.read()
    except ValueError as error:
        return fail(str(error))
    except http.client.HTTPException as error:
        return fail(f"{_not_the_port(arguments.url)} ({type(error).__name__})", 1)
    except OSError as error:
        return fail(f"no gateway answers at {arguments.url} ({error}); is `sluice serve` or `sluice demo` running?", 1)
    finally:
        connection.close()
    answer = _parsed(text)
    told = {name.lower(): value for name, value in response.getheaders()}
    if "x-request-id" not in told:
        return fail(f"{_not_the_port(arguments.url)} (HTTP {response.status} without x-request-id)", 1)
    explanation = _parsed(told.get("x-sluice-explain", "{}").encode())
    if arguments.json:
        document = {"status": response.status, "headers": told, "explanation": explanation, "answer": answer}
        write_json(arguments.json, document)
    if arguments.json != "-":
        print("\n".join(_story(arguments.model, response.status, told, explanation, answer)))
    return 0 if response.status == 200 else 1


def _not_the_port(url: str) -> str:
    return f"what answers at {url} is not the gateway's HTTP port; name that with --url"


def _body(
    arguments: argparse.Namespace, connection: http.client.HTTPConnection, base: str, key: dict[str, str]
) -> bytes:
    if arguments.request:
        if arguments.input:
            raise ValueError("--request and --input exclude each other: the file is the whole request")
        if arguments.request == "-":
            return sys.stdin.buffer.read()
        try:
            with open(arguments.request, "rb") as file:
                return file.read()
        except OSError as error:
            raise ValueError(f"--request: {arguments.request} cannot be read ({error.strerror})") from error
    given = dict(_pair(word) for word in arguments.input)
    connection.request("GET", base, headers=key)
    response = connection.getresponse()
    metadata = _parsed(response.read())
    if response.status != 200:
        # Whatever is wrong with the name, the call itself will say it, with its explanation.
        return b'{"inputs": []}'
    inputs = []
    for tensor in metadata["inputs"]:
        name, datatype, shape = tensor["name"], tensor["datatype"], tensor["shape"]
        if name in given:
            data = given.pop(name)
            inputs.append({"name": name, "datatype": datatype, "shape": _shape_of(data, shape), "data": data})
        elif not arguments.input:
            fixed = [1 if int(size) < 0 else int(size) for size in shape]
            if datatype in {"FP16", "BF16"}:
                raise ValueError(
                    f"input {name} is {datatype}, which has no JSON form: name the inputs to send with --input, or "
                    "use a client that sends binary"
                )
            count = 1
            for size in fixed:
                count *= size
            inputs.append(
                {"name": name, "datatype": datatype, "shape": fixed, "data": [_ZEROS.get(datatype, 0)] * count}
            )
    if given:
        names = ", ".join(tensor["name"] for tensor in metadata["inputs"])
        raise ValueError(f"{arguments.model} has no input {', '.join(given)}; it has {names}")
    if not arguments.input:
        print("no input given: zeros in the model's shapes are sent", file=sys.stderr)
    return json.dumps({"inputs": inputs}).encode()


def _pair(word: str) -> tuple[str, Any]:
    name, separator, text = word.partition("=")
    if not separator:
        raise ValueError(f"--input: {word!r} is not NAME=JSON")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--input {name}: {text!r} is not JSON ({error})") from error
    return name, value if isinstance(value, list) else [value]


def _shape_of(data: Any, wanted: Sequence[Any]) -> list[int]:
    """The shape of nested lists. A flat list takes the model's shape if it fills one with at most one free dimension;
    what does not fit goes as it is, and the model says what it wants.
    """
    free = [place for place, size in enumerate(wanted) if int(size) < 0]
    if len(wanted) > 1 and len(free) <= 1 and not any(isinstance(item, list) for item in data):
        filled = [int(size) for size in wanted]
        if free:
            fixed = -math.prod(filled)
            filled[free[0]] = len(data) // fixed if fixed else 0
        if data and math.prod(filled) == len(data):
            return filled
    shape = []
    while isinstance(data, list):
        shape.append(len(data))
        data = data[0] if data else None
    return shape


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"error": text.decode("utf-8", "replace")[:500]}
    return value if isinstance(value, dict) else {"value": value}


def _story(
    model: str, status: int, headers: dict[str, str], explanation: dict[str, Any], answer: dict[str, Any]
) -> list[str]:
    version = headers.get("x-sluice-model-version", "?")
    spent = explanation.get("now_ms")
    took = "" if spent is None else f" in {spent:.2f} ms"
    if status == 200:
        lines = [f"{model} version {version} answered{took}  (request {headers.get('x-request-id', '?')})"]
    else:
        reason = headers.get("x-sluice-reason", "?")
        lines = [
            f"{model} was not answered{took}: HTTP {status}, {reason}  (request {headers.get('x-request-id', '?')})"
        ]
        lines.append(f"  error     {answer.get('error', '')}")
    lines += _path(headers, explanation)
    for output in answer.get("outputs", []):
        values = json.dumps(output.get("data"))
        shown = values if len(values) <= 100 else values[:100] + " …"
        lines.append(f"  output    {output['name']} {output['datatype']} {output['shape']} = {shown}")
    return lines


def _path(headers: dict[str, str], explanation: dict[str, Any]) -> list[str]:
    if not explanation:
        return []
    why = {"asked": "as you asked", "split": "by the policy's split", "newest": "the newest that is ready"}
    lines = []
    if explanation.get("version_routed"):
        routed, ready = explanation["version_routed"], explanation.get("replicas_ready")
        lines.append(f"  version   {routed}, {why.get(explanation.get('routed_by', ''), '')}")
        lines.append(
            f"  pool      {explanation.get('pool')}: {ready} {'replica' if ready == 1 else 'replicas'} ready, "
            f"{explanation.get('in_flight_at_admit')} of {explanation.get('limit_at_admit')} slots taken"
        )
    if headers.get("x-sluice-rung"):
        lines.append(f"  rung      {headers['x-sluice-rung']}, cache {headers.get('x-sluice-cache', '?')}")
    stages = [
        f"{label} {explanation[key]:.2f}"
        for key, label in (
            ("received_ms", "body"), ("routed_ms", "routed"), ("queued_ms", "queued"), ("admitted_ms", "admitted"),
            ("answered_ms", "answered"),
        )
        if explanation.get(key) is not None
    ]  # fmt: skip
    if stages:
        lines.append(f"  times     {', '.join(stages)} ms; deadline {explanation.get('deadline_ms', 0):.0f} ms")
    for attempt in explanation.get("attempts", []):
        took = attempt.get("ended_ms", 0) - attempt.get("started_ms", 0)
        text = f", {attempt['text']}" if attempt.get("text") else ""
        where, outcome = attempt.get("replica"), attempt.get("outcome")
        lines.append(f"  attempt   {attempt.get('kind')} on {where}: {outcome} after {took:.2f} ms{text}")
    if explanation.get("policy_revision"):
        lines.append(f"  policies  revision {explanation['policy_revision']}")
    return lines
