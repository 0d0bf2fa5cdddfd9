"""Files that are read again and again, and the thing that is made from them: the last good one stays in force."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from gateway.runtime.workers import Workers

T = TypeVar("T")

_log = logging.getLogger("sluice.files")


class Reader(Protocol):
    """Reads a file. Raises OSError."""

    async def read(self, path: str) -> bytes: ...


class Watched(Generic[T]):
    """Something made from some files. `load` must succeed once before `value` is asked for.

    Contents are compared, not times: those miss a change within their resolution, and a file that was renamed into
    place may be older than the one it replaced. Files that belong together and are replaced one after the other make
    nothing good in between; the next look finds them whole. `make` gets one content per path, in their order, runs in a
    worker, and raises one of `errors` if nothing can be made of them. An empty path has no file: its content is b"".
    """

    def __init__(
        self,
        what: str,
        paths: Iterable[str],
        refresh_s: float,
        *,
        make: Callable[[tuple[bytes, ...]], T],
        files: Reader,
        workers: Workers,
        errors: tuple[type[Exception], ...] = (ValueError,),
        changed: Callable[[T], None] | None = None,
    ) -> None:
        """`changed` is told of every later value. `what` names the files in the log: `the key file`."""
        self.what = what
        self.refresh_s = refresh_s
        self._paths = tuple(paths)
        self._make = make
        self._files = files
        self._workers = workers
        self._errors: tuple[type[Exception], ...] = (OSError, *errors)
        self._changed = changed
        self._value: T | None = None
        self._contents: tuple[bytes, ...] = ()
        self.loads = 0
        self.failures = 0
        self.failure = ""
        """Why the files as they are cannot be used; "" if they are in use."""

    @property
    def value(self) -> T:
        if self._value is None:
            raise RuntimeError(f"{self.what} has not been loaded yet")
        return self._value

    async def load(self) -> bool:
        """Read the files and use them. Whether there is a new value. Raises OSError or one of `errors`."""
        contents = tuple([await self._files.read(path) if path else b"" for path in self._paths])
        if self._value is not None and contents == self._contents:
            return False
        self._value = await self._workers.run(lambda: self._make(contents))
        self._contents = contents
        self.loads += 1
        return True

    async def look(self) -> None:
        """`load`, with what goes wrong logged and counted instead of raised."""
        try:
            fresh = await self.load()
        except self._errors as error:
            self.failures += 1
            if str(error) != self.failure:
                self.failure = str(error)
                _log.error("%s cannot be used, what was read before stays in force: %s", self.what, error)
            return
        self.failure = ""
        if fresh:
            _log.info("%s changed; what it says now is in force", self.what)
            if self._changed is not None:
                self._changed(self.value)

    async def run(self) -> None:
        """A background job: look again every `refresh_s`."""
        while True:
            await asyncio.sleep(self.refresh_s)
            await self.look()

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"loads": self.loads, "failures": self.failures, "failure": self.failure}
