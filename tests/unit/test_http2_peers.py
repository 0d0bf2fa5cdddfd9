"""Random conversations with an independent implementation (the h2 package), in both roles, cut into random reads.

Whatever is sent arrives, in order, with the same fields; neither side finds a fault; nothing is left over.
"""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import h2.windows
import pytest

from gateway.wire.hpack import HpackEncoder, literal
from gateway.wire.http2 import ErrorCode, Http2Client, Http2Limits, Http2Server
from tests.unit.http2_driving import REQUEST_FIELDS, RESPONSE_FIELDS, Fields, Probe, cut

OURS = Http2Limits(
    window_bytes=30_000,
    connection_window_bytes=100_000,
    frame_max_bytes=20_000,
    streams_max=10,
    burst_bytes=40_000,
    high_water_bytes=20_000,
    header_table_bytes=1000,
)


@pytest.fixture(autouse=True)
def _empty_frames_need_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9113 section 6.9.1 says so; h2 4.4 takes one for an error where a window is below zero."""
    consumed = h2.windows.WindowManager.window_consumed

    def window_consumed(self: h2.windows.WindowManager, size: int) -> None:
        if size:
            consumed(self, size)

    monkeypatch.setattr(h2.windows.WindowManager, "window_consumed", window_consumed)


class Flow:
    """One stream as it should be, and as the other implementation saw it."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.our_head: Fields = ()
        self.their_head: Fields = ()
        self.our_trailers: Fields = ()
        self.their_trailers: Fields = ()
        self.we_sent = bytearray()
        self.they_sent = bytearray()
        self.we_ended = False
        self.they_ended = False
        self.was_reset = False  # by either side, so what is still under way may be lost
        # What h2 saw.
        self.seen_head: Fields = ()
        self.seen_trailers: Fields = ()
        self.seen = bytearray()
        self.seen_end = False
        self.unacknowledged = 0
        self.unacknowledged_by_us = 0


