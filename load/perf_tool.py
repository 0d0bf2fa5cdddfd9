"""perf_analyzer, NVIDIA's own load generator: the unmodified binary, set up without root rights, run, and read.

The binary comes from a wheel (`perf_analyzer.lock`). It wants two libraries that a plain Debian 12 lacks,
`libb64.so.0d` and `libcudart.so.12`. The Triton wheel of `.triton` carries both, under names of its own; links in
`.load/perf_analyzer/lib` give them the names that the loader looks for. No package manager is involved.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local import ensure_environment
from deploy.local.layout import Progress, exclusive, print_progress
from load.environment import ENVIRONMENT_DIR
from load.errors import LoadError

LOCK_FILE = Path(__file__).resolve().parent / "perf_analyzer.lock"
DIRECTORY = ENVIRONMENT_DIR / "perf_analyzer"
LIBRARIES: Mapping[str, str] = {"libb64.so.0d": "libb64*.so.0d", "libcudart.so.12": "libcudart*.so.12*"}
"""Name that the loader looks for, to the pattern of the file in the Triton wheel's libraries."""
APT_REMEDY = "apt-get install -y libb64-0d libssl3 libstdc++6 zlib1g, then try again"
_STAMP = ".sluice-stamp"
_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """A binary that was seen to start, and the folder of the libraries that it needs besides the system's."""

    binary: Path
    libraries: Path

    def variables(self) -> dict[str, str]:
        """The environment variables to run it with."""
        before = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(self.libraries), *([before] if before else [])]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


@dataclass(frozen=True, slots=True)
class PerfFigures:
    """What one run of perf_analyzer reports. Times are in microseconds; `None` where a run has no such figure."""

    requests: int | None
    inferences_per_s: float
    responses_per_s: float | None
    """Where a request may have several responses (streams of decoupled models)."""
    avg_us: float | None
    p50_us: float | None
    p90_us: float | None
    p95_us: float | None
    p99_us: float | None
    server_inferences: int | None
    """By the statistics that the server gave it."""
    server_executions: int | None
    server_queue_us: float | None
    server_compute_us: float | None


def ensure_perf_analyzer(directory: Path = DIRECTORY, progress: Progress = print_progress) -> PerfAnalyzer:
    """The tool, set up first if it is absent, broken or of another lock. Raises LoadError, LocalFleetError.

    Safe to call from several processes at once; the first builds, the others wait. With `.triton` there it takes a
    second or two and a download of 14 MB.
    """
    libraries = ensure_environment(progress=progress).libraries
    tool = PerfAnalyzer(directory / "bin" / "perf_analyzer", directory / "lib")
    stamp, wanted = directory / _STAMP, hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    with exclusive("load-environment"):
        whole = stamp.exists() and stamp.read_text(encoding="ascii") == wanted and tool.binary.exists()
        if not whole:
            progress(f"perf_analyzer: setting it up in {directory} (a download of 14 MB)")
            _install(directory, tool)
        _link(tool.libraries, libraries)
        _try(tool)
        if not whole:
            stamp.write_text(wanted, encoding="ascii")
    return tool


class PerfAnalyzerHung(LoadError):
    """It did not end in its time. With `--request-count` it now and then never does, before whatever server."""


