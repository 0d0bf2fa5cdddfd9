"""`docs/records.md`, made from `FIELDS` and the constants: `python -m gateway.records.document > docs/records.md`."""

from __future__ import annotations

import sys

from gateway.records import render, tensors
from gateway.records.fields import DROPPED, RECORD, Field

_HEAD = f"""# Prediction records

One line per call, whether it was answered, refused, failed or abandoned, in files named
`records-<UTC time>-<sequence>.jsonl` under `records.dir` (names sort by age; mode 0600; one gateway per directory).
`sluice log tail` shows them. This page is made from the code (`python -m gateway.records.document`); a test holds the
two together.

- Every line is strict JSON in UTF-8, at most {render.LINE_BYTES_MAX // 1024} KiB long. A line that a killed gateway
  left torn is ended by the next run, and readers pass over it.
- Numbers that JSON does not have are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
- BYTES elements are strings if they are UTF-8, otherwise `{{"base64": "…"}}`; at most {tensors.ELEMENT_BYTES_MAX} bytes
  of one are shown, and {tensors.BYTES_TOTAL_MAX // 1024} KiB of all on one side.
- At most {tensors.VALUES_MAX} values are shown per side. Everything that is cut is marked.
- A model's `records.tensors` decides what is said of tensors: `none` (sizes only, no digest either), `summary`
  (digests, shapes, a summary of the outputs), `full` (all values). It never decides whether there is a record.
- A record reaches the operating system within `flush_interval_ms` of its call's end, and the disk within
  `fsync_interval_ms` of that. A gateway that is killed loses calls in flight and what ended in the last
  `flush_interval_ms`.
- Bounds: at most `queue_records_max` records and `queue_bytes_max` bytes wait. Over three quarters of the bytes,
  records are kept without their bodies; over a bound, the newest are dropped, counted, and told of by a line of the
  second kind. Models with `records.mandatory: true` are refused instead (503 `record_full`).
- The lines of a write that failed half-way are taken back and written again; only where even taking back fails can a
  record appear twice: `request_id` and `time` tell.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "\n## A record\n\n", _table(RECORD), "\n## Records that are missing\n\n", _table(DROPPED)]
    return "".join(parts)


def _table(fields: tuple[Field, ...]) -> str:
    rows = ["| field | type | meaning |\n|---|---|---|\n"]
    for field in fields:
        name = f"`{field.name}`" + (" *" if field.optional else "")
        rows.append(f"| {name} | {field.type} | {field.meaning} |\n")
    if any(field.optional for field in fields):
        rows.append("\n\\* may be absent.\n")
    return "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(page())
