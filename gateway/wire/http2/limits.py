"""What one HTTP/2 peer may make this side hold or do."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gateway.wire.http2.frames import FRAME_BYTES_LEAST, FRAME_BYTES_MOST, WINDOW_DEFAULT, WINDOW_MAX


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection; what happens at a bound stands beside it.

    Bytes wait for their reader in the streams' windows only: a connection holds at most `streams_max` times
    `window_bytes` of payload, what `grow_window` adds, one frame and one header block. The connection's window is
    returned as the frames arrive and bounds nothing but what is under way.

    Credit for frames that carry nothing (PING, SETTINGS, PRIORITY, unknown and empty ones, WINDOW_UPDATE, whatever
    comes for closed streams): `idle_frames_burst`, refilled by `idle_frames_per_s` and by `idle_frames_per_message`
    for each stream opened and each DATA frame sent, so that acknowledgements of real traffic never use it up. A
    client has a second credit, for streams that come to nothing: those it resets before their answer, those reset
    for its faults, those refused over `streams_max`. It is `resets_burst`, refilled by `resets_per_s` and by one for
    each answered stream.
    """

    streams_max: int = 1000  # server: REFUSED_STREAM over it
    window_bytes: int = WINDOW_DEFAULT  # per stream; FLOW_CONTROL_ERROR for a peer that exceeds it
    connection_window_bytes: int = 16 * 1024 * 1024  # at least 65,535
    frame_max_bytes: int = FRAME_BYTES_LEAST  # FRAME_SIZE_ERROR
    header_table_bytes: int = 4096
    header_list_max_bytes: int = 16_384  # decoded; the stream is refused, the connection goes on
    header_block_max_bytes: int = 65_536  # as sent, over all CONTINUATION frames; ENHANCE_YOUR_CALM
    continuations_max: int = 32  # frames of one block; ENHANCE_YOUR_CALM
    acks_waiting_max: int = 4096  # answers to control frames between two `take()`; ENHANCE_YOUR_CALM
    idle_frames_burst: int = 10_000  # ENHANCE_YOUR_CALM
    idle_frames_per_s: float = 1000.0
    idle_frames_per_message: int = 16
    resets_burst: int = 2000  # ENHANCE_YOUR_CALM
    resets_per_s: float = 500.0
    ended_streams_kept: int = 512  # ids of streams ended early; frames for older ones get the benefit of the doubt
    streams_before_settings: int = 100  # client: opened before the server has said how many it allows
    waiting_max: int = 1000  # client: streams that wait for the server's MAX_CONCURRENT_STREAMS; StreamUnavailable
    high_water_bytes: int = 65_536  # queued on a stream: `send_data` says False; `on_writable` at half
    small_bytes: int = 16_384  # a message up to this size overtakes larger ones
    reserve_bytes: int = 65_536  # of the connection's send window for small messages, at most an eighth of it
    overtake_max_bytes: int = 262_144  # small ones sent past a waiting large message before it gets one frame
    frame_out_max_bytes: int = 65_536  # one turn of a large message; the peer's MAX_FRAME_SIZE bounds it too
    burst_bytes: int = 262_144  # queued payload that one `take()` gives out

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least, most = _RANGES.get(field.name, (1, None))
            if value < least or (most is not None and value > most):
                upper = "" if most is None else f" and at most {most}"
                raise ValueError(f"Http2Limits.{field.name} is {value}; it must be at least {least}{upper}")


_RANGES: dict[str, tuple[int, int | None]] = {
    "window_bytes": (1, WINDOW_MAX),
    "connection_window_bytes": (WINDOW_DEFAULT, WINDOW_MAX),
    "frame_max_bytes": (FRAME_BYTES_LEAST, FRAME_BYTES_MOST),
    "header_table_bytes": (0, 0xFFFFFFFF),
    "header_list_max_bytes": (1, 0xFFFFFFFF),
    "waiting_max": (0, None),
    "reserve_bytes": (0, None),
    "continuations_max": (0, None),
    "idle_frames_per_s": (0, None),
    "idle_frames_per_message": (0, None),
    "resets_per_s": (0, None),
}
