"""A whole gateway but for its ports, in this very process, over replicas that answer at once.

The assembly is the product's own, with its threads, its record files, its event loop and its collector's settings. Only
the replicas are not real: their answers are there in the next turn of the loop, all of a turn together, as from one
connection that many calls share.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.assembly import Assembly, Parts
from gateway.core.call import Metadata
from gateway.core.faces import Endpoints, IndexEntry, ModelConfigBytes, ReplicaStream
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.load import load_policies
from gateway.records.file_store import FileStore, breathe
from gateway.runtime.chance import Chance
from gateway.runtime.clock import SystemClock
from gateway.runtime.files import SystemFiles
from gateway.runtime.workers import ThreadWorkers
from load.errors import LoadError
from load.inputs import VALUES, IdentityInputs
from load.protobuf import bytes_field, read_fields
from load.sluice import POOL, model_policy

VERSION = "1"
SEED = 1
DEADLINE_MS = 5000
READY_TIMEOUT_S = 20.0
CLOSE_LIMIT_S = 5.0


def model_names(count: int) -> tuple[str, ...]:
    """`identity`, and others that are the same under other names."""
    return (IdentityInputs.model, *(f"{IdentityInputs.model}-{number:04}" for number in range(1, count)))


class InstantReplica:
    """`ReplicaClient` of a server that has models, all like `identity`, and no work to do. Every answer of a model is
    the same.
    """

    def __init__(self, models: Sequence[str]) -> None:
        tensor = bytes_field(2, b"FP32") + bytes_field(3, bytes((VALUES,)))
        given, taken = (bytes_field(1, name) + tensor for name in (b"OUTPUT_FP32", b"INPUT_FP32"))
        self._given, self._taken = given, taken
        self._index = tuple(IndexEntry(model, VERSION, "READY", "") for model in models)
        version = bytes_field(2, VERSION.encode())
        self._answers = {
            model.encode(): bytes_field(1, model.encode()) + version + bytes_field(5, given) + bytes_field(6, bytes(48))
            for model in models
        }
        self._out: list[tuple[asyncio.Future[bytes], bytes]] = []

    @property
    def answer(self) -> bytes:
        """The first model's."""
        return next(iter(self._answers.values()))

    async def infer(self, message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"") -> bytes:
        message += tail
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        out = self._out
        if not out:
            loop.call_soon(self._answer_all)
        # The lab's calls begin with the model's name, which is shorter than 128 bytes; warming ones do not.
        answer = self._answers.get(message[2 : 2 + message[1]])
        if answer is None:
            answer = self._answers[next(value for field, value in read_fields(message) if field == 1)]
        out.append((future, answer))
        return await future

    def _answer_all(self) -> None:
        out, self._out = self._out, []
        for future, answer in out:
            if not future.done():
                future.set_result(answer)

    async def server_live(self, timeout_s: float) -> bool:
        return True

    async def server_ready(self, timeout_s: float) -> bool:
        return True

    async def server_metadata(self, timeout_s: float) -> bytes:
        return bytes_field(1, b"instant") + bytes_field(2, b"0")

    async def repository_index(self, timeout_s: float) -> tuple[IndexEntry, ...]:
        return self._index

    async def model_ready(self, model: str, version: str, timeout_s: float) -> bool:
        return True

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        named = bytes_field(1, model.encode()) + bytes_field(2, VERSION.encode())
        return named + bytes_field(4, self._taken) + bytes_field(5, self._given)

    async def model_config(self, model: str, version: str, timeout_s: float) -> ModelConfigBytes:
        return ModelConfigBytes(bytes_field(1, bytes_field(1, model.encode())), b"{}")

    async def model_statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        raise NotImplementedError("nobody asks it for statistics")

    def open_stream(self, metadata: Metadata, timeout_s: float) -> ReplicaStream:
        raise NotImplementedError("its model is called by single requests alone")

    async def scrape(self, timeout_s: float) -> str:
        raise NotImplementedError("its address names no metrics port")

    async def aclose(self) -> None:
        return None


