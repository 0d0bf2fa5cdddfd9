"""The one error that travels through the stack, and the closed list of reasons it may give.

A layer raises `GatewayError`; the edge alone renders it. The reason becomes the header `x-sluice-reason`, a metric
label and a field of the prediction record, so the list is closed and each entry is documented here once (rendered
into `docs/protocols.md`).
"""

from __future__ import annotations

import enum

from gateway.core.codes import Code


class Reason(enum.Enum):
    """Why a call was refused or failed. `code` is what it means unless the error says otherwise; `meaning` is for the
    manual.
    """

    BAD_REQUEST = (
        "bad_request",
        Code.INVALID_ARGUMENT,
        "The request is malformed; the text names the field.",
    )
    UNAUTHENTICATED = (
        "unauthenticated",
        Code.UNAUTHENTICATED,
        "No credentials, or some that are not good; the text says which are wanted or what is wrong.",
    )
    FORBIDDEN = ("forbidden", Code.PERMISSION_DENIED, "The caller is known but may not call this model.")
    UNKNOWN_ROUTE = ("unknown_route", Code.UNIMPLEMENTED, "No such path or method in the protocol.")
    UNKNOWN_MODEL = ("unknown_model", Code.NOT_FOUND, "No policy names this model.")
    UNKNOWN_VERSION = ("unknown_version", Code.NOT_FOUND, "The model is known, this version of it is not.")
    UNSUPPORTED = (
        "unsupported",
        Code.UNIMPLEMENTED,
        "Triton has it, the gateway refuses it; the text says where to go.",
    )
    TOO_LARGE = (
        "too_large",
        Code.RESOURCE_EXHAUSTED,
        "The body, a header, an input, or what the call needs of a replica's memory is over its limit.",
    )
    SLOW_BODY = ("slow_body", Code.DEADLINE_EXCEEDED, "The body did not arrive within the read timeout.")
    QUOTA = (
        "quota",
        Code.RESOURCE_EXHAUSTED,
        "The caller's tenant has used up its quota of calls a second, or of calls at a time; `retry-after` tells when "
        "there is room.",
    )
    BODY_MEMORY = (
        "body_memory",
        Code.RESOURCE_EXHAUSTED,
        "The gateway's memory for request bodies is used up; try again.",
    )
    QUEUE_FULL = ("queue_full", Code.RESOURCE_EXHAUSTED, "The model's waiting place is full; try again.")
    SHED = (
        "shed",
        Code.RESOURCE_EXHAUSTED,
        "The model has more to do than it can, and calls of this class, or this part of them, are turned away.",
    )
    INFEASIBLE = (
        "infeasible",
        Code.DEADLINE_EXCEEDED,
        "The call could not have been answered before its deadline, so it was not sent to a replica.",
    )
    QUARANTINED = (
        "quarantined",
        Code.INVALID_ARGUMENT,
        "Two replicas went down while they had this input, so it is not sent again for a while.",
    )
    NO_REPLICA = (
        "no_replica",
        Code.UNAVAILABLE,
        "The model is known, but no replica is ready to run it now.",
    )
    SEQUENCE_LOST = (
        "sequence_lost",
        Code.UNAVAILABLE,
        "The replica that held the sequence is gone, and its state with it: start the sequence again.",
    )
    DEADLINE = (
        "deadline",
        Code.DEADLINE_EXCEEDED,
        "The call's deadline passed; the text says at which stage.",
    )
    DRAINING = ("draining", Code.UNAVAILABLE, "The gateway is shutting down; another one will answer.")
    RECORD_FULL = (
        "record_full",
        Code.UNAVAILABLE,
        "The policy demands a prediction record and there is no room for it.",
    )
    UPSTREAM_INVALID = (
        "upstream_invalid",
        Code.INVALID_ARGUMENT,
        "Triton found the request invalid; the text is Triton's.",
    )
    UPSTREAM_QUEUE_FULL = ("upstream_queue_full", Code.RESOURCE_EXHAUSTED, "The replica's own queue is full.")
    UPSTREAM_QUEUE_TIMEOUT = (
        "upstream_queue_timeout",
        Code.DEADLINE_EXCEEDED,
        "The request waited in the replica's queue longer than its `timeout`.",
    )
    UPSTREAM_NOT_LOADED = (
        "upstream_not_loaded",
        Code.UNAVAILABLE,
        "The replica no longer has the model or version.",
    )
    UPSTREAM_REFUSED = (
        "upstream_refused",
        Code.INTERNAL,
        "The replica refused the gateway itself; an operator must look.",
    )
    UPSTREAM_BROKEN = ("upstream_broken", Code.INTERNAL, "The model failed while running.")
    UPSTREAM_LOST = (
        "upstream_lost",
        Code.UNAVAILABLE,
        "The connection to the replica broke before an answer came, or before all of a stream.",
    )
    ANSWER_TOO_LARGE = (
        "answer_too_large",
        Code.RESOURCE_EXHAUSTED,
        "The model's answer is over `message_bytes_max` of its pool; asking again gives the same.",
    )
    UPSTREAM_WRONG_ANSWER = (
        "upstream_wrong_answer",
        Code.INTERNAL,
        "The replica answered with another model or version than it was asked for; the answer was not used.",
    )
    INTERNAL = ("internal", Code.INTERNAL, "A fault of the gateway itself; it is logged with the request id.")

    label: str
    code: Code
    meaning: str

    def __init__(self, label: str, code: Code, meaning: str) -> None:
        self.label = label
        self.code = code
        self.meaning = meaning


class GatewayError(Exception):
    """A call that ends without a full answer.

    `message` goes to the caller as it stands: no address, path, stack or other tenant's data may be in it.
    `retry_after_s` is a hint for callers, in seconds. `code` overrides the reason's own where Triton was more
    precise.
    """

    def __init__(
        self, reason: Reason, message: str, code: Code | None = None, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = reason.code if code is None else code
        self.retry_after_s = retry_after_s
        self.response = b""
        """What the model server sent beside the text on a stream: a serialized `inference.ModelInferResponse`."""

    def __repr__(self) -> str:
        return f"GatewayError({self.reason.label}, {self.code.name}, {self.message!r})"
