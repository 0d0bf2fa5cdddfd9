"""Warming: calls to a new model version on a replica before it gets traffic, and test calls on one in doubt.

The first calls to a model can be orders of magnitude slower than later ones (kernel selection, compilation, caches).
Triton's own `model_warmup` runs before it says ready, but few models have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.errors import GatewayError
from gateway.core.faults import UpstreamFault, classify
from gateway.core.outcome import Outcome
from gateway.fleet.connection import Connection
from gateway.fleet.model_record import Description, Key
from gateway.fleet.replica import Replica
from gateway.policy.schema import ModelPolicy, PolicySet
from gateway.wire.kserve.http_request import decode_http_infer
from gateway.wire.kserve.metadata import decode_model_metadata
from gateway.wire.kserve.request_view import override_model
from gateway.wire.kserve.response_view import read_response_head
from gateway.wire.kserve.zeros import zeros_request


class Unwarmable(Exception):
    """A version that is not warmed by calls; the text says why. It gets traffic all the same."""


class NotServed(Exception):
    """A version that must get no traffic from this gateway; the text says why."""


WarmRequest = Callable[[ModelPolicy, Description], bytes]
"""Makes a serialized ModelInferRequest for warming (model name and version may be missing). Raises `Unwarmable`."""


def zeros(policy: ModelPolicy, description: Description) -> bytes:
    """The default: zeros in the model's shapes."""
    try:
        inputs = decode_model_metadata(description.metadata).inputs
        return zeros_request(inputs, description.summary.optional_inputs)
    except (ValueError, GatewayError) as error:
        raise Unwarmable(f"no default request can be made: {error}") from None


def from_policies(policies: PolicySet) -> WarmRequest:
    """The request that a model's policy names (`warmup.request_file`), zeros otherwise."""

    def make(policy: ModelPolicy, description: Description) -> bytes:
        body = policies.warmup_requests.get(policy.model)
        if body is None:
            return zeros(policy, description)
        try:
            return decode_http_infer(body).message
        except GatewayError as error:
            raise Unwarmable(f"its request_file is no request: {error.message}") from None

    return make


def request_for(make: WarmRequest, policy: ModelPolicy, description: Description) -> bytes:
    """The request to warm with. Raises `Unwarmable` where the policy wants none or single calls mean nothing,
    `NotServed` for a model that this gateway would answer wrongly: the calls of one sequence must all reach one
    replica in order, and nothing here holds them together yet.
    """
    if description.summary.sequence:
        raise NotServed("stateful models (sequence_batching) are not served by this gateway yet")
    if policy.warmup.calls == 0:
        raise Unwarmable("the policy wants no warm-up calls")
    if description.summary.decoupled:
        raise Unwarmable("a decoupled model is not served by single calls")
    return make(policy, description)


@dataclass(frozen=True, slots=True)
class Trial:
    """How one such call ended. `final`: another try would end in the same way (the request itself was refused)."""

    good: bool
    final: bool
    outcome: Outcome
    text: str


async def try_once(connection: Connection, key: Key, request: bytes, timeout_s: float) -> Trial:
    """One call. Raises nothing but CancelledError."""
    connection.enter()
    try:
        answer = await connection.client.infer(override_model(request, *key), (), timeout_s)
        head = read_response_head(answer)
    except UpstreamFault as fault:
        outcome = classify(fault).outcome
        return Trial(False, outcome is Outcome.CALLER_FAULT, outcome, f"{fault.code.name}: {fault.text}")
    except GatewayError as error:
        return Trial(False, False, Outcome.BROKEN, error.message)
    finally:
        connection.leave()
    answered = (head.model_name, head.model_version)
    if answered != key:
        return Trial(False, False, Outcome.BROKEN, f"asked for {_name(key)}, answered as {_name(answered)}")
    return Trial(True, True, Outcome.OK, "")


def _name(key: Key) -> str:
    return f"model {key[0]!r} version {key[1]!r}"


@dataclass(slots=True)
class Backoff:
    """Seconds between tries: doubled from `first_s` to `most_s`, each varied by up to a fifth."""

    first_s: float = 0.25
    most_s: float = 10.0
    failures: int = 0

    def next_s(self, chance: float) -> float:
        """`chance` in [0, 1)."""
        delay_s = min(self.most_s, self.first_s * float(2**self.failures))
        self.failures = min(self.failures + 1, 16)
        return delay_s * (0.8 + 0.4 * chance)


def finished(replica: Replica, key: Key, epoch: int) -> bool:
    """Whether work on this epoch of a version is of no use any more."""
    record = replica.models.get(key)
    return record is None or record.epoch != epoch
