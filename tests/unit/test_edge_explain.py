"""The story of one call."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.call import NOTES_MAX, Attempt, Call, Identity
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.edge.explain import ATTEMPTS_MAX, DECISIONS_MAX, Explainer
from tests.support.calls import make_call


def told(call: Call, error: GatewayError | None = None, salt: int = 5) -> dict[str, Any]:
    text = Explainer(salt).explain(call, 1000.25, error)
    assert text.isascii()
    assert "\n" not in text
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def tried() -> Call:
    call = make_call(model="übung", deadline_s=1002.0)
    call.trail.pool, call.trail.rung, call.trail.admitted_s = "gpu", "full", 1000.010
    attempt = Attempt("gpu/10.0.0.7:8001", 1000.020)
    attempt.ended_s, attempt.outcome = 1000.120, Outcome.TRANSPORT
    attempt.text = "connection to 10.0.0.7:8001 refused\nTraceback: /opt/secret/file.py"
    call.trail.attempts = [attempt]
    return call


def test_the_story_has_times_in_milliseconds_since_the_first_byte() -> None:
    story = told(tried())
    assert story["model"] == "übung"
    assert story["admitted_ms"] == 10.0
    assert story["deadline_ms"] == 2000.0
    assert story["now_ms"] == 250.0
    assert story["attempts"][0]["started_ms"] == 20.0
    assert story["attempts"][0]["outcome"] == "transport"
    assert "queued_ms" not in story


def test_without_the_right_no_address_shows_in_any_form() -> None:
    story = told(tried())
    assert story["attempts"][0]["replica"].startswith("r-")
    assert "10.0.0.7" not in json.dumps(story)
    assert "secret" not in json.dumps(story)


def test_with_the_right_the_replica_has_its_name() -> None:
    call = tried()
    call.identity = Identity("ops", may_explain=True)
    assert told(call)["attempts"][0]["replica"] == "gpu/10.0.0.7:8001"


def test_stand_in_names_are_stable_until_the_salt_changes() -> None:
    name = told(tried())["attempts"][0]["replica"]
    assert name == told(tried())["attempts"][0]["replica"]
    assert name != told(tried(), salt=6)["attempts"][0]["replica"]


def test_an_error_names_its_reason() -> None:
    assert told(make_call(), GatewayError(Reason.NO_REPLICA, "x"))["reason"] == "no_replica"


def test_many_attempts_stay_a_small_header() -> None:
    call = tried()
    call.trail.attempts = [Attempt("gpu/" + "r" * 200, 1000.0) for _ in range(500)]
    for attempt in call.trail.attempts:
        attempt.text = "t" * 5000
    text = Explainer(5).explain(call, 1001.0)
    assert len(text) < 4096
    story = json.loads(text)
    assert story["attempts_count"] == 500
    assert len(story["attempts"]) == ATTEMPTS_MAX


def test_what_deciders_saw_is_told_with_replicas_under_stand_in_names() -> None:
    call = tried()
    call.trail.note("hedge", "no_token", {"replica": "gpu/10.0.0.7:8001", "waiting": 3})
    story = told(call)
    assert story["decisions"] == [
        {"by": "hedge", "decided": "no_token", "replica": story["attempts"][0]["replica"], "waiting": 3}
    ]
    call.identity = Identity("ops", may_explain=True)
    assert told(call)["decisions"][0]["replica"] == "gpu/10.0.0.7:8001"


def test_many_decisions_stay_a_small_header_and_a_bounded_trail() -> None:
    call = tried()
    for number in range(NOTES_MAX + 100):
        call.trail.note("retry", "no_time", {"remaining_ms": 12.5, "waited_ms": float(number)})
    assert call.trail.notes is not None
    assert len(call.trail.notes) == NOTES_MAX
    text = Explainer(5).explain(call, 1001.0)
    assert len(text) < 4096
    assert len(json.loads(text)["decisions"]) == DECISIONS_MAX
