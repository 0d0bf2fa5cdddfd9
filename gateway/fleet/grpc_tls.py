"""TLS to a replica where the connection stands on grpcio."""

from __future__ import annotations

from typing import Any

import grpc
from grpc import aio

from gateway.fleet.tls import PoolTls


def open_channel(target: str, options: list[tuple[str, Any]], tls: PoolTls | None) -> Any:
    """A channel, over TLS if there is `tls`, with what its files hold now. A channel keeps that for its life, over its
    own reconnections too: changed files need a new one.
    """
    if tls is None:
        return aio.insecure_channel(target, options=options)
    material = tls.material
    credentials = grpc.ssl_channel_credentials(
        root_certificates=material.ca or None,
        private_key=material.key or None,
        certificate_chain=material.certificate or None,
    )
    if tls.server_name:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    return aio.secure_channel(target, credentials, options=options)
