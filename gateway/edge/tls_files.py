"""The certificate of the client ports: watched, checked, and handed to both protocols as one."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.faces import Files
from gateway.policy.problems import START, PolicyError, Problems
from gateway.policy.tls_files import TlsMaterial, expiry_warning, material_of, shown_names
from gateway.policy.tls_schema import ServerTls
from gateway.runtime.clock import Clock
from gateway.runtime.tls import server_context
from gateway.runtime.watched import Watched
from gateway.runtime.workers import Workers

_log = logging.getLogger("sluice.edge.tls")

HTTP_ALPN = ("http/1.1",)
GRPC_ALPN = ("h2",)


@dataclass(frozen=True, slots=True)
class PortTls:
    """What both client ports show to those who connect now."""

    material: TlsMaterial
    http: ssl.SSLContext
    grpc: ssl.SSLContext


def watch_port_tls(
    policy: ServerTls,
    path_of: Callable[[str], str],
    *,
    files: Files,
    workers: Workers,
    clock: Clock,
) -> Watched[PortTls]:
    """The files of `policy`, watched."""
    names = shown_names(path_of, policy.certificate_file, policy.key_file, policy.client_ca_file)

    def make(contents: tuple[bytes, ...]) -> PortTls:
        material = material_of(names, contents)
        try:
            http, grpc = (
                server_context(material.certificate, material.key, material.ca, policy.client_certificate, protocols)
                for protocols in (HTTP_ALPN, GRPC_ALPN)
            )
        except ValueError as error:
            problems = Problems()
            problems.add(names[0], START, (), str(error), "make certificate and key anew, RSA 2048 or P-256")
            problems.raise_if_any()
            raise AssertionError("there is a problem") from error
        warning = expiry_warning(material, clock.wall_s())
        if warning:
            _log.warning("the certificate of the client ports (%s) %s", names[0], warning)
        return PortTls(material, http, grpc)

    return Watched(
        "the certificate of the client ports",
        names,
        policy.refresh_s,
        make=make,
        files=files,
        workers=workers,
        errors=(PolicyError,),
    )
