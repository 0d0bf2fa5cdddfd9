"""A directory of policies to one `PolicySet`, or to a `PolicyError` that lists everything wrong with it.

Strict: an unknown key, a wrong type or unit, a value out of range, a dangling reference, a file that would not be read
are all errors. The set is taken as a whole or not at all, so that a running gateway keeps what it has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from gateway.policy.checks import check_fleet, check_model, check_names
from gateway.policy.decode import Document, decode
from gateway.policy.files import POLICY_BYTES_MAX, SourceFile, read_directory
from gateway.policy.problems import PolicyError, PolicyProblem, Problems
from gateway.policy.quota_checks import check_quotas
from gateway.policy.references import (
    check_keys_file,
    check_replica_files,
    check_secret_files,
    read_request_file,
)
from gateway.policy.schema import FleetPolicy, ModelPolicy, PolicySet
from gateway.policy.yaml_tree import parse

__all__ = ["PolicyError", "PolicyProblem", "load_policies"]

REVISION_DIGITS = 12


def load_policies(directory: str) -> PolicySet:
    """The policies in `directory`: `fleet.yaml` and `models/*.yaml`.

    Reads files, so call it off the event loop. Raises `PolicyError` with all problems found; file names in it begin
    with `directory` as given.
    """
    problems = Problems()
    source, model_sources = read_directory(directory, problems)
    fleet = _fleet(source, os.path.join(directory, "fleet.yaml"), problems)
    check_fleet(fleet, problems)
    check_keys_file(fleet, directory, problems)
    check_secret_files(fleet, directory, problems)
    check_replica_files(fleet, directory, problems)

    parts = {} if source is None else {source.name: source.data}
    folder = os.path.join(directory, "models")
    models: list[Document[ModelPolicy]] = []
    requests: dict[str, bytes] = {}
    for file in model_sources:
        root = parse(file.data, file.shown, POLICY_BYTES_MAX, problems)
        model: Document[ModelPolicy] = decode(root, ModelPolicy, "model", file.shown, problems)
        check_model(model, fleet, problems)
        models.append(model)
        parts[file.name] = file.data
        request = read_request_file(model, folder, problems)
        if request is not None:
            path, data = request
            parts[os.path.relpath(path, directory).replace(os.sep, "/")] = data
            requests[str(model.get("model"))] = data
    check_names(models, problems)
    check_quotas(fleet, models, problems)
    problems.raise_if_any()

    policies = [model.value for model in models if model.value is not None]
    assert fleet.value is not None  # no problems: everything was decoded
    assert len(policies) == len(models)
    return PolicySet(
        revision=revision(parts.items()),
        base_dir=os.path.abspath(directory),
        fleet=fleet.value,
        models={policy.model: policy for policy in policies},
        warmup_requests=requests,
    )


def _fleet(source: SourceFile | None, shown: str, problems: Problems) -> Document[FleetPolicy]:
    if source is None:
        return Document(shown, None, None, None)
    root = parse(source.data, shown, POLICY_BYTES_MAX, problems)
    return decode(root, FleetPolicy, "fleet", shown, problems)


def revision(parts: Iterable[tuple[str, bytes]]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 over names and contents, whatever their order. Lengths go in too,
    so that nothing can move from a name into a content unseen.
    """
    digest = hashlib.sha256()
    for name, data in sorted(parts):
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d %d\n" % (len(encoded), len(data)))
        digest.update(encoded)
        digest.update(data)
    return digest.hexdigest()[:REVISION_DIGITS]
