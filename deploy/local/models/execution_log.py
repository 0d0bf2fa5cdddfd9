"""A log of what a model executed: JSON lines. Copied beside each `model.py` that uses it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


class ExecutionLog:
    """JSON lines, one per event; at `max_bytes` the file moves to `<path>.1` and starts anew. Threads may share it."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._open()

    def write(self, lines: Sequence[Mapping[str, object]]) -> None:
        """Append all lines with one write, so that readers never see half a line of a finished execution."""
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        with self._lock:
            if self._size and self._size + len(data) > self.max_bytes:
                os.close(self._file)
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self._open()
            os.write(self._file, data)
            self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._file).st_size
