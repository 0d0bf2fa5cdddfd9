"""The way in as gRPC: callers with several calls on one connection, over bytes, into the product's own port.

Their end is `http2_end`. They leave in three ways (a reset of the call, a close or an abort of the connection, which
takes along whoever shares it), some read slowly (windows that are returned late, a transport that is not read), some
give up when their own time is over, as gRPC's clients do.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, replace
from typing import cast

from hpack import NeverIndexedHeaderTuple
from tritonclient.grpc import service_pb2 as pb

from gateway.core.errors import Reason
from gateway.edge.grpc_port import GrpcPort
from gateway.runtime.clock import Clock
from tests.simulation.grpc_bytes import SERVICE, Deframer, framed, text_of, timeout_field
from tests.simulation.http2_end import CANCEL, EndStream, Fields, Http2End, Manners
from tests.simulation.loop import SimulationLoop
from tests.simulation.pipe import PipeTransport, connect
from tests.simulation.plans import CallPlan, SessionPlan
from tests.simulation.report import Answer, Ending, Report, SessionEnding, request_id
from tests.simulation.stream_entrance import MARK, end_session, infer_message

INFER, STREAM_INFER = SERVICE + b"ModelInfer", SERVICE + b"ModelStreamInfer"
DELAY_S = 0.0002
"""A piece takes this long at the most."""
OWN_EXPIRY_S = 0.001
"""A client gives up so long after its deadline."""
SERVED_ON_S = 2.0
"""And the gateway has ended its work on a stream so long after its client left: it ends those of replicas in order."""
SLOW_WINDOW = 400
"""Of a session that reads slowly: two or three messages."""
REASON = b"x-sluice-reason"
LATE = ("left", "expired")
"""Endings that the client makes."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a caller's connection takes what it is sent."""

    read_pause_s: float = 0.0
    """Its transport is not read for so long after each piece."""
    window_pause_s: float = 0.0
    """A window is returned so much later."""
    buffer: int = 65_536
    """So much fits in the gateway's end before it is told to pause."""

    @property
    def slow(self) -> bool:
        return self != Pace()


class CallerStream(EndStream):
    """One call or stream of a caller: everything that came, with the times at which the gateway wrote it."""

    __slots__ = (
        "_connection",
        "_deframer",
        "_unread",
        "at_s",
        "head",
        "lost",
        "messages",
        "over",
        "pause_s",
        "reset_code",
        "slow",
        "trailers",
    )

    def __init__(self, connection: CallerConnection, pause_s: float = 0.0) -> None:
        super().__init__()
        self._connection = connection
        self._deframer = Deframer()
        self._unread: deque[int] = deque()
        self.at_s: float | None = None
        """When the first of the answer was written."""
        self.head: dict[bytes, bytes] | None = None
        self.trailers: dict[bytes, bytes] | None = None
        self.messages: list[tuple[float, bytes]] = []
        self.reset_code: int | None = None
        self.lost = ""
        """Why the answer did not come to its end, and how: the ending's status, if the client made it itself."""
        self.over: asyncio.Future[None] = connection.loop.create_future()
        self.pause_s = pause_s
        """It takes one message in so much time."""

    def on_headers(self, fields: Fields, end: bool) -> None:
        self.at_s = self._connection.written_s()
        self._connection.check(fields)
        if end:
            self.trailers = self.head = dict(fields)
            self._end()
        else:
            self.head = dict(fields)

    def on_data(self, data: bytes, end: bool) -> None:
        connection = self._connection
        for message in self._deframer.feed(data):
            self.messages.append((connection.written_s(), message))
        if self.pause_s:
            self._unread.append(len(data))
            if len(self._unread) == 1:
                connection.loop.call_later(self.pause_s, self._take)
        else:
            connection.take_later(self, len(data))
        if end:
            connection.is_wrong("an answer ended without trailers")
            self._end()

    def _take(self) -> None:
        self._connection.take(self, self._unread.popleft())
        if self._unread and not self.over.done():
            self._connection.loop.call_later(self.pause_s, self._take)

    def on_trailers(self, fields: Fields) -> None:
        self.trailers = dict(fields)
        if not self._deframer.idle:
            self._connection.is_wrong("an answer ended inside a message")
        self._end()

    def on_reset(self, code: int | None, text: str) -> None:
        self.reset_code, self.lost = code, self.lost or text
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def give_up(self, status: str) -> None:
        """The client wants it no more."""
        if not self.over.done():
            self.lost = status
            self._connection.reset(self, CANCEL)
            self._end()

    @property
    def status(self) -> str:
        """`left` or `expired`, what the gateway's reason says, `ok`, or `closed`; `reset` for what it must not do."""
        if self.lost in LATE:
            return self.lost
        if self.trailers is None:
            return "closed" if self.reset_code is None else "reset"
        if self.trailers.get(b"grpc-status") == b"0":
            return "ok"
        return self.trailers.get(REASON, b"no-reason").decode()

    @property
    def text(self) -> str:
        if self.trailers is None:
            return self.lost
        return text_of(self.trailers.get(b"grpc-message", b""))


