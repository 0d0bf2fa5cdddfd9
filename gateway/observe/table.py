"""Every metric of the gateway: name, kind, labels, meaning. `docs/metrics.md` is made from this table, and nothing is
exposed that does not stand in it.

Names start with `sluice_`, units are seconds and bytes, counters end in `_total`. Every label value comes from a closed
set (`labels.py`) or from the policies and the fleet; never from a caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary"]

Reading = tuple[str, tuple[str, ...], float]
"""One value for the page, from a live object: metric name, label values in the table's order, value."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


def _counter(name: str, labels: str, meaning: str) -> Row:
    return Row(name, "counter", tuple(labels.split()), meaning)


def _gauge(name: str, labels: str, meaning: str) -> Row:
    return Row(name, "gauge", tuple(labels.split()), meaning)


TABLE: tuple[Row, ...] = (
    # Calls.
    _counter(
        "sluice_calls_total",
        "protocol model code reason",
        "Calls that ended, by canonical code and by the reason they were not answered (empty if they were).",
    ),
    Row(
        "sluice_call_duration_seconds",
        "histogram",
        ("model",),
        "From a call's first byte to the end of its reply, whatever the end. One bound is the model's objective.",
    ),
    Row(
        "sluice_call_stage_seconds",
        "summary",
        ("model", "stage"),
        "Time per stage of the calls that entered it: receive, route, queue, upstream, write.",
    ),
    _counter(
        "sluice_stage_overruns_total",
        "model stage",
        "Calls that took longer for a stage than `deadline.stages` gives it, or whose time was up in it: ingress "
        "(receive, route), features, inference (queue, upstream), postprocessing (write). Of models with such a split.",
    ),
    _counter(
        "sluice_stage_overrun_seconds_total", "model stage", "By how much; what was cut short not beyond the cut."
    ),
    Row(
        "sluice_queue_wait_seconds",
        "histogram",
        ("model",),
        "From a version's choice to the permit or to giving up, of calls that came so far.",
    ),
    _counter("sluice_answers_total", "model version rung", "Calls that were answered, by the version that answered."),
    _counter("sluice_call_bytes_total", "model direction", "Bytes of messages in canonical form: in and out."),
    _counter("sluice_attempts_total", "pool model kind outcome", "Sends to replicas."),
    _counter("sluice_replica_attempts_total", "pool replica outcome", "The same by replica."),
    # Second attempts.
    _counter(
        "sluice_second_attempts_total",
        "model kind",
        "Second attempts sent: hedge (the first was slow), retry (it failed), resend (its replica went down: beside "
        "the budget).",
    ),
    _counter("sluice_second_attempts_won_total", "model kind", "Those whose answer was the call's."),
    _counter(
        "sluice_second_attempts_refused_total",
        "model kind reason",
        "Times that one was asked for and not sent: hedge or retry, and the word of the decider (docs/operations.md).",
    ),
    _gauge(
        "sluice_attempt_budget_tokens",
        "model kind",
        "Sends that the budget would pay for now: hedge has its own half, retry may use both.",
    ),
    _gauge("sluice_quarantined_inputs", "model", "Inputs that were in flight when two replicas went down; refused."),
    _counter("sluice_quarantine_refusals_total", "model", "Calls that were refused for their input."),
    _gauge(
        "sluice_upstream_cancels_per_second", "pool replica", "Calls cancelled on the replica, over the last seconds."
    ),
    _counter(
        "sluice_upstream_cancels_capped_total",
        "pool replica",
        "Calls that were given up and, for the cap, left to run out on the replica.",
    ),
    # Admission.
    _counter(
        "sluice_calls_shed_total",
        "model class reason",
        "Calls that admission turned away, by their class and the reason: queue_full, shed or infeasible.",
    ),
    _gauge("sluice_calls_in_flight", "pool model version", "Calls that hold a permit now."),
    _gauge("sluice_calls_queued", "pool model version", "Calls that wait for a permit now."),
    _gauge("sluice_slots", "pool model version", "Permits that the ready replicas have together: the limit."),
    _gauge("sluice_slots_floor", "pool model version", "Where `admission.limit.adaptive`: it never falls below this."),
    _gauge("sluice_slots_cap", "pool model version", "The same: nor rises above this."),
    _gauge(
        "sluice_limit_why",
        "pool model version why",
        "1 for what moved or held the limit last, of a closed list (docs/operations.md, what deciders say).",
    ),
    _counter(
        "sluice_limit_drops_total",
        "pool model version",
        "Attempts that timed out or were refused for load: what makes the limit fall.",
    ),
    # Quotas of tenants; there are none of these where no policy limits a tenant.
    _counter("sluice_quota_granted_total", "", "Calls that were within their tenant's quota, or had none."),
    _counter(
        "sluice_quota_refused_total",
        "limit",
        "Calls refused with reason `quota`: over their rate; over their concurrency; or table_full, when too many "
        "tenants had calls under way (`quotas.entries_max`).",
    ),
    _gauge("sluice_quota_entries", "", "Tenants, and tenants on models, that are remembered now."),
    _counter(
        "sluice_quota_forgotten_total",
        "",
        "Of these, forgotten at the bound before their burst was full again: each may take one burst too many.",
    ),
    _gauge("sluice_store_up", "store", "1 while the shared store answers; else each gateway keeps to its share."),
    _counter(
        "sluice_store_questions_total",
        "store outcome",
        "Questions to the shared store: ok, failed, late (no answer in time), skipped (not asked while it is ill).",
    ),
    # What is thought of replicas.
    _gauge(
        "sluice_ejection_replicas",
        "pool model version standing",
        "Replicas by what their breakers say of them: "
        "healthy, slow_start, probing, ejected, kept (it fails, and no more may be out), panic, down.",
    ),
    _gauge(
        "sluice_ejection_panic",
        "pool model version",
        "1 while too few replicas are well, and all that are up get calls.",
    ),
    _counter("sluice_ejection_panics_total", "pool model version", "Times that this began."),
    _counter("sluice_ejection_moves_total", "pool model version why", "Moves of breakers, by their reason."),
    _counter(
        "sluice_affinity_picks_total",
        "pool model version where",
        "Calls with a key that asked for a slot: home; "
        "next in the key's order; full: nowhere for the key's sake; lent: to prove a replica.",
    ),
    _gauge("sluice_lane_calls_in_flight", "model lane", "Calls of a size lane that hold a permit now."),
    _gauge("sluice_lane_calls_queued", "model lane", "Calls of a size lane that wait for a permit now."),
    _gauge(
        "sluice_shared_calls_in_flight", "pool replica", "Calls of all models on a replica, for pools that bound them."
    ),
    _gauge("sluice_shared_memory_bytes", "pool replica", "Of the pool's `memory_bytes`, what models and calls take."),
    _gauge("sluice_shared_memory_limit_bytes", "pool", "`memory_bytes` of the pool."),
    # Sequences of stateful models.
    _gauge("sluice_sequences_live", "model", "Sequences that are remembered now."),
    _gauge("sluice_sequence_steps_waiting", "model", "Calls that wait for the step before them in their sequence."),
    _counter(
        "sluice_sequence_events_total",
        "model event",
        "What became of sequences: started; adopted (begun through another gateway, or before a restart); ended; lost "
        "with their replica; expired in silence; evicted at the bound `sequences.live_max`.",
    ),
    # The client ports.
    _counter(
        "sluice_requests_without_call_total",
        "protocol route status",
        "Requests answered on the client ports without a call: control queries, unknown routes, malformed ones.",
    ),
    _gauge("sluice_connections_open", "protocol", "Client connections."),
    _counter("sluice_connections_refused_total", "protocol", "Client connections closed at once: over the limit."),
    _counter(
        "sluice_protocol_faults_total", "protocol kind", "Clients that broke a protocol, or were too slow for it."
    ),
    _counter(
        "sluice_internal_faults_total", "protocol", "Answers that failed by a fault of the gateway; each is logged."
    ),
    _gauge("sluice_body_memory_bytes", "", "Request bodies held now."),
    _gauge("sluice_body_memory_limit_bytes", "", "What they may come to (`gateway.body_memory_bytes`)."),
    # Files that are read again and again.
    _counter(
        "sluice_watched_file_loads_total",
        "file",
        "Times that new content was taken up. file: keys, token_keys, subjects, listen_tls, or pool:<name> for the TLS "
        "files of a pool.",
    ),
    _gauge("sluice_watched_file_failing", "file", "1 while what stands there cannot be used; the last good one is."),
    _gauge(
        "sluice_tls_certificate_expiry_timestamp_seconds",
        "file",
        "When the certificate in use stops being valid, seconds since the unix epoch.",
    ),
    _counter("sluice_token_verifications_total", "", "Signatures of JWTs checked; a known token costs none."),
    # The fleet.
    _gauge("sluice_replica_state", "pool replica state", "1 for the state that the replica is in."),
    _gauge("sluice_model_replicas", "pool model version state", "Replicas by the state of the model version on them."),
    _counter("sluice_probe_failures_total", "pool replica probe", "Health checks and scrapes that failed."),
    _counter("sluice_warmup_calls_total", "model outcome", "Calls sent to warm a new model version: ok or failed."),
    _gauge(
        "sluice_triton_pending_requests", "pool replica model version", "Requests waiting in Triton, by its own count."
    ),
    _gauge("sluice_triton_queue_seconds", "pool replica model version", "Mean wait in Triton's queue, last interval."),
    _gauge(
        "sluice_triton_compute_seconds", "pool replica model version", "Mean execution time in Triton, last interval."
    ),
    _gauge(
        "sluice_triton_batch_size", "pool replica model version", "Mean batch of an execution in Triton, last interval."
    ),
    _gauge("sluice_triton_scrape_age_seconds", "pool replica", "Since the last good read of Triton's metrics."),
    _gauge("sluice_gpu_utilisation_ratio", "pool replica gpu", "0 to 1, as Triton reports it; gpu is an ordinal."),
    _gauge("sluice_gpu_memory_used_bytes", "pool replica gpu", "As Triton reports it."),
    _gauge("sluice_gpu_memory_total_bytes", "pool replica gpu", "As Triton reports it."),
    # The gRPC connections to replicas. Counts begin again when a replica's client is made anew.
    _gauge("sluice_upstream_connections", "pool replica", "Connections to a replica, those that are leaving included."),
    _counter("sluice_upstream_connects_total", "pool replica", "Connections to a replica that were made."),
    _counter("sluice_upstream_connect_failures_total", "pool replica", "Attempts to connect to a replica that failed."),
    _counter("sluice_upstream_goaways_total", "pool replica", "Connections that a replica asked to leave (GOAWAY)."),
    _counter(
        "sluice_upstream_calls_moved_total",
        "pool replica",
        "Calls that a replica had not taken, and that were sent again.",
    ),
    _counter(
        "sluice_upstream_calls_cancelled_total", "pool replica", "Calls and streams given up while they were out."
    ),
    _counter(
        "sluice_upstream_calls_left_total",
        "pool replica",
        "Of the calls given up, those that were not cancelled but left to run out, their answers thrown away.",
    ),
    _gauge("sluice_upstream_calls_left", "pool replica", "Such calls that run now."),
    _counter(
        "sluice_upstream_ping_complaints_total",
        "pool replica",
        "Times that a replica found the gateway's pings too many; each makes the interval longer.",
    ),
    _gauge("sluice_upstream_keepalive_seconds", "pool replica", "Between two pings to a replica now."),
    # Records.
    _counter("sluice_records_written_total", "", "Prediction records handed to the operating system."),
    _counter("sluice_records_dropped_total", "reason", "Prediction records lost, by reason (docs/records.md)."),
    _counter("sluice_records_thinned_total", "reason", "Prediction records kept without their bodies."),
    _counter("sluice_record_write_failures_total", "reason", "Writes that failed and were or will be tried again."),
    _gauge("sluice_records_queued", "", "Prediction records that wait to be written."),
    _gauge("sluice_records_queued_bytes", "", "Bytes that they hold, reservations included."),
    _gauge("sluice_records_reserved", "", "Room claimed by calls in flight whose record is mandatory."),
    _gauge("sluice_records_oldest_age_seconds", "", "How long the oldest of them has waited."),
    # The process.
    _gauge("sluice_build_info", "version policy_revision", "1."),
    _gauge("sluice_ready", "", "1 if the gateway can serve."),
    _gauge("sluice_draining", "", "1 after SIGTERM."),
    _counter(
        "sluice_background_restarts_total", "job", "Background jobs that ended by themselves and were started again."
    ),
    _gauge("sluice_event_loop_tasks", "", "Tasks of the event loop."),
    Row("sluice_event_loop_lag_seconds", "histogram", (), "How late the event loop's timers fire; calls wait as long."),
    _counter("sluice_metrics_source_failures_total", "source", "Parts of this page that could not be collected."),
    _gauge("sluice_metrics_series_cut", "", "Series left out of this page because their metric has too many."),
    # prometheus-client's process collector (Linux).
    _gauge("process_virtual_memory_bytes", "", "Virtual memory size in bytes."),
    _gauge("process_resident_memory_bytes", "", "Resident memory size in bytes."),
    _gauge("process_start_time_seconds", "", "Start time of the process since unix epoch in seconds."),
    _counter("process_cpu_seconds_total", "", "Total user and system CPU time spent in seconds."),
    _gauge("process_open_fds", "", "Number of open file descriptors."),
    _gauge("process_max_fds", "", "Maximum number of open file descriptors."),
)

ROWS = {row.name: row for row in TABLE}
