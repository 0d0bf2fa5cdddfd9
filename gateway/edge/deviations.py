"""Where Sluice answers otherwise than Triton: the one table, and the only differences that the tests allow.

Rendered into `docs/protocols.md`. Triton here is 2.51, the pinned server, unless a row says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deviation:
    """One row. `id` is stable: tests and notes refer to it."""

    id: str
    on: str
    """`HTTP`, `gRPC` or `both`."""
    triton: str
    sluice: str
    why: str


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "bad-json",
        "HTTP",
        "Malformed, miscounted or mistyped JSON: 500.",
        "400 with what is wrong and where.",
        "It is the caller's fault; a 500 sets off retries and alarms.",
    ),
    Deviation(
        "bad-header-length",
        "HTTP",
        "An `Inference-Header-Content-Length` that is no number is taken as 0: the body as one raw tensor.",
        "400.",
        "Newer Tritons refuse it too; guessing reads JSON as a tensor.",
    ),
    Deviation(
        "binary-default",
        "HTTP",
        "The request's `binary_data_output` holds only for outputs that are not listed.",
        "A listed output without `binary_data` of its own inherits it.",
        "It is what the protocol's text says, and what callers who set it expect.",
    ),
    Deviation(
        "stateful",
        "both",
        "Models with `sequence_batching` are served.",
        "Never given traffic: 503, reason `no_replica`; `/v1/fleet` names the cause.",
        "All calls of a sequence must reach one replica in order, and nothing here holds them together yet.",
    ),
    Deviation(
        "queue-timeout",
        "both",
        "A request that waited too long in Triton's queue: 503 / UNAVAILABLE.",
        "504 / DEADLINE_EXCEEDED, reason `upstream_queue_timeout`.",
        "UNAVAILABLE means four things on Triton; time run out is not worth the same retry.",
    ),
    Deviation(
        "queue-full",
        "both",
        "A full queue: 503 / UNAVAILABLE.",
        "503 / RESOURCE_EXHAUSTED with `retry-after` (gRPC: `grpc-retry-pushback-ms`), whether the queue is the "
        "gateway's or Triton's.",
        "Load is told apart from absence.",
    ),
    Deviation(
        "no-replica",
        "both",
        "A model that is not ready: 404, or 503 / UNAVAILABLE if a version was named.",
        "503 / UNAVAILABLE, reason `no_replica`, if a policy names the model; 404 / NOT_FOUND only if none does, or "
        "the version does not exist.",
        "A model that is away for a moment does not cease to exist.",
    ),
    Deviation(
        "too-large",
        "HTTP",
        "400 above its input limit, which does not count binary tensors.",
        "413 above the model's `limits.body_bytes_max`, which counts the whole body; 414 and 431 for request lines "
        "and headers.",
        "Every bound has a status of its own.",
    ),
    Deviation(
        "http-deadline",
        "HTTP",
        "No deadlines over HTTP.",
        "`x-request-timeout-ms`; 504 when the deadline has passed, whatever else happened.",
        "Every call ends inside its deadline.",
    ),
    Deviation(
        "path",
        "HTTP",
        "Paths are matched as sent; percent escapes are never decoded.",
        "Split on `/` first, then each segment is percent-decoded once: `%2F` belongs to a name. Dot segments, control "
        "characters and broken escapes: 400.",
        "A model has one name, over HTTP as over gRPC.",
    ),
    Deviation(
        "version-form",
        "HTTP",
        "Version segments are digits; leading zeros are not specified.",
        "400 for everything but a whole number without leading zeros.",
        "One version, one spelling: in policies, records and metrics too.",
    ),
    Deviation(
        "server-ready",
        "both",
        "`/v2/health/ready` is about every model version that one server tries to serve.",
        "It means that the gateway can serve: it is not stopping, and every pool in use has a live replica with a "
        "ready model.",
        "One bad version must not take the whole fleet out of a balancer.",
    ),
    Deviation(
        "unknown-model-ready",
        "HTTP",
        "`ready` of an unknown model: 400 (404 from 26.07 on).",
        "404 with an error. A known model that is not ready: 400 with an empty body, as on Triton.",
        "The newer Triton is right.",
    ),
    Deviation(
        "shared-memory",
        "both",
        "Regions of shared memory can be registered and referred to.",
        "501 / UNIMPLEMENTED; the extensions are absent from the server metadata.",
        "A region exists on one host; a call may go to any.",
    ),
    Deviation(
        "header-names",
        "HTTP",
        "Headers forwarded as parameters keep the spelling of the caller.",
        "Names are lower case. Values that gRPC metadata cannot carry, and names ending in `-bin`, are dropped.",
        "The call goes on over gRPC.",
    ),
    Deviation(
        "error-text",
        "both",
        "Errors carry Triton's whole text, some with addresses, file paths and tracebacks.",
        "The text up to its first line break, without addresses and file paths.",
        "Errors must not tell callers about the inside.",
    ),
    Deviation(
        "error-type",
        "HTTP",
        "Errors are `text/plain` or `application/json`, depending on how far the request got.",
        "Always `application/json`. The body is Triton's: an object with the one member `error`.",
        "It is JSON.",
    ),
    Deviation(
        "compression",
        "HTTP",
        "Bodies with `Content-Encoding: gzip` or `deflate` are taken, and answers compressed if asked for.",
        "501 with `accept-encoding: identity` for any `Content-Encoding` but `identity`; answers are never compressed.",
        "Not served yet.",
    ),
    Deviation(
        "half-close",
        "HTTP",
        "Not specified.",
        "A client that ends its side of the connection before the answer to an inference is there counts as gone: the "
        "call is cancelled. Control queries that arrived before are answered.",
        "TCP does not tell a half-close from a close, and work for callers that left is cancelled.",
    ),
    Deviation(
        "framing",
        "HTTP",
        "Not specified.",
        "400, 417, 501 or 505, and the connection is closed: `Content-Length` together with `Transfer-Encoding`, a "
        "repeated `Content-Length`, bare CR or LF, folded headers, a missing `Host`, unknown expectations.",
        "What two parsers read differently is a way to smuggle requests.",
    ),
    Deviation(
        "more-headers",
        "both",
        "Answers carry no headers beyond the protocol's.",
        "The headers of the table above.",
        "Callers learn who answered, and why not.",
    ),
    Deviation(
        "refused-routes",
        "both",
        "generate, statistics, repository, trace and log settings.",
        "501 / UNIMPLEMENTED with where to go, as in the table of routes.",
        "Some come later; some concern one server and not the fleet.",
    ),
)
