"""What the gRPC port is made of, whichever of its two servers stands in front: `grpc_port` (our own HTTP/2) or
`grpcio_server` (the library).
"""

from __future__ import annotations

import random

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, BodyBudget, Catalogue
from gateway.core.service import Service
from gateway.edge.explain import Explainer
from gateway.edge.grpc_call_reader import CallReader
from gateway.edge.grpc_desk import GrpcDesk
from gateway.edge.grpc_stream_kit import StreamKit
from gateway.edge.headers import ClientHeaders, HeaderReader
from gateway.edge.observer import EdgeObserver
from gateway.policy.schema import GrpcLimits
from gateway.runtime.clock import Clock
from gateway.runtime.workers import InlineWorkers, Workers

LISTEN_KEY = "gateway.listen.grpc"
CUT_GRACE_S = 1.0
"""After the drain limit, this long for the errors that cut calls short to be written."""


class GrpcKit:
    """Shared by all calls of the port."""

    __slots__ = (
        "authenticator",
        "budget",
        "calls",
        "chance",
        "clock",
        "desk",
        "explainer",
        "limits",
        "message_bytes_max",
        "observer",
        "reader",
        "service",
        "streams",
        "workers",
    )

    def __init__(
        self,
        *,
        service: Service,
        catalogue: Catalogue,
        authenticator: Authenticator,
        reader: HeaderReader,
        explainer: Explainer,
        budget: BodyBudget,
        observer: EdgeObserver,
        limits: GrpcLimits,
        receive_bytes_max: int,
        chance: random.Random,
        clock: Clock,
        workers: Workers | None = None,
    ) -> None:
        """`receive_bytes_max`: a message larger than this is wanted by no model. `chance` jitters pushbacks.
        `workers` take what would decompress on the loop for long; None leaves it there.
        """
        self.service = service
        self.authenticator = authenticator
        self.reader = reader
        self.explainer = explainer
        self.budget = budget
        self.observer = observer
        self.limits = limits
        self.message_bytes_max = min(limits.message_bytes_max, receive_bytes_max)
        """Largest message from a client, decompressed."""
        self.chance = chance
        self.clock = clock
        self.workers = workers or InlineWorkers()
        self.calls = CallReader()
        self.desk = GrpcDesk(catalogue, authenticator, observer)
        self.streams = StreamKit(
            service=service,
            budget=budget,
            observer=observer,
            explainer=explainer,
            clock=clock,
            read_call=self.calls.read,
            calls_max=limits.stream_calls_max,
            write_timeout_s=limits.write_timeout_ms / 1000,
        )

    def story(self, call: Call, error: GatewayError | None = None) -> str:
        """The explanation of a call, "" if the caller did not ask for it."""
        return self.explainer.explain(call, self.clock.now_s(), error) if call.explain else ""

    def check_stream(self, headers: ClientHeaders, *, draining: bool) -> None:
        """Whether a client may open a stream. Raises `GatewayError`, and counts that."""
        try:
            if headers.fault is not None:
                raise headers.fault
            self.authenticator.identify(headers.credentials)
            if draining:
                raise GatewayError(Reason.DRAINING, Reason.DRAINING.meaning, retry_after_s=1.0)
        except GatewayError as error:
            self.observer.request_without_call("grpc", "ModelStreamInfer", error.code.name)
            raise


def cut_short() -> GatewayError:
    """What callers are told whose calls are still out when the time for draining is over."""
    return GatewayError(Reason.DRAINING, "the gateway is shutting down; send the call again", retry_after_s=1.0)


def too_late() -> GatewayError:
    return GatewayError(Reason.DEADLINE, "the deadline passed before the answer could be written")


def least(a: float | None, b: float | None) -> float | None:
    """The shorter of two time limits, either of which may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