class Play:
    """Two connections, what was done on them, and dice."""

    def __init__(self, seed: int, we_serve: bool) -> None:
        self.chance = random.Random(seed)
        self.we_serve = we_serve
        self.flows: dict[int, Flow] = {}
        self.fresh: list[Probe] = []  # at our server: requests that have not been matched to their flow yet
        encoder = HpackEncoder(4096, varying=(b"x-varying",))
        self.ours: Http2Server | Http2Client
        if we_serve:
            self.ours = Http2Server(OURS, self._probe, encoder)
        else:
            self.ours = Http2Client(OURS, encoder)
        config = h2.config.H2Configuration(client_side=we_serve, header_encoding=None)
        self.theirs = h2.connection.H2Connection(config)
        self.settings_under_way = True
        self.theirs.initiate_connection()
        self.carry()

    def _probe(self) -> Probe:
        probe = Probe(self.ours)
        probe.acknowledges = False
        self.fresh.append(probe)
        return probe

    # ------------------------------------------------------------- the wire

    def carry(self) -> bool:
        """Move what is there both ways, in random pieces; whether anything was."""
        ours = b"".join(self.ours.take())
        theirs = self.theirs.data_to_send()
        for piece in cut(ours, self.chance):
            for event in self.theirs.receive_data(piece):
                self._their_event(event)
        for piece in cut(theirs, self.chance):
            self.ours.receive(piece, 0.0)
        assert self.ours.fault is None
        return bool(ours or theirs)

    def _their_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.SettingsAcknowledged):
            self.settings_under_way = False
        flow = self.flows.get(getattr(event, "stream_id", 0) or 0)
        if flow is None:
            return
        if isinstance(event, h2.events.RequestReceived | h2.events.ResponseReceived):
            flow.seen_head = tuple((bytes(name), bytes(value)) for name, value in event.headers)
        elif isinstance(event, h2.events.DataReceived):
            flow.seen += event.data
            flow.unacknowledged += event.flow_controlled_length
        elif isinstance(event, h2.events.TrailersReceived):
            flow.seen_trailers = tuple((bytes(name), bytes(value)) for name, value in event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            flow.seen_end = True
            flow.they_ended = flow.they_ended or self.we_serve  # an early answer ends both sides
        elif isinstance(event, h2.events.StreamReset) and event.error_code != ErrorCode.NO_ERROR:
            flow.was_reset = True

    # -------------------------------------------------------------- actions

    def fields(self) -> Fields:
        """Some fields of the user's own."""
        return tuple(
            (
                self.chance.choice((b"x-varying", b"x-tenant", b"grpc-timeout", b"traceparent")),
                self.chance.choice((b"", b"blue", b"1S", b"%d" % self.chance.randrange(10**9), b"long" * 50)),
            )
            for _ in range(self.chance.randrange(4))
        )

    def payload(self) -> bytes:
        size = self.chance.choice((0, 1, 200, 5000, 16_384, 30_000, 100_000))
        return self.chance.randbytes(min(size, 100)) * (size // 100 + 1)

    def open(self) -> None:
        if max(self.theirs.open_outbound_streams, self.theirs.open_inbound_streams, self.ours.streams_open) >= 10:
            return
        head = (*REQUEST_FIELDS, *self.fields())
        end = self.chance.random() < 0.3
        if self.we_serve:
            stream_id = self.theirs.get_next_available_stream_id()
            self.theirs.send_headers(stream_id, head, end_stream=end)
            while not self.fresh:
                assert self.carry(), "the request arrives"
            flow = Flow(self.fresh.pop())
            assert flow.probe.id == stream_id
            flow.their_head, flow.they_ended = head, end
        else:
            assert isinstance(self.ours, Http2Client)
            probe = self._probe()
            self.fresh.clear()
            flow = Flow(probe)
            flow.our_head, flow.we_ended = head, end
            body = self.payload() if end else b""
            flow.we_sent += body
            self.ours.open(probe, self.ours.encoder.encode(head), body, end)
            stream_id = probe.id
            self.flows[stream_id] = flow
            while not flow.seen_head:
                assert self.carry(), "the request arrives"
        self.flows[stream_id] = flow

    def we_send(self, flow: Flow) -> None:
        probe = flow.probe
        if probe.is_over or flow.we_ended:
            return
        body = self.payload()
        end = self.chance.random() < 0.3
        trailers = (*self.fields(), (b"grpc-status", b"0")) if self.we_serve and self.chance.random() < 0.7 else ()
        tail = b"".join(literal(name, value) for name, value in trailers)
        if self.we_serve and not flow.our_head:
            flow.our_head = (*RESPONSE_FIELDS, *self.fields())
            head = self.ours.encoder.encode(flow.our_head)
            if end:
                flow.we_sent += body
                flow.our_trailers, flow.we_ended = trailers, True
                self.ours.send_message(probe, head, body, tail)
                return
            self.ours.send_headers(probe, head, False)
        flow.we_sent += body
        flow.we_ended = end
        self.ours.send_data(probe, memoryview(body) if self.chance.random() < 0.5 else body, end and not tail)
        if end and tail:
            flow.our_trailers = trailers
            self.ours.send_headers(probe, tail, True)

    def they_send(self, flow: Flow, stream_id: int) -> None:
        if flow.was_reset or flow.they_ended or flow.probe.is_over:
            return
        if not self.we_serve and not flow.their_head:
            flow.their_head = (*RESPONSE_FIELDS, *self.fields())
            self.theirs.send_headers(stream_id, flow.their_head)
        end = self.chance.random() < 0.3
        trailers = (*self.fields(), (b"grpc-status", b"0")) if self.chance.random() < 0.5 else ()
        window = min(self.theirs.local_flow_control_window(stream_id), self.theirs.max_outbound_frame_size)
        padding = self.chance.choice((None, None, 0, 17, 255))
        body = self.payload()[: max(0, window - (padding + 1 if padding is not None else 0))]
        if not body or (padding and window < padding + 2):
            padding = None
        self.theirs.send_data(stream_id, body, end and not trailers, padding)
        flow.they_sent += body
        flow.they_ended = end
        if end and trailers:
            flow.their_trailers = trailers
            self.theirs.send_headers(stream_id, trailers, end_stream=True)

    def reset(self, flow: Flow, stream_id: int) -> None:
        if flow.probe.is_over or flow.was_reset:
            return
        flow.was_reset = True
        if self.chance.random() < 0.5:
            self.ours.reset(flow.probe, ErrorCode.CANCEL)
        else:
            try:
                self.theirs.reset_stream(stream_id, ErrorCode.CANCEL)
            except h2.exceptions.StreamClosedError:
                flow.was_reset = False  # the answer's end was there already

    def we_acknowledge(self, flow: Flow) -> None:
        size = len(flow.probe.body) - flow.unacknowledged_by_us
        if size and not flow.probe.is_over:
            if self.chance.random() < 0.1:
                self.ours.grow_window(flow.probe, self.chance.randint(1, 50_000))
            size = self.chance.randint(1, size)
            flow.unacknowledged_by_us += size
            self.ours.acknowledge(flow.probe, size)

    def they_acknowledge(self, flow: Flow, stream_id: int) -> None:
        if flow.unacknowledged:
            self.theirs.acknowledge_received_data(flow.unacknowledged, stream_id)
            flow.unacknowledged = 0

    def settings(self) -> None:
        if self.settings_under_way:  # h2 takes one acknowledgement for all settings that it has sent
            return
        self.settings_under_way = True
        codes = h2.settings.SettingCodes  # MAX_FRAME_SIZE is not among them: h2 sees its change one read too late
        changes: tuple[dict[h2.settings.SettingCodes | int, int], ...] = (
            {codes.INITIAL_WINDOW_SIZE: self.chance.choice((0, 1, 1000, 65_535, 1_000_000))},
            {codes.HEADER_TABLE_SIZE: self.chance.choice((0, 100, 4096, 8192))},
        )
        self.theirs.update_settings(self.chance.choice(changes))

    def step(self) -> None:
        dice = self.chance.random()
        if dice < 0.15 or not self.flows:
            self.open()
            return
        stream_id = self.chance.choice(list(self.flows)[-12:])
        flow = self.flows[stream_id]
        if dice < 0.4:
            self.we_send(flow)
        elif dice < 0.6:
            self.they_send(flow, stream_id)
        elif dice < 0.7:
            self.we_acknowledge(flow)
        elif dice < 0.8:
            self.they_acknowledge(flow, stream_id)
        elif dice < 0.82:
            self.reset(flow, stream_id)
        elif dice < 0.84:
            self.settings()
        elif dice < 0.86:
            self.theirs.ping(self.chance.randbytes(8))
        else:
            self.carry()

    def finish(self) -> None:
        """Open all windows and end all streams."""
        while self.settings_under_way:
            assert self.carry(), "SETTINGS are acknowledged"
        self.theirs.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000_000})
        for _ in range(10_000):
            moved = self.carry()
            for stream_id, flow in self.flows.items():
                self.they_acknowledge(flow, stream_id)
                size = len(flow.probe.body) - flow.unacknowledged_by_us
                if size and not flow.probe.is_over:
                    flow.unacknowledged_by_us += size
                    self.ours.acknowledge(flow.probe, size)
                    moved = True
                if not flow.they_ended and not flow.probe.is_over and (self.we_serve or flow.their_head):
                    self.theirs.end_stream(stream_id)
                    flow.they_ended = moved = True
                elif not flow.they_ended and not flow.probe.is_over:
                    self.they_send(flow, stream_id)
                    moved = True
                if not flow.we_ended and not flow.probe.is_over:
                    self.we_send(flow)
                    moved = True
            if not moved:
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        for stream_id, flow in self.flows.items():
            assert flow.probe.is_over, stream_id
            if flow.was_reset:
                assert bytes(flow.we_sent).startswith(bytes(flow.seen))
                assert bytes(flow.they_sent).startswith(flow.probe.body)
                continue
            assert flow.seen_head == flow.our_head
            if self.we_serve or flow.seen_end:
                assert flow.seen == flow.we_sent, stream_id
                assert flow.seen_end
                assert flow.seen_trailers == flow.our_trailers
            else:  # an early answer cuts the request off
                assert bytes(flow.we_sent).startswith(bytes(flow.seen))
                assert flow.probe.ended
            heads = [call[1] for call in flow.probe.calls if call[0] == "headers"]
            assert heads == [flow.their_head]
            assert bytes(flow.they_sent).startswith(flow.probe.body)
            if not self.we_serve or flow.probe.ended:
                assert flow.probe.body == flow.they_sent
                trailers = [call[1] for call in flow.probe.calls if call[0] == "trailers"]
                assert trailers == ([flow.their_trailers] if flow.their_trailers else [])
            assert flow.probe.was_reset is None
        statistics = self.ours.statistics()
        assert statistics.streams_open == statistics.streams_in_line == statistics.queued_bytes == 0
        assert statistics.partial_bytes == statistics.output_pieces == 0


@pytest.mark.parametrize("we_serve", [True, False], ids=["our server", "our client"])
@pytest.mark.parametrize("seed", range(25))
def test_a_random_conversation(seed: int, we_serve: bool) -> None:
    play = Play(seed, we_serve)
    for _ in range(150):
        play.step()
    play.finish()
    play.check()
