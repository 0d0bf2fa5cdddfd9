"""What the grpcio client alone does: how it tells who made a fault, and what it asks of its library."""

from __future__ import annotations

import pytest

from gateway.fleet.grpc_faults import to_fault
from gateway.fleet.grpcio_client import GrpcioOptions, clean
from gateway.fleet.replica_calls import ROUTED_NAMES_BYTES
from tests.unit.replica_clients import Clients, action


@pytest.mark.parametrize("text", ["something a later grpcio says", ""])
def test_unavailable_without_a_connection_is_never_the_replicas(text: str) -> None:
    assert not to_fault(14, text, channel_ready=False, timed_out=False, message_bytes_max=1).from_peer
    assert to_fault(14, text, channel_ready=True, timed_out=False, message_bytes_max=1).from_peer


def test_the_library_neither_retries_nor_pings_nor_waits_minutes_nor_asks_a_proxy() -> None:
    arguments = dict(GrpcioOptions(message_bytes_max=7, reconnect_max_ms=900).arguments())
    assert arguments["grpc.max_reconnect_backoff_ms"] == 900
    assert arguments["grpc.enable_retries"] == 0
    assert arguments["grpc.enable_http_proxy"] == 0
    assert arguments["grpc.use_local_subchannel_pool"] == 1
    assert not [name for name in arguments if "keepalive" in name]
    sizes = [value for name, value in arguments.items() if "message_length" in name]
    assert sizes == [7, 7 + ROUTED_NAMES_BYTES]


async def test_metadata_that_http2_cannot_carry_is_left_out_and_the_call_is_made() -> None:
    bad = (
        ("Upper", "x"),
        ("te", "gzip"),
        ("content-type", "text/html"),
        ("grpc-timeout", "1n"),
        ("new\nline", "x"),
        ("name", "new\r\nline"),
        ("umlaut", "ü"),
        ("broken-bin", "$$$"),
        ("", "x"),
    )
    good = (("traceparent", "00-ab"), ("x-user", "me"), ("data-bin", "AAE"))
    assert clean((*bad, *good)) == [("traceparent", "00-ab"), ("x-user", "me"), ("data-bin", b"\0\1")]
    async with Clients("grpcio").served(action(lambda peer, stream: peer.answer(stream, b"ok"))) as (_listener, client):
        assert await client.infer(b"", (*bad, *good), 5.0) == b"ok"
