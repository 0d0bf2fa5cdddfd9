"""Replicas listed in a file that is looked at again and again."""

from __future__ import annotations

import hashlib

from gateway.core.faces import Endpoints, Files
from gateway.policy.decode import Document, decode
from gateway.policy.problems import PolicyError, Problems
from gateway.policy.schema import StaticReplica
from gateway.policy.yaml_tree import parse
from gateway.runtime.workers import Workers

FILE_BYTES_MAX = 1024 * 1024


class FileSource:
    """Reads the whole file each time and compares hashes: time stamps miss a change within their resolution, and a
    file that was renamed into place may be older than the one it replaced.
    """

    def __init__(self, path: str, refresh_s: float, files: Files, workers: Workers) -> None:
        self._path = path
        self._files = files
        self._workers = workers
        self.refresh_s = refresh_s
        self._digest = b""
        self._addresses: tuple[Endpoints, ...] = ()
        self._error = ""

    async def addresses(self) -> tuple[Endpoints, ...]:
        content = await self._files.read(self._path)
        digest = hashlib.sha256(content).digest()
        if digest != self._digest:
            self._error = ""
            try:
                # Away from the loop: a thousand entries of YAML take most of a second.
                self._addresses = await self._workers.run(lambda: parse_replicas(self._path, content))
            except PolicyError as error:
                self._error = str(error)
            self._digest = digest
        if self._error:
            raise ValueError(self._error)
        return self._addresses


def parse_replicas(path: str, content: bytes) -> tuple[Endpoints, ...]:
    """The replicas in a YAML or JSON list. Raises `PolicyError` with file, line, column and what is allowed."""
    problems = Problems()
    root = parse(content, path, FILE_BYTES_MAX, problems)
    document: Document[tuple[StaticReplica, ...]] = decode(root, tuple[StaticReplica, ...], "keys", path, problems)
    found: dict[str, Endpoints] = {}
    for number, each in enumerate(document.value or ()):
        if each.grpc in found:
            message = f"the gRPC address {each.grpc} stands here a second time"
            problems.add(path, document.where(number, "grpc"), (number, "grpc"), message, "list each replica once")
        found[each.grpc] = Endpoints(each.grpc, each.http, each.metrics)
    problems.raise_if_any()
    return tuple(found.values())
