"""Renders `docs/protocols.md` from the tables in code: `python -m gateway.edge.document > docs/protocols.md`.

A test holds the file to the rendering.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gateway.core import header_names
from gateway.core.errors import GatewayError, Reason
from gateway.edge import headers
from gateway.edge.deviations import DEVIATIONS
from gateway.edge.grpc_methods import CONTROL_METHODS, HEALTH_CHECK, INFER
from gateway.edge.grpc_methods import REFUSED as REFUSED_METHODS
from gateway.edge.http_control import OPEN_ROUTES, REFUSED, SERVED
from gateway.edge.status import CODE_STATUS, RETRY_STATUSES, status_of
from gateway.wire.http_path import Route

_INTRO = """# Protocols

<!-- Rendered from the code by `python -m gateway.edge.document > docs/protocols.md`; a test holds them equal. -->

Sluice speaks Triton's own protocols, the Open Inference Protocol (KServe v2) with Triton's extensions: HTTP/1.1 on one
port, gRPC on another. A client of Triton changes the address and nothing else. Whatever is not in the table of
deviations is answered as Triton answers it.

Whatever protocol a call comes by, it goes on to a model server over gRPC, because only there does a cancellation reach
Triton's queue.

**A connection over HTTP.** Requests may be pipelined; answers leave in their order. Identity, quotas and sizes are
decided when the headers are there, before the body: `Expect: 100-continue` is granted only to a request whose body is
wanted. After an early refusal a short rest of the body is read and dropped, a longer one ends the connection; bytes of
a body are never taken for a request. All bounds and time-outs stand under `gateway.http` in `fleet.yaml`
(`docs/policies.md`). HTTP/1.0 is answered too.

**Deadlines** count from the first byte of a call's headers. An answer that is ready after its deadline is not sent; the
caller gets 504 instead.
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
            key = "no key needed" if route in OPEN_ROUTES else "key needed where `identity.mode` is `api_key`"
            rows.append((f"`{route.template}`", methods, f"served; {key}"))
        else:
            rows.append((f"`{route.template}`", methods, f"501: {REFUSED[route]}"))
    text = "## Routes over HTTP\n\n" + _table(("path", "methods", "what happens"), rows)
    return (
        text + "\nAn unknown path is 404 `Not Found`, another method (HEAD included) 405 `Method Not Allowed`. Queries "
        "are ignored; a trailing or a double slash matches nothing.\n"
    )


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
        "The caller's key. Two different ones: 400. Other schemes of `authorization` are ignored.",
    ),
    (
        header_names.TRACEPARENT + ", " + header_names.TRACESTATE,
        "W3C trace context: passed on byte for byte if valid, dropped without an error if not.",
    ),
    (
        header_names.EXPLAIN,
        "`1`: the answer carries the call's path as JSON in the header of the same name; replicas under stand-in names "
        "unless the key has `may_explain`.",
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
    ("retry-after", "On 429 and 503: whole seconds, jittered. gRPC: `grpc-retry-pushback-ms`, when shed."),
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
        f"{prefixes}, names that `Connection` lists, and what gRPC metadata cannot carry: values that are empty or not "
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
    return "\n".join((_INTRO, _routes(), _methods(), _headers(), _reasons(), _deviations()))


if __name__ == "__main__":
    sys.stdout.write(render())
