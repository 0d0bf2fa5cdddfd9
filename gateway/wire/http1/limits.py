"""What one HTTP/1.1 client may make this side hold or do."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """Bounds of one connection; the status in brackets is what a client gets that goes over.

    Line lengths are without CRLF; `head_max_bytes` counts the request line, all header lines and their CRLFs.
    `body_max_bytes` is judged on Content-Length at once, on a chunked body at the first chunk size that goes over. A
    chunked body may have `chunks_free` chunks plus one per `chunk_average_min_bytes` of data, so that a flood of
    one-byte chunks ends early.
    """

    request_line_max_bytes: int = 8192  # 414
    header_line_max_bytes: int = 16384  # 431
    header_count_max: int = 100  # 431
    head_max_bytes: int = 32768  # 431
    leading_blank_lines_max: int = 4  # 400; empty lines before a request line, RFC 9112 section 2.2
    body_max_bytes: int = 128 * 1024 * 1024  # 413
    chunk_line_max_bytes: int = 256  # 400; chunk size with its extensions
    chunk_extensions_max_bytes: int = 4096  # 400; all extensions of one body
    chunks_free: int = 4096  # 400
    chunk_average_min_bytes: int = 16
    trailers_max_bytes: int = 8192  # 431; all trailer lines of one body
    pipeline_max: int = 1  # no refusal: what follows stays unparsed
    hold_max_bytes: int = 65536  # no refusal: `paused` asks the driver to stop reading
    drain_max_bytes: int = 262144  # no refusal: more than this left after an early answer closes the connection

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if value < least:
                raise ValueError(f"Http1Limits.{field.name} is {value}; it must be at least {least}")


_MAY_BE_ZERO = frozenset(
    {"leading_blank_lines_max", "chunk_extensions_max_bytes", "chunks_free", "trailers_max_bytes", "drain_max_bytes"}
)