class CallerConnection(Http2End):
    """One connection of a caller."""

    far: PipeTransport

    def __init__(self, loop: SimulationLoop, report: Report, clock: Clock, manners: Manners, pace: Pace) -> None:
        super().__init__(loop, manners, report.violate)
        self.loop = loop
        self.report = report
        self.clock = clock
        self.pace = pace
        self.calls: dict[CallerStream, int | None] = {}
        """Those that are out, and the number of the call of each unary one."""
        self._write_s = 0.0
        self._resuming = False

    @property
    def usable(self) -> bool:
        """Whether a call may begin on it."""
        transport = self.transport
        return not self.over and self.goaway is None and transport is not None and not transport.is_closing()

    def is_wrong(self, text: str) -> None:
        self.report.violate(text)

    def check(self, fields: Fields) -> None:
        if (b"content-type", b"application/grpc") not in fields:
            self.is_wrong(f"an answer is not gRPC: {fields}")

    def written_s(self) -> float:
        """When the gateway wrote the frame that is being read."""
        writes, offset = self.far.writes, self.frame_offset
        assert writes is not None
        while writes and writes[0][0] <= offset:
            writes.popleft()
        return writes[0][1]

    def take_later(self, stream: EndStream, size: int) -> None:
        if self.pace.window_pause_s:
            self.loop.call_later(self.pace.window_pause_s, self.take, stream, size)
        else:
            self.take(stream, size)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.pace.read_pause_s and self.transport is not None and not self._resuming:
            self._resuming = True
            self.transport.pause_reading()
            self.loop.call_later(self.pace.read_pause_s, self._read_on)

    def _read_on(self) -> None:
        self._resuming = False
        if self.transport is not None:
            self.transport.resume_reading()

    def on_goaway(self) -> None:
        self.on_idle()

    def on_idle(self) -> None:
        if self.goaway is not None and not self.streams and not self.over and self.goaway[0] < 2**31 - 1:
            self.flush()
            self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
        self.lose("the client closed the connection")

    def leave(self, abort: bool) -> None:
        """The client goes, with all that it has out."""
        for stream, number in tuple(self.calls.items()):
            if not stream.over.done():
                stream.lost = "left"
                if number is not None:
                    self.report.left_at_s[number] = self.clock.now_s()
        self.report.trace.add("leaves", "connection", "abort" if abort else "close")
        if abort:
            if self.transport is not None:
                self.transport.abort()
            self.lose("left")
        else:
            self.close()


