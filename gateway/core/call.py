"""Call: one client request with an absolute deadline, and the trail of notes that it leaves on its way down.

A call is made by the edge from headers alone; its body may still be on the way. Everything that a layer decides about
it is written on its `Trail`: the prediction record, the metrics, the response headers and `x-sluice-explain` are all
made from the trail afterwards, so no layer logs or measures on the request path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.credentials import NO_CREDENTIALS, Credentials
from gateway.core.criticality import DEFAULT
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome

if TYPE_CHECKING:
    from gateway.core.permit import Permit
    from gateway.core.session import Session

Metadata = tuple[tuple[str, str], ...]
"""Header names (lower case) and values that go on to the replica."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls: decided by the gate from credentials, never from a free header. `models` None means every model."""

    tenant: str
    models: frozenset[str] | None = None
    may_explain: bool = False
    highest_class: int = DEFAULT
    """No call of it is of a class above this one."""

    def may_call(self, model: str) -> bool:
        return self.models is None or model in self.models


ANONYMOUS = Identity("anonymous")


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Where a call stands in a sequence (a conversation with a stateful model).

    The type of `id` matters: the string "7" and the number 7 are two sequences. 0 and "" mean none, and make no step.
    """

    id: int | str
    start: bool
    end: bool


class Attempt:
    """One send of a call to one replica. Times are monotonic seconds; `ended_s` is 0.0 and `outcome` None while it is
    out.
    """

    __slots__ = ("answered_s", "ended_s", "kind", "outcome", "replica", "sent", "started_s", "text")

    def __init__(self, replica: str, started_s: float, kind: str = "primary") -> None:
        self.replica = replica
        self.kind = kind
        self.started_s = started_s
        self.answered_s = 0.0
        """Of a stream: its first response was there. 0.0 for an attempt whose only answer is its end."""
        self.ended_s = 0.0
        self.outcome: Outcome | None = None
        self.sent = True
        """Bytes of the request may have reached the replica; False means that it certainly did not run."""
        self.text = ""
        """The peer's words where it failed, for the operator; callers see `core.faults.public_text` of it."""


class Note(NamedTuple):
    """What a decider saw and decided about a call."""

    decider: str
    """`admission`, `hedge`, `quota`, …: the closed list is `NOTED_BY`."""
    word: str
    """What was decided, of the decider's own closed list."""
    saw: Mapping[str, float | str]
    """What it was decided by: numbers and words by name, units in the names; no address and no other tenant's data."""


NOTED_BY = (
    "class",
    "quota",
    "work",
    "admission",
    "lane",
    "memory",
    "limit",
    "affinity",
    "breaker",
    "hedge",
    "retry",
    "stage",
)
"""In the order in which a call meets them."""

NOTES_MAX = 32
"""Notes kept of a call; what comes after is not noted."""


class Trail:
    """What happened to a call, written as it happens. A time stamp of 0.0 means: not reached. Times are monotonic
    seconds.
    """

    __slots__ = (
        "admitted_s",
        "answered_s",
        "artifact_hash",
        "attempts",
        "hedge",
        "in_flight_at_admit",
        "limit_at_admit",
        "notes",
        "policy_revision",
        "pool",
        "queued_ahead",
        "queued_s",
        "reason",
        "received_s",
        "replicas_ready",
        "responses",
        "routed_by",
        "routed_s",
        "rung",
        "version_routed",
        "version_served",
    )

    def __init__(self) -> None:
        self.received_s = 0.0
        """The body was complete and decoded."""
        self.routed_s = 0.0
        self.queued_s = 0.0
        """The call began to wait for a slot; 0.0 if it never had to."""
        self.admitted_s = 0.0
        self.answered_s = 0.0
        self.policy_revision = ""
        self.pool = ""
        self.version_routed = ""
        self.version_served = ""
        """As the answering replica returned it."""
        self.artifact_hash = ""
        self.routed_by = ""
        """Why this version: `asked`, `split`, `newest` or `sequence`."""
        self.rung = ""
        self.replicas_ready = 0
        self.queued_ahead = 0
        self.in_flight_at_admit = 0
        self.limit_at_admit = 0
        self.attempts: list[Attempt] = []
        self.hedge = ""
        """Why a slow call got no hedge when it last asked for one; "" if it never did, or got it."""
        self.notes: list[Note] | None = None
        """None for nearly all calls. See `note`."""
        self.reason: Reason | None = None
        self.responses = 0
        """Responses that a streaming call was given, errors among them included; 1 or 0 for a unary one."""

    def note(self, decider: str, word: str, saw: Mapping[str, float | str]) -> None:
        """Keep what a decider decided, for the record and for who asks with `x-sluice-explain`.

        Not for what is decided of every call (that has fields of its own): for what a call met on an unusual path, and
        for the usual path of a call that is to be explained.
        """
        if self.notes is None:
            self.notes = []
        if len(self.notes) < NOTES_MAX:
            self.notes.append(Note(decider, word, saw))


