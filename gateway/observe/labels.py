"""The closed sets that metric labels come from. Whatever a caller can choose is mapped into one of them, or to
`other` (field case FH-22); nothing else ever becomes a label.
"""

from __future__ import annotations

import hashlib
import re

from gateway.core.codes import Code

OTHER = "other"

PROTOCOLS = frozenset(("http", "grpc"))

ROUTES = frozenset(
    (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{model}[/versions/{version}]",
        "/v2/models/{model}[/versions/{version}]/ready",
        "/v2/models/{model}[/versions/{version}]/config",
        "/v2/models/{model}[/versions/{version}]/infer",
        "/v2/models/{model}[/versions/{version}]/generate",
        "/v2/models/{model}[/versions/{version}]/generate_stream",
        "/v2/models/{model}[/versions/{version}]/stats",
        "/v2/models/stats",
        "/v2/models/{model}/trace/setting",
        "/v2/trace/setting",
        "/v2/logging",
        "/v2/repository[/{repository}]/index",
        "/v2/repository[/{repository}]/models/{model}/load",
        "/v2/repository[/{repository}]/models/{model}/unload",
        "/v2/systemsharedmemory[/region/{region}]/status",
        "/v2/systemsharedmemory/region/{region}/register",
        "/v2/systemsharedmemory[/region/{region}]/unregister",
        "/v2/cudasharedmemory[/region/{region}]/status",
        "/v2/cudasharedmemory/region/{region}/register",
        "/v2/cudasharedmemory[/region/{region}]/unregister",
        "Health/Check",
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
        "ModelInfer",
        "ModelStreamInfer",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    )
)
"""Templates of HTTP paths, and methods of `inference.GRPCInferenceService` by their bare name."""

_TLS_FAULTS = ("tls_handshake", "tls_plaintext", "tls_record", "tls_slow")
PROTOCOL_FAULTS = frozenset(
    ("malformed", "too_large", "flood", "slow_head", "slow_body", "slow_drain", "slow_reader", "silent", *_TLS_FAULTS)
)
"""How bytes on a client port failed to become a request, or an answer to be taken. `flood`: more frames that bring
nobody anything than any client has a use for; `silent`: a client with calls in flight that does not answer a PING."""

_HTTP_STATUSES = (200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 429, 431, 499, 500, 501, 503, 504, 505)
STATUSES = frozenset((*(str(status) for status in _HTTP_STATUSES), *(code.name for code in Code)))
ATTEMPT_KINDS = frozenset(("primary", "retry", "hedge", "warmup"))
STORES = frozenset(("redis", "memory"))
STORE_OUTCOMES = ("ok", "failed", "late", "skipped")
"""How a question to a shared store ended; skipped: not asked, because it was ill."""
QUOTA_REFUSALS = ("rate", "concurrency", "table_full")
SECOND_KINDS = ("hedge", "retry", "resend")
REFUSALS = frozenset(
    (
        *("answered", "not_read_only", "not_replayable", "no_cancel", "cancels_capped", "errors_climbing"),
        *("limit_shrinking", "queue", "busy", "hedges_out", "no_other", "others_busy"),
        *("final", "quarantined", "stateful", "decoupled", "rival_out", "resent", "attempts", "pushback"),
        *("no_replica", "same_replica", "deadline"),
        *("empty", "window"),
    )
)
"""Why there was no second attempt: the words of hedges, of retries, and of the budget."""
RUNGS = frozenset(("full", "cached", "smaller", "rules", "default"))
PROBES = frozenset(("liveness", "readiness", "index", "scrape"))

_JOB = re.compile(r"[a-z][a-z_-]{0,39}")
_LABEL_CHARACTERS_MAX = 255


def closed(value: str, allowed: frozenset[str]) -> str:
    """`value` if it is in the set, `other` if not."""
    return value if value in allowed else OTHER


def job(name: str) -> str:
    """A background job's name without what stands behind the first `:`, `/`, `[` or blank: that part may be an
    address.
    """
    found = _JOB.match(name)
    if found is None:
        return OTHER
    rest = name[found.end() :]
    return found.group() if not rest or rest[0] in ":/[ " else OTHER


def text(value: str) -> str:
    """A configured name as a label: encodable, and no longer than a model's name may be."""
    return value[:_LABEL_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def replica(replica_id: str, key: bytes) -> str:
    """Eight hex digits that stand for a replica on pages which must not show addresses. The key makes them
    unguessable: without it, the four thousand million IPv4 addresses are tried in minutes.
    """
    return hashlib.blake2b(replica_id.encode("utf-8", "replace"), digest_size=4, key=key[:64]).hexdigest()
