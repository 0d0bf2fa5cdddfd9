"""`generate` and `generate_stream` at the HTTP edge, over scripted streams and a transport in memory."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.edge.http_generate import HttpGenerate
from gateway.policy.schema import HttpLimits
from gateway.wire.sse import SseDecoder
from tests.support.clock import ManualClock
from tests.support.http_answer import Answer, unchunked
from tests.unit.edge_clients import LIVE, WAIT_S, get, post, read_answers, text_response
from tests.unit.edge_driving import Edge, MemoryTransport, ScriptedStream, StreamingService, turns

GENERATE = "/v2/models/fraud/generate"
STREAM = "/v2/models/fraud/generate_stream"
BODY = b'{"x":[1,2],"id":"q1","seed":7}'
INVALID = GatewayError(Reason.UPSTREAM_INVALID, "temperature out of range")
LOST = GatewayError(Reason.UPSTREAM_LOST, "the connection to the model server broke before it answered")
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class Wire:
    """One connection of one edge, and the service behind it."""

    def __init__(self, edge: Edge, service: StreamingService) -> None:
        self.edge = edge
        self.service = service
        self.transport: MemoryTransport = edge.connect()

    async def send(self, data: bytes) -> ScriptedStream:
        self.transport.feed(data)
        return await self.service.next()

    @property
    def head(self) -> Answer:
        """Status and headers of the answer, and its body as it stands on the wire."""
        head, _, body = bytes(self.transport.sent).partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        return Answer(int(line.split(" ")[1]), headers, body)

    @property
    def events(self) -> list[dict[str, object]]:
        chunks, _ = unchunked(self.head.body)
        return [json.loads(event.data) for event in SseDecoder().feed(b"".join(chunks))]

    @property
    def texts(self) -> list[object]:
        return [event.get("text", event.get("error")) for event in self.events]

    @property
    def complete(self) -> bool:
        """Whether the body has its end."""
        return unchunked(self.head.body)[1] is not None


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    service = StreamingService()
    wire = Wire(Edge(service), service)
    async with asyncio.timeout(WAIT_S):
        yield wire
        wire.transport.reset()
        await turns()
    assert wire.edge.notes.internal == 0
    wire.edge.nothing_is_left()
    assert all(call.session is not None and call.session.closed for call in service.calls)


async def closed(stream: ScriptedStream) -> Outcome:
    async with asyncio.timeout(WAIT_S):
        await stream.closed.wait()
    await turns()
    assert stream.outcome is not None
    return stream.outcome


# -------------------------------------------------------------------- generate


async def test_generate_answers_its_one_response_whole(wire: Wire) -> None:
    stream = await wire.send(post(GENERATE, BODY))
    request = service_pb2.ModelInferRequest.FromString(stream.call.message or b"")
    assert [each.name for each in request.inputs] == ["x"]
    assert request.parameters["seed"].int64_param == 7
    assert stream.call.body_id == request.id == "q1"
    stream.say("é")
    await turns()
    assert not wire.transport.sent, "there may be more, and then this is not the answer"
    stream.end()
    assert await closed(stream) is Outcome.OK
    (answer,) = read_answers(bytes(wire.transport.sent))
    assert answer.status == 200
    assert answer.body == '{"id":"q1","model_name":"fraud","model_version":"1","text":"é"}'.encode()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-sluice-model-version"] == "1"
    assert answer.headers["x-sluice-rung"] == "full"
    assert "x-request-id" in answer.headers


async def test_generate_without_a_response_and_with_several_is_500_in_tritons_words(wire: Wire) -> None:
    stream = await wire.send(post(GENERATE, BODY))
    stream.end()
    assert await closed(stream) is Outcome.OK
    assert stream.reply is not None
    assert stream.reply.failure is not None, "so that the record does not tell of a success"
    stream = await wire.send(post(GENERATE, BODY))
    stream.say("a", "b")
    assert await closed(stream) is Outcome.OK, "closed at once: what would still come is not asked for"
    assert stream.asked == 2
    answers = read_answers(bytes(wire.transport.sent))
    assert [(each.status, each.error) for each in answers] == [(500, NOT_ONE)] * 2
    assert answers[0].headers["x-sluice-reason"] == "bad_request"


@pytest.mark.parametrize("responses_before", [0, 1])
@pytest.mark.parametrize("in_place", [True, False])
async def test_an_error_of_generate_is_its_own_status(wire: Wire, responses_before: int, in_place: bool) -> None:
    stream = await wire.send(post(GENERATE, BODY))
    stream.say(*["a"] * responses_before)
    stream.say_error(INVALID) if in_place else stream.fail(INVALID)
    await turns()
    (answer,) = read_answers(bytes(wire.transport.sent))
    assert (answer.status, answer.error) == (400, INVALID.message)
    if responses_before or in_place:
        assert await closed(stream) is Outcome.OK
        assert stream.reply is not None
        assert stream.reply.failure is INVALID


@pytest.mark.parametrize("target", [GENERATE, STREAM])
async def test_an_output_without_a_json_form_is_400(wire: Wire, target: str) -> None:
    stream = await wire.send(post(target, BODY))
    half = service_pb2.ModelInferResponse(model_name="fraud", model_version="1")
    half.outputs.add(name="h", datatype="FP16", shape=[1])
    half.raw_output_contents.append(b"\0\0")
    stream.say_message(half.SerializeToString())
    stream.end()
    assert await closed(stream) is Outcome.OK, "the replica is not to blame"
    (answer,) = read_answers(bytes(wire.transport.sent))
    assert answer.status == 400
    assert "FP16" in answer.error


@pytest.mark.parametrize("target", [GENERATE, STREAM])
async def test_a_response_that_is_none_is_the_model_servers_fault(wire: Wire, target: str) -> None:
    stream = await wire.send(post(target, BODY))
    stream.say_message(b"\xff\xff")
    stream.end()
    assert await closed(stream) is Outcome.BROKEN
    assert read_answers(bytes(wire.transport.sent))[0].status == 500


# ------------------------------------------------------------ before the model


@pytest.mark.parametrize("target", [GENERATE, STREAM])
async def test_what_is_wrong_with_the_request_is_told_before_anything_is_sent(wire: Wire, target: str) -> None:
    cases: list[tuple[bytes, int, str]] = [
        (post(target, b"not json"), 400, "not valid JSON"),
        (post(target, b""), 400, "not valid JSON"),
        (post(target, b'{"x":"a"}'), 400, "input 'x'"),
        (post(target, b'{"x":1,"y":{}}'), 400, "parameter 'y'"),
        (post(target, b'{"x":1,"id":5}'), 400, "'id' must be a string"),
        (post(target, BODY, Content_Encoding="gzip"), 400, "only 'identity' is supported"),
        (post(target.replace("fraud", "absent"), b"not json"), 404, "unknown model"),
        (post(target.replace("fraud", "fraud/versions/9"), BODY), 404, "version"),
        (post(target.replace("fraud", "fraud/versions/x"), BODY), 400, "not a model version"),
        (get(target), 405, "Method Not Allowed"),
        (post(target, BODY, x_request_timeout_ms="0"), 400, "x-request-timeout-ms"),
    ]
    for request, status, text in cases:
        wire.transport.sent.clear()
        wire.transport.feed(request)
        await turns(20)
        (answer,) = read_answers(bytes(wire.transport.sent))
        assert answer.status == status, request
        assert text in answer.error
        assert answer.headers["content-type"] == "application/json"
    assert wire.service.arrived.empty()


async def test_head_is_refused_without_a_body(wire: Wire) -> None:
    wire.transport.feed(post(STREAM, BODY).replace(b"POST", b"HEAD"))
    await turns()
    assert wire.head.status == 405
    assert wire.head.headers["allow"] == "POST"
    assert wire.head.body == b""


async def test_a_body_is_asked_for_only_when_the_call_wants_it(wire: Wire) -> None:
    head, blank, body = post(STREAM, BODY, Expect="100-continue").partition(b"\r\n\r\n")
    wire.transport.feed(head + blank)
    await turns()
    assert wire.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.transport.sent.clear()
    stream = await wire.send(body)
    stream.say("a")
    stream.end()
    await closed(stream)
    assert wire.texts == ["a"]


async def test_the_whole_body_is_json_whatever_the_binary_extension_says(wire: Wire) -> None:
    stream = await wire.send(post(GENERATE, BODY, Inference_Header_Content_Length="3"))
    stream.say("a")
    stream.end()
    await closed(stream)
    assert wire.head.status == 200


async def test_a_body_over_the_limit_for_json_is_413(wire: Wire) -> None:
    wire.edge.limits = wire.edge.limits._replace(json=16) if wire.edge.limits else None
    wire.transport.feed(post(STREAM, BODY, Inference_Header_Content_Length="3"))
    await turns()
    (answer,) = read_answers(bytes(wire.transport.sent))
    assert answer.status == 413
    assert "16 of JSON: call infer" in answer.error


async def test_of_the_callers_headers_only_the_trace_goes_on(wire: Wire) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    stream = await wire.send(post(STREAM, BODY, traceparent=parent, X_Tenant="a", triton_grpc_error="false"))
    assert stream.call.metadata == (("traceparent", parent),)
    assert stream.call.session is not None
    assert stream.call.session.metadata == stream.call.metadata


async def test_a_compressed_answer_is_never_given(wire: Wire) -> None:
    for target in (GENERATE, STREAM):
        wire.transport.sent.clear()
        stream = await wire.send(post(target, BODY, Accept_Encoding="gzip"))
        stream.say("a" * 10_000)
        stream.end()
        await closed(stream)
        assert "content-encoding" not in wire.head.headers
        assert b"a" * 10_000 in wire.head.body


# ------------------------------------------------------------- generate_stream


async def test_nothing_is_written_before_the_first_response_and_each_is_passed_on_as_it_comes(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY))
    await turns()
    assert not wire.transport.sent
    stream.say("a")
    await turns()
    head = wire.head
    assert head.status == 200
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert head.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in head.headers
    assert head.headers["x-sluice-rung"] == "full"
    event = b'data: {"id":"q1","model_name":"fraud","model_version":"1","text":"a"}\n\n'
    assert head.body == b"%x\r\n%b\r\n" % (len(event), event)
    for text in ("b", ":\n\n", "data: x", "\r\n", "é", "😀", "", "a" * 200_000):
        size = len(wire.transport.sent)
        stream.say(text)
        await turns()
        assert len(wire.transport.sent) > size
        assert wire.texts[-1] == text
        assert not wire.complete
    stream.end()
    assert await closed(stream) is Outcome.OK
    assert wire.complete
    assert len(unchunked(wire.head.body)[0]) == 9, "one chunk per event"
    assert not wire.transport.is_closing()
    assert stream.reply is not None
    assert stream.reply.count == 9


async def test_every_event_is_one_write(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    monkeypatch.setattr(wire.transport, "write", lambda data: writes.append(bytes(data)))
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    await turns()
    stream.say("b")
    await turns()
    assert [write.count(b"data: ") for write in writes] == [1, 1]
    assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_stream_without_responses_is_200_and_empty(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.end()
    assert await closed(stream) is Outcome.OK
    assert wire.head.status == 200
    assert wire.head.body == b"0\r\n\r\n"


@pytest.mark.parametrize("in_place", [True, False])
async def test_an_error_before_any_event_is_a_status(wire: Wire, in_place: bool) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.say_error(INVALID) if in_place else stream.fail(INVALID)
    await turns()
    (answer,) = read_answers(bytes(wire.transport.sent))
    assert (answer.status, answer.error) == (400, INVALID.message)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-sluice-reason"] == "upstream_invalid"


@pytest.mark.parametrize("error", [INVALID, LOST], ids=["model", "transport"])
@pytest.mark.parametrize("in_place", [True, False])
async def test_an_error_after_five_events_is_the_sixth_and_last(
    wire: Wire, in_place: bool, error: GatewayError
) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.say(*"abcde")
    stream.say_error(error) if in_place else stream.fail(error)
    stream.say("never")
    assert await closed(stream) is Outcome.OK
    assert wire.texts == [*"abcde", error.message]
    assert wire.events[-1] == {"error": error.message}
    assert wire.complete, "the client was told, so the body may end"
    assert stream.reply is not None
    assert stream.reply.failure is error
    assert wire.head.status == 200
    wire.transport.sent.clear()
    wire.transport.feed(LIVE)
    assert wire.transport.statuses == [200], "the connection goes on"


async def test_a_response_that_is_none_after_the_first_event_is_an_error_event(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    stream.say_message(b"\xff\xff")
    assert await closed(stream) is Outcome.BROKEN
    assert "not a valid response" in str(wire.texts[-1])
    assert wire.complete


async def test_a_fault_of_the_gateway_during_the_stream_is_an_error_event_too() -> None:
    service = StreamingService()
    wire = Wire(Edge(service), service)
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    stream.fail(KeyError("a defect"))
    assert await closed(stream) is Outcome.GATEWAY_FAULT
    assert "internal fault" in str(wire.texts[-1])
    assert "a defect" not in str(wire.texts[-1])
    assert wire.complete
    assert wire.edge.notes.internal == 1


async def test_if_the_error_cannot_be_written_the_connection_is_cut_off_without_an_end() -> None:
    service = StreamingService()
    wire = Wire(Edge(service), service)
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    await turns()
    wire.transport.fail_next_write = RuntimeError("a defect below")
    stream.fail(LOST)
    await closed(stream)
    assert wire.transport.cut_off()
    assert not wire.complete
    assert wire.edge.notes.internal == 1
    await turns()
    wire.edge.nothing_is_left()


async def test_an_http_1_0_client_gets_no_chunks_and_the_end_of_the_connection(wire: Wire) -> None:
    request = post(STREAM, BODY, Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
    stream = await wire.send(request)
    stream.say("a", "é")
    await turns()
    assert "transfer-encoding" not in wire.head.headers
    assert "content-length" not in wire.head.headers
    assert wire.head.headers["connection"] == "close"
    assert [json.loads(event.data)["text"] for event in SseDecoder().feed(wire.head.body)] == ["a", "é"]
    assert not wire.transport.is_closing()
    stream.end()
    await closed(stream)
    assert wire.transport.is_closing()
    assert wire.head.body.endswith(b"\n\n")


async def test_no_response_is_asked_for_while_the_client_does_not_take_the_last(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    await turns()
    wire.transport.stuck_bytes = 1
    wire.transport.protocol.pause_writing()
    stream.say(*"bcdef")
    await turns()
    assert wire.texts == ["a", "b"], "one was asked for before the client fell behind"
    assert stream.asked == 2
    wire.transport.stuck_bytes = 0
    wire.transport.protocol.resume_writing()
    stream.end()
    assert await closed(stream) is Outcome.OK
    assert wire.texts == [*"abcdef"]


async def test_a_client_that_takes_nothing_is_cut_off_and_its_call_cancelled() -> None:
    service, clock = StreamingService(), ManualClock()
    wire = Wire(Edge(service, clock=clock), service)
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    await turns()
    wire.transport.stuck_bytes = 1000
    wire.transport.protocol.pause_writing()
    stream.say("b")
    await turns()
    wire.edge.advance(wire.edge.server.limits.write_timeout_ms / 1000 + 1)
    assert wire.transport.cut_off()
    assert await closed(stream) is Outcome.ABANDONED
    assert wire.edge.notes.faults == ["slow_reader"]
    wire.edge.nothing_is_left()


@pytest.mark.parametrize("leaving", ["leave", "reset"])
@pytest.mark.parametrize("events", [0, 1])
@pytest.mark.parametrize("target", [GENERATE, STREAM])
async def test_a_client_that_leaves_while_the_model_is_silent_is_noticed_at_once(
    wire: Wire, leaving: str, events: int, target: str
) -> None:
    stream = await wire.send(post(target, BODY))
    stream.say(*["a"] * events)
    await turns()
    size = len(wire.transport.sent)
    getattr(wire.transport, leaving)()
    async with asyncio.timeout(WAIT_S):
        await stream.cancelled.wait()
    await turns()
    assert stream.call.abandoned
    if events:
        assert await closed(stream) is Outcome.ABANDONED
    assert len(wire.transport.sent) == size, "nobody is told anything"


@pytest.mark.parametrize("after", [None, LOST], ids=["response", "error"])
async def test_what_comes_after_the_client_left_goes_nowhere(after: GatewayError | None) -> None:
    class Deaf:
        """Swallows the cancellation, as no service should, and answers."""

        def __init__(self) -> None:
            self.waiting = asyncio.Event()
            self.outcome: Outcome | None = None

        async def send(self, call: Call) -> Reply:
            assert call.receive is not None
            await call.receive()
            reply = StreamReply(Response(text_response("a")), self._next, ordered=False)
            reply.on_close(lambda outcome: setattr(self, "outcome", outcome))
            return reply

        async def _next(self) -> Response | None:
            if self.waiting.is_set():
                return None
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if after is not None:
                    raise after from None
            return Response(text_response("b"))

    service = Deaf()
    edge = Edge(service)
    transport = edge.connect()
    transport.feed(post(STREAM, BODY))
    async with asyncio.timeout(WAIT_S):
        await service.waiting.wait()
    size = len(transport.sent)
    transport.reset()
    await turns()
    assert service.outcome is Outcome.ABANDONED
    assert len(transport.sent) == size
    assert edge.notes.internal == 0
    edge.nothing_is_left()


async def test_when_the_gateway_stops_a_stream_goes_on_and_the_connection_ends_with_it(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    await turns()
    wire.edge.server.begin_drain()
    stream.say("b")
    stream.end()
    assert await closed(stream) is Outcome.OK
    assert wire.texts == ["a", "b"]
    assert wire.complete
    assert wire.transport.is_closing()


async def test_at_the_limit_of_the_drain_a_stream_ends_with_an_error_event(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY))
    stream.say("a")
    await turns()
    wire.edge.server.begin_drain()
    assert not await wire.edge.server.wait_closed(0.0)
    assert "shutting down" in str(wire.texts[-1])
    assert wire.complete
    assert wire.transport.is_closing()
    await closed(stream)
    assert stream.reply is not None
    assert stream.reply.failure is not None
    assert stream.reply.failure.reason is Reason.DRAINING


async def test_a_deadline_that_passes_while_the_client_is_slow_is_an_error_event() -> None:
    service, clock = StreamingService(), ManualClock()
    wire = Wire(Edge(service, clock=clock), service)
    stream = await wire.send(post(STREAM, BODY))
    stream.call.deadline_s = clock.now_s() + 5
    stream.say("a")
    await turns()
    wire.transport.protocol.pause_writing()
    stream.say("b", "c")
    await turns()
    clock.advance(6)
    wire.transport.protocol.resume_writing()
    assert await closed(stream) is Outcome.EXPIRED
    assert wire.texts[:-1] == ["a", "b"]
    assert "deadline" in str(wire.texts[-1])
    assert stream.reply is not None
    assert stream.reply.failure is not None
    assert stream.reply.failure.reason is Reason.DEADLINE


async def test_requests_behind_a_stream_wait_their_turn() -> None:
    service = StreamingService()
    wire = Wire(Edge(service), service)
    wire.transport.feed(post(STREAM, BODY) + LIVE + post(GENERATE, BODY))
    stream = await service.next()
    stream.say("a")
    await turns()
    assert not wire.complete
    stream.end()
    await closed(stream)
    behind = await service.next()
    behind.say("z")
    behind.end()
    await closed(behind)
    _, rest = unchunked(wire.head.body)
    live, last = read_answers(rest or b"")
    assert (live.status, live.body) == (200, b"")
    assert json.loads(last.body)["text"] == "z"


@pytest.mark.parametrize("pipeline_max", [1, 4])
async def test_a_stream_behind_another_answer_waits_for_its_turn_too(pipeline_max: int) -> None:
    service = StreamingService()
    wire = Wire(Edge(service, limits=HttpLimits(pipeline_max=pipeline_max)), service)
    wire.transport.feed(post(GENERATE, BODY) + post(STREAM, BODY))
    first = await service.next()
    second = await service.next() if pipeline_max > 1 else None
    if second is not None:
        second.say("late")
        await turns()
        assert not wire.transport.sent
    first.say("early")
    first.end()
    if second is None:
        second = await service.next()
        second.say("late")
    second.end()
    await closed(second)
    sent = bytes(wire.transport.sent)
    assert sent.index(b"early") < sent.index(b"late")
    assert sent.endswith(b"0\r\n\r\n")
    wire.edge.nothing_is_left()


async def test_an_error_inside_a_call_that_has_a_code_of_its_own_keeps_its_status(wire: Wire) -> None:
    for code, status in ((Code.UNAVAILABLE, 503), (Code.UNIMPLEMENTED, 501), (Code.NOT_FOUND, 404)):
        wire.transport.sent.clear()
        stream = await wire.send(post(STREAM, BODY))
        stream.fail(GatewayError(Reason.UPSTREAM_INVALID, "no", code))
        await turns()
        assert wire.head.status == status


async def test_the_story_of_a_call_is_told_in_the_head(wire: Wire) -> None:
    stream = await wire.send(post(STREAM, BODY, X_Sluice_Explain="1"))
    stream.say("a")
    stream.end()
    await closed(stream)
    assert json.loads(wire.head.headers["x-sluice-explain"])["model"] == "fraud"


async def test_a_call_that_never_began_is_counted_under_its_own_route() -> None:
    service = StreamingService()
    wire = Wire(Edge(service), service)
    wire.transport.feed(post(STREAM, BODY))
    wire.transport.reset()
    await turns()
    assert wire.edge.notes.requests == [("/v2/models/{model}[/versions/{version}]/generate_stream", "499")]
    wire.edge.nothing_is_left()


def _alive() -> int:
    return sum(isinstance(each, HttpGenerate) for each in gc.get_objects())


@pytest.mark.parametrize("target", [GENERATE, STREAM])
async def test_a_call_is_gone_with_its_answer_and_waits_for_no_collector(wire: Wire, target: str) -> None:
    gc.collect()
    others = _alive()  # what tests before this one hold on to
    gc.disable()
    try:
        for ending in ("good", "in place", "raised", "not json"):
            wire.transport.feed(post(target, b"no" if ending == "not json" else BODY))
            if ending != "not json":
                stream = await wire.service.next()
                stream.say("a")
                if ending == "raised":
                    stream.fail(GatewayError(Reason.UPSTREAM_LOST, "lost"))
                elif ending == "in place":
                    stream.say_error(GatewayError(Reason.UPSTREAM_INVALID, "no"))
                stream.end()
                await closed(stream)
            await turns()
            assert _alive() == others, ending
    finally:
        gc.enable()
