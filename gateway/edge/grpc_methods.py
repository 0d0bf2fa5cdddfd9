"""Every method of Triton's gRPC services: what is served, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

CONTROL_METHODS = frozenset(
    SERVICE + name
    for name in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig")
)

_LATER = "is not served by this gateway yet; ask a model server directly"
_OPERATOR = "is refused here: it concerns one model server, not the fleet; ask that server directly"
_SHARED_MEMORY = (
    "is refused here: shared memory is only valid on the host of one model server; send the tensors in the message"
)

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        SERVICE + name: f"{name} {why}"
        for why, names in (
            (_LATER, ("ModelStreamInfer", "ModelStatistics", "RepositoryIndex")),
            (_OPERATOR, ("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings")),
            (
                _SHARED_MEMORY,
                (
                    "SystemSharedMemoryStatus",
                    "SystemSharedMemoryRegister",
                    "SystemSharedMemoryUnregister",
                    "CudaSharedMemoryStatus",
                    "CudaSharedMemoryRegister",
                    "CudaSharedMemoryUnregister",
                ),
            ),
        )
        for name in names
    }
    | {HEALTH_WATCH: ""}
)
"""Method to the text of its UNIMPLEMENTED. `Watch` has an empty one, as on Triton."""
