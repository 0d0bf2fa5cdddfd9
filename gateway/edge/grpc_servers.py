"""Which of the two servers stands on the gRPC port, as `gateway.grpc.server` says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.edge.grpc_greeting import plain_answer
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_port import GrpcPort
from gateway.edge.grpcio_server import GrpcioServer
from gateway.edge.grpcio_tls import GrpcioPeers, GrpcioTls
from gateway.edge.tls_door import PortDoor
from gateway.edge.tls_files import PortTls
from gateway.edge.tls_peers import TransportPeers
from gateway.policy.tls_schema import ServerTls
from gateway.runtime.wheel import TimerWheel

_log = logging.getLogger("sluice.edge.grpc")


class GrpcServer(Protocol):
    """What the application needs of either."""

    async def start(self, address: str) -> str:
        """Listen on `address` (`host:port`; port 0 takes a free one). Returns the address in use. Raises
        `ListenError`.
        """
        ...

    def begin_drain(self) -> None:
        """Take no new calls; those in flight go on."""
        ...

    async def wait_closed(self, limit_s: float) -> bool:
        """Wait until every call has ended. After `limit_s` calls still running end with `draining`, and what then
        remains is cut off. Returns whether none was left at the limit.
        """
        ...

    async def aclose(self) -> None:
        """Stop at once and wait until every call has ended, a second at most."""
        ...

    def statistics(self, now_s: float) -> Mapping[str, Any]: ...


def grpc_server(
    kit: GrpcKit,
    *,
    wheel: TimerWheel,
    tls: ServerTls | None,
    files: Callable[[], PortTls] | None,
    peers: Mapping[str, bool] | None,
) -> GrpcServer:
    """The server that the policy names. `files` gives what `tls` says as it is now; `peers` are the arguments of
    `TransportPeers` and `GrpcioPeers`, None if it does not matter who is at the other end.
    """
    if kit.limits.server == "http2":
        door = None
        if tls is not None and files is not None:
            shown = files
            door = PortDoor(
                lambda: shown().grpc,
                handshake_timeout_s=tls.handshake_timeout_ms / 1000,
                wheel=wheel,
                observer=kit.observer,
                protocol="grpc",
                plain_answer=plain_answer,
            )
        return GrpcPort(kit, wheel=wheel, tls=door, peers=None if peers is None else TransportPeers(**peers))
    credentials = None
    if tls is not None and files is not None:
        if tls.client_certificate == "optional":
            _log.warning(
                "gateway.listen.tls.client_certificate is `optional`: the gRPC port asks for no certificate, because "
                "gRPC's library (gateway.grpc.server: grpcio) cannot ask without insisting"
            )
        given = files
        credentials = GrpcioTls(
            lambda: given().material, client_certificate_required=tls.client_certificate == "required"
        )
    return GrpcioServer(
        kit,
        tls=credentials,
        handshake_timeout_ms=kit.limits.handshake_timeout_ms if tls is None else tls.handshake_timeout_ms,
        peers=None if peers is None else GrpcioPeers(**peers),
    )
