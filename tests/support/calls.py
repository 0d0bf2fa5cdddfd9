"""Calls as an edge would make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.core.call import Attempt, Call
from gateway.core.credentials import Credentials


def make_call(
    model: str = "fraud",
    version: str = "",
    *,
    arrived_s: float = 1000.0,
    message: bytes | None = b"request",
    receive: Callable[[], Awaitable[None]] | None = None,
    timeout_s: float | None = None,
    api_key: str | None = None,
    body_bytes: int | None = None,
    deadline_s: float = float("inf"),
) -> Call:
    call = Call(
        request_id="r-1",
        model=model,
        version=version,
        arrived_s=arrived_s,
        arrived_wall_s=0.0,
        message=message,
        receive=receive,
        timeout_s=timeout_s,
        credentials=Credentials(api_key=api_key),
        body_bytes=body_bytes,
    )
    call.deadline_s = deadline_s
    return call


def call_sent_to(replica: str, model: str, version: str, message: bytes, now_s: float, timeout_s: float) -> Call:
    """A call that the layers have routed and admitted to `replica`."""
    call = make_call(model, version, arrived_s=now_s, message=message, deadline_s=now_s + timeout_s)
    call.trail.version_routed = version
    call.trail.attempts.append(Attempt(replica, now_s))
    return call


def permitted(call: Call) -> str:
    """The replica on which the call holds a slot, "" if it holds none."""
    return "" if call.permit is None else call.permit.replica
