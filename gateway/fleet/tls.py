"""TLS to the replicas of one pool: its files, watched."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.core.faces import Files
from gateway.policy.problems import PolicyError
from gateway.policy.tls_files import TlsMaterial, expiry_warning, material_of, shown_names
from gateway.policy.tls_schema import UpstreamTls
from gateway.runtime.clock import Clock
from gateway.runtime.watched import Watched
from gateway.runtime.workers import Workers

_log = logging.getLogger("sluice.fleet.tls")


class PoolTls:
    """What the gateway shows to the replicas of a pool, and what it believes of theirs."""

    def __init__(
        self,
        pool: str,
        policy: UpstreamTls,
        path_of: Callable[[str], str],
        *,
        files: Files,
        workers: Workers,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when the files have changed, and what is in them is good."""
        self.server_name = policy.server_name
        names = shown_names(path_of, policy.certificate_file, policy.key_file, policy.ca_file)

        def make(contents: tuple[bytes, ...]) -> TlsMaterial:
            material = material_of(names, contents)
            warning = expiry_warning(material, clock.wall_s())
            if warning:
                _log.warning("the certificate for pool %s (%s) %s", pool, names[0], warning)
            return material

        self.watched = Watched(
            f"what TLS to pool {pool} is made from",
            names,
            policy.refresh_s,
            make=make,
            files=files,
            workers=workers,
            errors=(PolicyError,),
            changed=lambda _: changed(),
        )

    @property
    def material(self) -> TlsMaterial:
        """For connections that begin now."""
        return self.watched.value
