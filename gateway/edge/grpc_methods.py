"""Every method of Triton's gRPC services: what is served, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.edge.refusals import LOAD, LOG, SHARED_MEMORY, TRACE

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
STREAM_INFER = SERVICE + "ModelStreamInfer"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

CONTROL_METHODS = frozenset(
    SERVICE + name
    for name in (
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
    )
)

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        SERVICE + name: why
        for why, names in (
            (LOAD, ("RepositoryModelLoad", "RepositoryModelUnload")),
            (TRACE, ("TraceSetting",)),
            (LOG, ("LogSettings",)),
            (
                SHARED_MEMORY,
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
