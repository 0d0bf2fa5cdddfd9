"""Clients that are too slow, on a clock in the test's hand."""

from __future__ import annotations

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.edge.http_pacing import LINGER_BYTES_MAX, LINGER_S, LINGER_TOTAL_S
from gateway.policy.schema import HttpLimits
from tests.support.clock import ManualClock
from tests.unit.edge_clients import LIVE, get, post, read_answers
from tests.unit.edge_driving import Edge, GatedService, ReceivingService, turns

LIMITS = HttpLimits(
    header_timeout_ms=1000,
    body_idle_timeout_ms=2000,
    keepalive_idle_ms=5000,
    write_timeout_ms=3000,
)


@pytest.fixture
def edge() -> Edge:
    return Edge(ReceivingService(), limits=LIMITS, clock=ManualClock())


async def test_an_idle_connection_is_closed_but_only_after_its_time(edge: Edge) -> None:
    client = edge.connect()
    edge.advance(4.5)
    client.feed(LIVE)
    edge.advance(4.5)
    assert not client.ended
    edge.advance(1.0)
    assert client.closing
    assert not client.aborted
    assert edge.notes.faults == []


async def test_drops_of_a_head_do_not_extend_its_time(edge: Edge) -> None:
    client = edge.connect()
    edge.advance(3.0)
    for byte in LIVE[:8]:
        client.feed(bytes((byte,)))
        edge.advance(0.1)
    assert not client.ended
    edge.advance(0.3)
    assert client.aborted
    assert edge.notes.faults == ["slow_head"]


async def test_a_head_behind_an_answered_one_has_a_time_of_its_own(edge: Edge) -> None:
    client = edge.connect()
    client.feed(LIVE)
    edge.advance(2.0)
    client.feed(LIVE[:5])
    edge.advance(0.8)
    client.feed(LIVE[5:])
    assert client.statuses == [200, 200]
    edge.advance(2.0)
    assert not client.ended


async def test_a_pause_inside_a_body_ends_in_408(edge: Edge) -> None:
    client = edge.connect()
    whole = post()
    client.feed(whole[:-20])
    await turns()
    edge.advance(1.5)
    client.feed(whole[-20:-10])
    edge.advance(1.5)
    await turns()
    assert not client.sent
    edge.advance(1.0)
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status == 408
    assert answer.headers["connection"] == "close"
    assert edge.notes.faults == ["slow_body"]
    await turns()
    assert edge.budget.used_bytes == 0


async def test_a_late_piece_after_the_408_was_decided_changes_nothing(edge: Edge) -> None:
    client = edge.connect()
    head = post(body=b"", Transfer_Encoding="chunked")
    client.feed(head + b"5\r\n12")
    await turns()
    edge.advance(2.5)
    client.feed(b"345\r\nnonsense\r\n")  # before the call's task had its turn
    await turns()
    assert client.statuses == [408]
    assert client.ended


