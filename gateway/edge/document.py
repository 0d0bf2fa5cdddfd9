"""Renders `docs/protocols.md` from the tables in code: `python -m gateway.edge.document > docs/protocols.md`.

A test holds the file to the rendering.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gateway.core import header_names
from gateway.core.criticality import WORDS
from gateway.core.errors import GatewayError, Reason
from gateway.edge import headers
from gateway.edge.deviations import DEVIATIONS
from gateway.edge.grpc_methods import CONTROL_METHODS, HEALTH_CHECK, INFER
from gateway.edge.grpc_methods import REFUSED as REFUSED_METHODS
from gateway.edge.http_control import OPEN_ROUTES, REFUSED, SERVED
from gateway.edge.status import CODE_STATUS, RETRY_STATUSES, status_of
from gateway.wire.http_path import Route
from gateway.wire.kserve.metadata import SERVER_NAME
from gateway.wire.kserve.repository import MERGE_RULES as INDEX_RULES
from gateway.wire.kserve.statistics import MERGE_RULES as STATISTICS_RULES

_INTRO = """# Protocols

<!-- Rendered from the code by `python -m gateway.edge.document > docs/protocols.md`; a test holds them equal. -->

Sluice speaks Triton's own protocols, the Open Inference Protocol (KServe v2) with Triton's extensions: HTTP/1.1 on one
port, gRPC on another. A client of Triton changes the address and nothing else. Whatever is not in the table of
deviations is answered as Triton answers it.

Whatever protocol a call comes by, it goes on to a model server over gRPC, because only there does a cancellation reach
Triton's queue.

**A connection over HTTP.** Requests may be pipelined; answers leave in their order. Identity, quotas and sizes are
decided when the headers are there, before the body: `Expect: 100-continue` is granted only to a request whose body is
wanted. After an early refusal a short rest of the body is read and dropped and the connection kept; a longer one ends
it, and is read on for a while so that a client that sends all before it reads still sees the refusal
(`docs/operations.md`, Sizes); bytes of a body are never taken for a request. All bounds and time-outs stand under
`gateway.http` in `fleet.yaml` (`docs/policies.md`). HTTP/1.0 is answered too.

**NaN and the infinities in JSON.** JSON has no word for them. Sluice reads and writes the bare words `NaN`, `Infinity`
and `-Infinity`, as Triton does: on `infer`, on `generate`, and in the events of `generate_stream`. In a request `Inf`,
`-Inf` and `-NaN` are taken too. Where a number is wanted `nan`, `inf`, `+Infinity`, such a word in quotes, `null`, and
numbers that a double cannot hold are 400. Parsers that keep to the standard refuse such an answer: ask for binary data,
or use gRPC; both keep every bit of a NaN too. In prediction records the words are strings.

**TLS.** With `gateway.listen.tls` both client ports speak TLS 1.2 or later alone, with `http/1.1` and `h2` by ALPN; a
handshake ends after `handshake_timeout_ms`. Over HTTP it takes a place among `gateway.http.connections_max`, plain HTTP
is answered 400 in the clear, and a connection ends with `close_notify`; one that a client ends without has ended too.

**Deadlines** count from the first byte of a call's headers. An answer that is ready after its deadline is not sent; the
caller gets 504 instead.

**`generate` and `generate_stream`.** Members of the request go by their names: inputs of the model become tensors,
anything else parameters. Each response of a stream leaves as one event as soon as it has come; while the client does
not take what it was sent, no further response is asked for. What goes wrong before the first response is a status,
afterwards an event `{"error": …}`, always the last one: a body that ends without one is complete, and if not even the
event can be written, the connection breaks. If the gateway stops, streams go on until the limit of its drain. Limits:
`deadline.first_response_s`, `idle_s` and `total_s` of the model's policy, and `x-request-timeout-ms` for the whole.
"""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _routes() -> str:
    rows = []
    for route in Route:
        methods = ", ".join(sorted(method.decode() for method in route.methods))
        if route in SERVED:
            key = "for everybody" if route in OPEN_ROUTES else "for callers that `identity` lets in"
            rows.append((f"`{route.template}`", methods, f"served; {key}"))
        else:
            rows.append((f"`{route.template}`", methods, f"501: {REFUSED[route]}"))
    text = "## Routes over HTTP\n\n" + _table(("path", "methods", "what happens"), rows)
    return (
        text + "\nAn unknown path is 404 `Not Found`, another method (HEAD included) 405 `Method Not Allowed`. Queries "
        "are ignored; a trailing or a double slash matches nothing.\n"
    )


_MERGED = """## Answers merged over the fleet

