"""Sequences: which version and replica holds each live sequence of a model, and in which order its steps may go.

A sequence lives inside one replica. Where it begins is no secret: the replica comes from a rendezvous hash of (model,
typed id) over those that serve the version (Thaler and Ravishankar, 1998), so that gateways which see the same fleet
agree without asking one another, and one that was restarted finds what it had begun. The table adds what the hash
cannot know: that a sequence stays where it is when the fleet or the weights of a split change, and that one whose
replica left is lost. Only a step that carries `start` begins it again.

Forgetting an entry is always honest, only less clear: Triton refuses a step of a sequence that it has not got, so what
is forgotten fails with Triton's text instead of ours, and nothing silently begins in the middle. That is why the table
may expire entries and, at its bound, give up the one that was idle for longest.

Pure: time is an argument, nobody is woken here. Every method that lets steps go returns them.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.decide.rendezvous import digest

SequenceId = int | str
"""The string "7" and the number 7 are two sequences."""

MARGIN_S = 1.0
"""An entry outlives the replica's own idle limit by this much: the replica's clock starts when a step arrives there,
ours when the step has ended.
"""


def place(model: str, sequence_id: SequenceId, replicas: Iterable[str]) -> str:
    """The replica of the highest hash, "" if there is none. When one leaves, only its own sequences are placed anew;
    one that comes takes its share from all others.
    """
    return max(replicas, key=lambda replica: (digest(model, sequence_id, replica), replica), default="")


def draw(model: str, sequence_id: SequenceId) -> float:
    """A number in [0, 1) that stands for chance where the version of a new sequence is drawn by weights: every gateway
    draws the same.
    """
    return (digest(model, sequence_id, "") >> 11) / float(1 << 53)


class Home:
    """A version on a replica for as long as it is there without a break."""

    __slots__ = ("gone", "replica", "version")

    def __init__(self, version: str, replica: str) -> None:
        self.version = version
        self.replica = replica
        self.gone = False


class Step:
    """A call that belongs to a sequence. `session` is the stream that it came on, None for a single call; `owner` is
    the tenant who makes it; `waiter` is the asker's, untouched here.
    """

    __slots__ = ("_entry", "_life", "end", "gone", "id", "owner", "sent", "session", "start", "version", "waiter")

    def __init__(
        self,
        version: str,
        sequence_id: SequenceId,
        *,
        start: bool,
        end: bool,
        session: object = None,
        owner: str = "",
    ) -> None:
        self.version = version
        self.id = sequence_id
        self.start = start
        self.end = end
        self.session = session
        self.owner = owner
        self.sent = False
        """The replica's connection has it: what is handed over later on the same stream arrives later."""
        self.gone = False
        """It was let go."""
        self.waiter: object = None
        self._entry: _Entry | None = None
        self._life = 0


class Entered(enum.Enum):
    GO = "go"
    WAIT = "wait"
    FULL = "full"
    """As many steps of this sequence wait as may."""
    NO_ROOM = "no_room"
    """The table is full, and every sequence in it has a step under way."""
    FOREIGN = "foreign"
    """The sequence is another tenant's."""


class Turn(NamedTuple):
    """Where a step goes: `replica` is "" if none serves the version, or if the sequence is `lost`."""

    replica: str
    lost: bool = False


class Ending(enum.Enum):
    """How a step ended, as far as that matters to its sequence."""

    GOOD = "good"
    FAILED = "failed"
    """The sequence may live on; the replica judges."""
    LOST = "lost"
    """The replica, or the way to it, is gone: what state the sequence is in, nobody can say."""


class _Entry:
    __slots__ = ("answered", "home", "key", "life", "lost", "owner", "steps", "touched_s")

    def __init__(self, key: tuple[str, SequenceId], owner: str) -> None:
        self.key = key
        self.owner = owner
        self.home: Home | None = None
        self.life = 0
        """Counts its beginnings: what the end of an earlier one tells is not about this one."""
        self.answered = False
        """The replica has taken a step of it."""
        self.lost = False
        self.steps: list[Step] = []
        self.touched_s = 0.0