class GrpcCallers:
    """Plays calls and sessions."""

    def __init__(self, loop: SimulationLoop, report: Report, clock: Clock, port: GrpcPort, seed: int) -> None:
        self._loop, self._report, self._clock, self._port = loop, report, clock, port
        self._chance = random.Random(f"callers/{seed}")
        self._connections: list[CallerConnection] = []
        self._plans = {plan.number: plan for plan in report.scenario.calls}

    # -- connections ----------------------------------------------------------------------------------------------

    def _connection(self, window: int | None = None) -> CallerConnection:
        """One that there is, or a new one; a new one with this window if it is given."""
        chance = self._chance
        usable = [each for each in self._connections if each.usable]
        if window is None and usable and chance.random() < 0.85:
            return chance.choice(usable)
        manners, pace = caller_manners(chance), caller_pace(chance)
        if window is not None:
            manners = replace(manners, window=window, next_window=None)
        elif pace.read_pause_s > 0.01:
            manners = replace(manners, window=65_535, next_window=None)  # slow enough
        connection = CallerConnection(self._loop, self._report, self._clock, manners, pace)
        near, far = connect(self._loop, chance, connection, cast(asyncio.Protocol, self._port._protocol()), DELAY_S)
        far.set_write_buffer_limits(high=pace.buffer)
        far.writes = deque()
        connection.transport, connection.far = near, far
        self._connections = [*usable, connection]
        return connection

    def close(self) -> None:
        """Some clients leave their connections open, and hear from the gateway that it goes."""
        for connection in self._connections:
            if self._chance.random() < 0.7:
                connection.close()

    # -- unary calls ----------------------------------------------------------------------------------------------

    async def client(self, plan: CallPlan) -> Ending:
        """One call, from its head to its end."""
        chance, connection = self._chance, self._connection()
        stream = CallerStream(connection)
        connection.calls[stream] = plan.number
        timers = self._limits(plan, connection, stream)
        connection.open(stream, self._head(plan, chance.random() < 0.7), False)
        if plan.body_after_s:
            await asyncio.sleep(plan.body_after_s)
        self._say(connection, stream, infer_message(plan), end=True)
        await stream.over
        del connection.calls[stream]
        for timer in timers:
            timer.cancel()
        if connection.pace.slow:
            self._report.slow.add(plan.number)
        return self._ending(plan, stream)

    def _limits(self, plan: CallPlan, connection: CallerConnection, stream: CallerStream) -> list[asyncio.TimerHandle]:
        timers = []
        if plan.leaves_after_s is not None:
            how = self._chance.choice(("reset", "reset", "reset", "abort", "close"))
            # What is not read is not heard: whoever does not let the gateway write can only cut the connection off.
            if connection.pace.read_pause_s:
                how = "abort"
            timers.append(self._loop.call_later(plan.leaves_after_s, self._leave, plan.number, stream, how))
        if plan.timeout_s is not None and not connection.pace.read_pause_s and self._chance.random() < 0.5:
            timers.append(self._loop.call_later(plan.timeout_s + OWN_EXPIRY_S, self._expire, plan.number, stream))
        return timers

    def _leave(self, number: int, stream: CallerStream, how: str) -> None:
        if stream.over.done():
            return
        if how == "reset":
            self._report.left_at_s[number] = self._clock.now_s()
            stream.give_up("left")
        else:
            stream._connection.leave(how == "abort")

    def _expire(self, number: int, stream: CallerStream) -> None:
        if not stream.over.done():
            self._report.left_at_s[number] = self._clock.now_s()
            stream.give_up("expired")

    def _head(self, plan: CallPlan, by_grpc: bool) -> Fields:
        fields = head_fields(INFER, request_id(plan.number))
        if plan.timeout_s is not None:
            if by_grpc:
                fields.append(timeout_field(plan.timeout_s, self._chance.choice("Smu")))
            else:
                fields.append((b"x-request-timeout-ms", b"%d" % round(plan.timeout_s * 1000)))
        if plan.priority is None:
            return fields
        # What differs from call to call stays out of the table, as many clients have it: the rest is known again.
        apart = {b"x-request-id", b"grpc-timeout"}
        fields = [NeverIndexedHeaderTuple(*each) if each[0] in apart else each for each in fields]
        return fields + class_field(plan.priority)

    def _say(self, connection: CallerConnection, stream: CallerStream, message: bytes, *, end: bool) -> None:
        """One message, in as many pieces as chance cuts."""
        data, chance = framed(message), self._chance
        places = sorted({chance.randrange(1, len(data)) for _ in range(chance.choice((0, 0, 0, 1, 3)))})
        for start, stop in zip([0, *places], [*places, len(data)], strict=True):
            last = end and stop == len(data)
            apart = last and chance.random() < 0.3
            connection.send_data(stream, data[start:stop], last and not apart)
            if apart:
                connection.send_data(stream, b"", True)

    def _ending(self, plan: CallPlan, stream: CallerStream) -> Ending:
        status, text = stream.status, stream.text
        now_s = self._clock.now_s()
        at_s = now_s if stream.at_s is None or status in LATE else stream.at_s
        if status in LATE or status == "closed":
            return Ending(at_s, status, None, text)
        head, trailers = stream.head, stream.trailers
        if head is None or trailers is None:
            return Ending(at_s, "fault", None, f"{status}: {text}")
        said = {**head, **trailers}
        if said.get(b"x-request-id") != request_id(plan.number).encode():
            return Ending(at_s, "fault", None, f"x-request-id is {said.get(b'x-request-id')!r}")
        if status != "ok":
            if stream.messages:
                return Ending(at_s, "fault", None, f"{len(stream.messages)} messages before the error {status}")
            return Ending(at_s, status, None, text)
        if len(stream.messages) != 1:
            return Ending(at_s, "fault", None, f"{len(stream.messages)} messages answer a unary call")
        answer = pb.ModelInferResponse.FromString(stream.messages[0][1])
        if said.get(b"x-sluice-model-version") != answer.model_version.encode():
            return Ending(at_s, "fault", None, f"the metadata says version {said.get(b'x-sluice-model-version')!r}")
        output = b"".join(answer.raw_output_contents)
        return Ending(at_s, status, Answer(answer.model_name, answer.model_version, answer.id, output))

    # -- sessions -------------------------------------------------------------------------------------------------

    async def session(self, plan: SessionPlan) -> None:
        """One stream from its opening to its end, and an ending for each of its calls."""
        loop, report, chance = self._loop, self._report, self._chance
        connection = self._connection(SLOW_WINDOW if plan.read_pause_s else None)
        stream = CallerStream(connection, plan.read_pause_s)
        connection.calls[stream] = None
        begin_s = loop.time()
        # At the latest: its first bytes travel, and the loop may come to them late.
        report.begun_s[plan.number] = begin_s + DELAY_S + report.scenario.lateness_s
        connection.open(stream, self._session_head(plan), False)

        def leave(how: str) -> None:
            if not stream.over.done():
                report.trace.add("leaves", plan.request_id, how)
                if how in ("abort", "close"):
                    connection.leave(how == "abort")
                else:
                    stream.give_up(how)

        coming: deque[int | None] = deque(number for _, number in plan.messages)
        coming.append(None)

        def arrive() -> None:
            # Takes what is to be sent first: timers that are due at one instant fire in any order.
            number = coming.popleft()
            if number is not None:
                report.sent_at_s[number] = loop.time()
                self._say(connection, stream, infer_message(self._plans[number]), end=False)
            else:
                connection.send_data(stream, b"", True)

        timers = [loop.call_at(begin_s + after_s, arrive) for after_s, _ in plan.messages]
        timers.append(loop.call_at(begin_s + plan.messages[-1][0] + plan.closes_after_s, arrive))
        if plan.leaves_after_s is not None:
            how = "abort" if connection.pace.read_pause_s else chance.choice(("left", "left", "abort", "close"))
            timers.append(loop.call_at(begin_s + plan.leaves_after_s, leave, how))
        if plan.timeout_s is not None and not connection.pace.read_pause_s and chance.random() < 0.7:
            timers.append(loop.call_at(begin_s + plan.timeout_s + OWN_EXPIRY_S, leave, "expired"))
        await stream.over
        del connection.calls[stream]
        for timer in timers:
            timer.cancel()
        if connection.pace.slow or connection.manners.small_windows:
            report.slow.update(number for _, number in plan.messages)
        ending = self._session_ending(plan, stream, begin_s)
        report.sessions[plan.number] = ending
        report.trace.add("stream-ended", plan.request_id, ending.status, len(stream.messages))
        await self._served(plan)
        report.on_session_ended(plan.request_id)
        end_session(report, self._plans, plan, stream.messages, ending)

    def _session_head(self, plan: SessionPlan) -> Fields:
        fields = head_fields(STREAM_INFER, plan.request_id)
        fields.append((MARK.encode(), plan.request_id.encode()))
        if plan.timeout_s is not None:
            fields.append(timeout_field(plan.timeout_s, self._chance.choice("Smu")))
        if plan.call_timeout_s is not None:
            fields.append((b"x-request-timeout-ms", b"%d" % round(plan.call_timeout_s * 1000)))
        if plan.true_status:
            fields.append((b"triton_grpc_error", b"true"))
        return fields + class_field(plan.priority)

    def _session_ending(self, plan: SessionPlan, stream: CallerStream, begin_s: float) -> SessionEnding:
        status, text, now_s = stream.status, stream.text, self._clock.now_s()
        head = stream.head if stream.lost not in LATE else None
        if head is not None and head.get(b"x-request-id", b"") not in (b"", plan.request_id.encode()):
            self._report.violate(f"{plan.request_id}: x-request-id is {head[b'x-request-id']!r}")
        if status == Reason.DEADLINE.label and plan.timeout_s is not None and not plan.true_status:
            if stream.at_s is not None and now_s < begin_s + plan.timeout_s:
                self._report.violate(f"{plan.request_id}: its time is said to be over too early")
            status = "expired"
        return SessionEnding(now_s, status, text)

    async def _served(self, plan: SessionPlan) -> None:
        """Wait until the gateway's work on the stream is over."""
        until_s = self._loop.time() + SERVED_ON_S
        while any(stream._headers.request_id == plan.request_id for stream in self._port.streams):
            if self._loop.time() > until_s:
                self._report.violate(f"{plan.request_id}: still served {SERVED_ON_S:g} s after its client left")
                return
            await asyncio.sleep(0.005)


def head_fields(path: bytes, call_id: str) -> Fields:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"gateway.sim"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"simulation"),
        (b"x-request-id", call_id.encode()),
    ]


def class_field(word: str | None) -> Fields:
    return [] if word is None else [(b"x-sluice-priority", word.encode())]


def caller_manners(chance: random.Random) -> Manners:
    return Manners(
        window=chance.choice((65_535, 65_535, 4 << 20, 300, 20)),
        next_window=chance.choice((None, None, None, 65_535, 100)),
        table=chance.choice((4096, 4096, 0, 200)),
        frame_max=chance.choice((16_384, 16_384, 64)),
        block_max=chance.choice((16_384, 16_384, 16_384, 24)),
        huffman=chance.random() < 0.7,
        padding=chance.choice((0, 0, 0, 9)),
    )


def caller_pace(chance: random.Random) -> Pace:
    return Pace(
        read_pause_s=chance.choice((0.0, 0.0, 0.0, 0.0, 0.002, 0.03)),
        window_pause_s=chance.choice((0.0, 0.0, 0.0, 0.004)),
        buffer=chance.choice((65_536, 65_536, 65_536, 600)),
    )