def run_perf_analyzer(tool: PerfAnalyzer, options: Sequence[str], *, timeout_s: float) -> PerfFigures:
    """Run it to its end and read its report. Raises LoadError with its last words if it fails (a single failed call is
    enough, it gives up then) or reports nothing, and PerfAnalyzerHung if it takes longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="perf-analyzer-") as work:
        report = Path(work) / "report.csv"
        argv = [str(tool.binary), *options, "-f", str(report)]
        try:
            done = subprocess.run(
                argv,
                env=tool.variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            raise PerfAnalyzerHung(
                f"perf_analyzer did not end within {timeout_s:g} s and was killed; its last words:\n{_tail(said)}\n"
                f"  it was run as: {_words(argv)}"
            ) from None
        if done.returncode:
            raise LoadError(
                f"perf_analyzer ended with {done.returncode}; its last words:\n{_tail(done.stdout)}\n"
                f"  it was run as: {_words(argv)}"
            )
        return figures(report.read_text(encoding="utf-8") if report.exists() else "", done.stdout)


def figures(report: str, said: str) -> PerfFigures:
    """Read the CSV report of a run over one level of load, and the few figures that it only prints. Raises LoadError if
    the report is not one.
    """
    rows = list(csv.DictReader(io.StringIO(report.strip().partition("\n\n")[0])))
    if len(rows) != 1 or "Inferences/Second" not in rows[0]:
        raise LoadError(f"perf_analyzer reported {len(rows)} levels of load instead of one; it said:\n{_tail(said)}")
    (row,) = rows

    def number(column: str) -> float | None:
        text = row.get(column)
        return None if text is None or not text.strip() else float(text)

    rate = number("Inferences/Second")
    if rate is None:
        raise LoadError(f"perf_analyzer reported no rate; it said:\n{_tail(said)}")
    compute = [number(f"Server Compute {part}") for part in ("Input", "Infer", "Output")]
    return PerfFigures(
        requests=_said_int(said, "Request count"),
        inferences_per_s=rate,
        responses_per_s=number("Response Throughput"),
        avg_us=_said(said, r"Avg latency: ([0-9.]+) usec"),
        p50_us=number("p50 latency"),
        p90_us=number("p90 latency"),
        p95_us=number("p95 latency"),
        p99_us=number("p99 latency"),
        server_inferences=_said_int(said, "Inference count"),
        server_executions=_said_int(said, "Execution count"),
        server_queue_us=number("Server Queue"),
        server_compute_us=None if None in compute else sum(part for part in compute if part is not None),
    )


def _said(said: str, pattern: str) -> float | None:
    found = re.search(pattern, said)
    return None if found is None else float(found.group(1))


def _said_int(said: str, label: str) -> int | None:
    value = _said(said, rf"\b{label}: ([0-9]+)\b")
    return None if value is None else int(value)


def _install(directory: Path, tool: PerfAnalyzer) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    argv += ["--no-compile", "--disable-pip-version-check", "--no-input", "--quiet", "--target", str(directory)]
    done = subprocess.run(
        [*argv, "-r", str(LOCK_FILE)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise LoadError(
            f"pip could not fetch the wheel with perf_analyzer:\n{_tail(done.stdout)}\n"
            "  remedy: check the network or pip's index settings (pip config list), then try again"
        )
    if not tool.binary.exists():
        raise LoadError(f"the wheel of {LOCK_FILE.name} put no {tool.binary}; remove {directory} and try again")
    tool.binary.chmod(tool.binary.stat().st_mode | 0o755)


def _link(links: Path, libraries: Path) -> None:
    """Give the Triton wheel's copies the names that are looked for. One that the wheel lacks is left to the system."""
    links.mkdir(parents=True, exist_ok=True)
    for name, pattern in LIBRARIES.items():
        link = links / name
        found = sorted(libraries.glob(pattern))
        if found and (not link.is_symlink() or Path(os.readlink(link)) != found[0]):
            link.unlink(missing_ok=True)
            link.symlink_to(found[0])


def _try(tool: PerfAnalyzer) -> None:
    """Start it once: the loader names a library that is missing or too old. Raises LoadError."""
    try:
        done = subprocess.run(
            [str(tool.binary), "--version"],
            env=tool.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:  # of another architecture, or the folder is mounted noexec
        raise LoadError(f"{tool.binary} cannot be run: {error.strerror}; it is a Linux program for x86_64") from None
    if done.returncode:
        raise LoadError(f"perf_analyzer does not start:\n{_tail(done.stdout)}\n  remedy: {APT_REMEDY}")


def _tail(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()][-_TAIL_LINES:]
    return "    " + "\n    ".join(lines or ["(nothing)"])


def _words(argv: Sequence[str]) -> str:
    return " ".join(argv)
