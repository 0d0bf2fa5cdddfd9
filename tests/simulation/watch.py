"""What can only be judged while it happens: slots, sends to where a model is gone, streams that work for nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2 as pb

from gateway.fleet.model_record import HELD_MAX_S
from tests.simulation import limit_checks
from tests.simulation.bounds import TICK_S, BoundWatch, waits_in_vain
from tests.simulation.codec_network import CodecStream
from tests.simulation.network_stream import NetworkStream
from tests.simulation.report import Told
from tests.simulation.scenario import HOST, POOL, RECOVERY_S
from tests.simulation.stream_entrance import MARK

if TYPE_CHECKING:
    from tests.simulation.run import House, World

QUIET_EVERY = 16
"""The waiting places are looked at each so-many-th time that nothing is ready: each time would double a run's cost."""

Key = tuple[str, str, str]
"""(machine, model, version)."""


class Watch:
    """Sees every inference leave the gateway and end, and judges what only shows at that moment."""

    def __init__(self, world: World, house: House) -> None:
        self._world = world
        self._house = house
        self._specs = {spec.name: spec for spec in world.scenario.specs}
        self._out: Counter[Key] = Counter()
        self._streaming: dict[int, tuple[Key, float]] = {}
        """Calls that are out on an upstream stream: they hold their slot until their reply is closed."""
        self._left: Counter[bytes] = Counter()
        """Of each question, sends that were left to run out, and still do."""
        self._quiet = 0
        self._bounds = BoundWatch(world.scenario.policies, world.report.violate)

    def begin(self, machine: str, message: bytes) -> object:
        world = self._world
        request = pb.ModelInferRequest.FromString(message)
        question = _question(message)
        if not question.startswith(b"call-"):
            return None  # a warm-up's: it holds no slot
        report, key = world.report, (machine, request.model_name, request.model_version)
        name, number = question[:10].decode(), int(question[5:10])
        report.sent_to[number], report.sent_on_s[number] = (key[0], key[2]), world.loop.time()
        world.trace.add("send", name, *key)
        report.sends[question] += 1
        self._out[key] += 1
        weight = self._bounds.begin(key, request, name)
        slots = self._house.slots(*key)
        if slots is not None and self._out[key] > slots:
            report.violate(f"{name}: {self._out[key]} calls in flight on {' '.join(key)}, which has {slots} slots")
        gone_s = world.machines[machine].gone_s(*key[1:], black_hole=world.network.black_since_s.get(machine))
        if gone_s is not None and gone_s > world.scenario.detection_s:
            report.violate(
                f"{name} was sent to {' '.join(key)}, which has not been able to answer for {gone_s:.3f} s; "
                f"it should have been noticed within {world.scenario.detection_s:.3f} s"
            )
        if number in report.by_stream:
            self._streaming[number] = key, weight
        return key, question, number, weight

    def limited(self, message: bytes, limit_s: float) -> None:
        """A single inference is about to leave, with so much time."""
        question = _question(message)
        if question.startswith(b"call-"):
            self._world.report.limits.setdefault(question, []).append((self._world.loop.time(), limit_s))

    def told(self, machine: str, message: bytes, told_s: float) -> None:
        """What its replica was told of that."""
        question = _question(message)
        if question.startswith(b"call-"):
            told = Told(machine, self._world.loop.time(), told_s)
            self._world.report.told.setdefault(question, []).append(told)

    def call_ended(self, number: int) -> None:
        """The stack has done with a call."""
        streamed = self._streaming.pop(number, None)
        if streamed is not None:
            key, weight = streamed
            self._out[key] -= 1
            self._bounds.end(key, weight)

    def call_finished(self, number: int) -> None:
        """A reply says that the replica is done with the call."""
        for stream in self._streams():
            if any(isinstance(token, tuple) and token[2] == number for token in stream.tokens.values()):
                text = f"call-{number:05d} is said to be finished, and its last response has not come"
                self._world.report.violate(text)

    def session_ended(self, request_id: str) -> None:
        """Nothing of a stream may outlive it."""
        for stream in self._streams():
            if (MARK, request_id) in stream.metadata:
                self._world.report.violate(f"{request_id} has ended, but a stream of its is open upstream")

    def _streams(self) -> Iterator[NetworkStream | CodecStream]:
        for client in self._world.network.clients:
            yield from client.streams

    def end(self, token: object) -> None:
        if isinstance(token, tuple):
            key, question, _, weight = token
            self._out[key] -= 1
            self._bounds.end(key, weight)
            if question not in self._left:
                self._world.report.out_until_s[question] = self._world.loop.time()
            else:
                self._left.subtract((question,))
                self._left = +self._left

    def left(self, token: object) -> None:
        """Its slot is held on, for the replica works on it; it is not cancelled, because too many are."""
        if isinstance(token, tuple):
            question = token[1]
            self._left[question] += 1
            self._world.report.out_until_s[question] = self._world.loop.time()

    def quiet(self) -> None:
        """Nothing is ready: whoever holds a slot has sent, and nobody waits beside a free one."""
        self._quiet += 1
        if self._quiet % QUIET_EVERY:
            return
        out: Counter[tuple[str, str]] = Counter()
        for (_, model, version), count in self._out.items():
            out[model, version] += count
        for model, version, state in self._house.waiting_places():
            in_flight, waiting = state["in_flight"], state["waiting"]
            if in_flight != out[model, version]:
                text = f"{in_flight} slots are held, but {out[model, version]} calls are out"
                self._world.report.violate(f"{model} {version}: {text}")
            self._cap(model, version, state["ejection"])
            spec, policy = self._specs[model], self._world.scenario.policies.models[model]
            for text in limit_checks.faults(policy, spec, state):
                self._world.report.violate(f"{model} {version}: {text}")
            waiting -= state["waiting_pinned"]
            if state["bound"]:
                continue  # a free slot is not for everybody: `waits_in_vain` knows
            if waiting and in_flight < state["limit"] and self._has_free_slot(model, version, state):
                self._world.report.violate(f"{model} {version}: {waiting} calls wait although a slot is free")
            for replica, count in state["steps_by_replica"].items():
                slots = self._house.slots(replica.partition("/")[2], model, version)
                if slots is not None and state["in_flight_by_replica"].get(replica, 0) < slots:
                    text = f"{count} steps of sequences wait for {replica}, where a slot is free"
                    self._world.report.violate(f"{model} {version}: {text}")
        for text in (*self._house.stuck_steps(), *waits_in_vain(self._house.stack, self._world.clock.now_s())):
            self._world.report.violate(text)
        for stream in self._streams():
            self._nobody_left(stream)
        for text in () if self._world.ways is None else self._world.ways.faults():
            self._world.report.violate(text)

    def _cap(self, model: str, version: str, judged: Mapping[str, Any]) -> None:
        """Who is out are no more than the policy lets be out, and never all."""
        policy, up = self._world.scenario.policies.models[model].ejection, judged["replicas"]
        out = judged["ejected"]
        if out > policy.share_max * up + 1e-9 or (up and out >= up) or (out and not policy.enabled):
            self._world.report.violate(f"{model} {version}: {out} of {up} replicas are ejected")

    def _nobody_left(self, stream: NetworkStream | CodecStream) -> None:
        """An upstream stream works for somebody: else it must have been cancelled."""
        numbers = [token[2] for token in stream.tokens.values() if isinstance(token, tuple)]
        ended = self._world.report.ended_calls
        if numbers and len(numbers) == len(stream.tokens) and all(number in ended for number in numbers):
            text = f"an upstream stream is open for call-{numbers[0]:05d} alone, and that has ended"
            self._world.report.violate(text)

    def recovered(self) -> None:
        """All faults are over for long enough: every machine that can be found must take calls of all its versions."""
        world = self._world
        for machine in world.machines:
            if machine.partition(":")[0] not in world.network.names[HOST]:
                continue
            for spec in world.scenario.specs:
                for version in spec.versions:
                    # What went out of service again and again is held out on purpose; others serve it meanwhile.
                    held_s = self._house.held_until_s(machine, spec.name, version) - world.loop.time()
                    if held_s > HELD_MAX_S:
                        world.report.violate(f"{machine} is held out of {spec.name} {version} for {held_s:.1f} s")
                    if self._house.slots(machine, spec.name, version) is None and held_s <= 0:
                        text = f"{machine} gets no calls of {spec.name} {version} yet"
                        world.report.violate(f"{text}, {RECOVERY_S:g} s after the last fault")

    def _has_free_slot(self, model: str, version: str, state: Mapping[str, Any]) -> bool:
        """On a replica that is neither suspect nor ejected: for such a slot nobody has a reason to wait."""
        held: Mapping[str, int] = state["in_flight_by_replica"]
        known, judged = state["picker"]["replicas"], state["ejection"]["by_replica"]
        for machine in self._world.machines:
            replica, slots = f"{POOL}/{machine}", self._house.slots(machine, model, version)
            if slots is None or held.get(replica, 0) >= slots:
                continue
            if self._is_kept(replica, model, held.get(replica, 0), state):
                continue
            if known[replica]["suspect"] or judged.get(replica, {}).get("standing") in ("probing", "ejected"):
                continue
            return True
        return False

    def _is_kept(self, replica: str, model: str, held: int, state: Mapping[str, Any]) -> bool:
        """Whether it has a batch to run, and what fills behind it is kept for calls of higher classes, not for long."""
        left_s: float | None = state["kept"].get(replica)
        if left_s is None:
            return False
        spec, said = self._specs[model], self._world.scenario.policies.models[model].admission.slots_per_replica
        batch = max(1, spec.max_batch_size) if spec.dynamic_batching else 1
        if held < max(1, (said or 2 * spec.instances * batch) // 2) or left_s - TICK_S > state["pace"]["round_s"]:
            self._world.report.violate(f"{model}: {replica} is kept for {left_s} s with {held} calls in flight")
        return True


def _question(message: bytes) -> bytes:
    request = pb.ModelInferRequest.FromString(message)
    return bytes(request.raw_input_contents[0]) if request.raw_input_contents else b""
