"""The catalogue: what the edge answers itself, as if the fleet were one server. Implements `core.faces.Catalogue`."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.call import Identity
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import ModelConfigBytes, StatisticsBytes
from gateway.fleet.directory import Directory
from gateway.fleet.model_record import Description
from gateway.fleet.questions import FleetQuestions, StatisticsRow
from gateway.policy.schema import ModelPolicy, PolicySet
from gateway.wire.kserve.metadata import decode_model_metadata, decode_server_metadata
from gateway.wire.kserve.repository import index_to_protobuf
from gateway.wire.kserve.statistics import statistics_document


class FleetCatalogue:
    """Answers over the directory's snapshot. A version counts if it takes calls now and callers may reach it."""

    def __init__(self, directory: Directory, policies: PolicySet, draining: Callable[[], bool] = lambda: False) -> None:
        self._directory = directory
        self._models = {policy.model: policy for policy in policies.models.values()}
        self._draining = draining
        self._questions = FleetQuestions(directory, self._models)

    async def aclose(self) -> None:
        """Cancel what is still being asked."""
        await self._questions.aclose()

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
        return decode_server_metadata(metadata).for_callers().to_protobuf()

    def model_metadata(self, model: str, version: str) -> bytes:
        policy = self._policy(model)
        description = self._describe(policy, version)
        versions = (version,) if version else self._served(policy)
        return decode_model_metadata(description.metadata).with_versions(versions).to_protobuf()

    def model_config(self, model: str, version: str) -> ModelConfigBytes:
        return self._describe(self._policy(model), version).config

    async def model_statistics(self, model: str, version: str, identity: Identity) -> StatisticsBytes:
        if model and model not in self._models:
            text = f"requested model '{model}' is not available"
            raise GatewayError(Reason.UNKNOWN_MODEL, text, Code.INVALID_ARGUMENT)
        round_ = await self._questions.statistics()
        policy = self._models.get(model)
        if not round_.answered or (policy is not None and policy.pool not in round_.answered):
            raise _nobody("statistics", round_.asked)
        if policy is None:  # A version in the question for all models means nothing, as on Triton.
            return _put_together([row for row in round_.rows if identity.may_call(row.model)])
        found = [row for row in round_.rows if row.model == model and version in ("", row.version)]
        if not found:
            raise self._no_statistics(policy, version)
        return _put_together(found)

    def _no_statistics(self, policy: ModelPolicy, version: str) -> GatewayError:
        error = self._absent(policy, version)
        if error.reason is Reason.UNKNOWN_VERSION:
            text = f"requested model version is not available for model '{policy.model}'"
            return GatewayError(error.reason, text, Code.INVALID_ARGUMENT)
        return error

    async def repository_index(self, ready: bool, identity: Identity) -> bytes:
        round_ = await self._questions.index()
        if not round_.answered:
            raise _nobody("the repository index", round_.asked)
        return index_to_protobuf(
            line
            for model, lines in round_.lines.items()
            if identity.may_call(model)
            for line in lines
            if not ready or line.state == "READY"
        )

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
                raise self._absent(policy, version)
            return served[-1]
        if version in served:
            return version
        raise self._absent(policy, version)

    def _absent(self, policy: ModelPolicy, version: str) -> GatewayError:
        """What is said of a version that nobody serves now; "" for all of them."""
        if not version:
            return GatewayError(Reason.NO_REPLICA, f"no replica is ready to serve model '{policy.model}' now")
        known = self._directory.snapshot.known_versions(policy.pool, policy.model)
        allowed = policy.versions is None or version in policy.versions
        # As long as no replica has been asked what it has, a version that the policy allows cannot be called unknown.
        if allowed and (version in known or not known or policy.versions is not None):
            return GatewayError(
                Reason.NO_REPLICA, f"no replica is ready to serve version {version} of model '{policy.model}' now"
            )
        return GatewayError(
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


def _nobody(what: str, asked: int) -> GatewayError:
    return GatewayError(Reason.NO_REPLICA, f"none of {asked} model servers answered the question for {what}; ask again")


def _put_together(rows: list[StatisticsRow]) -> StatisticsBytes:
    return StatisticsBytes(b"".join(row.proto for row in rows), statistics_document(row.json for row in rows))