async def test_a_withheld_body_counts_from_the_100(edge: Edge) -> None:
    service = GatedService(receive=False)
    edge = Edge(service, limits=LIMITS, clock=ManualClock())
    client = edge.connect()
    client.feed(post(Expect="100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    gated = await service.next()
    edge.advance(10.0)  # the service takes its time: not the client's fault
    assert not client.ended
    gated.answer()
    await turns()
    edge.advance(1.5)
    await turns()
    assert client.statuses == []
    edge.advance(1.0)
    await turns()
    assert client.statuses == [408]


async def test_a_call_may_take_longer_than_any_time_out_of_the_connection() -> None:
    service = GatedService()
    edge = Edge(service, limits=LIMITS, clock=ManualClock())
    client = edge.connect()
    client.feed(post())
    gated = await service.next()
    edge.advance(60.0)
    gated.answer()
    await turns()
    assert client.statuses == [200]
    edge.advance(4.0)
    assert not client.ended
    edge.advance(1.5)
    assert client.closing


async def test_a_client_that_takes_nothing_is_cut_off_and_its_calls_end() -> None:
    service = GatedService()
    edge = Edge(service, limits=LIMITS, clock=ManualClock())
    client = edge.connect()
    client.feed(post() + post())
    first, second = await service.next(), await service.next()
    first.answer()
    await turns()
    client.stuck_bytes = 70_000
    client.protocol.pause_writing()
    edge.advance(2.0)
    client.stuck_bytes = 50_000  # it took some
    edge.advance(2.5)
    assert not client.cut_off()
    edge.advance(3.5)
    assert client.cut_off()
    await turns()
    assert second.cancelled.is_set()
    assert edge.notes.faults == ["slow_reader"]
    edge.nothing_is_left()


async def test_a_client_that_trickles_does_not_keep_its_answer_for_ever() -> None:
    service = GatedService()
    edge = Edge(service, limits=LIMITS, clock=ManualClock())
    client = edge.connect()
    client.feed(post())
    (await service.next()).answer()
    await turns()
    client.stuck_bytes = 70_000
    client.protocol.pause_writing()
    for _ in range(3):
        assert not client.cut_off()
        edge.advance(1.0)
        client.stuck_bytes -= 1000
    assert client.cut_off()
    await turns()
    assert edge.notes.faults == ["slow_reader"]
    edge.nothing_is_left()


async def test_a_few_stuck_bytes_do_not_keep_an_idle_connection_for_ever(edge: Edge) -> None:
    client = edge.connect()
    client.feed(LIVE)
    client.stuck_bytes = 100
    edge.advance(6.0)
    assert client.aborted
    assert edge.notes.faults == ["slow_reader"]


async def test_the_last_answer_of_a_connection_may_not_get_stuck_either(edge: Edge) -> None:
    client = edge.connect()
    client.stuck_bytes = 100
    client.feed(get("/v2", Connection="close"))
    assert client.closing
    assert not client.aborted
    edge.advance(4.0)
    assert client.aborted


async def test_the_rest_of_the_last_answer_may_not_get_stuck_after_the_client_took_most_of_it(edge: Edge) -> None:
    client = edge.connect()
    client.stuck_bytes = 70_000
    client.protocol.pause_writing()
    client.leave()
    assert client.closing
    edge.advance(2.0)
    client.stuck_bytes = 10_000
    client.protocol.resume_writing()
    edge.advance(2.0)
    assert not client.cut_off()
    edge.advance(1.5)
    assert client.cut_off()


async def test_after_an_answer_that_ends_a_connection_the_client_may_read_it_for_a_while(edge: Edge) -> None:
    client = edge.connect()
    client.feed(b"NONSENSE\r\n\r\n")
    assert client.statuses == [400]
    assert client.eof_sent
    client.feed(b"x" * 1000)
    edge.advance(LINGER_S - 0.5)
    assert not client.closing
    edge.advance(1.0)
    assert client.aborted


async def test_a_client_that_still_sends_is_read_on_while_it_gets_on(edge: Edge) -> None:
    client = edge.connect()
    client.feed(b"NONSENSE\r\n\r\n")
    assert client.eof_sent
    for _ in range(5):
        client.feed(b"x" * 300_000)
        assert client.reads()
        edge.advance(LINGER_S - 0.5)
        assert not client.cut_off()
    client.leave()
    await turns()
    assert client.lost
    assert edge.budget.used_bytes == 0


async def test_drips_after_the_last_answer_do_not_hold_the_connection_for_ever(edge: Edge) -> None:
    client = edge.connect()
    client.feed(b"NONSENSE\r\n\r\n")
    for _ in range(int(LINGER_TOTAL_S)):
        assert not client.cut_off()
        edge.advance(1.0)
        client.feed(b"x")
    edge.advance(0.2)
    assert client.cut_off()


@pytest.mark.parametrize("refused_first", [True, False])
async def test_drips_after_the_last_answer_hardly_hold_up_a_shutdown(edge: Edge, refused_first: bool) -> None:
    client = edge.connect()
    if refused_first:
        client.feed(b"NONSENSE\r\n\r\n")
        edge.advance(1.0)
        client.feed(b"x")
        edge.server.begin_drain()
    else:
        client.feed(b"NONS")
        edge.server.begin_drain()
        client.feed(b"ENSE\r\n\r\n")
    edge.advance(LINGER_S / 2)
    client.feed(b"x")
    assert not client.cut_off()
    edge.advance(LINGER_S / 2 + 0.1)
    assert client.cut_off()


async def test_while_lingering_only_so_much_is_read_and_dropped(edge: Edge) -> None:
    client = edge.connect()
    client.feed(b"NONSENSE\r\n\r\n")
    piece = bytes(1024 * 1024)
    for _ in range(LINGER_BYTES_MAX // len(piece)):
        client.feed(piece)
    assert client.reads()
    client.feed(b"x")
    assert not client.reads()
    edge.advance(LINGER_S + 0.1)
    assert client.cut_off()


async def test_a_refused_body_that_does_not_come_ends_the_connection(edge: Edge) -> None:
    class Refusing:
        async def send(self, call: Call) -> Reply:
            raise GatewayError(Reason.FORBIDDEN, "no")

    edge = Edge(Refusing(), limits=LIMITS, clock=ManualClock())
    client = edge.connect()
    client.feed(post()[:-5])
    await turns()
    assert client.statuses == [403]
    edge.advance(1.5)
    client.feed(b"1")
    assert not client.ended
    edge.advance(1.0)
    assert client.aborted
    assert edge.notes.faults == ["slow_drain"]


async def test_requests_in_time_cost_no_timer(edge: Edge) -> None:
    client = edge.connect()
    for _ in range(50):
        client.feed(post())
        await turns()
    assert client.statuses == [200] * 50
    assert len(edge.wheel) == 1
    client.reset()
    assert len(edge.wheel) == 0
