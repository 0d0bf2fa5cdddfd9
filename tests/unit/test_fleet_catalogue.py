"""The catalogue: the fleet as one server, and three different answers for three kinds of absence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.fleet.catalogue import FleetCatalogue
from tests.simulation.batcher import ModelSpec
from tests.unit.fleet_world import FleetWorld, run

A, B = "10.0.0.1", "10.0.0.2"


def reason_of(ask: Callable[[], object]) -> Reason:
    with pytest.raises(GatewayError) as caught:
        ask()
    assert "10.0.0" not in caught.value.message
    return caught.value.reason


def test_unknown_model_no_ready_replica_and_unknown_version_are_three_answers() -> None:
    async def main(world: FleetWorld) -> None:
        catalogue = world.catalogue
        await world.until(lambda: world.takers("m") == {A, B})
        for ask in (catalogue.model_metadata, catalogue.model_config):
            assert reason_of(lambda ask=ask: ask("nope", "")) is Reason.UNKNOWN_MODEL  # type: ignore[misc]
            assert reason_of(lambda ask=ask: ask("m", "7")) is Reason.UNKNOWN_VERSION  # type: ignore[misc]
            assert reason_of(lambda ask=ask: ask("m", "latest")) is Reason.UNKNOWN_VERSION  # type: ignore[misc]
        assert reason_of(lambda: catalogue.model_ready("nope", "")) is Reason.UNKNOWN_MODEL
        assert reason_of(lambda: catalogue.model_ready("m", "7")) is Reason.UNKNOWN_VERSION
        assert Reason.UNKNOWN_MODEL.code is Code.NOT_FOUND
        assert catalogue.model_ready("m", "")
        assert catalogue.model_ready("m", "1")
        for host in (A, B):
            world.tritons[host].unload("m")
        await world.until(lambda: not world.takers("m"), 4)
        assert not catalogue.model_ready("m", "")
        assert not catalogue.model_ready("m", "1")
        assert reason_of(lambda: catalogue.model_metadata("m", "")) is Reason.NO_REPLICA
        assert reason_of(lambda: catalogue.model_metadata("m", "1")) is Reason.NO_REPLICA
        assert reason_of(lambda: catalogue.model_metadata("m", "7")) is Reason.UNKNOWN_VERSION

    run(main)


def test_nothing_is_called_unknown_before_any_replica_was_heard() -> None:
    async def main(world: FleetWorld) -> None:
        assert reason_of(lambda: world.catalogue.model_metadata("m", "1")) is Reason.NO_REPLICA
        assert reason_of(lambda: world.catalogue.server_metadata()) is Reason.NO_REPLICA
        assert not world.catalogue.model_ready("m", "1")
        assert not world.catalogue.server_ready()
        assert world.catalogue.server_live(), "live says nothing about what is behind"

    run(main, start=False)


def test_versions_are_those_that_serve_anywhere_or_the_one_asked_for() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m", "2") == {A, B} and world.takers("m", "10") == {A, B})
        world.tritons[A].models["m"]["2"].state = "UNAVAILABLE"
        await world.until(lambda: world.takers("m", "2") == {B}, 4)
        metadata = pb.ModelMetadataResponse.FromString(world.catalogue.model_metadata("m", ""))
        assert list(metadata.versions) == ["2", "10"]
        assert metadata.name == "m"
        assert metadata.inputs[0].name == "x"
        assert list(pb.ModelMetadataResponse.FromString(world.catalogue.model_metadata("m", "2")).versions) == ["2"]
        config = world.catalogue.model_config("m", "2")
        assert pb.ModelConfigResponse.FromString(config.proto).config.name == "m"
        assert b'"name": "m"' in config.json

    run(main, ModelSpec("m", versions=("2", "10")))


def test_versions_that_the_policy_does_not_open_are_unknown() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m", "2") == {A, B} and world.takers("m", "1") == {A, B})
        assert reason_of(lambda: world.catalogue.model_metadata("m", "2")) is Reason.UNKNOWN_VERSION
        assert reason_of(lambda: world.catalogue.model_metadata("m", "3")) is Reason.NO_REPLICA
        assert list(pb.ModelMetadataResponse.FromString(world.catalogue.model_metadata("m", "")).versions) == ["1"]

    run(main, ModelSpec("m", versions=("1", "2")), policies={"m": {"versions": ("1", "3")}})


def test_server_metadata_is_a_live_replicas_without_shared_memory() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.catalogue.server_ready())
        metadata = pb.ServerMetadataResponse.FromString(world.catalogue.server_metadata())
        assert (metadata.name, metadata.version) == ("triton", "2.51.0")
        assert list(metadata.extensions) == ["classification", "sequence", "model_repository"]
        world.tritons[A].crash()
        world.tritons[B].crash()
        await world.until(lambda: not world.catalogue.server_ready(), 3)
        assert reason_of(lambda: world.catalogue.server_metadata()) is Reason.NO_REPLICA

    run(main)


def test_a_draining_gateway_is_live_and_not_ready() -> None:
    async def main(world: FleetWorld) -> None:
        draining = False
        catalogue = FleetCatalogue(world.directory, world.policies, lambda: draining)
        await world.until(catalogue.server_ready)
        draining = True
        assert catalogue.server_live()
        assert not catalogue.server_ready()
        await asyncio.sleep(0)

    run(main)
