"""A call of the gRPC port is made by position: each value must stand in its place."""

from __future__ import annotations

from gateway.core.credentials import NO_PEER, Credentials
from gateway.edge.grpc_call import grpc_call
from gateway.edge.headers import ClientHeaders


class _Clock:
    def now_s(self) -> float:
        return 12.5

    def wall_s(self) -> float:
        return 1000.0


def test_each_value_stands_in_its_place() -> None:
    credentials = Credentials("key", None, None, NO_PEER)
    headers = ClientHeaders("id", 9.0, credentials, True, (("x-own", "v"),))

    call = grpc_call(headers, 77, _Clock(), 10.0, 3.0)

    assert (call.request_id, call.model, call.version, call.body_id) == ("id", "", "", "")
    assert (call.arrived_s, call.arrived_wall_s, call.timeout_s) == (10.0, 997.5, 3.0)
    assert (call.message, call.receive, call.body_bytes) == (None, None, 77)
    assert (call.credentials, call.metadata, call.explain) == (credentials, (("x-own", "v"),), True)
    assert (call.protocol, call.session) == ("grpc", None)
    assert call.deadline_s == call.first_response_by_s == float("inf")
