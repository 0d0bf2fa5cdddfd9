"""Both transports to a replica, for tests that hold for either."""

from __future__ import annotations

import random

from gateway.core.faces import Connector
from gateway.fleet.grpcio_client import GrpcioConnector, GrpcioOptions
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector
from gateway.fleet.tls import PoolTls
from gateway.runtime.clock import SystemClock

TRANSPORTS = ("http2", "grpcio")


def connector_of(transport: str, tls: PoolTls | None, **options: int) -> Connector:
    """As the gateway makes it for a pool with that transport."""
    if transport == "grpcio":
        return GrpcioConnector(GrpcioOptions(**options), SystemClock(), tls)
    return Http2Connector(Http2Options(**options), SystemClock(), random.Random(1), tls)
