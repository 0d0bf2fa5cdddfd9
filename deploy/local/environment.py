"""The environment `.triton`: the wheel that carries a real Triton server, NumPy below 2, scikit-learn.

Built from `requirements.lock` (versions and hashes). A stamp written last holds the lock's hash and the Python version;
a folder without the right stamp, or with parts missing, is removed and built anew.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import LocalFleetError
from deploy.local.layout import ENVIRONMENT_DIR, PACKAGE, Progress, exclusive, print_progress

LOCK_FILE = PACKAGE / "requirements.lock"
STAMP = ".sluice-stamp"
PYTHON_VERSIONS = ((3, 11), (3, 12))
"""For which the locked NumPy and SciPy have wheels and the Triton wheel has a stub."""
MACHINES = ("x86_64", "aarch64")
NEEDED_DISK_BYTES = 1_500 * 1024 * 1024
VENV_REMEDY = "sudo apt-get install -y python3-venv"


@dataclass(frozen=True, slots=True)
class TritonEnvironment:
    """A built environment: `python` with NumPy, the `server` binary, and the folders that the server is told about."""

    directory: Path
    python: Path
    server: Path
    stub: Path
    libraries: Path
    backends: Path
    caches: Path

    def variables(self) -> dict[str, str]:
        """Environment variables of a server. `.triton/bin` is first on PATH: the stub takes that Python's packages."""
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "LC_ALL", "TZ", "TMPDIR") if key in os.environ}
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        return {
            **kept,
            "PATH": path,
            "LD_LIBRARY_PATH": str(self.libraries),
            "TRITON_SERVER_CPU_ONLY": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def missing(self) -> list[Path]:
        """The parts that should be there and are not."""
        return [
            part for part in (self.python, self.server, self.stub, self.libraries, self.caches) if not part.exists()
        ]


def locate(directory: Path, version: tuple[int, int]) -> TritonEnvironment:
    """Where the parts of an environment for this Python version lie, there or not."""
    packages = directory / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"
    triton = packages / "pytriton" / "tritonserver"
    return TritonEnvironment(
        directory=directory,
        python=directory / "bin" / "python3",
        server=triton / "bin" / "tritonserver",
        stub=triton / "backends" / "python" / "triton_python_backend_stub",
        libraries=packages / "nvidia_pytriton.libs",
        backends=triton / "backends",
        caches=triton / "caches",
    )


def lock_hash() -> str:
    """Hash of the lock file; part of every stamp that depends on the environment."""
    return hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()


def find_python() -> tuple[Path, tuple[int, int]]:
    """An interpreter that the lock fits: this one, else one on PATH. Raises LocalFleetError if there is none."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        raise LocalFleetError(
            f"the Triton wheel runs on Linux ({' or '.join(MACHINES)}); "
            f"this is {platform.system()} {platform.machine()}",
            "use a Linux machine or container, for example: docker run --shm-size=1g -it debian:12",
        )
    if sys.version_info[:2] in PYTHON_VERSIONS:
        return Path(sys.executable), sys.version_info[:2]
    for version in PYTHON_VERSIONS:
        found = shutil.which(f"python{version[0]}.{version[1]}")
        if found:
            return Path(found), version
    raise LocalFleetError(
        f"the Triton environment needs Python 3.11 or 3.12; this is {platform.python_version()} and neither is on PATH",
        "sudo apt-get install -y python3.11 python3.11-venv",
    )


def is_ready(directory: Path = ENVIRONMENT_DIR) -> bool:
    """True if `ensure_environment` would have nothing to do."""
    try:
        _, version = find_python()
    except LocalFleetError:
        return False
    return _why_not(locate(directory, version), version) is None


def ensure_environment(directory: Path = ENVIRONMENT_DIR, progress: Progress = print_progress) -> TritonEnvironment:
    """The environment, built first if it is absent, broken or of another lock. Raises LocalFleetError with a remedy.

    Safe to call from several processes at once; the first builds, the others wait.
    """
    python, version = find_python()
    environment = locate(directory, version)
    with exclusive("environment"):
        reason = _why_not(environment, version)
        if reason is not None:
            progress(f"triton environment: {reason}; building {directory} (about 600 MB, a minute or so)")
            _build(environment, python, version, progress)
    return environment


def _expected_stamp(version: tuple[int, int]) -> str:
    return f"{lock_hash()} python{version[0]}.{version[1]}\n"


def _why_not(environment: TritonEnvironment, version: tuple[int, int]) -> str | None:
    stamp = environment.directory / STAMP
    if not environment.directory.exists():
        return "not there yet"
    if not stamp.exists():
        return "a build was broken off"
    if stamp.read_text(encoding="ascii") != _expected_stamp(version):
        return "the lock or the Python version has changed"
    missing = environment.missing()
    if missing:
        return f"{missing[0].name} is missing"
    # A broken interpreter (its base Python removed or moved) leaves all files in place.
    probe = subprocess.run([environment.python, "-c", ""], capture_output=True, check=False)
    return None if probe.returncode == 0 else "its Python does not run"


def _build(environment: TritonEnvironment, python: Path, version: tuple[int, int], progress: Progress) -> None:
    directory = environment.directory
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise LocalFleetError("Python's venv module is not complete on this machine", VENV_REMEDY)
    if directory.exists():
        shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory.parent).free
    if free < NEEDED_DISK_BYTES:
        raise LocalFleetError(
            f"{free // 2**20} MB are free under {directory.parent}; the build needs {NEEDED_DISK_BYTES // 2**20} MB",
            "free some disk space; the largest folders: du -xh --max-depth=2 . | sort -h | tail",
        )
    progress("triton environment: creating the virtual environment")
    _run([str(python), "-m", "venv", str(directory)], VENV_REMEDY)
    _install(environment, progress)
    source = environment.server.parents[1] / "python_backend_stubs" / f"{version[0]}.{version[1]}"
    shutil.copy2(source / environment.stub.name, environment.stub)
    for program in (environment.server, environment.stub):
        program.chmod(program.stat().st_mode | 0o755)
    retry = "python -m deploy.local clean --environment"
    check = "import numpy, sklearn, sys; sys.exit(int(numpy.__version__.split('.')[0]) >= 2)"
    _run([str(environment.python), "-c", check], retry)
    _run([str(environment.server), "--help"], retry, environment.variables())
    missing = environment.missing()
    if missing:
        raise LocalFleetError(f"the installed wheel lacks {missing[0]}", retry)
    (directory / STAMP).write_text(_expected_stamp(version), encoding="ascii")
    progress("triton environment: ready")


def _install(environment: TritonEnvironment, progress: Progress) -> None:
    wanted = sum(1 for line in LOCK_FILE.read_text(encoding="utf-8").splitlines() if line[:1].isalnum())
    # The lock is complete, so pip need not resolve anything; wheels only, so nothing is compiled or run.
    argv = [str(environment.python), "-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    argv += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "-r", str(LOCK_FILE)]
    last_lines: deque[str] = deque(maxlen=15)
    collected = 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last_lines.append(line.rstrip())
            if line.startswith(("Collecting ", "Processing ")):
                collected += 1
                if collected % 10 == 0 or collected == wanted:
                    progress(f"triton environment: fetched {collected} of {wanted} packages")
            elif line.startswith("Installing "):
                progress("triton environment: installing")
    if pip.returncode != 0:
        raise LocalFleetError(
            "pip could not install the Triton environment; its last lines:\n    " + "\n    ".join(last_lines),
            "check the network or pip's index settings (pip config list), then run the same command again",
        )


def _run(argv: list[str], remedy: str, variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    # `tritonserver --help` prints its help and returns 1.
    if done.returncode != 0 and not (argv[-1] == "--help" and "Usage:" in done.stdout):
        tail = "\n    ".join(done.stdout.strip().splitlines()[-10:])
        raise LocalFleetError(f"{' '.join(argv[:4])} … failed:\n    {tail}", remedy)
