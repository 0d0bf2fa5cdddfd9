"""The transport: the innermost service. Bytes to one replica and back, and what the attempt teaches the directory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn, Protocol

from gateway.core.call import Attempt, Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faults import UpstreamFault, classify, to_error
from gateway.core.outcome import TEACHINGS, Outcome
from gateway.core.reply import Reply
from gateway.fleet.connection import Connection
from gateway.runtime.clock import Clock
from gateway.wire.kserve.request_view import model_override
from gateway.wire.kserve.response_view import read_response_head

MARGIN_S = 0.001
"""The replica's time limit ends this much before the call's deadline, so that its answer, or the news that none came,
still arrives within it.
"""

_override = lru_cache(maxsize=4096)(model_override)


class Connections(Protocol):
    """What the transport needs of the directory."""

    def connection(self, replica: str) -> Connection | None: ...

    def hint(self, replica: str, model: str, version: str) -> None: ...

    def note_answer(self, replica: str, model: str, version: str, now_s: float) -> None: ...

    def refused(self, replica: str, model: str, version: str, asked_s: float, text: str) -> None: ...


class ReplicaTransport:
    """Implements `core.service.Service`. The replica is that of the call's last attempt, the version the routed one.

    Fills in the attempt's outcome, text and end, and the trail's `answered_s` and `version_served`. A cancellation goes
    through unjudged (who cancelled knows why), after the request was cancelled on the replica.
    """

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._wrong_answers = 0

    async def send(self, call: Call) -> Reply:
        trail = call.trail
        attempt = trail.attempts[-1]
        version = trail.version_routed
        assert call.message is not None, "the body has arrived before a replica was chosen"
        sent_s = self._clock.now_s()
        timeout_s = call.deadline_s - sent_s - MARGIN_S
        if timeout_s <= 0:
            trail.attempts.pop()  # nothing is sent, so nothing was tried
            raise GatewayError(Reason.DEADLINE, "the deadline passed before the request was sent to a model server")
        connection = self._connections.connection(attempt.replica)
        if connection is None:
            self._fail(
                call, attempt, UpstreamFault(Code.UNAVAILABLE, "the replica was removed", from_peer=False, sent=False)
            )
        connection.enter()
        try:
            answer = await connection.client.infer(
                call.message + _override(call.model, version), call.metadata, timeout_s
            )
        except UpstreamFault as fault:
            if classify(fault).outcome is Outcome.NOT_LOADED and self._current(attempt, connection):
                self._connections.refused(attempt.replica, call.model, version, sent_s, fault.text)
            self._fail(call, attempt, fault)
        finally:
            connection.leave()
        try:
            head = read_response_head(answer)
        except GatewayError as error:
            trail.answered_s = self._end(attempt, Outcome.BROKEN, error.message)
            self._teach(call, attempt, Outcome.BROKEN)
            raise
        answered = (head.model_name, head.model_version)
        if answered != (call.model, version):
            trail.version_served = answered[1]
            self._wrong(call, attempt, f"answered as model {answered[0]!r} version {answered[1]!r}")
        now_s = self._end(attempt, Outcome.OK, "")
        trail.answered_s = now_s
        trail.version_served = answered[1]
        if self._current(attempt, connection):
            self._connections.note_answer(attempt.replica, call.model, version, now_s)
        return Reply(answer)

    def _current(self, attempt: Attempt, connection: Connection) -> bool:
        """Whether an answer that came over `connection` says something about who is at the replica's address now: the
        address may have gone to another server, or the connection may have been given up, while the call was out.
        """
        return self._connections.connection(attempt.replica) is connection

    def _end(self, attempt: Attempt, outcome: Outcome, text: str) -> float:
        now_s = self._clock.now_s()
        attempt.ended_s = now_s
        attempt.outcome = outcome
        attempt.text = text
        self._outcomes[outcome] += 1
        return now_s

    def _fail(self, call: Call, attempt: Attempt, fault: UpstreamFault) -> NoReturn:
        row = classify(fault)
        now_s = self._end(attempt, row.outcome, f"{fault.code.name}: {fault.text}")
        if fault.from_peer:
            call.trail.answered_s = now_s
        self._teach(call, attempt, row.outcome)
        if row.outcome is Outcome.EXPIRED:
            raise GatewayError(Reason.DEADLINE, "the deadline passed while the model server had the request") from fault
        raise to_error(fault, row) from fault

    def _wrong(self, call: Call, attempt: Attempt, text: str) -> NoReturn:
        self._wrong_answers += 1
        call.trail.answered_s = self._end(attempt, Outcome.BROKEN, text)
        self._teach(call, attempt, Outcome.BROKEN)
        raise GatewayError(
            Reason.UPSTREAM_WRONG_ANSWER,
            f"the model server's answer is not from version {call.trail.version_routed} of model '{call.model}', "
            "which it was asked for",
        )

    def _teach(self, call: Call, attempt: Attempt, outcome: Outcome) -> None:
        teaching = TEACHINGS[outcome]
        if teaching.recheck_model:
            self._connections.hint(attempt.replica, call.model, call.trail.version_routed)
        elif teaching.recheck_replica:
            self._connections.hint(attempt.replica, "", "")

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Counts of attempts by outcome (those that were cancelled are not judged here), and of wrong answers."""
        return {
            "outcomes": {outcome.value: count for outcome, count in self._outcomes.items()},
            "wrong_answers": self._wrong_answers,
        }
