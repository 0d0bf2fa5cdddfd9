"""Bounds: the desks of a model whose calls are not for every free slot (`decide/bound_admission.py`), and the pool that
they share.

A version has a desk for each of its lanes; all desks of a pool whose models share something, or have lanes, are known
to one `Commons`. When something becomes free at one desk, those that wait at any of them are asked, in turn: the desk
that was served last comes last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.call import Call
from gateway.core.permit import Permit
from gateway.core.snapshot import FleetSnapshot, ModelState, ReplicaView
from gateway.decide.bound_admission import BoundAdmission, Lane
from gateway.decide.chance import Chance
from gateway.decide.lanes import Lanes, LanesSettings
from gateway.decide.shared_bounds import SharedBounds
from gateway.decide.slot_limit import SlotLimit
from gateway.decide.ticket import Ticket
from gateway.decide.tuning import Tuning
from gateway.layers.desk import AdmissionDesk
from gateway.runtime.wheel import TimerWheel


class Commons:
    """The desks of one pool at which calls wait."""

    __slots__ = ("_changed", "_loaded", "_settling", "_waiting", "pool", "shared")

    def __init__(self, pool: str, shared: SharedBounds | None) -> None:
        """`shared`: what the models of the pool share, if anything."""
        self.pool = pool
        self.shared = shared
        self._waiting: dict[BoundDesk, None] = {}
        """Whose turn it is first, first."""
        self._settling = False
        self._changed = False
        self._loaded: dict[str, tuple[ReplicaView, frozenset[tuple[str, str]]]] = {}
        """Of each replica its view and what it has loaded, as of the last snapshot."""

    def on_snapshot(self, snapshot: FleetSnapshot) -> None:
        """To be told before the desks are: they ask what stands here. What says the same as before costs one look."""
        shared = self.shared
        if shared is None:
            return
        before, self._loaded = self._loaded, {}
        changed = False
        for replica in snapshot.replicas:
            if replica.pool != self.pool:
                continue
            view, loaded = before.pop(replica.id, (None, frozenset[tuple[str, str]]()))
            if view is not replica:
                was = None if view is None else loaded
                loaded = frozenset(
                    key for key, model in replica.models.items() if model.state is not ModelState.UNAVAILABLE
                )
                changed = changed or loaded != was
            self._loaded[replica.id] = (replica, loaded)
        if changed or before:
            shared.update({name: loaded for name, (_, loaded) in self._loaded.items()})
            self._changed = True

    def after_snapshot(self, snapshot: FleetSnapshot) -> None:
        """To be told after the desks are: other models may have made room."""
        if self._changed:
            self._changed = False
            self.settle()

    def waits(self, desk: BoundDesk) -> None:
        """Calls wait there now, or not any more."""
        if desk.admission.waiting:
            self._waiting.setdefault(desk)
        else:
            self._waiting.pop(desk, None)

    def settle(self) -> None:
        """Something has become free: ask all that wait, until nobody can be served. Each round but the last serves or
        refuses somebody, or lets go of what was kept for one that wants something else now.
        """
        if self._settling:
            return
        self._settling = True
        try:
            again = bool(self._waiting)
            while again:
                again = False
                for desk in tuple(self._waiting):
                    before = desk.admission.waiting
                    desk.bound.stirred = False
                    desk.look()
                    if desk.bound.stirred:
                        again = True
                    if desk.admission.waiting < before:
                        again = True
                        self._waiting.pop(desk, None)
                        self.waits(desk)
        finally:
            self._settling = False

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"desks_waiting": len(self._waiting), **({} if self.shared is None else self.shared.statistics(now_s))}


class BoundDesk(AdmissionDesk):
    """The desk of one lane."""

    __slots__ = ("_commons", "_lanes", "bound")

    def __init__(
        self,
        admission: BoundAdmission,
        now_s: Callable[[], float],
        wheel: TimerWheel,
        commons: Commons,
        named: str = "a model",
    ) -> None:
        super().__init__(admission, now_s, wheel, named)
        self.bound = admission
        self._commons = commons
        self._lanes: tuple[BoundDesk, ...] = (self,)

    def join(self, others: tuple[BoundDesk, ...]) -> None:
        """This is the first lane's desk, and those are the others'."""
        self._lanes = (self, *others)
        for each in others:
            each.tally = self.tally

    @property
    def mixed(self) -> bool:
        return self.bound.lane is None

    def desks(self) -> tuple[AdmissionDesk, ...]:
        return self._lanes

    def for_call(self, call: Call) -> AdmissionDesk:
        lane = self.bound.lane
        if lane is None:
            return self
        number = 0 if call.pinned else lane.books.lane_of(call.work)
        if number or (call.explain and not call.pinned):
            saw: dict[str, float | str] = {"work": call.work}
            if number:
                figures = lane.books.statistics(0.0)["lanes"][lane.books.names()[number]]
                saw.update({name: float(figures[name]) for name in ("in_flight", "waiting", "cap")})
            call.trail.note("lane", lane.books.names()[number], saw)
        return self._lanes[number]

    def waited_for(self, call: Call) -> None:
        """A call begins to wait: note it if that is for what the models share."""
        why = self.bound.held_up_by(call.work)
        if why != "ok":
            call.trail.note("memory", why, {"work": call.work, "waiting": float(self.admission.waiting)})

    def look(self) -> None:
        self.admission.look(self._now_s())
        super().wake()
        self._watch()

    def wake(self) -> None:
        super().wake()
        self._settle()

    def _settle(self) -> None:
        self._commons.waits(self)
        if self.bound.stirred:
            self.bound.stirred = False
            self._commons.settle()

    def give_back(self, permit: Permit) -> None:
        self.admission.give_back(permit, self._now_s())
        self.wake()
        self._watch()
        if self.admission.news:
            self.tell()

    def answered(self, permit: Permit) -> None:
        super().answered(permit)
        self._settle()

    def asked(self) -> None:
        self.wake()

    def begun(self) -> None:
        self._settle()

    async def wait(self, ticket: Ticket) -> None:
        try:
            await super().wait(ticket)
        finally:
            self._settle()

    def fire(self) -> None:
        super().fire()
        self._settle()

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        rows = [desk.admission.statistics(now_s) for desk in self._lanes]
        lane = self.bound.lane
        waiting: Counter[str] = Counter()
        for row in rows:
            waiting.update(row["room"]["waiting_by_class"])
        classes = self.tally.statistics(waiting)
        if lane is None:
            return {**rows[0], "classes": classes}
        names = lane.books.names()
        told = lane.books.statistics(now_s)["lanes"]
        return {
            **rows[0],
            **{name: sum(row[name] for row in rows) for name in ("in_flight", "waiting", "granted")},
            "refused": {why: sum(row["refused"][why] for row in rows) for why in rows[0]["refused"]},
            "classes": classes,
            "lanes": {
                name: {**told[name], **{key: row[key] for key in ("queue_max", "refused", "granted", "pace")}}
                for name, row in zip(names, rows, strict=True)
            },
        }


class Bounds:
    """How the desks of one model are made."""

    __slots__ = ("_commons", "_lanes", "_model", "_queue_max")

    def __init__(self, *, model: str, queue_max: int | None, lanes: LanesSettings | None, commons: Commons) -> None:
        self._model = model
        self._queue_max = queue_max
        self._lanes = lanes
        self._commons = commons

    def desk(
        self,
        chance: Chance,
        tuning: Tuning,
        objective_s: float,
        fit: SlotLimit | None,
        now_s: Callable[[], float],
        wheel: TimerWheel,
        named: str = "a model",
    ) -> BoundDesk:
        """The desk of a new version: that of its first lane, which knows the others. `fit` has the slots of all."""
        settings, commons = self._lanes, self._commons

        def made(lane: Lane | None, first: BoundAdmission | None) -> BoundDesk:
            admission = BoundAdmission(
                chance,
                self._queue_max,
                tuning,
                objective_s,
                fit,
                model=self._model,
                lane=lane,
                first=first,
                shared=commons.shared,
            )
            return BoundDesk(admission, now_s, wheel, commons, named)

        if settings is None:
            return made(None, None)
        books = Lanes(settings)
        desk = made(Lane(books, 0), None)
        desk.join(
            tuple(made(Lane(books, number, each.share), desk.bound) for number, each in enumerate(settings.larger, 1))
        )
        return desk
