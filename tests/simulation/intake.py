"""What the in-memory Triton does with a request before a scheduler has it, over either kind of RPC."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import Done, Request, Scheduler, check_inputs, fault, queue_limit_s
from tests.simulation.sequencer import SequenceId, Sequencer, SequenceRequest, wants_id
from tests.simulation.states import Lie
from tests.simulation.streamer import Part, Streamer, StreamRequest, fault_part

if TYPE_CHECKING:
    from tests.simulation.triton import Triton

AnyScheduler = Scheduler | Sequencer | Streamer

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
NOT_UNARY = "ModelInfer RPC doesn't support models with decoupled transaction policy"
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"

Send = Callable[[bytes, int], None]


@dataclass(slots=True)
class Intake:
    """A request that was looked at: `scheduler` takes it, or `fault` is its answer (`ran`: given by the model)."""

    message: pb.ModelInferRequest
    scheduler: AnyScheduler | None = None
    fault: UpstreamFault | None = None
    ran: bool = False


def look(server: Triton, raw: bytes) -> Intake:
    """Parse, find the version, check the inputs. `lie` has its say where the real server could fail in that way."""
    try:
        message = pb.ModelInferRequest.FromString(raw)
    except Exception:
        return Intake(pb.ModelInferRequest(), fault=fault(Code.INTERNAL, "Failed to parse the request"))
    name = message.model_name
    found = server.find(name, message.model_version)
    if isinstance(found, UpstreamFault):
        return Intake(message, fault=found)
    scheduler = found.scheduler
    assert scheduler is not None, "a ready version has a scheduler"
    lie = server.lie
    if Lie.GONE in lie:
        text = f"Request for unknown model: '{name}' has no available versions"
        return Intake(message, fault=fault(Code.NOT_FOUND, text))
    if Lie.FAST_ERRORS in lie:
        text = f"Failed to process the request(s) for model '{name}_0', message: out of luck"
        return Intake(message, scheduler, fault(Code.INTERNAL, text), ran=True)
    return Intake(message, scheduler, check_inputs(message, scheduler.spec))


def begin(server: Triton, intake: Intake, done: Done) -> Request | None:
    """Give a sound request for one answer to its scheduler. Returns what `cancel` needs, None if it ended at once."""
    message, scheduler = intake.message, intake.scheduler
    assert isinstance(scheduler, (Scheduler, Sequencer)), "a decoupled model has no single answer"
    batch = message.inputs[0].shape[0] if scheduler.spec.max_batch_size else 1
    now_s = server.now_s()
    expires_s = now_s + queue_limit_s(message, scheduler.spec)
    if isinstance(scheduler, Scheduler):
        request = Request(message, batch, now_s, expires_s, done)
        scheduler.submit(request)
        return request if request.done is not None else None
    sequence = sequence_of(message)
    if not sequence:
        done(wants_id(message.model_name))
        return None
    step = SequenceRequest(message, batch, now_s, expires_s, done)
    step.sequence = sequence
    step.start = message.parameters["sequence_start"].bool_param
    step.end = message.parameters["sequence_end"].bool_param
    scheduler.submit(step)
    return step if step.done is not None else None


def sequence_of(message: pb.ModelInferRequest) -> SequenceId:
    """The typed id of a request's sequence: a number is unsigned; 0 and "" are none."""
    parameter = message.parameters["sequence_id"]
    if parameter.WhichOneof("parameter_choice") == "string_param":
        return str(parameter.string_param)
    return int(parameter.int64_param) & 0xFFFF_FFFF_FFFF_FFFF


class ServerStream:
    """One ModelStreamInfer inside the server.

    Responses of decoupled models leave as they come, all others in the order of their requests. An error is a message
    in its place. `send` takes each message, and the number of the request that is over with it, or -1.
    """

    def __init__(self, server: Triton, send: Send) -> None:
        self._server = server
        self._send = send
        self._taken = 0
        self._line: deque[_Place] = deque()
        self._running: dict[int, Request] = {}
        self._cancelled = False
        self._at_end: Callable[[], None] | None = None

    def half_close(self, ended: Callable[[], None]) -> None:
        """The client has said its last; `ended` is called when everything is answered."""
        self._at_end = ended
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._at_end is not None and not self._running and not self._line:
            ended, self._at_end = self._at_end, None
            ended()

    def take(self, raw: bytes) -> None:
        """One request came."""
        number = self._taken
        self._taken += 1
        server = self._server
        intake = look(server, raw)
        if server.stopping:
            intake.fault, intake.ran = fault(Code.UNAVAILABLE, STOPPING), False
        if isinstance(intake.scheduler, Streamer):
            self._decoupled(number, intake, intake.scheduler)
        else:
            self._single(number, intake)

    def _decoupled(self, number: int, intake: Intake, streamer: Streamer) -> None:
        message = intake.message
        wanted = message.parameters[EMPTY_FINAL].bool_param if EMPTY_FINAL in message.parameters else False

        def emit(part: Part) -> None:
            if part.over:
                self._running.pop(number, None)
            if part.message or part.error or wanted:
                self._write(encode_part(part, message), number if part.over else -1)
            if part.over:
                self._end_if_idle()

        if intake.fault is None:
            now_s = self._server.now_s()
            request = StreamRequest(message, 1, now_s, float("inf"), _nowhere)
            self._running[number] = request
            streamer.submit(request, emit)
        elif intake.ran:
            emit(Part(error=intake.fault.text))
            emit(Part(final=True, over=True))
        else:
            emit(fault_part(intake.fault))

    def _single(self, number: int, intake: Intake) -> None:
        place = _Place(number)
        self._line.append(place)

        def done(result: bytes | UpstreamFault) -> None:
            self._running.pop(number, None)
            if isinstance(result, UpstreamFault):
                part = Part(error=result.text, final=True if place.taken or intake.ran else None, over=True)
            else:
                part = Part(result, final=True, over=True)
            place.ready = encode_part(part, intake.message)
            self._flush()

        if intake.fault is not None:
            done(intake.fault)
            return
        request = begin(self._server, intake, done)
        if request is not None:
            place.taken = True
            self._running[number] = request

    def _flush(self) -> None:
        while self._line and self._line[0].ready is not None:
            place = self._line.popleft()
            assert place.ready is not None
            self._write(place.ready, place.number)
        self._end_if_idle()

    def _write(self, message: bytes, over: int) -> None:
        if not self._cancelled:
            self._send(message, over)

    def cancel(self) -> None:
        """The client gave the stream up: every request of it is cancelled, as far as its model looks."""
        self._cancelled = True
        for request in self._running.values():
            self._server.cancel(request)


class _Place:
    __slots__ = ("number", "ready", "taken")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready: bytes | None = None
        self.taken = False
        """A scheduler has it."""


def _nowhere(_: bytes | UpstreamFault) -> None:
    """The responses of a decoupled model go another way."""


def encode_part(part: Part, request: pb.ModelInferRequest) -> bytes:
    """A `ModelStreamInferResponse`. One without outputs names model and version as the request did, if it came from the
    model; else neither.
    """
    answer = pb.ModelStreamInferResponse(error_message=part.error)
    if part.message:
        answer.infer_response.MergeFromString(part.message)
    else:
        answer.infer_response.id = request.id
        if part.final is not None:
            answer.infer_response.model_name = request.model_name
            answer.infer_response.model_version = request.model_version
    if part.final is not None:
        answer.infer_response.parameters[FINAL].bool_param = part.final
    serialized: bytes = answer.SerializeToString()
    return serialized
