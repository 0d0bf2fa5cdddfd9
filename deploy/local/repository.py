"""Builds the Triton model repository from the sources in `models/`, training where a model is trained.

The folder is built beside its place and renamed into it, so a server never sees half of it. `.stamp.json` holds a hash
of each model's sources; a model whose hash is unchanged is taken over from the present folder instead of trained again.

Queue policies. With any `default_queue_policy` (a size, a timeout, or just the override) this Triton hands one payload
at a time to an instance, and does not wake its batcher for a request that arrives while the instance is just about to
be free: about one call in a hundred of a lone caller then waits for the batcher's 500 ms tick (measured on 2.51; a
timeout also makes throughput drift down, triton-inference-server/server issue 8870). So the models are served without
one: the waiting place is the gateway's. The price: up to two batches per instance are taken out of the queue ahead of
their execution, and those a cancel does not reach (of 20 queued and cancelled calls of `accel`, 16 ran; with a queue
policy none). The same models with a queue policy are a second configuration, `configs/bounded.pbtxt`; a server started
with `--model-config-name=bounded` takes it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.local.environment import TritonEnvironment, lock_hash
from deploy.local.errors import LocalFleetError
from deploy.local.layout import PACKAGE, REPOSITORY_DIR, ROOT, Progress, exclusive, print_progress

STAMP = ".stamp.json"
SOURCES_DIR = PACKAGE / "models"

DYNAMIC_BATCHING = "dynamic_batching {\n"
QUEUE_POLICY = """\
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 5000000  # without a default that is not zero, a request's own timeout is ignored
    allow_timeout_override: true
    max_queue_size: 64
  }
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one model comes from. `serving` files of its folder and `shared` files of all models go into the folder of
    every version; `config` and `labels` files go into the model's folder; `training` is a module to run.
    """

    name: str
    folder: str
    serving: tuple[str, ...]
    versions: tuple[str, ...] = ("1",)
    shared: tuple[str, ...] = ()
    training: str | None = None
    config: str = "config.pbtxt"
    labels: tuple[str, ...] = ()

    def files(self) -> tuple[Path, ...]:
        """What goes into every version's folder."""
        own = (SOURCES_DIR / self.folder / name for name in self.serving)
        return (*own, *(SOURCES_DIR / name for name in self.shared))

    def digest(self) -> str:
        """Hash of everything that the built model depends on."""
        files = sorted({*(SOURCES_DIR / self.folder).glob("*.*"), *self.files()})
        digest = hashlib.sha256(Path(__file__).read_bytes())
        if self.training:
            files = sorted({*files, *SOURCES_DIR.glob("*.py")})
            digest.update(lock_hash().encode())
        for file in files:
            digest.update(f"{file.relative_to(SOURCES_DIR)}\0".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()


SOURCES = (
    Source(
        name="fraud",
        folder="fraud",
        serving=("model.py", "trees.py"),
        versions=("1", "2"),
        shared=("scored.py",),
        training="deploy.local.models.fraud.train",
    ),
    Source(
        name="fraud-lite",
        folder="fraud_lite",
        serving=("model.py", "logistic.py"),
        shared=("scored.py",),
        training="deploy.local.models.fraud_lite.train",
    ),
    Source(name="identity", folder="identity", serving=("model.py",)),
    Source(
        name="accel",
        folder="accel",
        serving=("model.py", "behaviour.py"),
        shared=("command.py", "execution_log.py"),
    ),
    Source(
        name="streamer",
        folder="streamer",
        serving=("model.py", "markov.py", "orders.py"),
        shared=("execution_log.py",),
    ),
    Source(name="accumulator", folder="accumulator", serving=("model.py", "sums.py"), shared=("command.py",)),
    Source(
        name="accumulator-text",
        folder="accumulator",
        serving=("model.py", "sums.py"),
        shared=("command.py",),
        config="text.pbtxt",
    ),
    Source(
        name="ranker",
        folder="ranker",
        serving=("model.py", "bilinear.py"),
        training="deploy.local.models.ranker.train",
        labels=("factors.txt",),
    ),
    Source(name="embedder", folder="embedder", serving=("model.py", "ngrams.py")),
    Source(name="mixed", folder="mixed", serving=("model.py", "logarithm.py")),
)


def build_repository(
    environment: TritonEnvironment,
    target_dir: Path = REPOSITORY_DIR,
    progress: Progress = print_progress,
) -> Path:
    """Build all models into `target_dir` unless it is up to date; returns it. Raises LocalFleetError.

    Servers that run from an older `target_dir` keep what they have loaded. Training takes about ten seconds.
    """
    with exclusive("repository"):
        wanted = {source.name: source.digest() for source in SOURCES}
        present = _read_stamp(target_dir)
        if present == wanted:
            return target_dir
        building = target_dir.with_name(f".{target_dir.name}.building")
        retired = target_dir.with_name(f".{target_dir.name}.retired")
        for leftover in (building, retired):
            if leftover.exists():
                shutil.rmtree(leftover)
        building.mkdir(parents=True)
        for source in SOURCES:
            if present.get(source.name) == wanted[source.name]:
                shutil.copytree(target_dir / source.name, building / source.name)
            else:
                progress(f"model {source.name}: {'training' if source.training else 'building'}")
                _build(source, environment, building / source.name)
        (building / STAMP).write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
        if target_dir.exists():
            target_dir.rename(retired)
        building.rename(target_dir)
        if retired.exists():
            shutil.rmtree(retired)
        progress(f"model repository: ready in {target_dir}")
    return target_dir


def _read_stamp(target_dir: Path) -> dict[str, str]:
    try:
        stamp: dict[str, str] = json.loads((target_dir / STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return {name: digest for name, digest in stamp.items() if (target_dir / name / "config.pbtxt").exists()}


def _build(source: Source, environment: TritonEnvironment, model_dir: Path) -> None:
    folder = SOURCES_DIR / source.folder
    model_dir.mkdir()
    if source.training:
        argv = [str(environment.python), "-B", "-m", source.training, str(model_dir)]
        _run(argv, environment, f"training {source.name}")
    config = (folder / source.config).read_text(encoding="utf-8")
    (model_dir / "config.pbtxt").write_text(config, encoding="utf-8")
    if DYNAMIC_BATCHING in config:
        (model_dir / "configs").mkdir()
        bounded = config.replace(DYNAMIC_BATCHING, DYNAMIC_BATCHING + QUEUE_POLICY)
        (model_dir / "configs" / "bounded.pbtxt").write_text(bounded, encoding="utf-8")
    for labels in source.labels:
        shutil.copyfile(folder / labels, model_dir / labels)
    for version in source.versions:
        version_dir = model_dir / version
        version_dir.mkdir(exist_ok=True)
        for file in source.files():
            shutil.copyfile(file, version_dir / file.name)
    # Compiled here, because a stub would write __pycache__ at its first import (whatever PYTHONDONTWRITEBYTECODE says),
    # and a folder that has changed looks to Triton like a new model at the next load.
    _run(
        [str(environment.python), "-m", "compileall", "-q", "--invalidation-mode=checked-hash", str(model_dir)],
        environment,
        f"compiling {source.name}",
    )


def _run(argv: list[str], environment: TritonEnvironment, what: str) -> None:
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n    ".join(done.stdout.strip().splitlines()[-10:])
        raise LocalFleetError(
            f"{what} failed (exit {done.returncode}):\n    {tail}",
            "python -m deploy.local clean --environment, then run the same command again",
        )
