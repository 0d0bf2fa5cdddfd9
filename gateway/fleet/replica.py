"""One replica's state machine: what is known of a server process and of each model version on it.

Pure and synchronous: facts come in with their time (`now_s`, monotonic seconds), the state changes, and what changed is
left in `take_transitions` for whoever logs. Nothing here asks, waits or sends.

Rules:

- A replica goes up by answers: CONNECTED with the first answer of any kind, LIVE with the first good liveness answer.
  One that was DOWN comes back with a good liveness answer only.
- It goes DOWN when its connection is lost (it cannot be reached at all), when it says that it is stopping, or when
  `failures_to_down` liveness calls in a row went unanswered. A good inference answer that came after a liveness call
  was sent counts as its answer: Triton serves control calls from one thread, and a busy server is not a dead one.
- What comes back after DOWN is a new life: every model is looked at, described and warmed again, with new phases.
- A model version leaves the ready set after `failures_to_unready` findings in a row that speak against it. The last
  replica of a version is kept as a last resort while calls to it get good answers.
- A call that the replica itself refused, because it does not have the version, needs no second finding while others
  serve it. A version that comes back and soon goes again, by either, is held out, for longer each time.
- Work that takes time (describing, warming) carries the version's `epoch`; what was begun in an earlier one is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.faces import Endpoints, IndexEntry
from gateway.core.snapshot import GpuView, ModelState, Phases, ReplicaState, ReplicaView
from gateway.fleet.metrics_text import Page
from gateway.fleet.model_record import Description, Key, ModelRecord
from gateway.policy.schema import Health

MODELS_MAX = 1024
"""Model versions kept per replica; further ones in an index are not used, and said to be so."""

SCRAPE_SHOWN_S = 10.0
"""A scrape that brought nothing new is shown this often: each showing makes a snapshot."""

_INDEX_STATES = {"READY": ModelState.READY, "LOADING": ModelState.LOADING}
_UP = (ReplicaState.CONNECTED, ReplicaState.LIVE)
_SERVING = (ModelState.READY, ModelState.WARMED)


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, for the log: of the replica (`key` None) or of one model version on it."""

    key: Key | None
    before: str
    after: str
    reason: str


