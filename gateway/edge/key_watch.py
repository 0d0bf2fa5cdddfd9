"""KeyWatch: the key file's owner. Looks at the file again and again; a bad or missing file leaves the last good keys
in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.core.call import Identity
from gateway.core.faces import Files
from gateway.policy.keys import KeyRing, parse_keys
from gateway.policy.problems import PolicyError

_log = logging.getLogger("sluice.edge.keys")


class KeyWatch:
    """An `Authenticator` over a watched key file. `load` must succeed once before the gateway serves."""

    def __init__(self, path: str, refresh_s: float, files: Files) -> None:
        self._path = path
        self._refresh_s = refresh_s
        self._files = files
        self._keys: KeyRing | None = None
        self._data = b""
        self._reloads = 0
        self._failure = ""

    def identify(self, api_key: str | None) -> Identity:
        if self._keys is None:
            raise RuntimeError("the key file has not been loaded: nobody can be identified yet")
        return self._keys.identify(api_key)

    async def load(self) -> None:
        """Read the file and use it. Raises OSError or `PolicyError`."""
        data = await self._files.read(self._path)
        if self._keys is None or data != self._data:
            self._keys = parse_keys(data, self._path)
            self._data = data
            self._reloads += 1
        self._failure = ""

    async def run(self) -> None:
        """A background job: look again every `refresh_s`."""
        while True:
            await asyncio.sleep(self._refresh_s)
            before = self._reloads
            try:
                await self.load()
            except (OSError, PolicyError) as error:
                if str(error) != self._failure:
                    self._failure = str(error)
                    _log.error("the key file cannot be used, the keys of before stay in force: %s", error)
            else:
                if self._reloads != before:
                    _log.info("the key file changed; its keys are in force")

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"keys": 0 if self._keys is None else len(self._keys), "loads": self._reloads, "failure": self._failure}
