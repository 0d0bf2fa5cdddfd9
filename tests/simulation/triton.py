"""An in-memory Triton server that keeps the real one's rules, and breaks in the real one's ways, on command.

The rules are those of Triton 2.51 as seen on a live server, and of Triton's own documentation.

- Ports open only after the models named for start-up have loaded or failed.
- A version that failed to load makes the whole server not ready, until a good load of that model; the old
  one serves on.
- Dynamic batching merges waiting requests of equal shape up to `max_batch_size`. Its queue is bounded in requests
  (not batch elements, not running ones). Time limits are looked at when the batcher wakes: when an instance frees or
  every 500 ms, never sooner; they never stop what runs.
- A cancelled request leaves a dynamic batcher's queue when the batcher next looks; what runs, runs on. Without
  dynamic batching the queue is unbounded and nothing in it can be cancelled: it runs, for nobody.
- Decoupled models (`streamer.py`) and stateful ones (`sequencer.py`) have schedulers of their own; `intake.py` is what
  comes before all of them, and ModelStreamInfer.
- A request names a version, or takes the highest ready one. Unknown model or version, a model without ready versions,
  and a version that is not ready are told apart by code and text.

The server is synchronous state on the loop's timers; it makes no tasks. Every answer carries `answer_digest` of the
input, the model and the version that really ran, so that an answer that was swapped, altered or relabelled is seen.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import Counts, Done, ModelSpec, Request, Scheduler, fault
from tests.simulation.intake import FINAL, NOT_UNARY, AnyScheduler, begin, look
from tests.simulation.sequencer import SequenceLog, Sequencer
from tests.simulation.states import Lie, Metrics, Process
from tests.simulation.streamer import Streamer
from tests.simulation.trace import Trace


@dataclass(slots=True)
class Version:
    """One version of one model in the server. `scheduler` is None unless it can run."""

    state: str
    reason: str = ""
    scheduler: AnyScheduler | None = None


class Triton:
    """One server process. Its methods are what the network delivers; none blocks."""

    def __init__(
        self, name: str, specs: tuple[ModelSpec, ...], loop: asyncio.AbstractEventLoop, seed: str, trace: Trace
    ) -> None:
        self.name = name
        self.specs = {spec.name: spec for spec in specs}
        self.process = Process.DOWN
        self.generation = 1
        """Counts process lives: a connection and a running batch belong to one of them."""
        self.models: dict[str, dict[str, Version]] = {}
        self.chance = random.Random(f"triton/{seed}/{name}")
        self.now_s = loop.time
        self.slowness = 1.0
        self.lie = Lie.NONE
        self.metrics = Metrics.GOOD
        self.executed: Counter[bytes] = Counter()
        """How often each input was run, over all lives of the process."""
        self.sequences = SequenceLog()
        """What became of sequences, over all lives of the process."""
        self.on_death: list[Callable[[], None]] = []
        """Connections of this life hear of its end here."""
        self.on_stop: list[Callable[[], None]] = []
        """And that it was told to stop, here; once it runs."""
        self.thawed_s = loop.time()
        """When it was frozen last, that was over then."""
        self.ended_in_order = False
        """The last life did what it was told, and was not killed."""
        self._loop = loop
        self._trace = trace
        self._frozen = False
        self._held: list[Callable[[], None]] = []
        self._failed: set[str] = set()
        self._gone_since_s: dict[tuple[str, str], float] = {}
        self._frozen_since_s = 0.0
        self._began_s = loop.time()

    # -- the process ----------------------------------------------------------------------------------------------

    def note(self, kind: str, *fields: object) -> None:
        self._trace.add(kind, self.name, *fields)

    def after(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        """Do `work` later in this process life; a frozen process does it when it thaws."""
        return self._loop.call_later(delay_s, self._run, self.generation, work)

    def _run(self, generation: int, work: Callable[[], None]) -> None:
        if generation != self.generation:
            return
        if self._frozen:
            self._held.append(work)
        else:
            work()

    def arrive(self, work: Callable[[], None]) -> None:
        """Do `work` that came over the network: at once, or when the process thaws."""
        self._run(self.generation, work)

    @property
    def listening(self) -> bool:
        """Whether a new connection is accepted. The kernel accepts for a frozen process too."""
        return self.process is Process.UP

    @property
    def frozen(self) -> bool:
        return self._frozen

    @property
    def stopping(self) -> bool:
        return self.process is Process.STOPPING

    def start(self) -> None:
        """Start the process; the ports open when the models for start-up are loaded."""
        assert self.process is Process.DOWN, f"{self.name} is {self.process.value} already"
        self.process = Process.STARTING
        self._frozen = False
        self.models = {}
        self._failed = set()
        load_s = 0.0
        for spec in self.specs.values():
            self.models[spec.name] = {}
            if spec.named_at_start:
                load_s += spec.load_s
                for version in spec.versions:
                    self._put(spec, version)
        self.note("start", f"{load_s:.3f}")
        self.after(load_s, self._open)

    def _open(self) -> None:
        self.process = Process.UP
        self._changed()
        self.note("listening")

    def _put(self, spec: ModelSpec, version: str) -> None:
        if version in spec.broken:
            self.models[spec.name][version] = Version("UNAVAILABLE", "Internal: failed to load the model")
            self._failed.add(spec.name)
        else:
            self.models[spec.name][version] = Version("READY", "", self._scheduler(spec, version))

    def _scheduler(self, spec: ModelSpec, version: str) -> AnyScheduler:
        if spec.decoupled:
            return Streamer(self, spec, version)
        if spec.sequences:
            return Sequencer(self, spec, version, self.sequences, self.generation)
        return Scheduler(self, spec, version)

    def crash(self) -> None:
        """SIGKILL: connections are reset, what ran is lost."""
        self.note("crash")
        self._end()

    def stop(self) -> None:
        """SIGTERM: accepts nothing new, answers what it has, then ends."""
        if self.process in (Process.UP, Process.STARTING):
            self.note("stopping")
            self.process = Process.STOPPING
            self._changed()
            stops, self.on_stop = self.on_stop, []
            for hear in stops:
                self.arrive(hear)
            self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self.process is not Process.STOPPING:
            return
        if all(v.scheduler is None or v.scheduler.idle for versions in self.models.values() for v in versions.values()):
            self._end(in_order=True)
        else:
            self.after(0.05, self._end_when_idle)

    def _end(self, *, in_order: bool = False) -> None:
        self.ended_in_order = in_order
        self._began_s = self.now_s()
        self.process = Process.DOWN
        self.generation += 1
        self._frozen = False
        self._held.clear()
        for versions in self.models.values():
            for version in versions.values():
                if version.scheduler is not None:
                    version.scheduler.drop_all()
        self.models = {}
        self._changed()
        deaths, self.on_death = self.on_death, []
        self.on_stop.clear()
        for hear in deaths:
            hear()

    def freeze(self) -> None:
        """SIGSTOP: connections stand, nothing is answered, nothing computes."""
        self.note("freeze")
        self._frozen = True
        self._frozen_since_s = self.now_s()

    def thaw(self) -> None:
        """SIGCONT: everything held happens now, in order."""
        self.note("thaw")
        self._frozen = False
        self.thawed_s = self.now_s()
        held, self._held = self._held, []
        for work in held:
            self._run(self.generation, work)

    # -- models ---------------------------------------------------------------------------------------------------

    def load(self, name: str, version: str, *, broken: bool = False, keep_old: bool = False) -> None:
        """Load one version. Good: it serves, and unless `keep_old` (a version policy above `latest 1`) the others are
        unloaded after. Broken: the others serve on, and the server is not ready until a good load.
        """
        versions = self.models.get(name)
        if versions is None or self.process is not Process.UP:
            return
        spec, old = self.specs[name], versions.get(version)
        if old is None or old.scheduler is None:
            versions[version] = Version("LOADING")
        self.note("loading", name, version)
        self.after(spec.load_s, lambda: self._loaded(spec, version, broken, keep_old))

    def _loaded(self, spec: ModelSpec, version: str, broken: bool, keep_old: bool) -> None:
        versions = self.models[spec.name]
        self.note("loaded", spec.name, version, "broken" if broken else "good")
        if broken:
            self._failed.add(spec.name)
            if versions[version].scheduler is None:
                versions[version] = Version("UNAVAILABLE", "Internal: failed to load the model")
            return
        self._failed.discard(spec.name)
        if versions[version].scheduler is None:
            versions[version] = Version("READY", "", self._scheduler(spec, version))
        versions[version].state = "READY"
        self._changed()
        if not keep_old:
            for other in tuple(versions):
                if other != version:
                    self._unload(spec.name, other)

    def unload(self, name: str) -> None:
        """Answers at once; what is in flight finishes. Before the ports are open nobody can ask for it."""
        if self.process is not Process.UP:
            return
        self.note("unload", name)
        for version in tuple(self.models.get(name, ())):
            self._unload(name, version)

    def unload_others(self, name: str) -> None:
        """Unload what the repository does not name: the end of a rollout that was taken back."""
        for version in tuple(self.models.get(name, ())):
            if version not in self.specs[name].versions:
                self._unload(name, version)

    def _unload(self, name: str, version: str) -> None:
        entry = self.models[name][version]
        if entry.state == "READY":
            entry.state = "UNLOADING"
            self._changed()
        self.settle(name)

    def settle(self, name: str) -> None:
        """An unloading version that has finished its last request is gone."""
        for version in self.models.get(name, {}).values():
            if version.state == "UNLOADING" and (version.scheduler is None or version.scheduler.idle):
                version.state, version.reason, version.scheduler = "UNAVAILABLE", "unloaded", None

    def _changed(self) -> None:
        """Keep note of since when a version that once served does not."""
        serving = {
            (name, version)
            for name, versions in self.models.items()
            for version, entry in versions.items()
            if entry.state == "READY" and self.process is Process.UP
        }
        for key in serving:
            self._gone_since_s[key] = float("inf")
        for key, since_s in self._gone_since_s.items():
            if key not in serving and since_s == float("inf"):
                self._gone_since_s[key] = self.now_s()

    def gone_s(self, name: str, version: str, black_hole: float | None) -> float | None:
        """For how long nobody could have got an answer from this version here; None if it can answer now.
        `black_hole` is since when the machine cannot be reached, if it cannot.
        """
        since_s = self._gone_since_s.get((name, version), self._began_s)
        if self._frozen:
            since_s = min(since_s, self._frozen_since_s)
        if black_hole is not None:
            since_s = min(since_s, black_hole)
        return None if since_s == float("inf") else self.now_s() - since_s

    def find(self, name: str, asked: str) -> Version | UpstreamFault:
        """The version that a request for (name, asked) gets, or the fault it gets."""
        unknown = f"Request for unknown model: '{name}'"
        versions = self.models.get(name)
        if asked and not (asked.isascii() and asked.isdecimal()):
            return fault(
                Code.INVALID_ARGUMENT,
                f"failed to get model version from specified version string '{asked}' "
                "(details: stoll, version should be an integral value > 0)",
            )
        if versions is None:
            return fault(Code.NOT_FOUND, f"{unknown} is not found")
        if not asked:
            ready = [version for version, entry in versions.items() if entry.state == "READY"]
            if not ready:
                return fault(Code.NOT_FOUND, f"{unknown} has no available versions")
            return versions[max(ready, key=int)]
        if asked not in versions:
            return fault(Code.NOT_FOUND, f"{unknown} version {asked} is not found")
        if versions[asked].state != "READY":
            return fault(Code.UNAVAILABLE, f"{unknown} version {asked} is not at ready state")
        return versions[asked]

    def server_ready(self) -> bool:
        """Strict readiness: one failed model spoils it."""
        return not self._failed and Lie.NOT_READY not in self.lie

    def queued(self, name: str, version: str) -> int:
        entry = self.models.get(name, {}).get(version)
        return len(entry.scheduler.queue) if entry is not None and entry.scheduler is not None else 0

    def counts_of(self, name: str, version: str) -> Counts:
        """The statistics of a version that is loaded."""
        scheduler = self.models[name][version].scheduler
        assert scheduler is not None, f"{name} {version} is not loaded on {self.name}"
        return scheduler.counts

    def statistics(self, name: str, asked: str) -> bytes:
        """ModelStatistics: of all ready versions, or of those that are named. What is not there is the caller's
        fault here, not NOT_FOUND; a version without a model's name means nothing.
        """
        if name and asked and not (asked.isascii() and asked.isdecimal()):
            text = f"failed to get model version from specified version string '{asked}' (details: stol)"
            raise fault(Code.INVALID_ARGUMENT, f"{text}, version should be an integral value > 0")
        answer = pb.ModelStatisticsResponse()
        for model in sorted(self.models):
            versions = self.models[model]
            for version in sorted(versions, key=int):
                if versions[version].state == "READY" and name in ("", model) and (not name or asked in ("", version)):
                    self._count_into(answer.model_stats.add(name=model, version=version), versions[version])
        if name and not answer.model_stats:
            ready = any(entry.state == "READY" for entry in self.models.get(name, {}).values())
            text = f"requested model version is not available for model '{name}'"
            raise fault(Code.INVALID_ARGUMENT, text if ready else f"requested model '{name}' is not available")
        serialized: bytes = answer.SerializeToString()
        return serialized

    @staticmethod
    def _count_into(row: pb.ModelStatistics, version: Version) -> None:
        assert version.scheduler is not None, "a ready version has a scheduler"
        counts = version.scheduler.counts
        row.last_inference = int(counts.last_s * 1000)
        row.inference_count, row.execution_count = counts.inferences, counts.executions
        figures = row.inference_stats
        failed = counts.rejected + counts.cancelled + counts.backend
        took_ns = (counts.queue_us + counts.compute_us) * 1000
        for duration, count, ns in (
            (figures.success, counts.success, took_ns),
            (figures.fail, failed, 0),
            (figures.queue, counts.success, counts.queue_us * 1000),
            (figures.compute_infer, counts.success, counts.compute_us * 1000),
            *((each, 0, 0) for each in (figures.compute_input, figures.compute_output, figures.cache_hit,
                                        figures.cache_miss)),
        ):  # fmt: skip
            duration.count, duration.ns = count, ns
        for size, executions in sorted(counts.batches.items()):
            row.batch_stats.add(batch_size=size).compute_infer.count = executions

    # -- inference ------------------------------------------------------------------------------------------------

    def infer(self, raw: bytes, done: Done) -> Request | None:
        """Take one request; `done` is called once, now or later. Returns what `cancel` needs, None if it ended."""
        intake = look(self, raw)
        if isinstance(intake.scheduler, Streamer):
            done(fault(Code.UNIMPLEMENTED, NOT_UNARY))
        elif intake.fault is not None:
            done(intake.fault)
        else:
            return begin(self, intake, done)
        return None

    def cancel(self, request: Request) -> None:
        """A gRPC cancel arrived. Marks only: the batcher looks when it next wakes, a decoupled model at its next
        response; and what runs otherwise, runs on.
        """
        request.cancelled = True

    def answer(self, model: str, version: str, request_id: str, output: bytes, final: bool | None = None) -> bytes:
        """The serialized `ModelInferResponse` with this output; `final` is its flag, None for none."""
        response = pb.ModelInferResponse()
        response.model_name = f"not-{model}" if Lie.WRONG_MODEL in self.lie else model
        response.model_version = str(int(version) + 7) if Lie.WRONG_VERSION in self.lie else version
        response.id = request_id
        tensor = response.outputs.add()
        tensor.name, tensor.datatype = "digest", "UINT8"
        tensor.shape.extend((1, 16))
        response.raw_output_contents.append(output)
        if final is not None:
            response.parameters[FINAL].bool_param = final
        serialized: bytes = response.SerializeToString()
        return serialized


__all__ = ["Lie", "Metrics", "Process", "Triton", "Version"]
