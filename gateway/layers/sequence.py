"""sequence: all steps of a sequence to the version and the replica that hold it, one after the other.

Route hands a call that belongs to a sequence here, and from here it goes straight to admission: a step is never
answered from a store, by a lower rung, or by somebody else's flight, and never sent twice.

A step waits here for the one before it. That is no second queue for slots: a step that could be sent now would reach
the replica before its predecessor. What it waits for is in flight under a deadline of its own, the wait ends with the
step's deadline, and the number of waiting steps of one sequence is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import SnapshotSource
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, StreamReply
from gateway.core.service import Service
from gateway.core.snapshot import FleetSnapshot
from gateway.decide.sequences import Ending, Entered, SequenceId, Sequences, Step, draw
from gateway.layers.gate import shown
from gateway.layers.route import no_replica
from gateway.runtime.clock import Clock

_GONE = frozenset({Reason.UPSTREAM_LOST, Reason.UPSTREAM_NOT_LOADED, Reason.NO_REPLICA})
"""After these nobody can say what state the sequence is in."""


class SequenceLayer:
    """The sequences of one model in one pool."""

    def __init__(
        self,
        inner: Service,
        *,
        model: str,
        pool: str,
        fleet: SnapshotSource,
        live_max: int,
        waiting_max: int,
        idle_s: float | None,
        clock: Clock,
    ) -> None:
        """`idle_s` is the policy's word on how long a silent sequence is remembered; None: as long as the replicas'
        configurations say.
        """
        self._inner = inner
        self._model = model
        self._pool = pool
        self._fleet = fleet
        self._idle_given = idle_s is not None
        self._clock = clock
        self._table = Sequences(model, live_max=live_max, waiting_max=waiting_max, idle_s=idle_s or 0.0)
        fleet.subscribe(self._on_snapshot)

    def version(self, asked: str, sequence_id: SequenceId) -> str:
        """The version that holds a live sequence, "" if it is not known here."""
        return self._table.version(asked, sequence_id)

    def draw(self, sequence_id: SequenceId) -> float:
        """What stands for chance where the version of a new sequence is drawn."""
        return draw(self._model, sequence_id)

    async def send(self, call: Call) -> Reply:
        sequence, version = call.sequence, call.trail.version_routed
        assert sequence is not None, "route sends nothing else here"
        table = self._table
        self._learn_idle(version)
        step = Step(
            version,
            sequence.id,
            start=sequence.start,
            end=sequence.end,
            session=call.session,
            owner=call.identity.tenant,
        )
        entered = table.enter(step, self._clock.now_s(), versioned=bool(call.version))
        if entered is Entered.FOREIGN:
            raise GatewayError(
                Reason.FORBIDDEN,
                f"sequence id {_named(step.id)} of model '{shown(self._model)}' is another caller's; choose another",
            )
        if entered is Entered.FULL or entered is Entered.NO_ROOM:
            raise self._full(step.id, entered)
        try:
            if entered is Entered.WAIT:
                await self._wait(step)
            call.pinned = self._place(step)
            if call.session is not None:
                call.on_sent = lambda: _wake(table.sent(step))
            reply = await self._inner.send(call)
        except GatewayError as error:
            lost = error.reason in _GONE and bool(call.pinned)
            self._leave(step, Ending.LOST if lost else Ending.FAILED)
            if lost and not step.start:
                raise self._lost(step.id) from error
            raise
        except BaseException:
            self._leave(step, Ending.FAILED)
            raise
        finally:
            call.on_sent = None
        if isinstance(reply, StreamReply) and not reply.finished:
            reply.on_close(lambda outcome: self._leave(step, _ending_of(reply, outcome)))
        else:
            self._leave(step, Ending.GOOD)
        return reply

    async def _wait(self, step: Step) -> None:
        step.waiter = waiter = asyncio.get_running_loop().create_future()
        await waiter

    def _place(self, step: Step) -> str:
        """The replica for a step whose turn it is. Raises `GatewayError`."""
        turn = self._table.turn(step, self._serving(step.version))
        if turn.lost:
            raise self._lost(step.id)
        if not turn.replica:
            raise no_replica(self._model, step.version)
        return turn.replica

    def _leave(self, step: Step, ending: Ending) -> None:
        _wake(self._table.leave(step, ending, self._clock.now_s()))

    def _serving(self, version: str) -> tuple[str, ...]:
        candidates = self._fleet.snapshot.candidates(self._pool, self._model, version)
        return tuple(candidate.replica for candidate in candidates)

    def _learn_idle(self, version: str) -> None:
        """Versions may differ: what outlives the longest outlives all."""
        if not self._idle_given:
            idle_s = self._fleet.snapshot.sequence_idle_s(self._pool, self._model, version)
            if idle_s is not None and idle_s > self._table.idle_s:
                self._table.idle_s = idle_s

    def _on_snapshot(self, snapshot: FleetSnapshot) -> None:
        self._table.fleet_changed(self._serving)

    def _lost(self, sequence_id: SequenceId) -> GatewayError:
        return GatewayError(
            Reason.SEQUENCE_LOST,
            f"sequence {_named(sequence_id)} of model '{shown(self._model)}' is lost: the model server that held it is "
            "gone, or the connection to it broke during a step; start the sequence again from its first step",
        )

    def _full(self, sequence_id: SequenceId, entered: Entered) -> GatewayError:
        if entered is Entered.FULL:
            text = f"too many calls of sequence {_named(sequence_id)} wait for the ones before them"
        else:
            text = f"each of the {len(self._table)} sequences that may be remembered has a call under way"
        return GatewayError(
            Reason.QUEUE_FULL, f"{text} (model '{shown(self._model)}'); try again later", retry_after_s=1.0
        )

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return self._table.statistics(now_s)


def _ending_of(reply: StreamReply, outcome: Outcome) -> Ending:
    failure = reply.failure
    if failure is None:
        return Ending.GOOD if outcome is Outcome.OK else Ending.FAILED
    return Ending.LOST if failure.reason in _GONE else Ending.FAILED


def _named(sequence_id: SequenceId) -> str:
    return f"'{shown(sequence_id)}'" if isinstance(sequence_id, str) else str(sequence_id)


def _wake(steps: Sequence[Step]) -> None:
    for step in steps:
        waiter = step.waiter
        assert isinstance(waiter, asyncio.Future)
        if not waiter.done():
            waiter.set_result(None)
        # A waiter that is done was cancelled in this very turn; its step leaves, and lets the next one go.
