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
        "Malformed, miscounted or mistyped JSON: 500. What is given for a tensor without elements is overlooked, or "
        "used.",
        "400 with what is wrong and where.",
        "It is the caller's fault; a 500 sets off retries and alarms.",
    ),
    Deviation(
        "bad-header-length",
        "HTTP",
        "Of an `Inference-Header-Content-Length` that is no number the digits that it begins with count, or 0: the "
        "body as one raw tensor; of several such headers the first.",
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
        "sequence-lost",
        "both",
        "A server that was restarted answers a step of an old sequence by 400: its first request must carry START.",
        "Where the gateway knows that the replica is gone: 503 / UNAVAILABLE, reason `sequence_lost`, naming the "
        "sequence, until a call with `sequence_start` begins it again.",
        "The caller has done nothing wrong, and must know that what it built up is gone.",
    ),
    Deviation(
        "sequence-order",
        "both",
        "Calls of one sequence that are out at the same time run in the order in which they happen to arrive.",
        "A call waits until the one before it has ended, or on a shared stream until it was sent.",
        "Calls of one client may reach the gateway and the replica over several connections.",
    ),
    Deviation(
        "classified-bytes",
        "both",
        "`classification` of an output of datatype BYTES ends the whole server (a division by zero).",
        "400 / INVALID_ARGUMENT.",
        "No caller may stop a server for everybody.",
    ),
    Deviation(
        "sequence-owner",
        "both",
        "Whoever knows a sequence's id takes part in it.",
        "403 / PERMISSION_DENIED for a step of a sequence that another tenant has under way.",
        "Tenants must not read, or end, what others build up.",
    ),
    Deviation(
        "sequence-nul",
        "both",
        "A string `sequence_id` ends at its first NUL: what differs behind it is one sequence.",
        "400 / INVALID_ARGUMENT.",
        "Two sequences must not be one.",
    ),
    Deviation(
        "stream-request-ids",
        "gRPC",
        "On a stream the model sees the `id` of every request as it was sent.",
        "An id that is used twice among the requests to decoupled models or sequences that are out on one stream (two "
        "empty ones too) reaches the model with `~` and a number behind it, and a NUL in one as `?`. Responses carry "
        "the caller's own.",
        "Responses are told apart by id; which belongs to which call must be known for its record and its end.",
    ),
    Deviation(
        "stream-true-status",
        "gRPC",
        "With metadata `triton_grpc_error: true` a model's error ends the stream with its status. A model that tells "
        "its end apart from the error then crashes the whole server.",
        "The gateway ends the stream itself, and never passes the entry on. The code is recovered from the text, "
        "INTERNAL where that says nothing; calls refused for load or time end it too.",
        "No caller may stop a server for everybody.",
    ),
    Deviation(
        "stream-end-version",
        "gRPC",
        "The empty final response, and an error that is the last one, repeat the version as the request gave it, often "
        "none.",
        "They name the version that was called.",
        "Every response says which version it comes from.",
    ),
    Deviation(
        "stream-refusals",
        "gRPC",
        "A stream takes any number of requests.",
        "Beyond `gateway.grpc.stream_calls_max` requests of one stream that are out, the next is not read until one "
        "has ended. A client that does not take a message within `gateway.grpc.write_timeout_ms` is cut off. A bad key "
        "ends the stream with UNAUTHENTICATED before anything is read.",
        "Nothing here is without a bound.",
    ),
    Deviation(
        "stream-limits",
        "both",
        "A stream lasts as long as the model and the client like.",
        "A policy limits the time to the first response, between responses and on the whole "
        "(`deadline.first_response_s`, `idle_s`, `total_s`); then an error with reason `deadline` ends the call.",
        "A model that has gone silent must not be waited for without end.",
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
        "tenant-quota",
        "both",
        "No tenants, and no limits on them.",
        "429 / RESOURCE_EXHAUSTED, reason `quota`, with `retry-after` (gRPC: `grpc-retry-pushback-ms`), where "
        "`quotas` in fleet.yaml limit the caller's tenant and it is over its limit.",
        "One tenant must not take what belongs to all.",
    ),
    Deviation(
        "no-replica",
        "both",
        "A model that is not ready: 404, or 503 / UNAVAILABLE if a version was named; in statistics 400 / "
        "INVALID_ARGUMENT.",
        "503 / UNAVAILABLE if a policy names the model, reason `no_replica`, or `upstream_not_loaded` where it is a "
        "replica's answer to the call; 404 / NOT_FOUND (in statistics 400 / INVALID_ARGUMENT) only if none does, or "
        "the version does not exist.",
        "A model that is away for a moment does not cease to exist.",
    ),
    Deviation(
        "too-large",
        "HTTP",
        "400 above its input limit, which does not count binary tensors.",
        "413 above the model's `limits.body_bytes_max`, which counts the whole body, decompressed; 414 and 431 for "
        "request lines and headers.",
        "Every bound has a status of its own.",
    ),
    Deviation(
        "answer-too-large",
        "both",
        "400 / INVALID_ARGUMENT for an answer that no gRPC message can carry.",
        "500 / RESOURCE_EXHAUSTED, reason `answer_too_large`, above `message_bytes_max` of the model's pool; the text "
        "has both sizes.",
        "The bound is the operator's, not the caller's; asking again gives the same.",
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
        "both",
        "HTTP: a version segment that is not digits is 404, leading zeros are overlooked. gRPC: whatever begins with a "
        "number is that version, as `1.0` or ` 1`; the rest INVALID_ARGUMENT, before the model is looked for.",
        "400 / INVALID_ARGUMENT for everything but a whole number without leading zeros, of a model that is known; "
        "over gRPC an unknown one is NOT_FOUND first in an inference.",
        "One version, one spelling: in policies, records and metrics too.",
    ),
    Deviation(
        "fault-order",
        "both",
        "Of several faults of one request the first is told: an unknown version before what is wrong with the JSON, "
        "and after what makes a message unreadable.",
        "An unknown version is told after faults of the JSON and of a sequence's parameters, and before faults inside "
        "a message's tensors. An unknown model comes first.",
        "Versions are chosen when the request has been read; tensors are read by the model server.",
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
        "404, of an unknown version too. A model that is known and not ready: 400, as on Triton.",
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
        "server-settings",
        "both",
        "Trace and log settings can be read and changed, and models loaded and unloaded.",
        "501 / UNIMPLEMENTED with where to do it, reading included.",
        "Settings belong to one server; which versions are loaded where is decided by releases.",
    ),
    Deviation(
        "extensions",
        "both",
        "The server metadata has the server's own name (`triton`, or what `--id` says) and lists every extension that "
        "it has.",
        "The name is always `triton`. Without `system_shared_memory`, `cuda_shared_memory`, `trace`, `logging` and "
        "`model_repository(unload_dependents)`. `model_repository` stays: its index is served.",
        "A client that looks for an extension must not find one that is refused, nor see which replica was asked.",
    ),
    Deviation(
        "statistics",
        "both",
        "The counts of one server, back at zero after every load.",
        "Those of all replicas of the model's pool in one, as in the table of merged answers; only of models and "
        "versions that policies open and that the caller may call.",
        "A caller sees one server, and takes differences.",
    ),
    Deviation(
        "repository-index",
        "both",
        "Everything in one server's repository.",
        "What policies open and the caller may call, over all replicas, as in the table of merged answers.",
        "A caller sees one server, and only what it can call there.",
    ),
    Deviation(
        "repository-name",
        "HTTP",
        "`/v2/repository/{repository}/index` answers as if no repository had been named (gRPC: UNIMPLEMENTED).",
        "501, as over gRPC.",
        "An answer to another question is none.",
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
        "compressed-body",
        "HTTP",
        "A compressed body is taken as far as it can be decompressed: cut short, with a wrong checksum, with bytes or "
        "a second gzip member behind it, which are dropped. What gives nothing is an empty body, a raw request.",
        "400. As on Triton the bytes say whether they are gzip or zlib, whatever of the two the header says.",
        "A tensor that lost its end must not be answered as if it were whole.",
    ),
    Deviation(
        "coding-headers",
        "HTTP",
        "Of several `Content-Encoding` or `Accept-Encoding` headers only the first is looked at; weights may be "
        "hexadecimal or infinite.",
        "Several headers are one list (RFC 9110 section 5.3): two `Content-Encoding` are two codings, 501. Weights are "
        "decimal numbers.",
        "Otherwise a body coded twice is read as coded once.",
    ),
    Deviation(
        "grpc-encoding",
        "gRPC",
        "An unknown `grpc-encoding`: the stream is reset (INTERNAL_ERROR).",
        "INTERNAL with a text. Known are `gzip` and `deflate`, as on Triton; answers are never compressed, as there.",
        "To clients it is the same code, and they learn why.",
    ),
    Deviation(
        "grpc-requests",
        "gRPC",
        "A request with another method than POST, or another content type than `application/grpc`, is reset; one "
        "without `te: trailers` ends as UNKNOWN.",
        "405 and, where the content type is not `application/grpc`, 415, in plain HTTP with a text; `te` may be "
        "missing. A unary call without a message is INTERNAL, and one whose message does not come within "
        "`gateway.grpc.message_idle_timeout_ms` DEADLINE_EXCEEDED.",
        "Who speaks another protocol learns it, as the specification of gRPC over HTTP/2 asks; and a call that never "
        "comes keeps no place.",
    ),
    Deviation(
        "grpc-strict",
        "gRPC",
        "A known field of another wire type than its own is overlooked. On a stream, bytes that are no message end it "
        "with OK.",
        "INTERNAL, as for bytes that are no message; for overlong tags too.",
        "What two parsers may read differently must not be one model here and another there.",
    ),
    Deviation(
        "compression-level",
        "HTTP",
        "Answers are compressed at zlib's level 6, and there is no switch.",
        "At `gateway.http.response_compression_level`, 1 unless set: a few per cent larger, up to seven times cheaper. "
        "`gateway.http.response_compression: false` switches it off.",
        "Some clients ask for compression without their users' knowing, and pay in latency.",
    ),
    Deviation(
        "half-close",
        "HTTP",
        "Not specified.",
        "A client that ends its side of the connection before the answer to an inference is there counts as gone: the "
        "call is cancelled, and so are statistics and the repository index. Other control queries that arrived before "
        "are answered.",
        "TCP does not tell a half-close from a close, and work for callers that left is cancelled.",
    ),
    Deviation(
        "framing",
        "HTTP",
        "Not specified. 2.51 serves most of this, and of the rest ends the connection without a word; extensions of "
        "chunks and `OPTIONS *` too. Behind an empty line it answers nothing.",
        "400, 417, 501 or 505, and the connection is closed: `Content-Length` together with `Transfer-Encoding`, a "
        "repeated `Content-Length`, bare CR or LF, folded headers, a missing `Host`, unknown expectations, methods or "
        "versions of HTTP. `close` counts wherever it stands in `Connection`. Extensions of chunks, and empty lines "
        "before a request, are overlooked.",
        "What two parsers read differently is a way to smuggle requests.",
    ),
    Deviation(
        "split-bytes",
        "HTTP",
        "Where the body arrives in pieces, binary BYTES are 400 if one of their lengths lies in two of them.",
        "How a body arrives makes no difference.",
        "Neither a client nor a network knows where elements begin.",
    ),
    Deviation(
        "pipelining",
        "HTTP",
        "What is pipelined behind an inference is answered; what is pipelined behind anything else never is.",
        "Everything is answered, in order.",
        "RFC 9112 section 9.3.2.",
    ),
    Deviation(
        "expect",
        "HTTP",
        "`Expect: 100-continue` is granted always, to HTTP/1.0 too.",
        "Only where the body is wanted and has not come already, and never to HTTP/1.0.",
        "RFC 9110 section 10.1.1; a refused body need not be sent.",
    ),
    Deviation(
        "more-headers",
        "both",
        "Answers carry no headers beyond the protocol's.",
        "The headers of the table above.",
        "Callers learn who answered, and why not.",
    ),
    Deviation(
        "json-range",
        "HTTP",
        "Integers in JSON that are too large for their datatype lose their upper bits, except negative ones for "
        "unsigned types (500); numbers too large for FP32 become infinite.",
        "400.",
        "A number that silently becomes another one is never what was meant.",
    ),
    Deviation(
        "json-doubles",
        "HTTP",
        "Of the numbers with 16 digits and more that JSON gives for FP64, every third to tenth becomes a neighbour of "
        "the one that was meant, up to two units of the last place away.",
        "The nearest double.",
        "So does every sound JSON reader; the same number as binary data gives the same answer.",
    ),
    Deviation(
        "json-text",
        "HTTP",
        "Strings in a request's JSON that are not UTF-8, or that escape half of a character, are taken as they are; "
        "BYTES that are not UTF-8 are written into an answer's JSON as they are.",
        "400: send, or ask for, such bytes as binary data.",
        "It is no JSON.",
    ),
    Deviation(
        "duplicate-members",
        "HTTP",
        "Of equal names in one JSON object the first counts; `generate` refuses an input that is given twice (400).",
        "The last counts; `generate` refuses what is given at the top and in `parameters`.",
        "The parser decides it, and no sound caller sends it.",
    ),
    Deviation(
        "generate-one-response",
        "HTTP",
        '`generate` of a model that gives none or several responses: 200 with `{"error": …}` as the body. A model\'s '
        "error is always 400, whatever its code.",
        "None or several: 500 with Triton's text, reason `bad_request`, and the call is cancelled at the second one. A "
        "model's error has its own status, which of a decoupled model its text alone tells: 500 if that says nothing.",
        "A failure behind a 200 is one that nobody counts.",
    ),
    Deviation(
        "generate-errors",
        "HTTP",
        "`generate_stream` whose first response is an error: 400 and one event with `text/event-stream`. After a later "
        "one the stream goes on if the model does.",
        "The error's own status and ordinary JSON, for nothing has been streamed. A later one is the last event, and "
        "the call is cancelled.",
        "A client that has been told of an error should not have to wait for more.",
    ),
    Deviation(
        "generate-framing",
        "HTTP",
        "Answers of `generate` are chunked. HTTP/1.0 clients get chunks too.",
        "`generate` answers with `Content-Length`. A stream for an HTTP/1.0 client has no chunks and ends with the "
        "connection.",
        "The length is known; a client of HTTP/1.0 takes the sizes of chunks for data.",
    ),
    Deviation(
        "generate-reserved-names",
        "HTTP",
        "On `generate` a member called `timeout`, `priority`, `sequence_…` or `triton_…` is the model's own parameter.",
        "The first three mean what they mean on `infer`, their types included; `triton_…` is 400.",
        "The call goes on over gRPC, where these names are taken.",
    ),
    Deviation(
        "generate-disconnect",
        "HTTP",
        "A client that leaves is noticed at the model's next response.",
        "At once, and the call is cancelled on the model server, also while the model is silent.",
        "Work for callers that left is cancelled.",
    ),
)
