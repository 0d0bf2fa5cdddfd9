"""What `sluice infer` tells of one call: the answer, and the path that it took."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.printable import printable

VALUES_CHARS_MAX = 100
_WHY = {
    "asked": "as you asked",
    "split": "by the policy's split",
    "newest": "the newest that is ready",
    "sequence": "in which its sequence began",
}
_STAGES = (
    ("received_ms", "body"),
    ("routed_ms", "routed"),
    ("queued_ms", "queued"),
    ("admitted_ms", "admitted"),
    ("answered_ms", "answered"),
)
_NOT_OUTPUTS = frozenset({"model_name", "model_version", "id"})


def parsed(text: bytes) -> dict[str, Any]:
    """A JSON object; of anything else something like it."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"error": text.decode("utf-8", "replace")[:500]}
    return value if isinstance(value, dict) else {"value": value}


def story(
    model: str, status: int, headers: dict[str, str], explanation: dict[str, Any], answer: dict[str, Any]
) -> list[str]:
    """Of an answer that came whole."""
    version = headers.get("x-sluice-model-version", "?")
    spent = explanation.get("now_ms")
    took = "" if spent is None else f" in {spent:.2f} ms"
    request = headers.get("x-request-id", "?")
    if status == 200:
        lines = [f"{model} version {version} answered{took}  (request {request})"]
    else:
        reason = headers.get("x-sluice-reason", "?")
        lines = [f"{model} was not answered{took}: HTTP {status}, {reason}  (request {request})"]
        lines.append(f"  error     {answer.get('error', '')}")
    lines += path(headers, explanation)
    lines += [
        f"  output    {output['name']} {output['datatype']} {output['shape']} = {_shown(output.get('data'))}"
        for output in answer.get("outputs", [])
    ]
    return [printable(line) for line in lines]


def response_line(at_ms: float, response: dict[str, Any]) -> str:
    """One response of a stream."""
    outputs = "  ".join(f"{name} {_shown(value)}" for name, value in response.items() if name not in _NOT_OUTPUTS)
    return printable(f"  {at_ms:9.2f} ms  {outputs or '(no outputs)'}")


def _shown(values: Any) -> str:
    text = json.dumps(values, ensure_ascii=False)
    return text if len(text) <= VALUES_CHARS_MAX else text[:VALUES_CHARS_MAX] + " …"


def path(headers: dict[str, str], explanation: dict[str, Any]) -> list[str]:
    """How the call went through the gateway; of a stream, until its first response."""
    if not explanation:
        return []
    lines = []
    if explanation.get("version_routed"):
        routed, ready = explanation["version_routed"], explanation.get("replicas_ready")
        lines.append(f"  version   {routed}, {_WHY.get(explanation.get('routed_by', ''), '')}")
        lines.append(
            f"  pool      {explanation.get('pool')}: {ready} {'replica' if ready == 1 else 'replicas'} ready, "
            f"{explanation.get('in_flight_at_admit')} of {explanation.get('limit_at_admit')} slots taken"
        )
    if headers.get("x-sluice-rung"):
        lines.append(f"  rung      {headers['x-sluice-rung']}, cache {headers.get('x-sluice-cache', '?')}")
    stages = [f"{label} {explanation[key]:.2f}" for key, label in _STAGES if explanation.get(key) is not None]
    if stages:
        limit = explanation.get("deadline_ms")
        lines.append(
            f"  times     {', '.join(stages)} ms; " + ("no deadline" if limit is None else f"deadline {limit:.0f} ms")
        )
    lines += [_attempt(attempt) for attempt in explanation.get("attempts", [])]
    if explanation.get("policy_revision"):
        lines.append(f"  policies  revision {explanation['policy_revision']}")
    return lines


def _attempt(attempt: dict[str, Any]) -> str:
    text = f", {attempt['text']}" if attempt.get("text") else ""
    started, ended = attempt.get("started_ms") or 0.0, attempt.get("ended_ms")
    went = (
        "not over when the answer began"
        if ended is None
        else f"{attempt.get('outcome')} after {ended - started:.2f} ms"
    )
    return f"  attempt   {attempt.get('kind')} on {attempt.get('replica')}: {went}{text}"
