"""The schema of the client ports' limits: what one client may take of the gateway, and what happens at the bound."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.policy.strict import Strict

KIB = 1024
MIB = 1024 * 1024


class HttpLimits(Strict, frozen=True, kw_only=True):
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Open client connections; more are closed at once.")
    ] = 20_000
    header_bytes_max: Annotated[int, Meta(ge=KIB, le=MIB, description="Request line and headers together, bytes.")] = (
        32 * KIB
    )
    header_count_max: Annotated[int, Meta(ge=1, le=10_000, description="Number of headers.")] = 128
    header_timeout_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="From a request's first byte to its last header.")
    ] = 10_000
    body_idle_timeout_ms: Annotated[int, Meta(ge=100, le=600_000, description="Longest pause inside a body.")] = 10_000
    keepalive_idle_ms: Annotated[
        int, Meta(ge=100, le=86_400_000, description="An idle connection is closed after this.")
    ] = 75_000
    write_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="A client that takes less than 16 KiB of its answers in this time, or less than all that "
            "waits, is cut off.",
        ),
    ] = 30_000
    drain_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=64 * MIB,
            description="After an early refusal a rest of the body up to this is read and dropped, and the connection "
            "kept; a longer one ends the connection: docs/operations.md says how.",
        ),
    ] = 64 * KIB
    pipeline_max: Annotated[
        int, Meta(ge=1, le=1000, description="Requests of one connection that may wait for answers.")
    ] = 16
    response_compression: Annotated[
        bool,
        Meta(
            description="Answers to `infer` are compressed where the client's `Accept-Encoding` asks for it, as Triton "
            "does. Some clients ask without their users' knowing: docs/operations.md."
        ),
    ] = True
    response_compression_level: Annotated[
        int, Meta(ge=1, le=9, description="zlib's level for that: 1 is cheapest, Triton's own is 6.")
    ] = 1


class GrpcLimits(Strict, frozen=True, kw_only=True):
    server: Annotated[
        Literal["http2", "grpcio"],
        Meta(
            description="Who speaks HTTP/2 on the port: the gateway itself, or gRPC's library, at several times the "
            "cost. For the library only `message_bytes_max`, `streams_max`, `stream_calls_max`, `write_timeout_ms` (of "
            "streams) and `handshake_timeout_ms` mean anything."
        ),
    ] = "http2"
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Open client connections; more are closed at once.")
    ] = 10_000
    streams_per_connection_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Calls in flight on one connection. Clients know it and wait; who does not is refused, in a "
            "way that makes it safe to send again.",
        ),
    ] = 10_000
    message_bytes_max: Annotated[
        int, Meta(ge=KIB, le=2**31 - 1, description="Largest message from or to a client, bytes.")
    ] = 64 * MIB
    header_list_bytes_max: Annotated[
        int,
        Meta(
            ge=KIB,
            le=MIB,
            description="Metadata of one call, counted as HTTP/2 does: names, values, and 32 bytes for each pair. "
            "Beyond it RESOURCE_EXHAUSTED.",
        ),
    ] = 16 * KIB
    streams_max: Annotated[int, Meta(ge=1, le=1_000_000, description="Calls in flight over all gRPC connections.")] = (
        10_000
    )
    stream_calls_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="Requests of one ModelStreamInfer that may be out at a time; beyond it the client's next "
            "message is not read until one has ended.",
        ),
    ] = 128
    handshake_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=600_000, description="From the connection (with TLS: from the end of its handshake) to the "
             "client's first HTTP/2 settings."),
    ] = 10_000  # fmt: skip
    message_idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="Longest pause inside a message, and from the head of a unary call to its message.",
        ),
    ] = 10_000
    message_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=86_400_000,
            description="From the head of a unary call to the end of its message, however it comes. A caller's own "
            "deadline ends it sooner.",
        ),
    ] = 60_000
    write_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="A client that takes less than 16 KiB of its answers in this time, or less than all that "
            "waits, or needs longer for one message of its ModelStreamInfer, is cut off.",
        ),
    ] = 60_000
    keepalive_ms: Annotated[
        int,
        Meta(ge=1000, le=86_400_000, description="A client that is silent for this long while calls of its are in "
             "flight is asked by a PING whether it is there."),
    ] = 60_000  # fmt: skip
    keepalive_timeout_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="If nothing comes for this long after that, it is gone.")
    ] = 20_000
    idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=604_800_000,
            description="A connection without calls is closed after this, in a way that loses none. Pings of the "
            "client do not keep it open.",
        ),
    ] = 3_600_000