Receive = Callable[[], Awaitable[None]]
_NEVER = float("inf")


class Call:
    """One client request.

    `message` is the serialized `inference.ModelInferRequest`; model name and version in it may be missing or other
    than `model` and `version`, which are authoritative (the transport writes them last, and the last one wins). It is
    None until the body has arrived; `receive` waits for that, decodes, and fills in `message` (and `model`, `version`
    where the protocol carries them in the body). `receive` raises `GatewayError`.
    """

    __slots__ = (
        "abandoned",
        "arrived_s",
        "arrived_wall_s",
        "body_bytes",
        "body_id",
        "classified",
        "credentials",
        "criticality",
        "cut",
        "deadline_s",
        "decoupled",
        "explain",
        "first_response_by_s",
        "identity",
        "message",
        "metadata",
        "model",
        "on_sent",
        "permit",
        "pinned",
        "priority",
        "protocol",
        "receive",
        "request_id",
        "reservation",
        "sequence",
        "session",
        "stream_position",
        "timeout_s",
        "trail",
        "version",
        "wants_end",
        "work",
    )

    def __init__(
        self,
        request_id: str,
        model: str,
        version: str,
        arrived_s: float,
        arrived_wall_s: float,
        message: bytes | None = None,
        receive: Receive | None = None,
        body_bytes: int | None = None,
        credentials: Credentials = NO_CREDENTIALS,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        explain: bool = False,
        protocol: str = "other",
        session: Session | None = None,
        priority: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.version = version
        """As the caller named it; "" leaves the choice to the policy."""
        self.arrived_s = arrived_s
        """When the first byte of the call's headers was seen: the deadline counts from here."""
        self.arrived_wall_s = arrived_wall_s
        """The same instant in seconds since the epoch, for records only."""
        self.message = message
        self.receive = receive
        self.body_bytes = body_bytes
        """The declared size of the body, None if the caller did not say."""
        self.body_id = ""
        """The protocol's own request id out of the body (not `x-request-id`: neither fills the other)."""
        self.credentials = credentials
        self.metadata = metadata
        self.timeout_s = timeout_s
        """What the caller asked for, None for the policy's default."""
        self.explain = explain
        self.protocol = protocol
        """What the caller spoke, for the metrics alone: nothing below the edge decides by it."""
        self.identity = ANONYMOUS
        self.deadline_s = _NEVER
        """Absolute, monotonic; set by the deadline layer."""
        self.first_response_by_s = _NEVER
        """Of a streaming call: absolute, monotonic; set by the deadline layer, and never behind `deadline_s`."""
        self.abandoned = False
        """The edge sets this before it cancels the call's task because the caller left."""
        self.cut: GatewayError | None = None
        """The edge sets this before it cancels the call's task because the gateway stops, or because the deadline of
        its whole stream passed: what the caller is told.
        """
        self.session = session
        """The stream that this call is part of; None for a unary call. With a session the reply is a `StreamReply`."""
        self.stream_position = 0
        """The how-manieth message of its stream this is, from 1; 0 for a unary call."""
        self.wants_end = False
        """The caller wants the end of a decoupled model's responses told by an empty last one
        (`triton_enable_empty_final_response`).
        """
        self.classified: tuple[str, ...] = ()
        """Outputs that the caller wants as classes."""
        self.decoupled = False
        """The routed version gives any number of responses per request; set by the route layer."""
        self.sequence: SequenceStep | None = None
        self.pinned = ""
        """The one replica that may have this call, "" for any: a sequence lives on one replica."""
        self.on_sent: Callable[[], None] | None = None
        """Called by the transport each time it has handed the request to a replica's connection: what is handed over
        later arrives later.
        """
        self.priority = priority
        """The class that the caller asked for, None if it named none."""
        self.criticality = DEFAULT
        """Its class, 0 the highest of four (`core/criticality.py`); decided by the gate."""
        self.work = 1.0
        """Units of work, by the policy's measure: what it costs beside a usual call of its model."""
        self.permit: Permit | None = None
        """The slot that admission granted; set while the call holds it."""
        self.reservation: object | None = None
        """Room for this call's record, claimed before it runs; only where the policy makes records mandatory."""
        self.trail = Trail()

    @property
    def streaming(self) -> bool:
        """The caller takes any number of responses."""
        return self.session is not None

    @property
    def trace_id(self) -> str:
        """The 32 hex digits of `traceparent`, or "" if the caller sent none."""
        for name, value in self.metadata:
            if name == "traceparent":
                return value[3:35] if len(value) >= 35 else ""
        return ""
