"""Frozen: everything that the page shows, copied at one instant, and its rendering.

The copy is made on the loop and costs microseconds per series; the text is made from it in a worker, family by family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.codes import Code
from gateway.observe.series import Histogram, ModelSeries, ReplicaSeries
from gateway.observe.stages import STAGES
from gateway.observe.table import TABLE

SERIES_MAX = 5000
"""Series of one metric on one page; the rest are counted in `sluice_metrics_series_cut`."""

_CODE_NAMES = {int(code): code.name for code in Code}


class _OneFamily(Collector):
    """So that `generate_latest` writes out one family at a time."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class Frozen:
    """Samples by metric: plain ones as (labels, value), histograms as (labels, bounds, counts, sum)."""

    __slots__ = ("cut", "histograms", "values")

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        self.histograms: dict[str, list[tuple[tuple[str, ...], tuple[float, ...], list[int], float]]] = {}
        self.cut = 0

    def add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        samples = self.values.get(name)
        if samples is None:
            self.values[name] = [(labels, value)]
        elif len(samples) < SERIES_MAX:
            samples.append((labels, value))
        else:
            self.cut += 1

    def add_counts(self, name: str, counts: Mapping[tuple[str, ...], int]) -> None:
        for labels, count in counts.items():
            self.add(name, labels, count)

    def add_histogram(self, name: str, labels: tuple[str, ...], histogram: Histogram) -> None:
        entry = (labels, histogram.bounds, list(histogram.counts), histogram.total)
        self.histograms.setdefault(name, []).append(entry)

    def add_model(self, series: ModelSeries) -> None:
        model = series.label
        for (protocol, code, reason), count in series.calls.items():
            self.add("sluice_calls_total", (protocol, model, _CODE_NAMES[code], reason), count)
        for (criticality, reason), count in series.shed.items():
            self.add("sluice_calls_shed_total", (model, criticality, reason), count)
        for (version, rung), count in series.versions.items():
            self.add("sluice_answers_total", (model, version, rung), count)
        for (pool, kind, outcome), count in series.attempts.items():
            self.add("sluice_attempts_total", (pool, model, kind, outcome), count)
        for (outcome,), count in series.warmups.items():
            self.add("sluice_warmup_calls_total", (model, outcome), count)
        if series.calls:
            self.add("sluice_call_bytes_total", (model, "in"), series.bytes_in)
            self.add("sluice_call_bytes_total", (model, "out"), series.bytes_out)
            self.add_histogram("sluice_call_duration_seconds", (model,), series.duration)
            self.add_histogram("sluice_queue_wait_seconds", (model,), series.queue_wait)
            for stage, total, count in zip(STAGES, series.stage_sums, series.stage_counts, strict=True):
                self.add("sluice_call_stage_seconds_sum", (model, stage), total)
                self.add("sluice_call_stage_seconds_count", (model, stage), count)

    def add_replica(self, series: ReplicaSeries) -> None:
        for outcome, count in series.outcomes.items():
            self.add("sluice_replica_attempts_total", (series.pool, series.label, outcome), count)
        for probe, count in series.probe_failures.items():
            self.add("sluice_probe_failures_total", (series.pool, series.label, probe), count)

    def families(self) -> Iterator[Metric]:
        """prometheus-client's families, in the table's order, without those that have no sample."""
        self.values["sluice_metrics_series_cut"] = [((), self.cut)]
        for row in TABLE:
            family = Metric(row.name.removesuffix("_total"), row.meaning, row.kind)
            suffixes = ("_count", "_sum") if row.kind == "summary" else ("",)
            for suffix in suffixes:
                for values, value in self.values.get(row.name + suffix, ()):
                    family.add_sample(row.name + suffix, dict(zip(row.labels, values, strict=True)), value)
            for values, bounds, counts, total in self.histograms.get(row.name, ()):
                _add_histogram(family, dict(zip(row.labels, values, strict=True)), bounds, counts, total)
            if family.samples:
                yield family

    def render(self, registry: CollectorRegistry | None = None, breathe: Callable[[], None] | None = None) -> bytes:
        """The page in Prometheus's text format: what was frozen, then what `registry` collects. `breathe` is called
        between families.
        """
        parts: list[bytes] = []
        for family in self.families():
            parts.append(generate_latest(_OneFamily(family)))
            if breathe is not None:
                breathe()
        if registry is not None:
            parts.append(generate_latest(registry))
        return b"".join(parts)


def _bound_label(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


def _add_histogram(
    family: Metric, labels: dict[str, str], bounds: tuple[float, ...], counts: list[int], total: float
) -> None:
    below = 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        below += count
        family.add_sample(f"{family.name}_bucket", {**labels, "le": _bound_label(bound)}, below)
    family.add_sample(f"{family.name}_count", labels, below)
    family.add_sample(f"{family.name}_sum", labels, total)
