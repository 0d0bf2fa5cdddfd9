"""Metrics: what is counted as calls end, cheaply, and what the page is made from.

All methods are for the event loop's thread, but `render`, which works on a frozen copy and belongs in a worker.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.criticality import CLASS_NAMES
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.snapshot import FleetSnapshot
from gateway.observe import labels
from gateway.observe.ending import ending
from gateway.observe.frozen import Frozen
from gateway.observe.labels import OTHER, closed
from gateway.observe.series import Counts, Histogram, ModelSeries, Plain, PlainKey, ReplicaSeries
from gateway.observe.stages import STAGES, stage_seconds
from gateway.observe.table import ROWS, Reading

_log = logging.getLogger("sluice.metrics")

BOUNDS_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0),
)
LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
FADE_S = 600.0
"""Series of versions and replicas stay this long after the fleet lost them, seconds."""

_PLAIN_MAX = 256
_VERSIONS_MAX = 64
_REPLICAS_MAX = 4096
_SERIES_PER_SOURCE_MAX = 20_000

K = TypeVar("K")

Source = Callable[[float], Iterable[Reading]]
"""Asked for its readings whenever the page is made; the argument is monotonic seconds."""

_OUTCOMES: Mapping[Outcome | None, str] = {None: "out", **{outcome: outcome.value for outcome in Outcome}}
_QUEUE = STAGES.index("queue")
_OK = Outcome.OK
_SHED = frozenset({Reason.QUEUE_FULL, Reason.SHED, Reason.INFEASIBLE})


class Metrics:
    """`objectives_s` gives the configured models, each with its objective in seconds. `replica_key` makes the replica
    labels unguessable (`labels.replica`); it should stay the same over restarts.
    """

    def __init__(
        self,
        objectives_s: Mapping[str, float],
        pools: Iterable[str],
        *,
        version: str,
        revision: str,
        replica_key: bytes,
    ) -> None:
        self._version = version
        self._replica_key = replica_key
        self._models: dict[str, ModelSeries] = {}
        self._other = ModelSeries(OTHER, BOUNDS_S)
        self._replicas: dict[str, ReplicaSeries] = {}
        self._other_replica = ReplicaSeries(OTHER, OTHER)
        self._requests: Counts = {}
        self._open = {"http": 0, "grpc": 0}
        self._refused: Counts = {}
        self._faults: Counts = {}
        self._internal_faults: Counts = {}
        self._lag = Histogram(LAG_BOUNDS_S)
        self._sources: dict[str, Source] = {}
        self._source_failures: Counts = {}
        self._pools: frozenset[str] = frozenset()
        self._versions: dict[str, set[str]] = {}
        self._revision = ""
        self.set_policy(objectives_s, pools, revision)

    # --- as calls end ---------------------------------------------------------------------------------------------

    def observe_call(
        self,
        call: Call,
        outcome: Outcome,
        error: GatewayError | None,
        ended_s: float,
        *,
        answer_bytes: int = 0,
    ) -> None:
        """One call has ended, at `ended_s` (monotonic). Never raises."""
        series = self._models.get(call.model) or self._other
        trail = call.trail
        code, reason = ending(call, outcome, error)
        protocol = call.protocol
        key = (protocol if protocol in labels.PROTOCOLS else OTHER, int(code), reason)
        series.calls[key] = series.calls.get(key, 0) + 1
        if error is not None and error.reason in _SHED:
            _add(series.shed, (CLASS_NAMES[call.criticality], reason), 1)
        series.duration.observe(ended_s - call.arrived_s)
        stages = stage_seconds(trail, call.arrived_s, ended_s)
        sums = series.stage_sums
        counts = series.stage_counts
        for index, seconds in enumerate(stages):
            if seconds >= 0.0:
                sums[index] += seconds
                counts[index] += 1
        if stages[_QUEUE] >= 0.0:
            series.queue_wait.observe(stages[_QUEUE])
        if call.message is not None:
            series.bytes_in += len(call.message)
        series.bytes_out += answer_bytes
        if outcome is _OK:
            _add(series.versions, _answered(series, trail.version_served, trail.rung), 1)
        for attempt in trail.attempts:
            pool = trail.pool if trail.pool in self._pools else OTHER
            ended = _OUTCOMES[attempt.outcome]
            sent = (pool, closed(attempt.kind, labels.ATTEMPT_KINDS), ended)
            series.attempts[sent] = series.attempts.get(sent, 0) + 1
            outcomes = (self._replicas.get(attempt.replica) or self._other_replica).outcomes
            outcomes[ended] = outcomes.get(ended, 0) + 1

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        """The face of a sink of the record layer: `observe_call`, with a short way for calls that went as hoped."""
        trail, message = call.trail, call.message
        attempts = trail.attempts
        if outcome is _OK and error is None and len(attempts) == 1 and message is not None and answer is not None:
            attempt = attempts[0]
            series = self._models.get(call.model)
            arrived_s, received_s, routed_s = call.arrived_s, trail.received_s, trail.routed_s
            admitted_s, answered_s = trail.admitted_s, trail.answered_s
            if (
                series is not None
                and attempt.outcome is _OK
                and 0.0 < arrived_s <= received_s <= routed_s <= admitted_s <= answered_s <= now_s
            ):
                key = (call.protocol, trail.version_served, trail.rung, trail.pool, attempt.kind, attempt.replica)
                plain = series.plain.get(key) or self._new_plain(series, key)
                plain.count += 1
                plain.receive_s += received_s - arrived_s
                plain.route_s += routed_s - received_s
                waited_s = admitted_s - routed_s
                plain.queue_s += waited_s
                plain.upstream_s += answered_s - admitted_s
                plain.write_s += now_s - answered_s
                plain.bytes_in += len(message)
                plain.bytes_out += len(answer)
                duration = series.duration
                duration.counts[bisect_left(duration.bounds, now_s - arrived_s)] += 1
                if waited_s > duration.bounds[0]:
                    plain.queued += 1
                    series.queue_wait.counts[bisect_left(series.queue_wait.bounds, waited_s)] += 1
                return
        self.observe_call(call, outcome, error, now_s, answer_bytes=0 if answer is None else len(answer))

    def _new_plain(self, series: ModelSeries, key: PlainKey) -> Plain:
        if len(series.plain) >= _PLAIN_MAX:
            self._settle(series)
        plain = series.plain[key] = Plain()
        return plain

    def _settle(self, series: ModelSeries) -> None:
        """Put the plain calls to the others. Labels are closed by the sets of this moment, so this comes before any of
        them changes.
        """
        for (protocol, version, rung, pool, kind, replica), plain in series.plain.items():
            count = plain.count
            _add(series.calls, (protocol if protocol in labels.PROTOCOLS else OTHER, int(Code.OK), ""), count)
            _add(series.versions, _answered(series, version, rung), count)
            _add(series.attempts, (closed(pool, self._pools), closed(kind, labels.ATTEMPT_KINDS), _OK.value), count)
            _add((self._replicas.get(replica) or self._other_replica).outcomes, _OK.value, count)
            stages = (plain.receive_s, plain.route_s, plain.queue_s, plain.upstream_s, plain.write_s)
            for index, seconds in enumerate(stages):
                series.stage_sums[index] += seconds
                series.stage_counts[index] += count
            series.duration.total += sum(stages)
            series.queue_wait.total += plain.queue_s
            series.queue_wait.counts[0] += count - plain.queued
            series.bytes_in += plain.bytes_in
            series.bytes_out += plain.bytes_out
        series.plain.clear()

    # --- the client ports -----------------------------------------------------------------------------------------

    def request_without_call(self, protocol: str, route: str, status: str) -> None:
        """A client port answered a request that was no call. `route` is one of `labels.ROUTES`, `status` the HTTP
        status or the name of the gRPC code.
        """
        key = (
            closed(protocol, labels.PROTOCOLS),
            closed(route, labels.ROUTES),
            closed(status, labels.STATUSES),
        )
        self._requests[key] = self._requests.get(key, 0) + 1

    def internal_fault(self, protocol: str) -> None:
        """The gateway itself failed while it answered."""
        _count(self._internal_faults, (closed(protocol, labels.PROTOCOLS),))

    def connection_opened(self, protocol: str) -> None:
        if protocol in self._open:
            self._open[protocol] += 1

    def connection_closed(self, protocol: str) -> None:
        if protocol in self._open:
            self._open[protocol] -= 1

    def connection_refused(self, protocol: str) -> None:
        _count(self._refused, (closed(protocol, labels.PROTOCOLS),))

    def protocol_fault(self, protocol: str, kind: str) -> None:
        """A client broke the protocol, or was too slow. `kind` is one of `labels.PROTOCOL_FAULTS`."""
        _count(self._faults, (closed(protocol, labels.PROTOCOLS), closed(kind, labels.PROTOCOL_FAULTS)))

    # --- the fleet ------------------------------------------------------------------------------------------------

    def probe_failed(self, replica: str, probe: str) -> None:
        """A health check or scrape of `replica` (its id) failed. `probe` is one of `labels.PROBES`."""
        failures = (self._replicas.get(replica) or self._other_replica).probe_failures
        probe = closed(probe, labels.PROBES)
        failures[probe] = failures.get(probe, 0) + 1

    def warmup_call(self, model: str, *, ok: bool) -> None:
        _count((self._models.get(model) or self._other).warmups, ("ok" if ok else "failed",))

    def loop_lag(self, late_s: float) -> None:
        """A timer fired this late."""
        self._lag.observe(late_s)

    def set_policy(self, objectives_s: Mapping[str, float], pools: Iterable[str], revision: str) -> None:
        """The policies have changed: from now on these models and pools are known."""
        for series in self._models.values():
            self._settle(series)
        self._pools = frozenset(labels.text(pool) for pool in pools)
        self._revision = labels.text(revision)
        models: dict[str, ModelSeries] = {}
        for name, objective_s in objectives_s.items():
            bounds = tuple(sorted({*BOUNDS_S, objective_s}))
            known = self._models.get(name)
            if known is None or known.duration.bounds != bounds:
                known = ModelSeries(labels.text(name), bounds)
                known.known_versions = frozenset(sorted(self._versions.get(name, ()))[:_VERSIONS_MAX])
            models[name] = known
        self._models = models

    def fleet_changed(self, snapshot: FleetSnapshot, now_s: float) -> None:
        """Take over which versions and replicas there are."""
        for model in self._models.values():
            self._settle(model)
        versions: dict[str, set[str]] = {}
        present: set[str] = set()
        for replica in snapshot.replicas:
            present.add(replica.id)
            series = self._replicas.get(replica.id)
            if series is not None:
                series.gone_s = -1.0
            elif len(self._replicas) < _REPLICAS_MAX:
                pool = closed(replica.pool, self._pools)
                self._replicas[replica.id] = ReplicaSeries(self.replica_label(replica.id), pool)
        for name, some in snapshot.known:
            versions.setdefault(name, set()).update(some)
        for replica_id, gone in self._replicas.items():
            if replica_id not in present and gone.gone_s < 0.0:
                gone.gone_s = now_s
        self._versions = versions
        for name, model in self._models.items():
            here = versions.get(name, set())
            for version in model.known_versions - here:
                model.gone.setdefault(version, now_s)
            for version in here:
                model.gone.pop(version, None)
            for version in sorted(model.gone, key=model.gone.__getitem__)[: max(0, len(model.gone) - _VERSIONS_MAX)]:
                # Versions come and go faster than they fade: the first to go fade sooner.
                model.gone[version] = float("-inf")
            model.known_versions = frozenset(sorted(here)[:_VERSIONS_MAX]) | frozenset(model.gone)
        self._fade(now_s)

    def _fade(self, now_s: float) -> None:
        for replica_id in [
            replica_id
            for replica_id, series in self._replicas.items()
            if series.gone_s >= 0.0 and now_s - series.gone_s > FADE_S
        ]:
            del self._replicas[replica_id]
        for model in self._models.values():
            faded = {version for version, since_s in model.gone.items() if now_s - since_s > FADE_S}
            if faded:
                model.known_versions -= faded
                for version in faded:
                    del model.gone[version]
                for key in [key for key in model.versions if key[0] in faded]:
                    del model.versions[key]

    def replica_label(self, replica_id: str) -> str:
        """What stands for this replica on the page."""
        return labels.replica(replica_id, self._replica_key)

    def model_label(self, model: str) -> str:
        """What stands for this model on the page."""
        series = self._models.get(model)
        return OTHER if series is None else series.label

    def version_label(self, model: str, version: str) -> str:
        """What stands for this version on the page."""
        series = self._models.get(model)
        return version if series is not None and version in series.known_versions else OTHER

    # --- the page -------------------------------------------------------------------------------------------------

    def add_source(self, name: str, source: Source) -> None:
        """Have `source` asked for readings each time the page is made. A name that is taken is replaced."""
        self._sources[name] = source

    def freeze(self, now_s: float) -> Frozen:
        """A copy of everything, at one instant."""
        for model in self._models.values():
            self._settle(model)
        self._fade(now_s)
        frozen = Frozen()
        frozen.add("sluice_build_info", (self._version, self._revision), 1.0)
        for series in (*self._models.values(), self._other):
            frozen.add_model(series)
        for replica in (*self._replicas.values(), self._other_replica):
            frozen.add_replica(replica)
        frozen.add_counts("sluice_requests_without_call_total", self._requests)
        frozen.add_counts("sluice_internal_faults_total", self._internal_faults)
        frozen.add_counts("sluice_connections_refused_total", self._refused)
        frozen.add_counts("sluice_protocol_faults_total", self._faults)
        for protocol, count in self._open.items():
            frozen.add("sluice_connections_open", (protocol,), count)
        frozen.add_histogram("sluice_event_loop_lag_seconds", (), self._lag)
        for name, source in self._sources.items():
            try:
                self._ask(source, now_s, frozen)
            except Exception:
                _log.exception("the metrics source %r failed; its part of the page is missing", name)
                _count(self._source_failures, (name,))
        frozen.add_counts("sluice_metrics_source_failures_total", self._source_failures)
        return frozen

    def _ask(self, source: Source, now_s: float, frozen: Frozen) -> None:
        readings: list[Reading] = []
        for name, values, value in source(now_s):
            row = ROWS.get(name)
            if row is None or len(values) != len(row.labels):
                raise ValueError(f"{name} with labels {values!r} is not in the table of metrics")
            if len(readings) >= _SERIES_PER_SOURCE_MAX:
                frozen.cut += 1
            else:
                readings.append((name, values, value))
        for name, values, value in readings:
            frozen.add(name, values, value)


def _answered(series: ModelSeries, version: str, rung: str) -> tuple[str, str]:
    return (
        version if version in series.known_versions else OTHER,
        rung if rung in labels.RUNGS else ("full" if not rung else OTHER),
    )


def _add(counts: dict[K, int], key: K, count: int) -> None:
    counts[key] = counts.get(key, 0) + count


def _count(counts: Counts, key: tuple[str, ...]) -> None:
    counts[key] = counts.get(key, 0) + 1
