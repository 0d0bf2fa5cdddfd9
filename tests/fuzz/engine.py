"""Runs one target under Atheris (libFuzzer), in a process of its own: `python -m tests.fuzz.engine TARGET [flag ...]`.

Atheris instruments the codecs as they are imported; libFuzzer chooses inputs by what they reach, and ends the process
by a code of its own at the first input that raises, hangs or takes too much memory. `tests.fuzz.__main__` starts this.
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

from tests.fuzz.target import load

INSTRUMENTED = ["gateway.wire", "tests.fuzz.targets.planted"]
OWN_MUTATIONS = 0.6
"""The share of inputs that the target's own mutations make; libFuzzer's make the others."""


def main(arguments: list[str]) -> None:
    name, *flags = arguments
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < OWN_MUTATIONS:
            return target.mutate(data, chance)[:size_max]
        mutated: bytes = atheris.Mutate(data, size_max)
        return mutated

    atheris.Setup([name, *flags], target.check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
