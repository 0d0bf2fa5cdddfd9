"""The metrics page of the in-memory Triton, in the real one's names and labels."""

from __future__ import annotations

from tests.simulation.triton import Metrics, Triton

GARBAGE = '\x00nv_inference_count{model="\n}} NaN NaN\nnv_inference_pending_request_count{model="x" version=} -\n# \xff'
"""What a broken exporter might send: cut labels, missing values, control characters."""


def page(machine: Triton) -> str:
    """The page, or garbage if the machine was told so."""
    if machine.metrics is Metrics.GARBAGE:
        return GARBAGE
    lines: list[str] = []
    for name, versions in machine.models.items():
        for version, entry in versions.items():
            if entry.scheduler is None:
                continue
            counts, label = entry.scheduler.counts, f'{{model="{name}",version="{version}"}}'
            failed = f'nv_inference_request_failure{{model="{name}",version="{version}",reason='
            lines += (
                f"nv_inference_request_success{label} {counts.success}",
                f'{failed}"REJECTED"}} {counts.rejected}',
                f'{failed}"CANCELED"}} {counts.cancelled}',
                f"nv_inference_count{label} {counts.inferences}",
                f"nv_inference_exec_count{label} {counts.executions}",
                f"nv_inference_queue_duration_us{label} {counts.queue_us}",
                f"nv_inference_compute_infer_duration_us{label} {counts.compute_us}",
                f"nv_inference_pending_request_count{label} {len(entry.scheduler.queue)}",
            )
    return "\n".join(lines) + "\n"
