"""Warming: calls to a new model version on a replica before it gets traffic, and test calls on one in doubt.

The first calls to a model can be orders of magnitude slower than later ones (kernel selection, compilation, caches).
Triton's own `model_warmup` runs before it says ready, but few models have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faces import ReplicaStream
from gateway.core.faults import UpstreamFault, classify, in_stream_fault
from gateway.core.outcome import Outcome
from gateway.fleet.connection import Connection
from gateway.fleet.model_record import Description, Key
from gateway.fleet.replica import Replica
from gateway.policy.schema import ModelPolicy, PolicySet
from gateway.wire.kserve.http_request import decode_http_infer
from gateway.wire.kserve.metadata import decode_model_metadata
from gateway.wire.kserve.request_view import override_model
from gateway.wire.kserve.response_view import ResponseHead, read_response_head
from gateway.wire.kserve.sequence import own_sequence
from gateway.wire.kserve.stream_message import StreamedResponse, read_streamed, with_end_wanted
from gateway.wire.kserve.zeros import zeros_request

_END_S = 1.0


class Unwarmable(Exception):
    """A version that is not warmed by calls; the text says why. It gets traffic all the same."""


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
    """The request to warm with, for a stateful model a sequence of its own. Raises `Unwarmable` where the policy wants
    none.
    """
    if policy.warmup.calls == 0:
        raise Unwarmable("the policy wants no warm-up calls")
    request, summary = make(policy, description), description.summary
    return request + own_sequence(policy.model, text=summary.corrid_is_text) if summary.sequence else request


STATEFUL_LIMIT_S = 2.0
"""A warm-up call to a stateful model waits at most this long. Where callers' sequences have taken all its places, as
they may have when a gateway starts anew, the call would wait until one of them ends; and they wait for the gateway.
"""


def limit_s(policy: ModelPolicy, description: Description) -> float:
    """The time limit of one warm-up call, seconds."""
    wanted_s = policy.warmup.timeout_ms / 1000
    return min(wanted_s, STATEFUL_LIMIT_S) if description.summary.sequence else wanted_s


@dataclass(frozen=True, slots=True)
class Trial:
    """How one such call ended. `final`: another try would end in the same way (the request itself was refused)."""

    good: bool
    final: bool
    outcome: Outcome
    text: str


async def try_once(
    connection: Connection, key: Key, request: bytes, timeout_s: float, *, decoupled: bool = False
) -> Trial:
    """One call. A decoupled model has done well with its first response, or with its end if there is none: some never
    end by themselves. Raises nothing but CancelledError.
    """
    connection.enter()
    request = override_model(request, *key)
    try:
        if decoupled:
            head: ResponseHead | StreamedResponse = await _first_response(connection, request, timeout_s)
        else:
            head = read_response_head(await connection.client.infer(request, (), timeout_s))
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


async def _first_response(connection: Connection, request: bytes, timeout_s: float) -> StreamedResponse:
    stream = connection.client.open_stream((), timeout_s)
    try:
        stream.write(with_end_wanted(request))
        stream.half_close()
        message = await stream.read()
        if message is not None:
            await _let_end(stream)
    finally:
        stream.cancel()
    if message is None:
        raise UpstreamFault(Code.UNAVAILABLE, "the stream ended without a response", from_peer=True)
    response = read_streamed(message)
    if response.error:
        raise in_stream_fault(response.error, reached_model=response.final is not None)
    return response


async def _let_end(stream: ReplicaStream) -> None:
    """Read on for a moment: most streams of a warm-up are short, and an end is kinder to the replica than a cancel."""
    try:
        async with asyncio.timeout(_END_S):
            while await stream.read() is not None:
                pass
    except (TimeoutError, UpstreamFault):
        return  # the first response has told what there was to tell


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
