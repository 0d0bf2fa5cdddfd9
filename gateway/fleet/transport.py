"""The transport: the innermost service. Bytes to one replica and back, and what the attempt teaches the directory.

Calls to models that give one response per request go out as single requests, also those of a stream, where each can
then be cancelled by itself; decoupled models and sequences go over a stream of their own (`stream_exchange.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from gateway.core.call import Attempt, Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faults import Row, UpstreamFault, classify, to_error
from gateway.core.outcome import TEACHINGS, Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.fleet.answer_shapes import AnswerShapes
from gateway.fleet.connection import Connection
from gateway.fleet.stream_exchange import StreamExchange
from gateway.runtime.clock import Clock
from gateway.wire.kserve.request_view import model_override
from gateway.wire.kserve.response_view import read_response_head
from gateway.wire.kserve.stream_message import with_final_mark

MARGIN_S = 0.001
"""The replica's time limit ends this much before the call's deadline, so that its answer, or the news that none came,
still arrives within it.
"""

VERSIONS_MAX = 4096
"""Versions of models of which something is remembered."""

_OK = Outcome.OK
"""A member of an enumeration is found by code in Python (3.11), a name of the module is not."""


class Connections(Protocol):
    """What the transport needs of the directory."""

    def connection(self, replica: str) -> Connection | None: ...

    def hint(self, replica: str, model: str, version: str) -> None: ...

    def note_answer(self, replica: str, connection: Connection, model: str, version: str, now_s: float) -> None: ...

    def refused(self, replica: str, model: str, version: str, asked_s: float, text: str) -> None: ...


class ReplicaTransport:
    """Implements `core.service.Service`. The replica is that of the call's last attempt, the version the routed one.

    Fills in the attempt's outcome, text and end, and the trail's `answered_s` and `version_served`. A cancellation goes
    through unjudged (who cancelled knows why), after the request was cancelled on the replica.
    """

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self.now_s = clock.now_s
        self._good = 0
        self._outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        """But for OK, of which there are many: `_good`."""
        self._wrong_answers = 0
        self._shapes: dict[tuple[str, str], AnswerShapes] = {}
        """By model and version."""

    async def send(self, call: Call) -> Reply:
        trail = call.trail
        attempt = trail.attempts[-1]
        version = trail.version_routed
        message = call.message
        assert message is not None, "the body has arrived before a replica was chosen"
        sent_s = attempt.started_s  # just now: nothing has been awaited since
        timeout_s = call.deadline_s - sent_s - MARGIN_S
        if timeout_s <= 0:
            trail.attempts.pop()  # nothing is sent, so nothing was tried
            raise GatewayError(Reason.DEADLINE, "the deadline passed before the request was sent to a model server")
        connection = self._connections.connection(attempt.replica)
        if connection is None:
            self.fail(
                call, attempt, UpstreamFault(Code.UNAVAILABLE, "the replica was removed", from_peer=False, sent=False)
            )
        shapes = self._shapes.get((call.model, version)) or self._new_shapes(call.model, version)
        session = call.session
        if session is not None and (call.decoupled or call.sequence is not None):
            return await StreamExchange(self, call, session, attempt, connection, sent_s).begin(message + shapes.names)
        connection.in_flight += 1
        try:
            answer = await connection.client.infer(message, call.metadata, timeout_s, shapes.names, attempt)
        except BaseException as error:
            # What runs out there keeps its connection.
            if attempt.rest is None:
                connection.leave()
            else:
                attempt.rest.on_end(connection.leave)
            if isinstance(error, UpstreamFault):
                self.lost_model(call, attempt, connection, sent_s, error)
                self.fail(call, attempt, error)
            raise
        connection.in_flight -= 1
        if connection.draining:
            connection.left()
        # Most answers look like one before them, the others must be read.
        start = shapes.starts.get(len(answer))
        if (start is None or not answer.startswith(start)) and not shapes.good(answer):
            self._check(call, attempt, answer)
        clock_s = self.now_s
        attempt.ended_s = trail.answered_s = now_s = clock_s()
        attempt.outcome = _OK
        self._good += 1
        trail.version_served = version
        self._connections.note_answer(attempt.replica, connection, call.model, version, now_s)
        if session is None:
            return Reply(answer)
        return StreamReply(Response(with_final_mark(answer)), _no_more, ordered=True, finished=True)

    def _new_shapes(self, model: str, version: str) -> AnswerShapes:
        if len(self._shapes) >= VERSIONS_MAX:
            self._shapes.clear()
        shapes = self._shapes[model, version] = AnswerShapes(model_override(model, version))
        return shapes

    def _check(self, call: Call, attempt: Attempt, answer: bytes) -> None:
        """Of an answer that is not written as servers write them. Raises `GatewayError`."""
        try:
            head = read_response_head(answer)
        except GatewayError as error:
            self.broken(call, attempt, error)
            raise
        self.check_answer(call, attempt, head.model_name, head.model_version)

    # What a stream's exchange needs too.

    def lost_model(
        self, call: Call, attempt: Attempt, connection: Connection, sent_s: float, fault: UpstreamFault
    ) -> None:
        """Tell the directory at once if the replica says that it has not got the model any more."""
        if classify(fault).outcome is Outcome.NOT_LOADED and self._current(attempt, connection):
            self._connections.refused(attempt.replica, call.model, call.trail.version_routed, sent_s, fault.text)

    def broken(self, call: Call, attempt: Attempt, error: GatewayError) -> None:
        """An answer that cannot be read."""
        call.trail.answered_s = self.end(attempt, Outcome.BROKEN, error.message)
        self._teach(call, attempt, Outcome.BROKEN)

    def check_answer(self, call: Call, attempt: Attempt, model: str, version: str) -> None:
        """Raises `GatewayError` if the answer is not from the version that was asked."""
        if (model, version) != (call.model, call.trail.version_routed):
            call.trail.version_served = version
            self._wrong(call, attempt, f"answered as model {model!r} version {version!r}")

    def note_answer(self, call: Call, attempt: Attempt, connection: Connection, now_s: float) -> None:
        self._connections.note_answer(attempt.replica, connection, call.model, call.trail.version_routed, now_s)

    def _current(self, attempt: Attempt, connection: Connection) -> bool:
        """Whether an answer that came over `connection` says something about who is at the replica's address now: the
        address may have gone to another server, or the connection may have been given up, while the call was out.
        """
        return self._connections.connection(attempt.replica) is connection

    def end(self, attempt: Attempt, outcome: Outcome, text: str) -> float:
        now_s = self.now_s()
        attempt.ended_s = now_s
        attempt.outcome = outcome
        attempt.text = text
        if outcome is _OK:
            self._good += 1
        else:
            self._outcomes[outcome] += 1
        return now_s

    def fail(
        self, call: Call, attempt: Attempt, fault: UpstreamFault, *, judged: bool = False, responses: int = 0
    ) -> NoReturn:
        """`judged`: the attempt has failed before, in another way; it is that which counts. `responses` of a stream had
        come by then.
        """
        row = classify(fault)
        if judged:
            self._teach(call, attempt, row.outcome)
        else:
            self.judge(call, attempt, fault, row)
        if row.outcome is Outcome.EXPIRED:
            raise GatewayError(Reason.DEADLINE, "the deadline passed while the model server had the request") from fault
        raise to_error(fault, row, responses) from fault

    def judge(self, call: Call, attempt: Attempt, fault: UpstreamFault, row: Row) -> None:
        """Close the attempt by `fault`, and teach what it teaches."""
        now_s = self.end(attempt, row.outcome, f"{fault.code.name}: {fault.text}")
        attempt.sent = fault.sent
        if fault.from_peer and not call.trail.answered_s:
            call.trail.answered_s = now_s
        self._teach(call, attempt, row.outcome)

    def _wrong(self, call: Call, attempt: Attempt, text: str) -> NoReturn:
        self._wrong_answers += 1
        call.trail.answered_s = self.end(attempt, Outcome.BROKEN, text)
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
            "outcomes": {outcome.value: count for outcome, count in {**self._outcomes, _OK: self._good}.items()},
            "wrong_answers": self._wrong_answers,
        }


async def _no_more() -> None:
    return None
