"""What perf_analyzer must be told about the inputs of a demo model; random data suits only some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WORDS: Mapping[str, Sequence[str]] = {
    "mixed": ("--shape", "x:16"),
    "accumulator": ("--input-data", "zero"),  # a sum of random INT64 soon leaves INT64
    "accumulator-text": ("--input-data", "zero"),
}
"""Options by model, for shapes that the configuration leaves open and for values that a model would refuse."""

_RANKED = 100
DATA: Mapping[str, Mapping[str, Any]] = {
    "ranker": {  # it refuses what is not finite, and random bits are not always
        "user": [number / 16 for number in range(16)],
        "items": {"content": [number % 7 / 7 for number in range(_RANKED * 16)], "shape": [_RANKED, 16]},
    },
    "accel": {"work": [1.0]},  # its service time grows with its input
    "identity": {"INPUT_FP32": {"content": [float(number) for number in range(16)], "shape": [16]}},
    "streamer": {"text_input": ["beautiful"], "max_tokens": [8], "delay_ms": [0.0]},
}
"""The inputs by model; those that are not named here are optional and stay out."""

ONLY_STREAMING = frozenset({"streamer"})
"""Decoupled: perf_analyzer takes them with `--streaming` alone."""


@contextmanager
def model_words(model: str, more: Sequence[str]) -> Iterator[list[str]]:
    """The options for the model's inputs, and the file that they name for as long as the block lasts. None if `more`
    says itself what to send.
    """
    if {"--input-data", "--shape"} & {word.partition("=")[0] for word in more}:
        yield []
        return
    data = DATA.get(model)
    if data is None:
        yield list(WORDS.get(model, ()))
        return
    with TemporaryDirectory(prefix="perf-analyzer-inputs-") as folder:
        path = Path(folder) / f"{model}.json"
        path.write_text(json.dumps({"data": [data]}), encoding="utf-8")
        yield ["--input-data", str(path)]
