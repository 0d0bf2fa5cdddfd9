"""Reading small configuration files without blocking the loop."""

from __future__ import annotations

import os
import stat

from gateway.runtime.workers import Workers


class SystemFiles:
    """Files of this machine, read by workers. More than `bytes_max` is refused: a watched file is small or it is
    wrong.
    """

    def __init__(self, workers: Workers, bytes_max: int = 4 * 1024 * 1024) -> None:
        self._workers = workers
        self._bytes_max = bytes_max

    async def read(self, path: str) -> bytes:
        """The whole file. Raises OSError, also for one that is too large or is a pipe or device."""
        return await self._workers.run(lambda: self._read(path))

    def _read(self, path: str) -> bytes:
        # Opening a pipe that nobody writes to would hold the worker for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path} is not a regular file; a watched file must be one")
            data = file.read(self._bytes_max + 1)
        if len(data) > self._bytes_max:
            raise OSError(f"{path} is over {self._bytes_max} bytes; this file is watched and must be small")
        return data
