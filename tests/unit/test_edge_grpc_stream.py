"""One client's stream: order, errors in place, slow readers, leaving clients, and the end of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.grpc_stream import OUTBOX_BYTES_MAX, OUTBOX_MAX, ClientStream, StreamKit
from gateway.edge.headers import ClientHeaders
from gateway.edge.observer import SilentObserver
from tests.support.clock import ManualClock


class HandPort:
    """The client, as the test plays it."""

    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] | None = None
        self.got: list[pb.ModelStreamInferResponse] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self.reads = 0
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()

    def say(self, model: str = "m", request_id: str = "", **parameters: bool) -> None:
        message = pb.ModelInferRequest(model_name=model, id=request_id)
        for name, value in parameters.items():
            message.parameters[name].bool_param = value
        self._said.put_nowait(message.SerializeToString())

    def raw(self, message: bytes) -> None:
        self._said.put_nowait(message)

    def said_all(self) -> None:
        self._said.put_nowait(None)

    async def read(self) -> bytes | None:
        self.reads += 1
        return await self._said.get()

    async def send_headers(self, pairs: list[tuple[str, str]]) -> None:
        assert self.headers is None, "headers are sent once"
        assert not self.got
        self.headers = pairs

    async def write(self, message: bytes) -> None:
        await self.taking.wait()
        self.got.append(pb.ModelStreamInferResponse.FromString(message))

    @property
    def ids(self) -> list[str]:
        return [each.infer_response.id for each in self.got]


class Flight:
    """A call that reached the service; the test answers it, piece by piece."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.outcome: Outcome | None = None
        self.cancelled = False
        self._pieces: asyncio.Queue[Response | BaseException | None] = asyncio.Queue()
        self._ordered = True

    def respond(self, data: bytes = b"x") -> None:
        message = pb.ModelInferResponse(model_name=self.call.model, model_version="1", id=self.call.body_id)
        message.raw_output_contents.append(data)
        self._pieces.put_nowait(Response(message.SerializeToString()))

    def report(self, error: GatewayError, message: bytes = b"") -> None:
        self._pieces.put_nowait(Response(message, error))

    def end(self, error: BaseException | None = None) -> None:
        self._pieces.put_nowait(error)

    async def next(self) -> Response | None:
        piece = await self._pieces.get()
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def closed(self, outcome: Outcome) -> None:
        assert self.outcome is None
        self.outcome = outcome


class Service:
    """Models named `d…` are decoupled."""

    def __init__(self) -> None:
        self.flights: list[Flight] = []
        self.stubborn: asyncio.Event | None = None
        """A call that is cancelled takes until then to end."""

    async def send(self, call: Call) -> Reply:
        if call.receive is not None:
            await call.receive()
        call.decoupled = call.model.startswith("d")
        flight = Flight(call)
        self.flights.append(flight)
        try:
            first = await flight.next()
        except asyncio.CancelledError:
            flight.cancelled = True
            if self.stubborn is not None:
                await self.stubborn.wait()
            raise
        reply = StreamReply(first, flight.next, ordered=not call.decoupled)
        reply.on_close(flight.closed)
        return reply


def read_call(call: Call, message: bytes) -> None:
    if message == b"rubbish":
        raise GatewayError(Reason.BAD_REQUEST, "no message")
    request = pb.ModelInferRequest.FromString(message)
    call.model, call.body_id, call.message = request.model_name, request.id, message


class Scene:
    def __init__(
        self,
        *,
        calls_max: int = 64,
        budget: int = 1 << 20,
        true_status: bool = False,
        lasts_s: float = float("inf"),
        write_timeout_s: float = 60.0,
    ):
        self.port = HandPort()
        self.service = Service()
        self.clock = ManualClock()
        self.budget = ByteBudget(budget)
        kit = StreamKit(
            service=self.service,
            budget=self.budget,
            observer=SilentObserver(),
            explainer=Explainer(1),
            clock=self.clock,
            read_call=read_call,
            calls_max=calls_max,
            write_timeout_s=write_timeout_s,
        )
        deadline_s = self.clock.now_s() + lasts_s
        self.stream = ClientStream(kit, self.port, ClientHeaders("rid"), deadline_s, true_status=true_status)
        self.running = asyncio.get_running_loop().create_task(self.stream.run())

    async def flight(self, number: int) -> Flight:
        await until(lambda: len(self.service.flights) > number)
        return self.service.flights[number]

    async def end(self) -> None:
        self.port.said_all()
        await self.running
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        assert self.stream.calls == 0
        assert self.budget.used_bytes == 0
        names = {task.get_name() for task in asyncio.all_tasks() if not task.done()}
        assert not names & {"stream-call", "stream-reader"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Callable[..., Scene]]:
    async with asyncio.timeout(10):
        yield Scene


