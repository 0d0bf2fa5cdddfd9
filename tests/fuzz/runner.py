"""The command line: starts the engine, says what it found, replays and shrinks inputs."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.shrink import failure, shrink
from tests.fuzz.target import PLANTED, TARGETS, load

ENGINE = "tests.fuzz.engine"
INPUT_BYTES_MAX = 8192
INPUT_SECONDS_MAX = 10
"""An input that takes longer is a hang. The usual one takes a millisecond."""
MEMORY_MIB_MAX = 1024
_STATE = re.compile(r"#(\d+)\s.*cov: (\d+) ft: \d+ corp: (\d+)")
_CRASH = re.compile(r"Test unit written to (\S+)")
_NOISE = ("#", "INFO", "WARNING", "stat::")


class EngineError(Exception):
    """The engine did not run, or not to its end."""


@dataclass(slots=True)
class Outcome:
    """What a run of the engine came to. `edges` are the places in the codec that were reached, `kept` the inputs that
    reached something new.
    """

    runs: int = 0
    edges: int = 0
    kept: int = 0
    found: Path | None = None
    log: list[str] = field(default_factory=list)


def fuzz(
    name: str,
    *,
    seconds: int = 0,
    runs: int = 0,
    seed: int = 1,
    corpus: Path | None = None,
    crashes: Path,
    show: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the engine on a target, for a time or for a number of inputs: with these, seed and code decide everything.

    New inputs are kept in `corpus`, one that fails is written into `crashes`. `show` is given a line now and then that
    says how it goes. Raises EngineError if the engine itself failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        seeds = Path(scratch, "seeds")
        seeds.mkdir()
        for number, data in enumerate(load(name).seeds()):
            Path(seeds, f"{number:04}").write_bytes(data)
        kept = corpus or Path(scratch, "kept")
        for folder in (kept, crashes):
            folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", ENGINE, name, str(kept), str(seeds)),
            f"-max_total_time={seconds}" if seconds else f"-runs={runs}",
            f"-seed={seed}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-timeout={INPUT_SECONDS_MAX}",
            f"-rss_limit_mb={MEMORY_MIB_MAX}",
            f"-artifact_prefix={crashes}/",
            *("-len_control=0", "-print_final_stats=1", "-use_value_profile=1"),
            "-reload=0",  # or it reads its corpus again each second, and a slow machine tries other inputs
        ]
        log, code = _run(command, show)
    outcome = Outcome(log=[line for line in log if not line.startswith(_NOISE)])
    states = [state.groups() for line in log if (state := _STATE.match(line))]
    if states:
        outcome.runs, outcome.edges, outcome.kept = map(int, states[-1])
    written = _CRASH.search("\n".join(outcome.log))
    if written:
        outcome.found = Path(written.group(1))
    elif code or not states:
        raise EngineError("the engine failed:\n" + "\n".join(outcome.log[-30:]))
    return outcome


def _run(command: list[str], show: Callable[[str], None] | None) -> tuple[list[str], int]:
    """The lines that the engine wrote, and its exit code. It is gone when this returns or raises."""
    log: list[str] = []
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as engine:
        assert engine.stdout is not None
        try:
            for line in engine.stdout:
                log.append(line.rstrip("\n"))
                if show is not None and line.startswith("#"):
                    show(log[-1])
            engine.wait()
        finally:
            engine.kill()  # if this process is interrupted
    return log, engine.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.replay:
        return _replay(options.target, options.replay)
    if options.shrink:
        return _shrink(options.target, options.shrink)
    try:
        outcome = fuzz(
            options.target,
            seconds=options.seconds if not options.runs else 0,
            runs=options.runs,
            seed=options.seed,
            corpus=options.corpus,
            crashes=options.crashes,
            show=_show if sys.stdout.isatty() else None,
        )
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.target}: {outcome.runs} inputs, {outcome.edges} edges, {outcome.kept} inputs kept")
    if outcome.found is None:
        return 0
    print("\n".join(outcome.log))
    print(f"found: {outcome.found}\nreplay it: python -m tests.fuzz {options.target} --replay {outcome.found}")
    return 1


def _show(line: str) -> None:
    print(f"{line[:100]:100}", end="\r", flush=True)


def _replay(name: str, path: Path) -> int:
    found = failure(load(name), path.read_bytes())
    if found is None:
        print(f"{path}: nothing fails")
        return 0
    traceback.print_exception(found)
    return 1


def _shrink(name: str, path: Path) -> int:
    target = load(name)
    data = path.read_bytes()
    if failure(target, data) is None:
        print(f"{path}: nothing fails")
        return 0
    small = shrink(target, data)
    shrunk = path.with_name(path.name + ".small")
    shrunk.write_bytes(small)
    print(f"{shrunk}: {len(small)} of {len(data)} bytes: {small!r}")
    return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, epilog="example: python -m tests.fuzz hpack --seconds 300"
    )
    parser.add_argument("target", choices=[*TARGETS, PLANTED], metavar="TARGET", help="one of " + ", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="how long (60)")
    parser.add_argument(
        "--runs", type=int, default=0, help="how many inputs, instead of a time: the same on every machine"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the chance that makes inputs (1)")
    parser.add_argument("--corpus", type=Path, help="a folder of inputs to begin with; new ones are added to it")
    parser.add_argument("--crashes", type=Path, default=Path(".run/fuzz"), help="where an input that fails is put")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="only feed this input, and show how it fails")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="only make this input smaller, as long as it fails")
    options = parser.parse_args(arguments)
    if options.seconds < 1 or options.runs < 0:
        parser.error("--seconds and --runs must be positive")
    return options
