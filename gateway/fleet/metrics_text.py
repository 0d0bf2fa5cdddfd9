"""Reading Triton's metrics page: only the families that are needed, tolerant of everything else.

A page can be megabytes (models x versions x GPUs x families) and may come from a broken exporter. One compiled pattern
picks the lines of the wanted families; labels are taken apart for those alone. Quantifiers are possessive, so hostile
lines cost time linear in their length.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

MODEL_COUNTERS = (
    "nv_inference_request_success",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_infer_duration_us",
)
PENDING = "nv_inference_pending_request_count"
GPU_GAUGES = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes")
SAMPLES_MAX = 200_000
GPUS_MAX = 64

_LINE = re.compile(
    r"^[ \t]*+(" + "|".join((*MODEL_COUNTERS, PENDING, *GPU_GAUGES)) + r")[ \t]*+"
    r'\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\}[ \t]*+(\S++)',
    re.MULTILINE,
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")
_MEANING = {"n": "\n", '"': '"', "\\": "\\"}


class Sample(NamedTuple):
    """One value of one series."""

    name: str
    labels: dict[str, str]
    value: float


class ModelFigures(NamedTuple):
    """One model version's counters (in `MODEL_COUNTERS`' order, summed over GPUs) and gauge."""

    success: float
    inferences: float
    executions: float
    queue_us: float
    compute_us: float
    pending: float | None


class Gpu(NamedTuple):
    utilisation: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None


class Page(NamedTuple):
    """What a page says: figures by (model, version), GPUs by uuid."""

    models: dict[tuple[str, str], ModelFigures]
    gpus: dict[str, Gpu]


def samples(text: str) -> Iterator[Sample]:
    """The samples of the wanted families with finite values, at most `SAMPLES_MAX`. Never raises: what cannot be read
    is passed over.
    """
    left = SAMPLES_MAX
    for match in _LINE.finditer(text):
        name, inside, number = match.groups()
        value = _number(number)
        if value is None:
            continue
        yield Sample(name, {key: _unescape(text) for key, text in _LABEL.findall(inside)}, value)
        left -= 1
        if not left:
            return


def _number(text: str) -> float | None:
    if "_" in text:
        return None  # Python's float would take it.
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _MEANING.get(match[1], match[0]), text) if "\\" in text else text


def read_page(text: str, models: frozenset[str]) -> Page:
    """The page's figures for the named models (negative values are passed over) and its GPUs. Never raises."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    gpus: dict[str, dict[str, float]] = {}
    for name, labels, value in samples(text):
        if value < 0:
            continue
        if name in GPU_GAUGES:
            uuid = labels.get("gpu_uuid", "")
            if uuid and (uuid in gpus or len(gpus) < GPUS_MAX):
                gpus.setdefault(uuid, {})[name] = value
        elif labels.get("model") in models and "version" in labels:
            family = sums.setdefault((labels["model"], labels["version"]), {})
            family[name] = family.get(name, 0.0) + value
    return Page(
        {key: _figures(family) for key, family in sums.items()},
        {uuid: Gpu(*(gauges.get(name) for name in GPU_GAUGES)) for uuid, gauges in gpus.items()},
    )


def _figures(family: dict[str, float]) -> ModelFigures:
    success, inferences, executions, queue_us, compute_us = (family.get(name, 0.0) for name in MODEL_COUNTERS)
    return ModelFigures(success, inferences, executions, queue_us, compute_us, family.get(PENDING))


class Rates(NamedTuple):
    """Means over what happened between two pages; None where nothing did."""

    queue_us: float | None
    compute_us: float | None
    batch_fill: float | None


def rates(before: ModelFigures | None, now: ModelFigures) -> Rates:
    """The means between two readings of one series. A counter that went back means that the server restarted: it
    counted from zero since. Without an earlier reading nothing can be said.
    """
    if before is None:
        return Rates(None, None, None)
    pairs = tuple(zip(before[:5], now[:5], strict=True))
    restarted = any(new < old for old, new in pairs)
    success, inferences, executions, queue_us, compute_us = (new if restarted else new - old for old, new in pairs)
    return Rates(
        queue_us / success if success > 0 else None,
        compute_us / success if success > 0 else None,
        inferences / executions if executions > 0 else None,
    )