Statistics and the repository index are asked of all live replicas at once when a caller asks for them, each under the
time limit of its pool's probes (`pools.*.health.timeout_ms`), and made into one answer. Callers who ask at the same
time share one question to the replicas, which always begins after they asked; there is one at a time, with a pause
after each.

Only models that a policy names, versions that it opens, and models that the caller may call are shown; of a model only
the replicas of its pool count. Calls that the gateway makes itself, to warm a version, are in the counts.

Statistics:

{statistics}
The counts never go back while any replica keeps the version loaded: a replica that does not answer counts with what it
said last; what was counted by a replica that has left the fleet, was started anew, or has loaded the version anew,
stays in as the gateway last heard it. When no replica has the version any more it is forgotten, and begins at zero when
it comes back. A gateway that is started anew knows only of the replicas that are there. If no replica of the model
asked for answers, the answer is 503 / UNAVAILABLE.

The repository index:

{index}
A replica that does not answer is left out. Of a model whose replicas are all silent the versions known from before are
`UNAVAILABLE`; if no replica at all answers, the answer is 503 / UNAVAILABLE.

Server metadata is not merged: `version` and `extensions` are those of one live replica, and may change between two
calls while replicas of different releases run side by side. The `name` is always `{name}`.
"""


def _merged() -> str:
    head = ("field", "over several replicas")
    return _MERGED.format(statistics=_table(head, STATISTICS_RULES), index=_table(head, INDEX_RULES), name=SERVER_NAME)


def _methods() -> str:
    served = sorted((*CONTROL_METHODS, HEALTH_CHECK, INFER))
    rows = [(f"`{method}`", "served") for method in served]
    rows += [(f"`{method}`", f"UNIMPLEMENTED: {text}" if text else "UNIMPLEMENTED") for method, text in
             sorted(REFUSED_METHODS.items())]  # fmt: skip
    return "## Methods over gRPC\n\n" + _table(("method", "what happens"), rows)


_IN = (
    (
        header_names.REQUEST_ID,
        f"The call's id in records, logs and the answer: 1 to {headers.REQUEST_ID_CHARS_MAX} printable ASCII "
        "characters, else 400. Made if absent or empty. The body's `id` is another thing; neither fills the other.",
    ),
    (
        header_names.TIMEOUT_MS,
        f"The caller's budget, whole milliseconds from 1 to {headers.TIMEOUT_MS_MAX}; anything else 400. Shortens what "
        "the policy allows, never raises it. gRPC callers use `grpc-timeout`.",
    ),
    (
        f"{header_names.API_KEY}, or authorization: Bearer",
        "The caller's key; as `authorization: Bearer` also a JWT. Two different ones: 400. Other schemes of "
        "`authorization` are ignored. What decides where several kinds of credentials are taken: docs/policies.md.",
    ),
    (
        "the header of identity.header.name",
        "The tenant, where the peer is in one of `identity.header.networks`; from all others it is ignored.",
    ),
    (
        header_names.TRACEPARENT + ", " + header_names.TRACESTATE,
        "W3C trace context: passed on byte for byte if valid, dropped without an error if not.",
    ),
    (
        header_names.PRIORITY,
        f"The class of the call: {WORDS}, best first; anything else 400. Without it the model's policy says. It "
        "lowers, or raises up to the highest class of the caller's tenant; a wish beyond that is cut to it and not "
        "refused, so that a client needs no knowledge of its rights. Classes decide who waits and who is turned away "
        "when not all can be served, never what is answered. On a stream it is of all its calls.",
    ),
    (
        header_names.EXPLAIN,
        "`1`: the answer carries the call's path as JSON in the header of the same name; replicas under stand-in names "
        "unless the caller has `may_explain`.",
    ),
)
_OUT = (
    (header_names.REQUEST_ID, "The call's id. On every response."),
    ("x-sluice-model", "The model asked for. Like every name here percent-encoded where it is not visible ASCII."),
    (
        "x-sluice-model-version",
        "The version that answered, as the model server says; after an error the one routed to.",
    ),
    ("x-sluice-rung", "The rung that answered; `full` is the model itself."),
    ("x-sluice-cache", "`bypass`: there is no cache yet."),
    ("x-sluice-attempts", "How many times the call was sent to a model server."),
    ("x-sluice-reason", "Why there is no answer: a reason of the table below."),
    (header_names.EXPLAIN, "On request."),
    (
        "retry-after",
        "On 429 and 503: whole seconds, at least 1: how long what waits for the model will take, by estimate, and up "
        "to half as much again by chance, so that those who are turned away together do not come back together. gRPC: "
        "`grpc-retry-pushback-ms`, when shed or over quota.",
    ),
    (
        "content-encoding",
        "Over HTTP, on answers to `infer` for which the caller's `accept-encoding` prefers `gzip` or `deflate`. "
        "`Inference-Header-Content-Length` still counts the JSON as it is when unpacked.",
    ),
    ("accept-encoding", "On 501 for a `content-encoding` that is not taken: those that are."),
    ("www-authenticate", "On 401."),
    ("allow", "On 405."),
)


def _headers() -> str:
    never = ", ".join(f"`{name}`" for name in sorted(header_names.NEVER_FORWARDED))
    prefixes = ", ".join(f"`{prefix}*`" for prefix in header_names.NEVER_PREFIXES if prefix != ":")
    not_yet = ", ".join(f"`{name}`" for name in sorted(headers.NOT_YET))
    return (
        "## Headers\n\nOver gRPC the same names are metadata.\n\n"
        + _table(("from the caller", "meaning"), ((f"`{name}`", text) for name, text in _IN))
        + f"\nNot available yet, and therefore refused with 501: {not_yet}.\n\n"
        + _table(("to the caller", "meaning"), ((f"`{name}`", text) for name, text in _OUT))
        + "\nInference calls carry all that is known; control queries `x-request-id`, the model, and the reason of an "
        "error.\n\nHeaders that go on to Triton: those that `gateway.forward_headers` names, in lower case, up to "
        f"{headers.FORWARD_BYTES_MAX} bytes (beyond: 431 / RESOURCE_EXHAUSTED). Never: {never}, names beginning with "
        f"{prefixes}, the header of `identity.header`, "
        "names that `Connection` lists, and what gRPC metadata cannot carry: values that are empty or not "
        "printable ASCII, names that end in `-bin`. Trace context goes on whatever the policy names.\n"
    )


_TRITONS_CODE = frozenset({Reason.UPSTREAM_INVALID, Reason.UPSTREAM_BROKEN})


def _reasons() -> str:
    rows = []
    for reason in Reason:
        status = status_of(GatewayError(reason, ""))
        retry = "yes" if status in RETRY_STATUSES else ""
        others = " (or Triton's own)" if reason in _TRITONS_CODE else ""
        rows.append((f"`{reason.label}`", f"{status}{others}", reason.code.name + others, retry, reason.meaning))
    codes = ((code.name, str(status)) for code, status in CODE_STATUS.items())
    return (
        '## Errors\n\nThe body over HTTP is Triton\'s: `{"error": "…"}`. `x-sluice-reason` is one of:\n\n'
        + _table(("reason", "HTTP", "gRPC", "`retry-after`", "meaning"), rows)
        + "\n`unknown_route` is 405 where only the method is wrong. Where Triton's own code is passed on, its status "
        "over HTTP is:\n\n" + _table(("gRPC code", "HTTP"), codes)
    )


def _deviations() -> str:
    rows = ((f"`{row.id}`", row.on, row.triton, row.sluice, row.why) for row in DEVIATIONS)
    return "## Deviations from Triton\n\n" + _table(("id", "on", "Triton 2.51", "Sluice", "why"), rows)


def render() -> str:
    """The whole of `docs/protocols.md`."""
    return "\n".join((_INTRO, _routes(), _methods(), _merged(), _headers(), _reasons(), _deviations()))


if __name__ == "__main__":
    sys.stdout.write(render())
