"""The manual of the policies, rendered from the schema, so that it can say nothing else than what the loader does.

`python -m gateway.policy.document > docs/policies.md`, in the project's directory.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from gateway.policy import later
from gateway.policy.decode import decode, description_of
from gateway.policy.files import KEYS_BYTES_MAX, POLICY_BYTES_MAX
from gateway.policy.identity_subjects import SUBJECTS_BYTES_MAX, SubjectEntry
from gateway.policy.keys import KeyEntry
from gateway.policy.problems import PolicyError, Problems
from gateway.policy.scalars import unit_of
from gateway.policy.schema import FleetPolicy, ModelPolicy
from gateway.policy.words import bare, wanted
from gateway.policy.yaml_tree import parse

INTRO = f"""# Policies

<!-- Rendered by `python -m gateway.policy.document > docs/policies.md`; change gateway/policy/, not this page. -->

What the gateway does is declared in a directory of YAML files:

```
policies/
  fleet.yaml       pools of replicas, who may call, ports and bounds of the gateway
  models/*.yaml    one file per model
```

The directory is read as a whole and taken as a whole: if anything in it is wrong, nothing of it is used, and every
problem is listed with file, line, column and remedy (see [How errors look](#how-errors-look)). What is in use is named
by its **revision**, the first 12 hexadecimal digits of the SHA-256 over the names and contents of all these files and
of the request files that they name. Key files and watched files of replicas are not part of it: they change by
themselves.

Rules for all files:

- Keys carry their unit: `_ms`, `_s`, `_bytes`. Values are bare numbers; `5s` or `4MiB` is an error that names the
  number to write.
- Nothing is ignored: an unknown key, a key that stands twice, a value of another type, or a file that would not be read
  is an error. A key without a value (null) is one too: leave the key out to get its default.
- Versions of models are text: `"2"`, in quotes.
- YAML 1.2: `no`, `on` and `12:30` are text, `1e3` is a number. One document per file, UTF-8, at most {POLICY_BYTES_MAX}
  bytes. Anchors, aliases, merge keys and tags are not taken.
- Hidden files and editors' backup copies (`.name`, `name~`, `#name#`) are passed over. Symbolic links are followed.
"""

KEYS_EXAMPLE = """# One entry per key. A tenant may have several, so that a key can be replaced without a gap.
- tenant: shop
  sha256: "2f0a1c7f8a2f3f0c5b1f3f7a9d0e6b7c8d9e0f1a2b3c4d5e6f708192a3b4c5d6"
  models: [fraud, fraud-lite]
- tenant: operations
  sha256: "9b1d5e3f7a8c6b4d2e0f1a3c5b7d9e8f6a4c2b0d1e3f5a7c9b8d6e4f2a0c1b3d"
  may_explain: true
"""

SUBJECTS_EXAMPLE = """# One entry per subject, written with its kind.
- subject: "uri:spiffe://cluster.local/ns/shop/sa/checkout"
  tenant: shop
  models: [fraud, fraud-lite]
- subject: "dns:ops.example.com"
  tenant: operations
  may_explain: true
"""

BAD_EXAMPLE = """model: fraud
pool: cpu
objective: {p99_ms: 50}
ladder: none
impact: Payments wait for a manual review.
deadline:
  default_s: 1
  max_ms: 5s
split: {1: 90, "2": 10}
hedging: {}
"""


def render(policies: Path) -> str:
    """The whole page. `policies` is the directory whose files are shown as examples. Raises OSError."""
    return "\n".join(_page(policies)).rstrip("\n") + "\n"


def _page(policies: Path) -> Iterator[str]:
    yield INTRO
    yield "## fleet.yaml\n"
    yield "For example, as it comes with the project:\n"
    yield _block("yaml", (policies / "fleet.yaml").read_text("utf-8"))
    yield from tables(FleetPolicy, "", title="Keys of fleet.yaml")
    yield "## models/*.yaml\n"
    yield "For example, `models/fraud.yaml` as it comes with the project:\n"
    yield _block("yaml", (policies / "models" / "fraud.yaml").read_text("utf-8"))
    yield from tables(ModelPolicy, "", title="Keys of a model's file")
    yield "## The key file\n"
    yield _prose(
        "With API keys the file `identity.keys_file` lists the keys that are good, by their SHA-256 "
        f"and never the keys themselves; at most {KEYS_BYTES_MAX} bytes. The tenant `anonymous` is reserved. A key "
        "that is not in it, or none, gets 401 / UNAUTHENTICATED. For example:"
    )
    yield _block("yaml", KEYS_EXAMPLE)
    yield from tables(KeyEntry, "", title="Keys of an entry")
    yield "## The file of certificate subjects\n"
    yield _prose(
        "With client certificates the file `identity.mtls.subjects_file` says which tenant a verified certificate "
        f"stands for; at most {SUBJECTS_BYTES_MAX} bytes. URIs are compared as they stand, DNS names in lower case. A "
        "certificate of which no name is in it, or whose names stand for different tenants, gets 401 / "
        "UNAUTHENTICATED. For example:"
    )
    yield _block("yaml", SUBJECTS_EXAMPLE)
    yield from tables(SubjectEntry, "", title="Keys of an entry of subjects")
    yield "## Several kinds of credentials\n"
    yield IDENTITY
    yield "## Between the keys\n"
    yield CHECKS
    yield "## Not available yet\n"
    yield _prose(
        "These are refused by name rather than ignored, because a policy that asks for something and silently does not "
        "get it is worse than one that is refused."
    )
    yield from _later("models/*.yaml", later.MODEL_KEYS, later.MODEL_VALUES)
    yield from _later("fleet.yaml", later.FLEET_KEYS, later.FLEET_VALUES)
    yield "## How errors look\n"
    yield "This file:\n"
    yield _block("yaml", BAD_EXAMPLE)
    yield "is answered with all that is wrong in it, each as `file:line:column: key: what is wrong; what to do`:\n"
    yield _block("", _errors(BAD_EXAMPLE))


IDENTITY = """With `identity.mode: any` the first kind that is declared and shown decides, and decides alone:

1. an API key, in `x-api-key` or as `authorization: Bearer`;
2. a JWT, as `authorization: Bearer` (what is no known key there is judged as a token);
3. the trusted header, from a peer in one of its networks;
4. the client certificate.

What is shown and bad is refused (401), whatever else is shown; nothing falls through to another kind or to `anonymous`.
Kinds that are not declared are not looked at. `authorization`, `x-api-key` and the trusted header never go on to
Triton, whatever `gateway.forward_headers` says. Health, readiness and the gRPC health service need no credentials.
"""


CHECKS = """Values that are right alone can be wrong together. Checked as well:

- `pool` stands in fleet.yaml; key files and request files exist (a watched file may come later; until then its pool
  is empty), and a request file is a KServe v2 request within `limits.body_bytes_max`. Paths are relative to the file
  that names them.
- Every model has one file.
- `deadline.default_ms` is at most `deadline.max_ms`, and `objective.p99_ms` at most either.
- The stages of `deadline.stages` come to at most `deadline.default_ms`, and to at most `deadline.max_ms`.
- `limits.body_bytes_max` is at most the pool's `message_bytes_max`, `gateway.grpc.message_bytes_max` and
  `gateway.body_memory_bytes`; a pool's `message_bytes_max` is at most `gateway.grpc.message_bytes_max`.
- `split` gives at least one version a weight above 0, and names only versions of `versions` if that is given.
- A pool has exactly one of `static`, `dns`, `file`. Static addresses are distinct over all pools, at most
  `replicas_max` per pool, and none is a port of the gateway itself.
- The gateway's four listeners have ports of their own.
- `identity.mode` and what it needs go together: `api_key` with `keys_file`, `jwt`, `mtls` and `header` with the key of
  the same name, `any` with at least two of these. The files are there and good; keys of tokens fit the algorithms.
- `identity.mtls` needs a port that asks for certificates: `gateway.listen.tls.client_certificate`, and that its
  `client_ca_file`.
- Certificates and keys of TLS are PEM, the key belongs to the certificate and is not encrypted. (An expired certificate
  is logged and used.) A pool's `certificate_file` and `key_file` go together.
- `health.recheck_ms` is at most `health.interval_ms`.
- A `burst` of `quotas` stands beside a `rate_per_s`; limits on a model limit something, and a policy names the model.
- `ejection.pause_ms` is at most `ejection.pause_max_ms`.
- `affinity` by a header or a parameter has its `name`, by `sequence` none; a header is one that
  `gateway.forward_headers` lets through.
"""


def tables(cls: Any, path: str, title: str = "") -> Iterator[str]:
    """The table of a struct, then those of the structs within it, each headed by its path."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    yield f"### {title or f'`{path}`'}\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    inner: list[tuple[Any, str]] = []
    for field in info.fields:
        name = field.encode_name
        type_ = bare(field.type)
        below = f"{path}.{name}" if path else name
        if isinstance(type_, inspect.DictType) and isinstance(bare(type_.value_type), inspect.StructType):
            inner.append((bare(type_.value_type), f"{below}.<name>"))
        elif isinstance(type_, inspect.VarTupleType) and isinstance(bare(type_.item_type), inspect.StructType):
            inner.append((bare(type_.item_type), f"{below}[]"))
        elif isinstance(type_, inspect.StructType):
            inner.append((type_, below))
        value = _value(type_, name)
        row = (f"`{name}`", value, _default(field), description_of(field.type))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""
    for struct, below in inner:
        yield from tables(struct.cls, below)


def _value(type_: inspect.Type, name: str) -> str:
    if isinstance(type_, inspect.DictType) and isinstance(bare(type_.value_type), inspect.StructType):
        return f"a mapping from {wanted(type_.key_type)} to the keys below"
    if isinstance(type_, inspect.VarTupleType) and isinstance(bare(type_.item_type), inspect.StructType):
        return "a list, each with the keys below"
    if isinstance(type_, inspect.StructType):
        return "the keys below"
    if isinstance(type_, inspect.StrType) and type_.max_length is not None:
        return f"text, {type_.min_length or 0} to {type_.max_length} characters"
    return wanted(type_, unit_of(name))


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = msgspec.to_builtins(field.default)
    if isinstance(value, dict):
        return "see below"
    if value is None:
        return "see right" if "Default:" in description_of(field.type) else "none"
    if isinstance(value, float) and value == int(value):
        value = int(value)
    if isinstance(value, list | tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return "empty" if value == "" else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _later(file: str, keys: dict[str, str], values: dict[tuple[str, str], str]) -> Iterator[str]:
    yield f"In {file}:\n"
    yield "| key | why not yet |"
    yield "|---|---|"
    rows = {f"`{key}`": reason for key, reason in keys.items()}
    for (key, value), reason in values.items():
        rows[f"`{key}` other than `none`" if value == "*" else f"`{key}: {value}`"] = reason
    for key in sorted(rows):
        yield f"| {key} | {rows[key]} |"
    yield ""


def _errors(text: str) -> str:
    file = "policies/models/fraud.yaml"
    problems = Problems()
    decode(parse(text.encode(), file, POLICY_BYTES_MAX, problems), ModelPolicy, "model", file, problems)
    try:
        problems.raise_if_any()
    except PolicyError as error:
        return str(error)
    raise AssertionError("the example of a bad file is good")


def _prose(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(render(Path(sys.argv[1] if len(sys.argv) > 1 else "policies")))
