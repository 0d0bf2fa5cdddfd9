"""Log lines for operators: one JSON object per line on stderr, and no more of one kind than anybody can read.

Code logs through the standard library (`sluice.*` loggers, state changes and faults only: calls have records). This
module is only how those lines look and how many come out.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_KEYS_MAX = 512
_TEXT_MAX = 4096
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "suppressed"}


class JsonFormatter(logging.Formatter):
    """time, level, logger, event (the text); `suppressed` (lines of this kind left out before this one) and `error`
    where there are any; and whatever was given as `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage()[:_TEXT_MAX],
        }
        for key, value in vars(record).items():
            if key not in _STANDARD and not key.startswith("_"):
                shown[key] = value if isinstance(value, int | float | bool) else str(value)[:_TEXT_MAX]
        suppressed = getattr(record, "suppressed", 0)
        if suppressed:
            shown["suppressed"] = suppressed
        if record.exc_info:
            shown["error"] = self.formatException(record.exc_info)[-_TEXT_MAX:]
        return json.dumps(shown, default=str)


class RateLimit(logging.Filter):
    """Lets `lines` lines of one kind (logger and unformatted text) through per `window_s` seconds. The first line of
    the next window carries the number of those left out.
    """

    def __init__(self, lines: int = 20, window_s: float = 10.0) -> None:
        super().__init__()
        self._lines = lines
        self._window_s = window_s
        self._kinds: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, str(record.msg)[:200])
        state = self._kinds.get(key)
        if state is None:
            if len(self._kinds) >= _KEYS_MAX:
                self._kinds.clear()
            self._kinds[key] = [record.created, 1.0, 0.0]
            return True
        begun_s, passed, held = state
        if not 0.0 <= record.created - begun_s < self._window_s:
            record.suppressed = int(held)
            state[:] = [record.created, 1.0, 0.0]
            return True
        if passed < self._lines:
            state[1] += 1
            return True
        state[2] += 1
        return False


def configure_logging(level: int = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Send what the `sluice` loggers say to `stream` (stderr). Returns the handler, for whoever wants it gone again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimit())
    logger = logging.getLogger("sluice")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler
