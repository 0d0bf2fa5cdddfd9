"""Sequences over real servers: gateways that know nothing of one another agree, and a refusal ends no sequence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2 as pb

from deploy.local import LocalFleet
from tests.field.test_fh07_sequences import NUMBERS, TEXTS, all_ready, four_on_each, started
from tests.support.sequences import GrpcSteps, HttpSteps, StepFailed, Sum

IDS: tuple[int | str, ...] = (1, 2, "1", "2", "conversation")
"""Few enough for the four slots that each server has, wherever they fall."""


async def test_a_sequence_goes_on_through_a_gateway_that_has_never_heard_of_it(
    stateful_fleet: LocalFleet, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with started(tmp_path / "one", stateful_fleet) as one, started(tmp_path / "two", stateful_fleet) as two:
        await all_ready(one)
        await all_ready(two)
        async with asyncio.timeout(60), GrpcSteps(one.grpc) as here, HttpSteps(two.http) as there:
            for turn in range(0, len(IDS), 2):
                ids = IDS[turn : turn + 2]
                for sequence_id in ids:
                    assert (await here.step(TEXTS, sequence_id, 1, start=True)).count == 1
                    assert (await there.step(TEXTS, sequence_id, 10)).count == 2
                    assert (await here.step(TEXTS, sequence_id, 100)).count == 3
                for sequence_id in ids:
                    assert await there.step(TEXTS, sequence_id, 1000, end=True) == Sum(1111, 4, str(sequence_id))
        assert [one.stop(), two.stop()] == [0, 0]


async def test_a_gateway_that_starts_before_servers_full_of_sequences_serves_them(
    stateful_fleet: LocalFleet, tmp_path: Path
) -> None:
    servers = {f"cpu/{server.spec.grpc_address}": server.spec.grpc_address for server in stateful_fleet}
    homes = four_on_each(list(servers), TEXTS)
    async with asyncio.timeout(60):
        for sequence_id, home in homes.items():
            async with GrpcSteps(servers[home]) as direct:
                assert (await direct.step(TEXTS, sequence_id, 1, start=True)).count == 1
    with started(tmp_path, stateful_fleet) as gateway:
        await all_ready(gateway)
        async with asyncio.timeout(60), GrpcSteps(gateway.grpc) as steps:
            for sequence_id in homes:
                assert await steps.step(TEXTS, sequence_id, 1, end=True) == Sum(2, 2, str(sequence_id))
        assert gateway.stop() == 0


async def test_an_error_inside_a_sequence_is_the_models_own_and_the_sequence_stays_with_its_replica(
    stateful_fleet: LocalFleet, tmp_path: Path
) -> None:
    with started(tmp_path, stateful_fleet) as gateway:
        await all_ready(gateway)
        async with asyncio.timeout(60), GrpcSteps(gateway.grpc) as steps:
            assert (await steps.step(NUMBERS, 31, 1, start=True)).count == 1
            with pytest.raises(StepFailed, match="invalid value type for 'sequence_end' parameter"):
                await steps.send(with_end_as_number(31))
            with pytest.raises(StepFailed, match="expected 1 inputs but got 0"):
                await steps.send(without_input(31))
            assert (await steps.step(NUMBERS, 31, 1, end=True)).count == 2
        assert gateway.stop() == 0
        records = [record for record in gateway.records() if record["attempts"]]
        assert len({attempt["replica"] for record in records for attempt in record["attempts"]}) == 1
        assert [record["routed_by"] for record in records] == ["newest", "sequence", "sequence"]


def without_input(sequence_id: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=NUMBERS)
    request.parameters["sequence_id"].int64_param = sequence_id
    return request


def with_end_as_number(sequence_id: int) -> pb.ModelInferRequest:
    request = without_input(sequence_id)
    request.parameters["sequence_end"].int64_param = 1
    return request
