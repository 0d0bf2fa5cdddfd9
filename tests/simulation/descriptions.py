"""What the in-memory Triton says of its models: index, metadata, configuration."""

from __future__ import annotations

import json
from typing import Any

from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from gateway.core.faces import IndexEntry, ModelConfigBytes
from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import ModelSpec
from tests.simulation.triton import Triton


def index(machine: Triton) -> tuple[IndexEntry, ...]:
    entries = []
    for name, versions in machine.models.items():
        if not versions:
            entries.append(IndexEntry(name, "", "", ""))
        entries.extend(IndexEntry(name, version, entry.state, entry.reason) for version, entry in versions.items())
    return tuple(entries)


def _found(machine: Triton, model: str, version: str) -> ModelSpec:
    found = machine.find(model, version)
    if isinstance(found, UpstreamFault):
        raise found
    return machine.specs[model]


def metadata(machine: Triton, model: str, version: str) -> bytes:
    spec = _found(machine, model, version)
    ready = [number for number, entry in machine.models[model].items() if entry.state == "READY"]
    answer = pb.ModelMetadataResponse(name=model, versions=[version] if version else ready, platform="python")
    leading = [-1] if spec.max_batch_size else []
    name, datatype, extent = ("x", "UINT8", -1) if not spec.work_input else (spec.work_input, "FP32", 1)
    answer.inputs.add(name=name, datatype=datatype, shape=[*leading, extent])
    answer.outputs.add(name="digest", datatype="UINT8", shape=[*leading, 16])
    return bytes(answer.SerializeToString())


def config(machine: Triton, model: str, version: str) -> ModelConfigBytes:
    spec = _found(machine, model, version)
    said = model_config_pb2.ModelConfig(name=model, backend="python", max_batch_size=spec.max_batch_size)
    said.version_policy.all.SetInParent()
    name, datatype, extent = ("x", "TYPE_UINT8", -1) if not spec.work_input else (spec.work_input, "TYPE_FP32", 1)
    said.input.add(name=name, data_type=model_config_pb2.DataType.Value(datatype), dims=[extent])
    said.output.add(name="digest", data_type=model_config_pb2.TYPE_UINT8, dims=[16])
    said.instance_group.add(name=f"{model}_0", kind=model_config_pb2.ModelInstanceGroup.KIND_CPU, count=spec.instances)
    body: dict[str, Any] = {
        "name": model,
        "backend": "python",
        "version_policy": {"all": {}},
        "max_batch_size": spec.max_batch_size,
        "input": [{"name": name, "data_type": datatype, "dims": [extent]}],
        "output": [{"name": "digest", "data_type": "TYPE_UINT8", "dims": [16]}],
        "instance_group": [{"name": f"{model}_0", "kind": "KIND_CPU", "count": spec.instances, "gpus": []}],
    }
    if spec.decoupled:
        said.model_transaction_policy.decoupled = True
        body["model_transaction_policy"] = {"decoupled": True}
    elif spec.sequences:
        _sequence_batching(spec, said, body)
    elif spec.dynamic_batching:
        policy = {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": int(spec.default_timeout_s * 1e6),
            "allow_timeout_override": spec.allow_timeout_override,
            "max_queue_size": spec.max_queue_size,
        }
        delay_us = int(spec.max_queue_delay_s * 1e6)
        said.dynamic_batching.preferred_batch_size.append(spec.max_batch_size)
        said.dynamic_batching.max_queue_delay_microseconds = delay_us
        limits = said.dynamic_batching.default_queue_policy
        limits.default_timeout_microseconds = int(spec.default_timeout_s * 1e6)
        limits.allow_timeout_override = spec.allow_timeout_override
        limits.max_queue_size = spec.max_queue_size
        body["dynamic_batching"] = {
            "preferred_batch_size": [spec.max_batch_size],
            "max_queue_delay_microseconds": delay_us,
            "default_queue_policy": policy,
        }
    proto = pb.ModelConfigResponse(config=said).SerializeToString()
    return ModelConfigBytes(bytes(proto), json.dumps(body).encode())


def _sequence_batching(spec: ModelSpec, said: Any, body: dict[str, Any]) -> None:
    batching, idle_us = said.sequence_batching, int(spec.sequence_idle_s * 1e6)
    batching.direct.SetInParent()
    batching.max_sequence_idle_microseconds = idle_us
    kind = model_config_pb2.TYPE_STRING if spec.text_ids else model_config_pb2.TYPE_UINT64
    control = batching.control_input.add(name="CORRID").control.add()
    control.kind = model_config_pb2.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    control.data_type = kind
    body["sequence_batching"] = {"direct": {}, "max_sequence_idle_microseconds": idle_us}