Make = Callable[..., Scene]


async def test_each_message_is_a_call_with_its_own_place_on_the_stream(scene: Make) -> None:
    subject = scene()
    subject.port.say(request_id="a")
    subject.port.say(request_id="b")
    first, second = await subject.flight(0), await subject.flight(1)
    assert [first.call.stream_position, second.call.stream_position] == [1, 2]
    assert first.call.session is second.call.session
    for flight in (first, second):
        flight.respond()
        flight.end()
    await subject.end()
    assert subject.port.ids == ["a", "b"]
    assert [first.outcome, second.outcome] == [Outcome.OK, Outcome.OK]
    assert subject.port.headers is not None
    assert ("x-request-id", "rid") in subject.port.headers


async def test_models_that_are_not_decoupled_answer_in_the_order_of_their_requests(scene: Make) -> None:
    subject = scene()
    for request_id in "abc":
        subject.port.say(request_id=request_id)
    flights = [await subject.flight(number) for number in range(3)]
    for flight in reversed(flights):
        flight.respond()
        flight.end()
        await settle()
        if flight is not flights[0]:
            assert not subject.port.got, "an answer overtook that of an earlier request"
    await subject.end()
    assert subject.port.ids == ["a", "b", "c"]


async def test_decoupled_models_answer_as_they_come_and_hold_nobody_up(scene: Make) -> None:
    subject = scene()
    for model, request_id in (("d", "slow"), ("m", "a"), ("d", "quick"), ("m", "b")):
        subject.port.say(model, request_id)
    slow, a, quick, b = [await subject.flight(number) for number in range(4)]
    quick.respond()
    b.respond()
    await settle()
    assert subject.port.ids == ["quick"]
    a.respond()
    a.end()
    b.end()
    quick.respond()
    quick.end()
    await settle()
    assert subject.port.ids == ["quick", "a", "quick", "b"] or subject.port.ids == ["quick", "quick", "a", "b"]
    slow.respond()
    slow.end()
    await subject.end()


async def test_an_error_is_a_message_in_its_place_and_the_stream_lives_on(scene: Make) -> None:
    subject = scene()
    for request_id in "abc":
        subject.port.say(request_id=request_id)
    a, b, c = [await subject.flight(number) for number in range(3)]
    b.end(GatewayError(Reason.QUEUE_FULL, "full"))
    c.respond()
    c.end()
    await settle()
    a.respond()
    a.end()
    await subject.end()
    assert [(each.infer_response.id, each.error_message) for each in subject.port.got] == [
        ("a", ""),
        ("b", "full"),
        ("c", ""),
    ]


async def test_what_the_model_server_sent_beside_an_error_goes_on_with_it(scene: Make) -> None:
    subject = scene()
    subject.port.say(request_id="a")
    flight = await subject.flight(0)
    beside = pb.ModelInferResponse(model_name="m", id="a")
    beside.parameters["triton_final_response"].bool_param = True
    error = GatewayError(Reason.UPSTREAM_INVALID, "no")
    error.response = beside.SerializeToString()
    flight.end(error)
    await subject.end()
    (answer,) = subject.port.got
    assert (answer.error_message, answer.infer_response) == ("no", beside)