class InstantConnector:
    """One `InstantReplica` for each address."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = models
        self.replicas: dict[str, InstantReplica] = {}

    def connect(self, endpoints: Endpoints) -> InstantReplica:
        return self.replicas.setdefault(endpoints.grpc, InstantReplica(self._models))


class NoNames:
    """`Resolver`: the addresses are static."""

    async def resolve(self, host: str) -> tuple[str, ...]:
        raise OSError(f"nobody asks for {host}")


class StageHouse:
    """The assembly, and a client of its first replica for what a call costs without it."""

    def __init__(
        self,
        directory: Path,
        replicas: int,
        slots: int,
        models: int = 1,
        *,
        policy: Mapping[str, Any] | None = None,
        fleet: Mapping[str, Any] | None = None,
    ) -> None:
        self._replicas = replicas
        self.models = model_names(models)
        self.clock = SystemClock()
        self.connector = InstantConnector(self.models)
        write_house_policies(directory, self.models, replicas, slots, policy, fleet)
        self.policies = policies = load_policies(str(directory))
        records = policies.fleet.records
        self.store = FileStore(
            Path(policies.base_dir) / records.dir,
            file_bytes_max=records.file_bytes_max,
            files_max=records.files_max,
            wall_s=self.clock.wall_s,
        )
        self.workers = ThreadWorkers(1, "stages-worker")
        self._record_workers = ThreadWorkers(2, "stages-records")
        self.assembly = Assembly(
            policies,
            Parts(
                clock=self.clock,
                chance=Chance(SEED),
                connector_of=lambda pool: self.connector,
                resolver=NoNames(),
                files=SystemFiles(self.workers),
                workers=self.workers,
                record_workers=self._record_workers,
                record_store=self.store,
                authenticator=AnonymousAuthenticator(),
                breathe=breathe,
            ),
        )

    async def open(self) -> None:
        """Start, and wait until calls may be sent. Raises LoadError."""
        self.store.open()
        self.assembly.start()
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while any(len(self._candidates(model)) < self._replicas for model in self.models):  # noqa: ASYNC110 - nothing is measured yet
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise LoadError(f"not every model was ready within {READY_TIMEOUT_S:g} s") from None

    async def close(self) -> None:
        await self.assembly.aclose()
        for workers in (self.workers, self._record_workers):
            await workers.aclose(CLOSE_LIMIT_S)

    @property
    def candidates(self) -> Sequence[str]:
        """Ids of the replicas that take calls of the first model."""
        return self._candidates(IdentityInputs.model)

    def _candidates(self, model: str) -> Sequence[str]:
        return [each.replica for each in self.assembly.directory.snapshot.candidates(POOL, model, VERSION)]

    @property
    def client(self) -> InstantReplica:
        """The first replica's."""
        return next(iter(self.connector.replicas.values()))

    async def records_written(self) -> None:
        """Wait until every record that was offered has been written. Raises LoadError if one was dropped or cut."""
        log, clock = self.assembly.record_log, self.clock
        while (now := log.statistics(clock.now_s()))["queued"]:  # noqa: ASYNC110 - the log has no event for it
            await asyncio.sleep(0.005)
        if now["dropped"] or now["thinned"] or now["failures"]:
            raise LoadError(f"records were lost, so their cost is not in the figures: {now}; take a lower --rps")


@asynccontextmanager
async def stage_house(
    directory: Path,
    *,
    replicas: int,
    slots: int,
    models: int = 1,
    policy: Mapping[str, Any] | None = None,
    fleet: Mapping[str, Any] | None = None,
) -> AsyncIterator[StageHouse]:
    """A running one; every way out stops it. Policies and records go to `directory`. `policy` is what the models'
    policies say differently, `fleet` has more keys for fleet.yaml.
    """
    house = StageHouse(directory, replicas, slots, models, policy=policy, fleet=fleet)
    try:
        await house.open()
        yield house
    finally:
        await house.close()


def write_house_policies(
    directory: Path,
    models: Sequence[str],
    replicas: int,
    slots: int,
    override: Mapping[str, Any] | None,
    more: Mapping[str, Any] | None,
) -> None:
    """`override` is what the models' policies say differently, `more` has more keys for fleet.yaml."""
    static = [{"grpc": f"127.0.0.1:{1 + number}", "http": f"127.0.0.1:{1001 + number}"} for number in range(replicas)]
    fleet = {"pools": {POOL: {"replicas": {"static": static}}}, "records": {"dir": "records"}, **(more or {})}
    (directory / "models").mkdir(parents=True)
    (directory / "fleet.yaml").write_text(json.dumps(fleet), encoding="utf-8")
    for model in models:
        policy = model_policy(model, deadline_ms=DEADLINE_MS, slots=slots, override=override)
        (directory / "models" / f"{model}.yaml").write_text(json.dumps(policy), encoding="utf-8")