class Sequences:
    """The table of one model.

    `live_max` bounds the entries: beyond it the one that was idle for longest is forgotten. `waiting_max` bounds the
    steps of one sequence that wait for the ones before them. Those of a stream do not count: its client has sent the
    next ones already, a refused one would leave a hole before them, and the edge bounds what is out on a stream.
    `idle_s` is how long the replicas keep a silent sequence.
    """

    def __init__(self, model: str, *, live_max: int, waiting_max: int, idle_s: float = 0.0) -> None:
        self._model = model
        self._live_max = live_max
        self._waiting_max = waiting_max
        self.idle_s = idle_s
        self._entries: dict[tuple[str, SequenceId], _Entry] = {}
        self._idle: OrderedDict[_Entry, None] = OrderedDict()
        """Entries without a step under way, the longest silent first."""
        self._unversioned: dict[SequenceId, str] = {}
        """The version of sequences that were begun without naming one."""
        self._homes: dict[tuple[str, str], Home] = {}
        self._waiting = 0
        self._counts = dict.fromkeys(("started", "adopted", "ended", "lost", "expired", "evicted"), 0)

    def __len__(self) -> int:
        return len(self._entries)

    def version(self, asked: str, sequence_id: SequenceId) -> str:
        """The version that holds this sequence, "" if the table does not know it. `asked` is what the call names, ""
        for none: of a sequence that was begun without, all calls may go without.
        """
        version = asked or self._unversioned.get(sequence_id, "")
        return version if (version, sequence_id) in self._entries else ""

    def enter(self, step: Step, now_s: float, *, versioned: bool) -> Entered:
        """A step arrived. `versioned`: its call names the version itself. Unless refused, `leave` must follow."""
        self.expire(now_s)
        key = (step.version, step.id)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._live_max and not self._evict():
                return Entered.NO_ROOM
            entry = self._entries[key] = _Entry(key, step.owner)
        elif entry.owner != step.owner and not self._vacant(entry, step):
            return Entered.FOREIGN
        elif not entry.steps:
            del self._idle[entry]
        elif step.session is None and len(entry.steps) > self._waiting_max:
            return Entered.FULL
        if not versioned:
            self._unversioned[step.id] = step.version
        entry.owner = step.owner
        step._entry = entry
        entry.steps.append(step)
        if self._may_go(entry, len(entry.steps) - 1):
            step.gone = True
            return Entered.GO
        self._waiting += 1
        return Entered.WAIT

    @staticmethod
    def _vacant(entry: _Entry, step: Step) -> bool:
        """Whether another tenant may begin a sequence under this id: nothing is left of the one that had it."""
        gone = entry.lost or entry.home is None or entry.home.gone
        return step.start and gone and not entry.steps

    @staticmethod
    def _may_go(entry: _Entry, index: int) -> bool:
        """Whether everything that came before is over, or was sent ahead on the same stream."""
        session = entry.steps[index].session
        if session is None:
            return index == 0
        return all(earlier.sent and earlier.session is session for earlier in entry.steps[:index])

    def turn(self, step: Step, replicas: Collection[str]) -> Turn:
        """The step was let go: where to? `replicas` are those that serve its version now."""
        entry = self._of(step)
        home = entry.home
        if home is not None and home.gone and not entry.lost:
            self._lose(entry)
        step._life = entry.life
        if not step.start:
            if entry.lost:
                return Turn("", lost=True)
            if home is not None:
                return Turn(home.replica)
        replica = place(self._model, step.id, replicas)
        if replica:
            self._counts["started" if step.start else "adopted"] += 1
            entry.home = self._home(step.version, replica)
            entry.lost = entry.answered = False
            entry.life += 1
            step._life = entry.life
        return Turn(replica)

    def _home(self, version: str, replica: str) -> Home:
        home = self._homes.get((version, replica))
        if home is None:
            home = self._homes[version, replica] = Home(version, replica)
        return home

    def _lose(self, entry: _Entry) -> None:
        entry.lost = True
        self._counts["lost"] += 1

    def sent(self, step: Step) -> list[Step]:
        """The step is on its way to the replica. Returns those that may follow now."""
        entry = self._of(step)
        step.sent = True
        return self._let_go(entry)

    def leave(self, step: Step, ending: Ending, now_s: float) -> list[Step]:
        """The step is over, let go or not. Returns those that may follow now."""
        entry = self._of(step)
        step._entry = None
        entry.steps.remove(step)
        if not step.gone:
            self._waiting -= 1
        if step.gone and step._life == entry.life:
            self._note(entry, step, ending)
        entry.touched_s = now_s
        if entry.steps:
            return self._let_go(entry)
        if entry.home is not None or entry.lost:
            self._idle[entry] = None
        else:
            self._forget(entry)
        return []

    def _note(self, entry: _Entry, step: Step, ending: Ending) -> None:
        if ending is Ending.LOST:
            if not entry.lost:
                self._lose(entry)
        elif ending is Ending.GOOD:
            entry.answered = True
            if step.end:
                self._counts["ended"] += 1
                entry.home = None
        elif not (entry.answered or step.start or entry.lost):
            # A step that was not taken, of a sequence that nobody has begun here: there is nothing to remember.
            entry.home = None

    def _let_go(self, entry: _Entry) -> list[Step]:
        free: list[Step] = []
        for index, step in enumerate(entry.steps):
            if not step.gone:
                if not self._may_go(entry, index):
                    break
                step.gone = True
                self._waiting -= 1
                free.append(step)
        return free

    def _of(self, step: Step) -> _Entry:
        entry = step._entry
        if entry is None:
            raise ValueError(f"the step of sequence {step.id!r} is not in the table")
        return entry

    def fleet_changed(self, serving: Callable[[str], Sequence[str]]) -> None:
        """What lived on a replica that does not serve its version any more is lost, even if the replica comes back.
        `serving` gives the replicas of a version.
        """
        for key, home in tuple(self._homes.items()):
            if home.replica not in serving(home.version):
                home.gone = True
                del self._homes[key]

    def expire(self, now_s: float) -> None:
        """Forget what has been silent for longer than any replica keeps it."""
        limit_s = now_s - self.idle_s - MARGIN_S
        while self._idle:
            entry = next(iter(self._idle))
            if entry.touched_s > limit_s:
                return
            del self._idle[entry]
            self._counts["expired"] += 1
            self._forget(entry)

    def _evict(self) -> bool:
        if not self._idle:
            return False
        entry, _ = self._idle.popitem(last=False)
        self._counts["evicted"] += 1
        self._forget(entry)
        return True

    def _forget(self, entry: _Entry) -> None:
        version, sequence_id = entry.key
        del self._entries[entry.key]
        if self._unversioned.get(sequence_id) == version:
            del self._unversioned[sequence_id]

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`adopted` counts sequences that another gateway began, or this one before it was restarted."""
        self.expire(now_s)
        return {"live": len(self._entries), "waiting": self._waiting, **self._counts}
