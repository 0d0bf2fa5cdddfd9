"""A call from what came over gRPC: the metadata of its RPC, and its message."""

from __future__ import annotations

from gateway.core.call import Call, Receive
from gateway.core.errors import GatewayError, Reason
from gateway.core.session import Session
from gateway.edge.grpc_questions import check_version
from gateway.edge.headers import ClientHeaders
from gateway.runtime.clock import Clock
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.request_view import read_head, shared_memory_refused
from gateway.wire.kserve.sequence import sequence_step
from gateway.wire.kserve.stream_message import EMPTY_FINAL


def grpc_call(
    headers: ClientHeaders,
    size: int,
    clock: Clock,
    arrived_s: float,
    timeout_s: float | None,
    session: Session | None = None,
) -> Call:
    """A call that has just arrived with a message of `size` bytes; `read_call` has yet to fill it in."""
    wall_s, now_s = clock.wall_s, clock.now_s
    arrived_wall_s = wall_s() - (now_s() - arrived_s)
    model = version = ""
    message = receive = None
    # By position: to match fifteen names costs as much as the rest of a call's making, 4,000 instructions.
    return Call(
        headers.request_id,
        model,
        version,
        arrived_s,
        arrived_wall_s,
        message,
        receive,
        size,
        headers.credentials,
        headers.metadata,
        timeout_s,
        headers.explain,
        "grpc",
        session,
        headers.priority,
    )


def read_call(call: Call, message: bytes) -> None:
    """Fill in a call from its message. Raises `GatewayError` if the bytes are no message at all."""
    head = read_head(message)
    call.model, call.version, call.body_id = head.model_name, head.model_version, head.id
    wants_end = head.parameters.get(EMPTY_FINAL)
    call.wants_end = wants_end is not None and wants_end.value is True
    call.classified = head.classified
    try:
        check_version(head.model_version)
        if head.shared_memory:
            raise shared_memory_refused(head.shared_memory)
        call.sequence = sequence_step(head.parameters)
    except GatewayError as error:
        # A call all the same, with a record: who calls and for which model is known.
        call.receive = refusal(error)
    else:
        call.message = message


def read_unkept(call: Call, head: bytes) -> None:
    """Fill in from the first bytes of its message a call for which there was no memory. It will be refused, and its
    record says as much as they do.
    """
    texts = ["", "", ""]
    pos = 0
    try:
        while pos < len(head):
            number, wire, start, pos = pb.field_at(head, pos, len(head))
            if 1 <= number <= 3 and wire == pb.LEN:
                texts[number - 1] = pb.text(head, start, pos)
    except pb.WireError:
        pass  # cut off, or no message: what was read by then is all that will be known
    call.model, call.version, call.body_id = texts
    call.receive = refusal(no_memory())


def refusal(error: GatewayError) -> Receive:
    """A `receive` that refuses: the call takes its ordinary way through identity and record, and ends there."""

    async def receive() -> None:
        raise error

    return receive


def no_memory() -> GatewayError:
    """There is no room for a message now."""
    return GatewayError(Reason.BODY_MEMORY, Reason.BODY_MEMORY.meaning, retry_after_s=1.0)


def expired(timeout_s: float) -> GatewayError:
    """The caller's own limit of `timeout_s` passed, and no work on what it wants had begun."""
    return GatewayError(
        Reason.DEADLINE, f"the deadline of {timeout_s * 1000:.0f} ms passed before the request body had arrived"
    )
