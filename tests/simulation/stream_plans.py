"""From a seed: the models that stream or keep sequences, and the clients that use them.

It draws from a generator of its own, so that the rest of a scenario does not depend on it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gateway.core.call import SequenceStep
from gateway.policy.schema import Admission, Deadline, Limits, ModelPolicy, ModelRecords, Objective, Warmup
from tests.simulation.batcher import ModelSpec
from tests.simulation.plans import CallPlan, Leg, SequencePlan, SessionPlan
from tests.simulation.streamer import ERROR, StreamOrder

STREAMER = "streamer"
KEEPER = "keeper"
WIDTH = 40
"""Room for an order behind the number of the call."""


def stream_specs(draw: random.Random) -> tuple[ModelSpec, ...]:
    """The two models, each in two of three scenarios."""
    specs = []
    versions = (("1",), ("1",), ("1", "2"))
    if draw.random() < 0.7:
        specs.append(
            ModelSpec(
                STREAMER,
                versions=draw.choice(versions),
                max_batch_size=1,
                instances=draw.choice((1, 4, 16)),
                dynamic_batching=False,
                load_s=0.05,
                decoupled=True,
            )
        )
    if draw.random() < 0.7:
        slots = draw.choice((2, 4, 8))
        specs.append(
            ModelSpec(
                KEEPER,
                versions=draw.choice(versions),
                max_batch_size=slots,
                sequences=slots,
                dynamic_batching=False,
                sequence_idle_s=draw.choice((0.4, 1.0)),
                text_ids=draw.random() < 0.5,
                s0_s=draw.choice((0.001, 0.004, 0.02)),
                load_s=0.05,
            )
        )
    return tuple(specs)


def stream_policy(draw: random.Random, spec: ModelSpec, pool: str, body_bytes_max: int) -> ModelPolicy:
    split = {version: draw.choice((1.0, 9.0)) for version in spec.versions} if draw.random() < 0.3 else None
    return ModelPolicy(
        model=spec.name,
        pool=pool,
        objective=Objective(p99_ms=100.0),
        ladder="none",
        impact="the caller sees an error",
        deadline=Deadline(
            max_ms=3000,
            first_response_s=draw.choice((None, 0.15, 0.6)),
            idle_s=draw.choice((0.1, 0.3, 1.0)),
            total_s=draw.choice((None, None, 0.8)),
        ),
        limits=Limits(body_bytes_max=body_bytes_max),
        split=split,
        admission=Admission(slots_per_replica=draw.choice((None, 1, 2, 6)), queue_max=draw.choice((None, 2, 20))),
        warmup=Warmup(calls=draw.choice((0, 1)), timeout_ms=1000),
        records=ModelRecords(tensors=draw.choice(("none", "summary")), mandatory=draw.random() < 0.1),
    )


class StreamPlans:
    """Draws everything that streams, with numbers from `first` on."""

    def __init__(
        self, draw: random.Random, specs: tuple[ModelSpec, ...], first: int, window: tuple[float, float]
    ) -> None:
        """`window`: when clients come."""
        self._draw = draw
        self._specs = specs
        self._streamer = next((spec for spec in specs if spec.decoupled), None)
        self._keeper = next((spec for spec in specs if spec.sequences), None)
        self._plain = [spec for spec in specs if not spec.decoupled and not spec.sequences]
        self._next = first
        self._window = window
        self.calls: list[CallPlan] = []
        self.sessions: list[SessionPlan] = []
        self.sequences: list[SequencePlan] = []

    def draw_all(self, *, generate: bool, share: float = 1.0) -> None:
        """Clients between begin and end of the window; `share` scales how many."""
        draw = self._draw
        for _ in range(round(draw.randint(2, 5) * share)):
            self._session()
        if self._keeper is not None:
            for _ in range(round(draw.randint(2, 6) * share)):
                self._sequence(self._keeper)
            if draw.random() < 0.6 * share:
                self._shared_session(self._keeper)
        if generate:
            for _ in range(round(draw.randint(3, 12) * share)):
                self._generate()

    def _instant_s(self) -> float:
        begin_s, end_s = self._window
        if self._draw.random() < 0.08:
            return self._draw.random() * begin_s
        return begin_s + self._draw.random() * (end_s - begin_s)

    def _add(self, plan: CallPlan) -> int:
        self.calls.append(plan)
        self._next += 1
        return plan.number

    # -- calls ----------------------------------------------------------------------------------------------------

    def _order(self) -> StreamOrder:
        draw = self._draw
        responses = draw.choice((0, 1, 1, 2, 3, 3, 5, 8, 24))
        fails = draw.random() < 0.15
        return StreamOrder(
            responses=responses,
            first_ms=draw.choice((0, 0, 3, 10, 40, 250)),
            pause_ms=draw.choice((0, 0, 2)) if responses > 8 else draw.choice((0, 1, 5, 20, 60, 150, 400)),
            fail_at=draw.randint(0, responses) if fails else ERROR,
            goes_on=fails and draw.random() < 0.4,
            joined=draw.random() < 0.4,
        )

    def _call(self, at_s: float, route: str, spec: ModelSpec, session: int | None = None, position: int = 0) -> int:
        draw = self._draw
        kind = draw.choices(("good", "no-model", "no-version", "too-many"), (92, 3, 3, 2))[0]
        if kind == "too-many" and spec.decoupled:
            kind = "good"
        return self._add(
            CallPlan(
                number=self._next,
                at_s=at_s,
                kind=kind,
                model="model-unheard-of" if kind == "no-model" else spec.name,
                version="77" if kind == "no-version" else draw.choice(("", "", "", *spec.versions)),
                rows=spec.max_batch_size + 1 if kind == "too-many" else 1,
                width=WIDTH if spec.decoupled else 16,
                route=route,
                session=session,
                position=position,
                order=self._order() if spec.decoupled and kind != "no-model" else None,
                wants_end=draw.random() < 0.5,
                driven=route == "stream",
            )
        )

    def _generate(self) -> None:
        draw = self._draw
        spec = self._streamer if self._streamer is not None and draw.random() < 0.8 else draw.choice(self._plain)
        number = self._call(self._instant_s(), draw.choice(("generate", "generate_stream", "generate_stream")), spec)
        plan = self.calls[-1]
        assert plan.number == number
        if plan.kind == "too-many":
            # Over these routes a tensor has no rows to give too many of: the bytes are the row.
            plan = replace(plan, kind="good", rows=1)
        self.calls[-1] = replace(
            plan,
            wants_end=False,
            timeout_s=draw.choice((None, None, None, 0.05, 0.4)),
            leaves_after_s=draw.random() * 0.4 if draw.random() < 0.12 else None,
            body_after_s=draw.random() * 0.05 if draw.random() < 0.1 else 0.0,
        )

    # -- streams --------------------------------------------------------------------------------------------------

    def _session(self) -> None:
        draw = self._draw
        session, at_s = len(self.sessions), self._instant_s()
        messages: list[tuple[float, int]] = []
        after_s = 0.0
        mixed = draw.random() < 0.5
        ids = draw.choice(("own", "own", "none", "few"))
        for position in range(1, draw.choice((1, 1, 2, 3, 4, 6, 10)) + 1):
            decoupled = self._streamer is not None and (not mixed or draw.random() < 0.5)
            spec = self._streamer if decoupled and self._streamer is not None else draw.choice(self._plain)
            number = self._call(at_s + after_s, "stream", spec, session, position)
            if ids != "own":
                body_id = "" if ids == "none" else draw.choice(("a", "b"))
                # An end that is told alone bears nothing but the id: whose it is, nobody could say.
                self.calls[-1] = replace(self.calls[-1], body_id=body_id, wants_end=False)
            messages.append((after_s, number))
            after_s += draw.choice((0.0, 0.0, 0.001, 0.02, 0.1))
        self.sessions.append(
            SessionPlan(
                number=session,
                at_s=at_s,
                messages=tuple(messages),
                closes_after_s=draw.choice((0.0, 0.0, 0.001, 0.3)),
                leaves_after_s=draw.random() * 0.5 if draw.random() < 0.15 else None,
                read_pause_s=draw.choice((0.0, 0.0, 0.0, 0.005, 0.04)),
                timeout_s=draw.choice((None, None, None, None, 0.05, 0.4)),
                call_timeout_s=draw.choice((None, None, None, None, 0.05, 0.4)),
                true_status=draw.random() < 0.2,
            )
        )

    # -- sequences ------------------------------------------------------------------------------------------------

    def _sequence_id(self) -> int | str:
        """Few, so that the number and the string of the same digits are often both in use; each is used once."""
        used = {(type(plan.id), plan.id) for plan in self.sequences}
        number = len(self.sequences) // 2 + 7
        candidates: list[int | str] = [number, str(number), f"talk-{number}", -number - len(self.sequences)]
        free = [each for each in candidates if (type(each), each) not in used]
        return self._draw.choice(free or [f"more-{len(self.sequences)}"])

    def _steps(self, spec: ModelSpec, sequence: int | str, at_s: float, count: int) -> list[int]:
        draw = self._draw
        version = draw.choice(("", "", *spec.versions))
        ends, restarts = draw.random() < 0.75, draw.random() < 0.25
        again = draw.randrange(1, count) if restarts and count > 1 else 0
        numbers = []
        for index in range(count):
            step = SequenceStep(sequence, start=index == 0 or index == again != 0, end=ends and index == count - 1)
            numbers.append(
                self._add(
                    CallPlan(
                        number=self._next,
                        at_s=at_s,
                        kind="good",
                        model=spec.name,
                        version=version,
                        timeout_s=draw.choice((None, None, None, 1.0, 0.02)),
                        leaves_after_s=draw.random() * 0.03 if draw.random() < 0.04 else None,
                        sequence=step,
                        driven=True,
                    )
                )
            )
        return numbers

    def _sequence(self, spec: ModelSpec) -> None:
        draw = self._draw
        sequence, at_s = self._sequence_id(), self._instant_s()
        numbers = self._steps(spec, sequence, at_s, draw.randint(1, 6))
        legs: list[Leg] = []
        left = list(numbers)
        while left:
            size = draw.randint(1, len(left))
            part, left = left[:size], left[size:]
            pause_s = draw.choice((0.0, 0.005, 0.1, 0.3))
            if draw.random() < 0.4:
                legs.append(Leg(session=self._own_session(at_s, part, pause_s)))
            else:
                legs.append(Leg(calls=tuple(part), pause_s=pause_s, burst=draw.random() < 0.2))
        self.sequences.append(SequencePlan(spec.name, sequence, at_s, tuple(numbers), tuple(legs)))

    def _own_session(self, at_s: float, numbers: list[int], pause_s: float) -> int:
        session = len(self.sessions)
        for position, number in enumerate(numbers, 1):
            self._onto(session, position, number)
        self.sessions.append(
            SessionPlan(
                number=session,
                at_s=at_s,
                messages=tuple((index * pause_s, number) for index, number in enumerate(numbers)),
                closes_after_s=self._draw.choice((0.0, 0.01)),
                driven=True,
            )
        )
        return session

    def _onto(self, session: int, position: int, number: int) -> None:
        """Make a step a message of a session. What is the single call's alone goes."""
        index = number - self.calls[0].number
        self.calls[index] = replace(
            self.calls[index], route="stream", session=session, position=position, timeout_s=None, leaves_after_s=None
        )

    def _shared_session(self, spec: ModelSpec) -> None:
        """Several sequences interleaved on one stream."""
        draw = self._draw
        session, at_s = len(self.sessions), self._instant_s()
        lines: list[list[int]] = []
        for _ in range(draw.randint(2, 3)):
            sequence = self._sequence_id()
            numbers = self._steps(spec, sequence, at_s, draw.randint(1, 4))
            self.sequences.append(SequencePlan(spec.name, sequence, at_s, tuple(numbers)))
            lines.append(list(numbers))
        messages: list[tuple[float, int]] = []
        after_s = 0.0
        while any(lines):
            line = draw.choice([line for line in lines if line])
            number = line.pop(0)
            self._onto(session, len(messages) + 1, number)
            messages.append((after_s, number))
            after_s += draw.choice((0.0, 0.0, 0.003, 0.05))
        self.sessions.append(
            SessionPlan(
                number=session,
                at_s=at_s,
                messages=tuple(messages),
                leaves_after_s=draw.random() * 0.3 if draw.random() < 0.15 else None,
                read_pause_s=draw.choice((0.0, 0.0, 0.005)),
            )
        )

    # -- what must be well ----------------------------------------------------------------------------------------

    def recovery(self, at_s: float) -> None:
        """One stream that nothing disturbs, and one sequence over it and over a single call."""
        session = len(self.sessions)
        messages: list[tuple[float, int]] = []
        steps: list[int] = []
        if self._streamer is not None:
            order = StreamOrder(3, 5, 5)
            messages.append((0.0, self._must(at_s, self._streamer, session, len(messages) + 1, order)))
        messages.append((0.0, self._must(at_s, self._plain[0], session, len(messages) + 1, None)))
        if self._keeper is not None:
            for index in range(3):
                step = SequenceStep("must", start=index == 0, end=index == 2)
                number = self._must(at_s, self._keeper, session, len(messages) + 1, None, step)
                messages.append((0.0, number))
                steps.append(number)
            self.sequences.append(SequencePlan(self._keeper.name, "must", at_s, tuple(steps)))
        # Apart, so that a record log of two lines has room for each.
        apart = tuple((index * 0.15, number) for index, (_, number) in enumerate(messages))
        self.sessions.append(SessionPlan(number=session, at_s=at_s, messages=apart, must=True))

    def _must(
        self,
        at_s: float,
        spec: ModelSpec,
        session: int,
        position: int,
        order: StreamOrder | None,
        step: SequenceStep | None = None,
    ) -> int:
        return self._add(
            CallPlan(
                number=self._next,
                at_s=at_s,
                kind="must",
                model=spec.name,
                width=WIDTH if order is not None else 16,
                route="stream",
                session=session,
                position=position,
                order=order,
                wants_end=self._draw.random() < 0.5,
                sequence=step,
                driven=True,
            )
        )
