"""The catalogue: what the edge answers itself, as if the fleet were one server. Implements `core.faces.Catalogue`."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import ModelConfigBytes
from gateway.fleet.directory import Directory
from gateway.fleet.model_record import Description
from gateway.policy.schema import ModelPolicy, PolicySet
from gateway.wire.kserve.metadata import decode_model_metadata, decode_server_metadata


class FleetCatalogue:
    """Answers over the directory's snapshot. A version counts if it takes calls now and callers may reach it."""

    def __init__(self, directory: Directory, policies: PolicySet, draining: Callable[[], bool] = lambda: False) -> None:
        self._directory = directory
        self._models = {policy.model: policy for policy in policies.models.values()}
        self._draining = draining

    def server_live(self) -> bool:
        """The gateway runs; what is behind it does not matter here."""
        return True

    def server_ready(self) -> bool:
        if self._draining():
            return False
        served = {pool for pool, _, _ in self._directory.snapshot.keys}
        return all(policy.pool in served for policy in self._models.values())

    def model_ready(self, model: str, version: str) -> bool:
        """At least one replica serves it and says that it is ready; one that is only kept as a last resort does not
        count.
        """
        policy = self._policy(model)
        try:
            chosen = self._choose(policy, version)
        except GatewayError as error:
            if error.reason is Reason.NO_REPLICA:
                return False
            raise
        snapshot = self._directory.snapshot
        takers = {candidate.replica for candidate in snapshot.candidates(policy.pool, model, chosen)}
        return any(not replica.models[model, chosen].reason for replica in snapshot.replicas if replica.id in takers)

    def server_metadata(self) -> bytes:
        metadata = self._directory.server_metadata()
        if metadata is None:
            raise GatewayError(Reason.NO_REPLICA, "no model server is live now, so there is no metadata to show")
        return decode_server_metadata(metadata).without_shared_memory().to_protobuf()

    def model_metadata(self, model: str, version: str) -> bytes:
        policy = self._policy(model)
        description = self._describe(policy, version)
        versions = (version,) if version else self._served(policy)
        return decode_model_metadata(description.metadata).with_versions(versions).to_protobuf()

    def model_config(self, model: str, version: str) -> ModelConfigBytes:
        return self._describe(self._policy(model), version).config

    def _policy(self, model: str) -> ModelPolicy:
        policy = self._models.get(model)
        if policy is None:
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{model}' is not found")
        return policy

    def _served(self, policy: ModelPolicy) -> tuple[str, ...]:
        """The versions that take calls anywhere in the fleet, ascending."""
        ready = self._directory.snapshot.ready_versions(policy.pool, policy.model)
        return tuple(version for version in ready if policy.versions is None or version in policy.versions)

    def _choose(self, policy: ModelPolicy, version: str) -> str:
        """The version that is meant: the one asked for, or the newest that takes calls."""
        served = self._served(policy)
        if not version:
            if not served:
                raise GatewayError(Reason.NO_REPLICA, f"no replica is ready to serve model '{policy.model}' now")
            return served[-1]
        if version in served:
            return version
        known = self._directory.snapshot.known_versions(policy.pool, policy.model)
        allowed = policy.versions is None or version in policy.versions
        # As long as no replica has been asked what it has, a version that the policy allows cannot be called unknown.
        if allowed and (version in known or not known or policy.versions is not None):
            raise GatewayError(
                Reason.NO_REPLICA, f"no replica is ready to serve version {version} of model '{policy.model}' now"
            )
        raise GatewayError(
            Reason.UNKNOWN_VERSION, f"Request for unknown model: '{policy.model}' version {version} is not found"
        )

    def _describe(self, policy: ModelPolicy, version: str) -> Description:
        chosen = self._choose(policy, version)
        description = self._directory.description(policy.pool, policy.model, chosen)
        if description is None:
            raise GatewayError(
                Reason.NO_REPLICA, f"no replica is ready to serve version {chosen} of model '{policy.model}' now"
            )
        return description
