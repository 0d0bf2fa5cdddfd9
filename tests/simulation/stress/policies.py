"""What the load lab would start the gateway and its Tritons with for a scenario, read by the gateway's own loader."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.local import Ports, ServerSpec
from deploy.local.layout import ROOT
from deploy.local.models.accel.behaviour import Settings
from gateway.policy.load import load_policies
from gateway.policy.schema import PolicySet
from load.scenario import LoadedScenario
from load.sluice import model_policy, write_policies
from tests.simulation.batcher import ModelSpec

MODEL = "accel"
LOAD_S = 1.0
"""From a Triton's start until it answers. A real one takes some seconds, and the rows count from when it answers."""
_FIRST_PORT = 8000


@dataclass(frozen=True, slots=True)
class Setting:
    """What stands before the first call."""

    policies: PolicySet
    machines: tuple[str, ...]
    """`host:port` of each replica's gRPC port."""
    spec: ModelSpec


def setting_of(scenario: LoadedScenario) -> Setting:
    """Of a scenario whose calls are all for `accel`. Raises PolicyError as the gateway would, and ValueError for
    what is not simulated.
    """
    if scenario.models != (MODEL,):
        raise ValueError(f"{scenario.name} is about {scenario.models}, not about {MODEL} alone")
    replicas = [_server(index) for index in range(scenario.spec.target.replicas)]
    policy = model_policy(MODEL, deadline_ms=scenario.deadline_ms(MODEL), override=scenario.overrides.get(MODEL))
    listen = {name: f"127.0.0.1:{port}" for port, name in enumerate(("http", "grpc", "metrics", "admin"), 7000)}
    with tempfile.TemporaryDirectory(prefix="sluice-stress-") as folder:
        write_policies(Path(folder), MODEL, replicas, listen, slots=None, deadline_ms=1000, override=policy)
        policies = load_policies(folder)
    return Setting(policies, tuple(each.grpc_address for each in replicas), _spec(scenario))


def _server(index: int) -> ServerSpec:
    first = _FIRST_PORT + 10 * index
    return ServerSpec(f"triton-{index}", Ports(http=first, grpc=first + 1, metrics=first + 2))


def _spec(scenario: LoadedScenario) -> ModelSpec:
    """The model as its configuration and the servers' environment have it; a batch takes exactly S(b)."""
    text = (ROOT / "deploy/local/models/accel/config.pbtxt").read_text(encoding="utf-8")
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    settings = Settings.read(parameters, scenario.spec.target.server_environment or {})
    straggling = next((each.stragglers for each in scenario.spec.faults if each.stragglers is not None), None)
    if straggling is not None and not (straggling.all and straggling.at_s == 0 and straggling.for_s is None):
        raise ValueError(f"{scenario.name}: stragglers are simulated on all replicas, all the time")
    return ModelSpec(
        MODEL,
        max_batch_size=config.max_batch_size,
        instances=sum(group.count for group in config.instance_group),
        max_queue_delay_s=config.dynamic_batching.max_queue_delay_microseconds / 1e6,
        s0_s=settings.s0_ms / 1000,
        s1_s=settings.s1_ms / 1000,
        noise=0.0,
        straggler_share=0.0 if straggling is None else straggling.share,
        straggler_factor=20.0 if straggling is None else straggling.factor,
        load_s=LOAD_S,
        work_input=config.input[0].name,
    )
