"""Explain: why one call took the path it took, as one line of JSON made from its trail.

Callers who ask with `x-sluice-explain: 1` get it in the header of that name. Who has no right to see the fleet gets the
same story with replicas under names that mean nothing elsewhere and without the peers' own words.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gateway.core.call import Attempt, Call, Note
from gateway.core.criticality import CLASS_NAMES
from gateway.core.errors import GatewayError
from gateway.core.faults import public_text

ATTEMPTS_MAX = 8
"""Attempts told of in one explanation: a header must stay small. How many there were stands beside them."""
DECISIONS_MAX = 12
"""Notes of deciders, for the same reason; the record has them all."""
TEXT_CHARS_MAX = 200


class Explainer:
    """Tells calls' stories. `salt`, below 2**256, keys the hash of replica names: addresses are too few for a bare
    hash to hide them, so it must be drawn anew at each start.
    """

    def __init__(self, salt: int) -> None:
        self._key = salt.to_bytes(32, "big")

    def replica_name(self, replica: str) -> str:
        """A stable stand-in for `replica` until the gateway restarts."""
        return "r-" + hashlib.blake2b(replica.encode(), key=self._key, digest_size=5).hexdigest()

    def explain(self, call: Call, now_s: float, error: GatewayError | None = None) -> str:
        """One line of ASCII JSON. Times are milliseconds since the call's first byte."""
        trail = call.trail
        story: dict[str, Any] = {
            "request_id": call.request_id,
            "model": call.model[:TEXT_CHARS_MAX],
            "version_asked": call.version[:TEXT_CHARS_MAX],
            "class": CLASS_NAMES[call.criticality],
            "version_routed": trail.version_routed,
            "version_served": trail.version_served,
            "routed_by": trail.routed_by,
            "pool": trail.pool,
            "rung": trail.rung,
            "policy_revision": trail.policy_revision,
            "artifact_hash": trail.artifact_hash,
            "reason": None if error is None else error.reason.label,
            "replicas_ready": trail.replicas_ready,
            "queued_ahead": trail.queued_ahead,
            "in_flight_at_admit": trail.in_flight_at_admit,
            "limit_at_admit": trail.limit_at_admit,
            "deadline_ms": self._ms(call, call.deadline_s),
            "received_ms": self._ms(call, trail.received_s),
            "routed_ms": self._ms(call, trail.routed_s),
            "queued_ms": self._ms(call, trail.queued_s),
            "admitted_ms": self._ms(call, trail.admitted_s),
            "answered_ms": self._ms(call, trail.answered_s),
            "now_ms": self._ms(call, now_s),
            "attempts_count": len(trail.attempts),
            "attempts": [self._attempt(call, attempt) for attempt in trail.attempts[-ATTEMPTS_MAX:]],
            "decisions": None
            if trail.notes is None
            else [self._decision(call, note) for note in trail.notes[:DECISIONS_MAX]],
        }
        return json.dumps({name: value for name, value in story.items() if value not in (None, "")}, ensure_ascii=True)

    def _attempt(self, call: Call, attempt: Attempt) -> dict[str, Any]:
        full = call.identity.may_explain
        told: dict[str, Any] = {
            "replica": attempt.replica if full else self.replica_name(attempt.replica),
            "kind": attempt.kind,
            "started_ms": self._ms(call, attempt.started_s),
            "ended_ms": self._ms(call, attempt.ended_s),
            "outcome": None if attempt.outcome is None else attempt.outcome.value,
        }
        if attempt.text:
            told["text"] = (attempt.text if full else public_text(attempt.text))[:TEXT_CHARS_MAX]
        return told

    def _decision(self, call: Call, note: Note) -> dict[str, Any]:
        saw = note.saw
        if not call.identity.may_explain and "replica" in saw:
            saw = {**saw, "replica": self.replica_name(str(saw["replica"]))}
        return {"by": note.decider, "decided": note.word, **saw}

    @staticmethod
    def _ms(call: Call, at_s: float) -> float | None:
        """None where the time stamp says that the point was not reached."""
        if at_s == 0.0 or at_s == float("inf"):
            return None
        return round((at_s - call.arrived_s) * 1000, 3)
