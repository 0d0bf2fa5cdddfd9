"""`generate` and `generate_stream` as an HTTP client writes and reads them."""

from __future__ import annotations

import json
from typing import Any

import h11

from gateway.wire.sse import SseDecoder
from tests.simulation.plans import CallPlan
from tests.simulation.report import Answer, Part, request_id


def generate_request(plan: CallPlan, *, chunked: bool) -> tuple[h11.Request, bytes]:
    """The call as one flat JSON object."""
    document: dict[str, Any] = {"id": plan.id, "x": list(plan.question)}
    body = json.dumps(document).encode()
    version = f"/versions/{plan.version}" if plan.version else ""
    headers = [("host", "gateway.sim"), ("x-request-id", request_id(plan.number))]
    headers.append(("transfer-encoding", "chunked") if chunked else ("content-length", str(len(body))))
    if plan.timeout_s is not None:
        headers.append(("x-request-timeout-ms", str(round(plan.timeout_s * 1000))))
    if plan.priority is not None:
        headers.append(("x-sluice-priority", plan.priority))
    target = f"/v2/models/{plan.model}{version}/{plan.route}"
    return h11.Request(method="POST", target=target, headers=headers), body


def read_document(body: bytes, at_s: float, place: int) -> Part:
    """One response object, or `{"error": …}`."""
    document = json.loads(body)
    if "error" in document:
        return Part(at_s, place, None, document["error"])
    output = bytes(document["digest"])
    return Part(at_s, place, Answer(document["model_name"], document["model_version"], document.get("id", ""), output))


def read_events(body: bytes, at_s: float) -> tuple[Part, ...]:
    """The complete events among the bytes that came."""
    return tuple(read_document(event.data, at_s, place) for place, event in enumerate(SseDecoder().feed(body)))
