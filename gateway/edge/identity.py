"""The gateway's `Authenticator`: identities by the policy, from files that are watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.call import Identity
from gateway.core.credentials import Credentials
from gateway.core.criticality import CLASS_OF
from gateway.core.faces import Files
from gateway.policy.identity import Identifier, Networks
from gateway.policy.identity_jwt import Tally, TokenRing, parse_jwt_keys
from gateway.policy.identity_schema import IdentityPolicy
from gateway.policy.identity_subjects import SubjectMap, parse_subjects
from gateway.policy.keys import KeyRing, parse_keys
from gateway.policy.problems import PolicyError
from gateway.runtime.clock import Clock
from gateway.runtime.watched import Watched
from gateway.runtime.workers import Workers


class IdentityDesk:
    """An `Authenticator` over watched files. `load` must succeed once before the gateway serves."""

    def __init__(
        self, policy: IdentityPolicy, path_of: Callable[[str], str], *, files: Files, workers: Workers, clock: Clock
    ) -> None:
        """`path_of` makes a path of the policy one that can be opened."""
        self._clock = clock
        self.tally = Tally()
        mode = policy.mode
        self._highest_class = highest = CLASS_OF[policy.highest_class]
        self._networks: Networks | None = None
        self._keys: Watched[KeyRing] | None = None
        self._tokens: Watched[TokenRing] | None = None
        self._subjects: Watched[SubjectMap] | None = None
        self._identifier: Identifier | None = None

        def watched(what: str, path: str, make: Callable[[bytes, str], Any]) -> Watched[Any]:
            return Watched(
                what,
                (path,),
                policy.refresh_s,
                make=lambda contents: make(contents[0], path),
                files=files,
                workers=workers,
                errors=(PolicyError,),
                changed=self._combine,
            )

        if policy.keys_file and mode in ("api_key", "any"):
            self._keys = watched(
                "the key file", path_of(policy.keys_file), lambda data, path: parse_keys(data, path, highest)
            )
        if policy.jwt is not None and mode in ("jwt", "any"):
            jwt = policy.jwt
            self._tokens = watched(
                "the file of token keys",
                path_of(jwt.keys_file),
                lambda data, path: TokenRing(jwt, parse_jwt_keys(data, path), self.tally, highest),
            )
        if policy.mtls is not None and mode in ("mtls", "any"):
            self._subjects = watched(
                "the file of certificate subjects",
                path_of(policy.mtls.subjects_file),
                lambda data, path: parse_subjects(data, path, highest),
            )
        if policy.header is not None and mode in ("header", "any"):
            self._networks = Networks(policy.header.networks)
        self.header = policy.header.name if policy.header is not None and self._networks is not None else ""
        """The header in which trusted peers name the tenant, "" if there is none."""
        self.peers: dict[str, bool] | None = None
        """What of a peer matters, as arguments of `TransportPeers` and `GrpcioPeers`; None: nothing."""
        if self._networks is not None or self._subjects is not None:
            self.peers = {"addresses": self._networks is not None, "certificates": self._subjects is not None}

    @property
    def watched(self) -> Mapping[str, Watched[Any]]:
        """What is watched, by the name that it has in the metrics."""
        found = {"keys": self._keys, "token_keys": self._tokens, "subjects": self._subjects}
        return {name: each for name, each in found.items() if each is not None}

    async def load(self) -> None:
        """Read all files. Raises OSError or `PolicyError`."""
        for each in self.watched.values():
            await each.load()
        self._combine()

    def _combine(self, _: object = None) -> None:
        self._identifier = Identifier(
            keys=None if self._keys is None else self._keys.value,
            tokens=None if self._tokens is None else self._tokens.value,
            networks=self._networks,
            subjects=None if self._subjects is None else self._subjects.value,
            highest_class=self._highest_class,
        )

    def identify(self, credentials: Credentials) -> Identity:
        if self._identifier is None:
            raise RuntimeError("the files of identities have not been loaded: nobody can be identified yet")
        return self._identifier.identify(credentials, self._clock.wall_s())

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        figures: dict[str, Any] = {
            name: {"entries": len(each.value), **each.statistics(now_s)} for name, each in self.watched.items()
        }
        if self._tokens is not None:
            figures["tokens_remembered"] = self._tokens.value.remembered
            figures["token_verifications"] = self.tally.verifications
        return figures
