"""What on-call should see of the breakers: a line for each move, and for the begin and the end of panic."""

from __future__ import annotations

import logging
from collections import deque

from gateway.decide.ejection import Ejection, News

_log = logging.getLogger("sluice.ejection")


def tell_news(named: str, ejection: Ejection, now_s: float) -> None:
    """Log and forget what has happened since the last time. `named`: the pool, model and version."""
    news: deque[News] = ejection.news
    while news:
        each = news.popleft()
        if each.what == "panic":
            _log.warning(
                "%s: too few replicas are well (%d now): panic, calls go to all that are up", named, ejection.healthy
            )
        elif each.what == "panic_over":
            _log.info("%s: panic is over, enough replicas are well", named)
        elif each.what == "open":
            stands = ejection.standing(each.replica, now_s)
            _log.warning(
                "%s: the breaker of %s is open (%s) for %.2f s; it is %s",
                named,
                each.replica,
                each.why,
                each.pause_s,
                stands,
            )
        elif each.what == "half_open":
            _log.info("%s: %s gets a call to prove itself", named, each.replica)
        else:
            _log.info("%s: the breaker of %s is closed (%s)", named, each.replica, each.why)