async def test_an_error_inside_a_decoupled_stream_does_not_end_the_call(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    flight.respond()
    flight.report(GatewayError(Reason.UPSTREAM_BROKEN, "cuda fault 700"))
    flight.respond()
    flight.end()
    await subject.end()
    assert [each.error_message for each in subject.port.got] == ["", "cuda fault 700", ""]
    assert flight.outcome is Outcome.OK, "the record learns of the failure from the reply itself"


async def test_a_caller_who_wants_true_statuses_gets_the_first_failure_as_one(scene: Make) -> None:
    subject = scene(true_status=True)
    for request_id in "abc":
        subject.port.say(request_id=request_id)
    a, b, c = [await subject.flight(number) for number in range(3)]
    a.respond()
    a.end()
    b.end(GatewayError(Reason.UPSTREAM_BROKEN, "cuda fault 700"))
    with pytest.raises(GatewayError) as raised:
        await subject.running
    assert raised.value.reason is Reason.UPSTREAM_BROKEN
    assert subject.port.ids == ["a"]
    assert c.cancelled
    subject.nothing_is_left()


async def test_the_request_s_own_fault_stays_in_place_even_then(scene: Make) -> None:
    subject = scene(true_status=True)
    subject.port.say(request_id="a")
    (await subject.flight(0)).end(GatewayError(Reason.UPSTREAM_INVALID, "unexpected input"))
    await subject.end()
    assert subject.port.got[0].error_message == "unexpected input"


async def test_bytes_that_are_no_message_end_the_stream_and_what_is_out_on_it(scene: Make) -> None:
    subject = scene()
    subject.port.say(request_id="a")
    flight = await subject.flight(0)
    subject.port.raw(b"rubbish")
    with pytest.raises(GatewayError) as raised:
        await subject.running
    assert raised.value.reason is Reason.BAD_REQUEST
    assert flight.cancelled
    subject.nothing_is_left()


async def test_half_close_lets_everything_that_is_out_finish(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    subject.port.said_all()
    flight = await subject.flight(0)
    await settle()
    assert not subject.running.done()
    flight.respond()
    flight.end()
    await subject.running
    assert subject.port.ids == ["a"]


async def test_a_client_that_leaves_takes_its_calls_along(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "begun")
    subject.port.say("d", "waiting")
    begun, waiting = await subject.flight(0), await subject.flight(1)
    begun.respond()
    await settle()
    subject.stream.abandon()
    subject.running.cancel()
    await asyncio.wait((subject.running,))
    assert begun.outcome is Outcome.ABANDONED
    assert waiting.cancelled
    assert begun.call.abandoned
    assert waiting.call.abandoned
    session = begun.call.session
    assert session is not None
    assert session.closed
    subject.nothing_is_left()


async def test_no_more_calls_are_out_than_the_policy_allows(scene: Make) -> None:
    subject = scene(calls_max=2)
    for number in range(4):
        subject.port.say(request_id=str(number))
    await subject.flight(1)
    await settle()
    assert len(subject.service.flights) == 2
    for number in range(4):
        flight = await subject.flight(number)
        flight.respond()
        flight.end()
    await subject.end()
    assert subject.port.ids == ["0", "1", "2", "3"]


async def test_a_client_that_takes_nothing_holds_up_its_calls_and_no_memory(scene: Make) -> None:
    subject = scene()
    subject.port.taking.clear()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    for _ in range(10 * OUTBOX_MAX):
        flight.respond()
    flight.end()
    await settle()
    pieces = flight._pieces
    assert pieces.qsize() >= 10 * OUTBOX_MAX - OUTBOX_MAX - 3
    subject.port.taking.set()
    await subject.end()
    assert len(subject.port.got) == 10 * OUTBOX_MAX


async def test_a_request_for_which_there_is_no_memory_is_refused_in_its_place(scene: Make) -> None:
    subject = scene(budget=4)
    subject.port.say(request_id="a-rather-long-id")
    await until(lambda: bool(subject.port.got))
    assert subject.port.got[0].infer_response.id == "a-rather-long-id"
    assert "memory" in subject.port.got[0].error_message
    await subject.end()


async def test_a_draining_gateway_finishes_what_is_out_and_sends_the_client_elsewhere(scene: Make) -> None:
    subject = scene()
    subject.port.say(request_id="a")
    flight = await subject.flight(0)
    subject.stream.drain()
    flight.respond()
    flight.end()
    with pytest.raises(GatewayError) as raised:
        await subject.running
    assert raised.value.reason is Reason.DRAINING
    assert subject.port.ids == ["a"]
    subject.nothing_is_left()


async def test_at_the_end_of_draining_what_is_still_out_is_told(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    flight.respond()
    await settle()
    subject.stream.drain()
    subject.stream.cut(GatewayError(Reason.DRAINING, "shutting down"))
    with pytest.raises(GatewayError) as raised:
        await subject.running
    assert raised.value.reason is Reason.DRAINING
    assert [each.error_message for each in subject.port.got] == ["", "shutting down"]
    subject.nothing_is_left()


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("begun", [False, True])
async def test_whatever_a_call_raises_ends_in_an_error_in_its_place(
    scene: Make, kind: type[BaseException], begun: bool
) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    if begun:
        flight.respond()
        await settle()
    flight.end(kind())
    await until(lambda: bool(subject.port.got and subject.port.got[-1].error_message))
    assert "internal" in subject.port.got[-1].error_message
    await subject.end()


async def test_no_response_is_written_after_the_deadline(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    flight.call.deadline_s = subject.clock.now_s() - 1
    flight.respond()
    await until(lambda: bool(subject.port.got))
    assert "deadline" in subject.port.got[0].error_message
    await subject.end()


async def test_a_stream_of_which_a_call_hears_first_that_its_time_is_over_does_not_end_in_order(scene: Make) -> None:
    """The port's own timer fires a moment later, and gives it its status: a client that had said all saw OK."""
    subject = scene(lasts_s=10.0)
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    subject.port.said_all()
    subject.clock.advance(10.0 - 0.001)
    flight.end(GatewayError(Reason.DEADLINE, "the deadline passed while the model server had the request"))
    await until(lambda: subject.stream.calls == 0)
    await settle()
    assert not subject.running.done()
    subject.running.cancel()  # as the port does when the time is over
    await asyncio.wait((subject.running,))
    assert subject.running.cancelled()
    assert subject.port.got == [], "the status says it"
    subject.nothing_is_left()


async def test_a_call_with_a_shorter_deadline_of_its_own_does_not_end_the_stream(scene: Make) -> None:
    subject = scene(lasts_s=10.0)
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    subject.clock.advance(2.0)
    flight.end(GatewayError(Reason.DEADLINE, "the deadline passed while the model server had the request"))
    await until(lambda: bool(subject.port.got))
    assert "deadline" in subject.port.got[0].error_message
    await subject.end()


async def test_a_stream_that_ran_out_of_time_is_closed_as_expired(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    flight.respond()
    flight.end(GatewayError(Reason.DEADLINE, "no further response came within 1 s"))
    await subject.end()
    assert flight.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("stuck", [False, True])
async def test_the_failure_that_ends_a_stream_is_the_end_of_its_own_call_too(scene: Make, stuck: bool) -> None:
    subject = scene(true_status=True)
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    if stuck:
        subject.port.taking.clear()
        for _ in range(OUTBOX_MAX):
            flight.respond()
        await settle()
    flight.report(GatewayError(Reason.UPSTREAM_BROKEN, "cuda fault 700"))
    await settle()
    subject.port.taking.set()
    with pytest.raises(GatewayError) as raised:
        await subject.running
    assert raised.value.reason is Reason.UPSTREAM_BROKEN
    assert flight.outcome is Outcome.OK, "the caller was told the failure, and has not left"
    assert len(subject.port.got) == (OUTBOX_MAX if stuck else 0)
    subject.nothing_is_left()


async def test_an_error_inside_a_stream_says_as_the_model_does_whether_more_comes(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    flight.respond()
    inner = pb.ModelInferResponse(id="a")
    inner.parameters["triton_final_response"].bool_param = False
    flight.report(GatewayError(Reason.UPSTREAM_BROKEN, "cuda fault 700"), inner.SerializeToString())
    flight.respond()
    flight.end()
    await subject.end()
    assert subject.port.got[1].infer_response == inner


async def test_a_client_that_leaves_while_the_end_of_draining_is_told_holds_nothing_up(scene: Make) -> None:
    subject = scene()
    subject.port.taking.clear()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    for _ in range(2 * OUTBOX_MAX):
        flight.respond()
    await settle()
    subject.stream.cut(GatewayError(Reason.DRAINING, "shutting down"))
    await settle()
    assert not subject.running.done()
    subject.running.cancel()
    await asyncio.wait((subject.running,), timeout=2)
    assert subject.running.done(), "its calls wait for room, and nobody makes any"
    assert flight.outcome is not None
    subject.nothing_is_left()


async def test_a_client_that_leaves_while_a_stream_ends_leaves_no_call_behind(scene: Make) -> None:
    subject = scene()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    subject.service.stubborn = asyncio.Event()
    subject.port.raw(b"rubbish")
    await until(lambda: flight.call.abandoned)
    subject.running.cancel()
    await settle()
    assert not subject.running.done(), "the call has not ended, nor its record been made"
    subject.service.stubborn.set()
    await asyncio.wait((subject.running,))
    subject.nothing_is_left()


async def test_an_idle_stream_keeps_no_message(scene: Make) -> None:
    subject = scene()
    subject.port.raw(b"".join([pb.ModelInferRequest(model_name="m", id="a").SerializeToString()]))
    flight = await subject.flight(0)
    message = flight.call.message
    flight.respond()
    flight.end()
    await settle()
    assert message is not None
    frames = {each.get_name(): each.get_stack(limit=1) for each in asyncio.all_tasks() if not each.done()}
    for name in ("stream-reader", "stream-writer"):
        kept = [value for frame in frames[name] for value in frame.f_locals.values()]
        assert not [value for value in kept if isinstance(value, (bytes, Call))], name
    await subject.end()


@pytest.mark.parametrize("left_s", [0.0, 5.0])
async def test_a_stream_whose_time_is_over_was_not_left_by_its_client(scene: Make, left_s: float) -> None:
    subject = scene(lasts_s=10.0)
    subject.port.say("d", "begun")
    subject.port.say("d", "waiting")
    begun, waiting = await subject.flight(0), await subject.flight(1)
    begun.respond()
    await settle()
    subject.clock.advance(10.0 - left_s)
    subject.running.cancel()  # which is how the library tells of both
    await asyncio.wait((subject.running,))
    for flight in (begun, waiting):
        assert flight.call.abandoned is bool(left_s)
        assert (flight.call.cut is None) is bool(left_s)
    assert waiting.cancelled
    subject.nothing_is_left()


async def test_a_client_that_takes_nothing_holds_no_call_beyond_its_deadline(scene: Make) -> None:
    subject = scene()
    subject.port.taking.clear()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    flight.call.deadline_s = subject.clock.now_s() + 0.05
    for _ in range(3 * OUTBOX_MAX):
        flight.respond()
    async with asyncio.timeout(5):
        while flight.outcome is None:
            await asyncio.sleep(0.01)
    assert flight.outcome is Outcome.EXPIRED, "what the call holds below is free, whatever its client does"
    subject.port.taking.set()
    await subject.end()
    assert len(subject.port.got) == OUTBOX_MAX + 1
    assert "deadline" in subject.port.got[-1].error_message


async def test_large_messages_fill_the_place_for_a_slow_client_sooner(scene: Make) -> None:
    subject = scene()
    subject.port.taking.clear()
    subject.port.say("d", "a")
    flight = await subject.flight(0)
    for _ in range(OUTBOX_MAX):
        flight.respond(bytes(OUTBOX_BYTES_MAX))
    flight.end()
    await settle()
    assert flight._pieces.qsize() >= OUTBOX_MAX - 4
    subject.port.taking.set()
    await subject.end()
    assert len(subject.port.got) == OUTBOX_MAX


async def test_a_client_that_takes_nothing_and_has_no_deadline_is_cut_off(scene: Make) -> None:
    subject = scene(write_timeout_s=0.05)
    subject.port.taking.clear()
    subject.port.say("d", "a")
    subject.port.say("d", "b")
    flights = [await subject.flight(number) for number in range(2)]
    for _ in range(3 * OUTBOX_MAX):
        flights[0].respond()
    with pytest.raises(GatewayError) as raised:
        async with asyncio.timeout(5):
            await subject.running
    assert raised.value.reason is Reason.DEADLINE
    assert flights[0].outcome is Outcome.ABANDONED
    assert flights[1].cancelled
    subject.nothing_is_left()
