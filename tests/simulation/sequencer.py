"""A stateful model of the in-memory Triton: sequences in slots, each with a state that lives here and nowhere else.

The rules are those of Triton's direct strategy. A sequence begins with a request that says start, takes a slot until
one says end or none came for the idle time, and its requests run one after the other. A start that finds no free slot
waits for one, and what follows it waits behind it. A start for a sequence that is here begins it anew. A request
without start for a sequence that is not here is refused. What fails inside does not end a sequence, nor does a cancel
of what runs; a cancel of what waits does, and all that waits behind it is cancelled too (seen on 2.51). Ids are typed:
the number 7 and the string "7" are two sequences.

The state is a digest over all questions since the start, and so is every answer: whoever was begun again elsewhere, or
lost a step on the way, answers something else.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import Counts, Host, ModelSpec, Request, answer_digest, fault

SequenceId = int | str


@dataclass(frozen=True, slots=True)
class Step:
    """One executed step. `life` is the same for all steps of one life of a sequence, and for no others."""

    machine: str
    version: str
    sequence: SequenceId
    life: str
    question: bytes
    before: tuple[bytes, ...]
    """The questions of this life that ran before it."""
    output: bytes


class _Slot:
    __slots__ = ("life", "questions", "queue", "running", "state", "touched_s")

    def __init__(self, now_s: float) -> None:
        self.queue: deque[SequenceRequest] = deque()
        self.running = False
        self.state = b""
        self.life = ""
        self.questions: tuple[bytes, ...] = ()
        self.touched_s = now_s


class SequenceRequest(Request):
    """A request with its place in a sequence."""

    __slots__ = ("end", "sequence", "start")

    sequence: SequenceId
    start: bool
    end: bool


@dataclass(slots=True)
class SequenceLog:
    """What a machine remembers of its sequences, for the checks."""

    steps: list[Step] = field(default_factory=list)
    refused: list[tuple[float, str, SequenceId, bytes]] = field(default_factory=list)
    """(when, model, sequence, question) of what came without its start."""


class Sequencer:
    """One version of a stateful model."""

    def __init__(self, server: Host, spec: ModelSpec, version: str, log: SequenceLog, life: int) -> None:
        self._server = server
        self.spec = spec
        self.version = version
        self.log = log
        self.counts = Counts()
        self.slots: dict[SequenceId, _Slot] = {}
        self.backlog: OrderedDict[SequenceId, deque[SequenceRequest]] = OrderedDict()
        self._lives = 0
        self._process = life

    @property
    def queue(self) -> list[SequenceRequest]:
        """All that waits."""
        waiting = [request for slot in self.slots.values() for request in slot.queue]
        return waiting + [request for requests in self.backlog.values() for request in requests]

    @property
    def idle(self) -> bool:
        return not self.backlog and not any(slot.running or slot.queue for slot in self.slots.values())

    def drop_all(self) -> None:
        """The process died."""
        self.slots.clear()
        self.backlog.clear()

    def submit(self, request: SequenceRequest) -> None:
        sequence, slot = request.sequence, self.slots.get(request.sequence)
        if slot is not None:
            self._queue(sequence, slot, request)
        elif sequence in self.backlog:
            self.backlog[sequence].append(request)
        elif not request.start:
            self.log.refused.append((self._server.now_s(), self.spec.name, sequence, request.question))
            self._server.note("no-start", self.spec.name, self.version, repr(sequence))
            text = (
                f"inference request for sequence {sequence} to model '{self.spec.name}' must specify the START flag on "
            )
            request.finish(fault(Code.INVALID_ARGUMENT, f"{text}the first request of the sequence"))
        elif len(self.slots) < self.spec.sequences:
            self._open(sequence, deque((request,)))
        else:
            self.backlog[sequence] = deque((request,))

    def _open(self, sequence: SequenceId, requests: deque[SequenceRequest]) -> None:
        slot = self.slots[sequence] = _Slot(self._server.now_s())
        self._watch(sequence, slot)
        slot.queue.extend(requests)
        self._run(sequence, slot)

    def _queue(self, sequence: SequenceId, slot: _Slot, request: SequenceRequest) -> None:
        slot.touched_s = self._server.now_s()
        slot.queue.append(request)
        self._run(sequence, slot)

    def _run(self, sequence: SequenceId, slot: _Slot) -> None:
        if slot.running or not slot.queue:
            return
        if slot.queue[0].cancelled:
            self._cancelled(sequence, slot)
            return
        request = slot.queue.popleft()
        server, spec = self._server, self.spec
        slot.running = True
        took_s = (spec.s0_s + spec.s1_s) * server.slowness * (1.0 + spec.noise * server.chance.random())
        now_s = server.now_s()
        self.counts.executions += 1
        self.counts.inferences += 1
        self.counts.batches[1] += 1
        self.counts.last_s = now_s
        self.counts.queue_us += int((now_s - request.arrived_s) * 1e6)
        self.counts.compute_us += int(took_s * 1e6)
        server.executed[request.question] += 1
        server.note("step", spec.name, self.version, repr(sequence), request.id, "start" if request.start else "")
        server.after(took_s, lambda: self._ran(sequence, slot, request))

    def _cancelled(self, sequence: SequenceId, slot: _Slot) -> None:
        """A request whose turn has come was cancelled: its sequence ends here, with all that waits behind it."""
        requests = list(slot.queue)
        slot.queue.clear()
        self._server.note("cancelled", self.spec.name, self.version, repr(sequence), len(requests))
        self._free(sequence, slot)
        for request in requests:
            self.counts.cancelled += 1
            request.finish(fault(Code.CANCELLED, ""))

    def _ran(self, sequence: SequenceId, slot: _Slot, request: SequenceRequest) -> None:
        server = self._server
        slot.running = False
        if request.start:
            self._lives += 1
            slot.life = f"{server.name}/{self._process}/{self.spec.name}/{self.version}/{sequence!r}/{self._lives}"
            slot.state, slot.questions = b"", ()
        slot.state = next_state(slot.state, request.question)
        output = answer_digest(slot.state, self.spec.name, self.version)
        self.log.steps.append(
            Step(server.name, self.version, sequence, slot.life, request.question, slot.questions, output)
        )
        slot.questions = (*slot.questions, request.question)
        slot.touched_s = server.now_s()
        self.counts.success += 1
        request.finish(server.answer(self.spec.name, self.version, request.id, output))
        if request.end:
            self._free(sequence, slot)
        else:
            self._run(sequence, slot)
        server.settle(self.spec.name)

    def _watch(self, sequence: SequenceId, slot: _Slot) -> None:
        idle_s = self.spec.sequence_idle_s

        def look() -> None:
            if self.slots.get(sequence) is not slot:
                return
            left_s = slot.touched_s + idle_s - self._server.now_s()
            if slot.running or slot.queue:
                self._server.after(idle_s, look)
            elif left_s > 0:
                self._server.after(left_s + 1e-6, look)
            else:
                self._server.note("idle", self.spec.name, self.version, repr(sequence))
                self._free(sequence, slot)

        self._server.after(idle_s, look)

    def _free(self, sequence: SequenceId, slot: _Slot) -> None:
        """The sequence is over. What was sent behind its end begins it anew, or is refused."""
        del self.slots[sequence]
        late = list(slot.queue)
        if self.backlog:
            waiting, requests = self.backlog.popitem(last=False)
            self._open(waiting, requests)
        for request in late:
            self.submit(request)


def next_state(state: bytes, question: bytes) -> bytes:
    """The state after one more step."""
    return hashlib.blake2b(state + b"\0" + question, digest_size=16).digest()


def wants_id(model: str) -> UpstreamFault:
    """The refusal of a request without an id."""
    text = f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
    return fault(Code.INVALID_ARGUMENT, text)