class Replica:
    """The state machine. `is_last(key)` tells whether no other replica of the pool takes calls of that version."""

    def __init__(
        self,
        replica_id: str,
        pool: str,
        endpoints: Endpoints,
        health: Health,
        now_s: float,
        is_last: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        self.id = replica_id
        self.pool = pool
        self.endpoints = endpoints
        self.state = ReplicaState.SEEN
        self.models: dict[Key, ModelRecord] = {}
        self.gpus: tuple[GpuView, ...] = ()
        self.server_version = ""
        self.server_metadata = b""
        self.last_error = ""
        self.life = 0
        """Counts the times it went down."""
        self.seen_s = now_s
        self.connected_s: float | None = None
        self.live_s: float | None = None
        self.first_answer_s: float | None = None
        self.down_s: float | None = None
        self.scraped_s: float | None = None
        self.changed = True
        """A view made now would differ from the last one. Whoever takes a view resets it."""
        self._health = health
        self._is_last = is_last
        self._failures = 0
        self._shown_scraped_s = float("-inf")
        self._last_answer_s = float("-inf")
        self._transitions: list[Transition] = []

    # -- liveness -----------------------------------------------------------------------------------------------------

    def live(self, now_s: float) -> None:
        """A liveness call was answered well."""
        self._failures = 0
        self._connect(now_s)
        if self.state is not ReplicaState.LIVE:
            if self.live_s is None:
                self.live_s = now_s
            self.last_error = ""
            self._move(ReplicaState.LIVE, "it answers the liveness call")

    def not_live(self, text: str, asked_s: float, now_s: float, *, answered: bool, lost: bool) -> None:
        """A liveness call failed: the replica `answered` something else than yes, or it is `lost` (no connection to it
        could be made, or it says that it is stopping), or nothing came in time.
        """
        if not lost and not answered and self._last_answer_s >= asked_s:
            self._failures = 0
            return
        self._note_error(text)
        if answered and self.state is ReplicaState.SEEN:
            self._connect(now_s)
        self._failures += 1
        if self.state is ReplicaState.CONNECTED and answered:
            return  # It has never been live, and it is there.
        if self.state in _UP and (lost or self._failures >= self._health.failures_to_down):
            self._go_down(text, now_s)

    def _connect(self, now_s: float) -> None:
        if self.state is ReplicaState.DOWN:
            # A new life: its phases are counted from when the old one was seen to have ended.
            assert self.down_s is not None
            self.seen_s = self.down_s
            self.connected_s = self.live_s = self.first_answer_s = self.down_s = None
        if self.connected_s is None:
            self.connected_s = now_s
            self._move(ReplicaState.CONNECTED, "it answers")

    def _go_down(self, text: str, now_s: float) -> None:
        self.life += 1
        self.down_s = now_s
        self.gpus = ()
        self.server_metadata = b""
        self._move(ReplicaState.DOWN, text)
        for key, record in self.models.items():
            self._take_off(key, record, ModelState.UNAVAILABLE, "the replica is down", quiet=True)

    def _move(self, state: ReplicaState, reason: str) -> None:
        self._transitions.append(Transition(None, self.state.value, state.value, reason))
        self.state = state
        self.changed = True

    @property
    def doubtful(self) -> bool:
        """Something speaks against the replica or one of its models, but not often enough yet: ask again soon."""
        if self.state in _UP and self._failures:
            return True
        return any(record.findings_against and not record.reason for record in self.models.values())

    # -- models -------------------------------------------------------------------------------------------------------

    def index(self, entries: Iterable[IndexEntry], asked_s: float, now_s: float) -> list[Key]:
        """The repository index was read (of the models that matter). Returns the versions that it calls ready; their
        own readiness is to be asked, and has the last word (`readiness`).
        """
        if self.state is not ReplicaState.LIVE:
            return []
        ready: list[Key] = []
        listed: set[Key] = set()
        for entry in entries:
            if not entry.version:
                continue  # In the repository, but never loaded.
            key = (entry.name, entry.version)
            record = self.models.get(key)
            if record is None:
                if len(self.models) >= MODELS_MAX:
                    self._note_error(f"more than {MODELS_MAX} model versions; the rest is not used")
                    continue
                record = self.models[key] = ModelRecord(now_s)
                self.changed = True
            listed.add(key)
            state = _INDEX_STATES.get(entry.state, ModelState.UNAVAILABLE)
            if state is ModelState.READY:
                ready.append(key)
            else:
                self._against(key, record, state, entry.reason or entry.state.lower(), asked_s, now_s)
        for key in [key for key in self.models if key not in listed]:
            record = self.models[key]
            if record.state in _SERVING:
                gone = "not in the repository index any more"
                self._against(key, record, ModelState.UNAVAILABLE, gone, asked_s, now_s)
            else:
                del self.models[key]
                self.changed = True
        return ready

    def readiness(self, key: Key, ready: bool, asked_s: float, now_s: float) -> None:
        """The version's own readiness was asked."""
        record = self.models.get(key)
        if record is None or self.state is not ReplicaState.LIVE:
            return
        if not ready:
            said = "the replica says that it is not ready"
            self._against(key, record, ModelState.UNAVAILABLE, said, asked_s, now_s)
            return
        if record.state in _SERVING:
            self._for(record)
            return
        if asked_s <= record.left_s or (now_s < record.held_until_s and not self._is_last(key)):
            return
        record.findings_against = 0
        record.epoch += 1
        record.description = None
        record.seen_s = max(record.seen_s, self.seen_s)
        record.ready_s, record.warmed_s, record.first_answer_s = now_s, None, None
        self._set_model(key, record, ModelState.READY, "")

    def tried(self, key: Key, epoch: int, good: bool, text: str, asked_s: float) -> None:
        """A test call on a version in service was answered. `failures_to_unready` bad ones in a row, with no good
        answer to any call in between, take it out of service until it has been warmed again.
        """
        record = self.models.get(key)
        if record is None or record.epoch != epoch or record.state is not ModelState.WARMED:
            return
        if good or record.last_answer_s >= record.first_bad_trial_s:
            record.bad_trials = 0
        if good:
            return
        record.bad_trials += 1
        if record.bad_trials == 1:
            record.first_bad_trial_s = asked_s
        if record.bad_trials >= self._health.failures_to_unready:
            self._take_off(key, record, ModelState.READY, f"test calls fail: {text}")

    def refused(self, key: Key, asked_s: float, now_s: float, text: str) -> bool:
        """A call that was sent at `asked_s` was answered: this version is not here. True if that took the version out
        of service; it comes back by readiness and warming. The last one stays: probes decide about it.
        """
        record = self.models.get(key)
        if record is None or not self.serves(key) or self._is_last(key):
            return False
        assert record.warmed_s is not None
        if asked_s < record.warmed_s:
            return False  # It has been loaded anew since.
        record.left(now_s)
        self._take_off(key, record, ModelState.UNAVAILABLE, f"it refused a call: {text}")
        return True

    def serves(self, key: Key) -> bool:
        """Whether it takes calls of this version."""
        record = self.models.get(key)
        return self.state is ReplicaState.LIVE and record is not None and record.state is ModelState.WARMED

    def serving(self) -> list[Key]:
        """The versions of which it takes calls."""
        if self.state is not ReplicaState.LIVE:
            return []
        return [key for key, record in self.models.items() if record.state is ModelState.WARMED]

    def _for(self, record: ModelRecord) -> None:
        record.findings_against = 0
        if record.state is ModelState.WARMED and record.reason:
            record.reason = ""
            self._show(record)

    def _against(
        self, key: Key, record: ModelRecord, state: ModelState, reason: str, asked_s: float, now_s: float
    ) -> None:
        if record.state not in _SERVING:
            if (record.state, record.reason) != (state, reason):
                self._set_model(key, record, state, reason)
            return
        record.findings_against += 1
        if record.findings_against == 1:
            record.first_finding_s = asked_s
        if record.findings_against < self._health.failures_to_unready:
            return
        if record.state is ModelState.WARMED and record.last_answer_s >= record.first_finding_s and self._is_last(key):
            kept = f"kept as the last one while it answers: {reason}"
            if record.reason != kept:
                record.reason = kept
                self._show(record)
            # Only answers that come from now on keep it for another round.
            record.findings_against, record.first_finding_s = self._health.failures_to_unready - 1, asked_s
            return
        record.left(now_s)
        self._take_off(key, record, state, reason)

    def _take_off(self, key: Key, record: ModelRecord, state: ModelState, reason: str, *, quiet: bool = False) -> None:
        record.epoch += 1
        record.findings_against = record.bad_trials = 0
        record.figures = None
        record.clear_figures()
        record.warmed_s = record.first_answer_s = None
        if state is not ModelState.READY:
            record.ready_s = None
        self._set_model(key, record, state, reason, quiet=quiet)

    def _set_model(self, key: Key, record: ModelRecord, state: ModelState, reason: str, *, quiet: bool = False) -> None:
        if record.state is not state and not quiet:
            self._transitions.append(Transition(key, record.state.value, state.value, reason))
        record.state = state
        record.reason = reason
        self._show(record)

    def _show(self, record: ModelRecord) -> None:
        """Something that a view shows of it has changed."""
        record.stale()
        self.changed = True

    def described(self, key: Key, epoch: int, description: Description, slots: int, now_s: float) -> None:
        """Metadata and configuration were read."""
        record = self.models.get(key)
        if record is None or record.epoch != epoch:
            return
        record.described_s = now_s
        if record.description != description or record.slots != slots:
            record.description = description
            record.slots = slots
            self._show(record)

    def warmed(self, key: Key, epoch: int, note: str, now_s: float) -> None:
        """The version is warm (or needs no warming, as `note` says) and may get calls."""
        record = self.models.get(key)
        if record is None or record.epoch != epoch or record.state is not ModelState.READY:
            return
        record.warmed_s = now_s
        record.note = note
        self._set_model(key, record, ModelState.WARMED, "")

    def not_warmed(self, key: Key, epoch: int, text: str) -> None:
        """It was not warmed for now; it will be tried again."""
        record = self.models.get(key)
        if record is None or record.epoch != epoch or record.state is not ModelState.READY:
            return
        reason = f"warm-up: {text}"
        if record.reason != reason:
            record.reason = reason
            self._show(record)

    def to_describe(self, now_s: float, refresh_s: float) -> list[tuple[Key, int]]:
        """Ready versions whose description is missing, or older than `refresh_s` (a sixth of it if the JSON spelling is
        missing), with their epochs.
        """
        due: list[tuple[Key, int]] = []
        for key, record in self.models.items():
            if record.state in _SERVING:
                description = record.description
                limit_s = refresh_s if description is not None and description.config.json else refresh_s / 6
                if description is None or now_s - record.described_s >= limit_s:
                    due.append((key, record.epoch))
        return due

    def to_warm(self) -> list[tuple[Key, int]]:
        """Ready and described versions that are not warm, with their epochs."""
        return [
            (key, record.epoch)
            for key, record in self.models.items()
            if record.state is ModelState.READY and record.description is not None
        ]

    # -- what calls and scrapes show ----------------------------------------------------------------------------------

    def answered(self, key: Key, now_s: float) -> None:
        """A call got a good answer."""
        self._last_answer_s = now_s
        record = self.models.get(key)
        if record is None:
            return
        record.last_answer_s = now_s
        if record.first_answer_s is None and record.state is ModelState.WARMED:
            record.first_answer_s = now_s
            if self.first_answer_s is None:
                self.first_answer_s = now_s
            self._show(record)

    def scraped(self, page: Page, now_s: float) -> None:
        """A metrics page was read. Series of versions that are not in service are left over from before an unload."""
        if self.scraped_s is None or now_s - self._shown_scraped_s >= SCRAPE_SHOWN_S:
            self._shown_scraped_s = now_s
            self.changed = True
        self.scraped_s = now_s
        if self.state is not ReplicaState.LIVE:
            return
        for key, record in self.models.items():
            if record.show(page.models.get(key) if record.state in _SERVING else None):
                self._show(record)
        gpus = tuple(
            GpuView(uuid, gpu.utilisation, gpu.memory_used_bytes, gpu.memory_total_bytes)
            for uuid, gpu in sorted(page.gpus.items())
        )
        if gpus != self.gpus:
            self.gpus = gpus
            self.changed = True

    def forget_figures(self) -> None:
        """The page could not be read for so long that the last figures say nothing any more."""
        for record in self.models.values():
            if record.show(None):
                self._show(record)
        if self.gpus:
            self.gpus = ()
            self.changed = True

    def identified(self, metadata: bytes, version: str) -> None:
        """The server's metadata was read."""
        self.server_metadata = metadata
        if self.server_version != version:
            self.server_version = version
            self.changed = True

    def failed(self, text: str) -> None:
        """A control call other than liveness failed: worth telling, no reason to act."""
        self._note_error(text)

    def _note_error(self, text: str) -> None:
        if self.last_error != text:
            self.last_error = text
            self.changed = True

    # -- views --------------------------------------------------------------------------------------------------------

    def take_transitions(self) -> list[Transition]:
        """What changed since the last call of this."""
        taken, self._transitions = self._transitions, []
        return taken

    def view(self) -> ReplicaView:
        return ReplicaView(
            id=self.id,
            pool=self.pool,
            address=self.endpoints.grpc,
            state=self.state,
            models=MappingProxyType({key: record.view(key) for key, record in self.models.items()}),
            phases=self.phases,
            gpus=self.gpus,
            server_version=self.server_version,
            last_error=self.last_error,
            times_down=self.life,
            scraped_s=self.scraped_s,
        )

    @property
    def phases(self) -> Phases:
        """The replica's own phases; ready and warmed are those of its first model to get there in this life."""
        serving = [record for record in self.models.values() if record.state in _SERVING]
        return Phases(
            seen_s=self.seen_s,
            connected_s=self.connected_s,
            live_s=self.live_s,
            ready_s=min((record.ready_s for record in serving if record.ready_s is not None), default=None),
            warmed_s=min((record.warmed_s for record in serving if record.warmed_s is not None), default=None),
            first_answer_s=self.first_answer_s,
        )
