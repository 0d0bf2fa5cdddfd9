"""What an operator sees of a replica, as plain values."""

from __future__ import annotations

from typing import Any

from gateway.core.snapshot import Phases
from gateway.fleet.member import Member


def member_statistics(member: Member, now_s: float) -> dict[str, Any]:
    """One replica. Times are ages in seconds."""
    replica = member.replica
    return {
        "addresses": {
            "grpc": replica.endpoints.grpc,
            "http": replica.endpoints.http,
            "metrics": replica.endpoints.metrics,
        },
        "state": replica.state.value,
        "times_down": replica.life,
        "server_version": replica.server_version,
        "in_flight": member.connection.in_flight,
        "last_error": replica.last_error,
        "phases": _phases(replica.phases, now_s),
        "scraped_ago_s": _ago(now_s, replica.scraped_s),
        "scrape_error": member.scrape_error,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "utilisation": gpu.utilisation,
                "memory_used_bytes": gpu.memory_used_bytes,
                "memory_total_bytes": gpu.memory_total_bytes,
            }
            for gpu in replica.gpus
        ],
        "models": [
            {
                "model": name,
                "version": version,
                "state": record.state.value,
                "reason": record.reason,
                "warmup": record.note,
                "slots": record.slots,
                "pending": record.pending,
                "queue_us": record.queue_us,
                "compute_us": record.compute_us,
                "batch_fill": record.batch_fill,
                "phases": _phases(record.view((name, version)).phases, now_s),
            }
            for (name, version), record in sorted(replica.models.items())
        ],
    }


def _phases(phases: Phases, now_s: float) -> dict[str, float | None]:
    return {
        "seen_ago_s": _ago(now_s, phases.seen_s),
        "connected_ago_s": _ago(now_s, phases.connected_s),
        "live_ago_s": _ago(now_s, phases.live_s),
        "ready_ago_s": _ago(now_s, phases.ready_s),
        "warmed_ago_s": _ago(now_s, phases.warmed_s),
        "first_answer_ago_s": _ago(now_s, phases.first_answer_s),
    }


def _ago(now_s: float, then_s: float | None) -> float | None:
    return None if then_s is None else round(now_s - then_s, 3)
