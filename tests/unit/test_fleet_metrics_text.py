"""Reading metrics pages: what a real one says, and that nothing a broken one holds does any harm."""

from __future__ import annotations

import math
import time

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.fleet.metrics_text import (
    GPUS_MAX,
    SAMPLES_MAX,
    ModelFigures,
    rates,
    read_page,
    samples,
)

REAL = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="accel",version="1"} 10
nv_inference_request_success{model="gone",version="1"} 99
nv_inference_request_failure{model="accel",reason="OTHER",version="1"} 5
nv_inference_count{model="accel",version="1",gpu_uuid="GPU-a"} 30
nv_inference_count{model="accel",version="1",gpu_uuid="GPU-b"} 12
nv_inference_exec_count{model="accel",version="1"} 7
nv_inference_queue_duration_us{model="accel",version="1"} 1.5e3
nv_inference_compute_infer_duration_us{model="accel",version="1"} 80000 1700000000000
nv_inference_pending_request_count{model="accel",version="1"} 4
nv_inference_pending_request_count{model="accel",version="2"} NaN
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} +Inf
nv_cpu_utilization 0.1
"""


def test_a_page_gives_sums_over_gpus_for_the_named_models_only() -> None:
    page = read_page(REAL, frozenset({"accel"}))
    assert page.models == {("accel", "1"): ModelFigures(10, 42, 7, 1500, 80000, 4)}
    assert page.gpus.keys() == {"GPU-a"}
    assert tuple(page.gpus["GPU-a"]) == (0.5, 1000, None)


def test_names_with_escapes_are_the_names_that_triton_has() -> None:
    name = 'a"b\\c\nd{}, e="'
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = f'nv_inference_count{{model="{escaped}",version="1"}} 3\n'
    assert read_page(text, frozenset({name})).models.keys() == {(name, "1")}


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False, min_value=0))
def test_any_name_survives_the_way_over_the_page(name: str, value: float) -> None:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = f'nv_inference_count{{version="1",model="{escaped}"}} {value!r}\nnv_inference_exec_count{{x="y"}} 1\n'
    assert read_page(text, frozenset({name})).models[name, "1"].inferences == value


@given(st.text(alphabet=st.sampled_from('nv_inference_count{}=",\\\n 0123456789.eE+-#NaNInf\x00\xff'), max_size=300))
@example('nv_inference_count{model="')
@example("nv_inference_count{" + '"' * 50)
@example('nv_inference_count{model="a",version="1"} 1_000\n')
def test_garbage_is_passed_over(text: str) -> None:
    page = read_page(text, frozenset({"a", ""}))
    for figures in page.models.values():
        assert all(value is None or (math.isfinite(value) and value >= 0) for value in figures)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["nv_inference_count", "nv_inference_exec_count", "nv_gpu_utilization", "other"]),
            st.dictionaries(st.sampled_from(["model", "version", "gpu_uuid", "_tag"]), st.text(max_size=5), min_size=1),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        max_size=8,
    )
)
def test_it_reads_what_the_reference_parser_reads(series: list[tuple[str, dict[str, str], float]]) -> None:
    lines = []
    for name, labels, value in series:
        if any("\r" in text for text in labels.values()):
            return
        inside = ",".join(
            '{}="{}"'.format(key, text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"'))
            for key, text in labels.items()
        )
        lines.append(f"{name}{{{inside}}} {value!r}")
    text = "\n".join(lines) + "\n"
    expected = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name != "other"
    ]
    assert sorted(map(repr, map(tuple, samples(text)))) == sorted(map(repr, expected))


def test_hostile_pages_cost_time_in_proportion_to_their_size() -> None:
    started_s = time.process_time()
    for line in ('nv_inference_count{a="' + "\\" * 2_000_000, "nv_inference_count{" * 100_000, '"{' * 1_000_000):
        assert not read_page(line, frozenset({"a"})).models
    many = "".join(f'nv_inference_count{{model="a",version="{n}"}} 1\n' for n in range(SAMPLES_MAX + 10))
    assert len(read_page(many, frozenset({"a"})).models) == SAMPLES_MAX
    gpus = "".join(f'nv_gpu_utilization{{gpu_uuid="{n}"}} 1\n' for n in range(10_000))
    assert len(read_page(gpus, frozenset()).gpus) == GPUS_MAX
    assert time.process_time() - started_s < 20


FIGURES = st.builds(ModelFigures, *(st.floats(0, 1e12) for _ in range(5)), st.none() | st.floats(0, 1e6))


@given(st.none() | FIGURES, FIGURES)
def test_means_are_never_negative_nor_infinite(before: ModelFigures | None, now: ModelFigures) -> None:
    for mean in rates(before, now):
        assert mean is None or mean >= 0


def test_nothing_done_means_nothing_known() -> None:
    same = ModelFigures(5, 5, 5, 5, 5, 0)
    assert rates(same, same) == (None, None, None)
    assert rates(None, same) == (None, None, None)
