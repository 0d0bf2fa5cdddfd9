"""RedisLink: one connection to a Redis, for one user at a time, behind a breaker.

The library's own patience is switched off (it would try ten times, up to 5 s each): no retries, a time limit around
everything, and after any failure the connection is dropped, because a late answer to an old question must never be
taken for the answer to a new one. Redis being ill is not an error of anything here: it is counted, logged when it
begins and when it ends, and told by `ready` and None.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from gateway.stores.breaker import DependencyBreaker

_log = logging.getLogger("sluice.stores")

CONNECT_LIMIT_S = 1.0
"""For the connection, with greeting and password. Nobody waits for it but the job that asks."""
_TEXT_CHARS_MAX = 200
Command = tuple[str | bytes | int | float, ...]


class BadRedisUrlError(ValueError):
    """`SLUICE_REDIS_URL` is no address of a Redis. The message does not repeat it: there may be a password in it."""


class RedisLink:
    """Raises `BadRedisUrlError`. Connects when it is first asked."""

    def __init__(self, url: str, now_s: Callable[[], float]) -> None:
        self._url = url
        try:
            self._redis = self._new()
        except (ValueError, TypeError, AttributeError, RedisError):
            raise BadRedisUrlError("it is not the address of a Redis (redis://, rediss:// or unix://)") from None
        self._now_s = now_s
        self._breaker = DependencyBreaker("redis")
        self._connected = False
        self.connections = 0
        """Made so far: another number is another connection, and perhaps another life of Redis."""
        self._words = dict.fromkeys(("ok", "failed", "late", "skipped"), 0)
        self._last_error = ""
        self._told_ill = False

    def _new(self) -> Redis:
        return Redis.from_url(
            self._url,
            protocol=2,
            socket_connect_timeout=CONNECT_LIMIT_S,
            socket_timeout=None,  # `asyncio.timeout` around each question
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
            decode_responses=False,
        )

    async def ready(self) -> bool:
        """Whether it may be asked now; connects if need be."""
        if not self._breaker.allows(self._now_s()):
            self._words["skipped"] += 1
            return False
        if self._connected:
            return True
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await self._redis.ping()
        except TimeoutError as error:
            await self._ill("late", error)
            return False
        except (RedisError, OSError) as error:
            await self._ill("failed", error)
            return False
        self._connected = True
        self.connections += 1
        return True

    async def ask(self, commands: Sequence[Command], limit_s: float) -> list[Any] | None:
        """The answers to these commands, sent together, errors of Redis among them (`ResponseError`); None if they did
        not all come within `limit_s`. They are sent once.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            async with asyncio.timeout(limit_s):
                answers = await pipeline.execute(raise_on_error=False)
        except TimeoutError as error:
            await self._ill("late", error)
            return None
        except (RedisError, OSError) as error:
            await self._ill("failed", error)
            return None
        except BaseException:
            # Cancelled: the answer is still on its way.
            self._connected = False
            await self._drop()
            raise
        refusal = next((answer for answer in answers if isinstance(answer, ResponseError)), None)
        if refusal is not None:
            # It is there, but cannot: no memory left, read only, loading, no such script.
            self._count("failed", refusal)
        else:
            self._words["ok"] += 1
            self._breaker.succeeded()
            if self._told_ill:
                self._told_ill = False
                _log.info("redis answers again")
        return list(answers)

    async def _ill(self, word: str, error: Exception) -> None:
        self._connected = False
        self._count(word, error)
        await self._drop()

    def _count(self, word: str, error: Exception) -> None:
        self._words[word] += 1
        self._last_error = f"{type(error).__name__}: {error}"[:_TEXT_CHARS_MAX]
        self._breaker.failed(self._now_s())
        if not self._told_ill:
            self._told_ill = True
            _log.warning("redis does not serve (%s); until it does, each gateway keeps to its share", self._last_error)

    async def _drop(self) -> None:
        """Begin anew with a client that has no history."""
        old, self._redis = self._redis, self._new()
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await old.connection_pool.disconnect(inuse_connections=True)
        except (TimeoutError, RedisError, OSError) as error:
            self._last_error = f"{type(error).__name__} while the connection was dropped"

    async def aclose(self) -> None:
        self._connected = False
        await self._drop()

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`up`: 1 while it answers. `last_error` may hold an address: for the admin port alone."""
        return {
            "kind": "redis",
            "up": int(self._connected and self._breaker.closed),
            "questions": dict(self._words),
            "breaker": self._breaker.statistics(now_s),
            "last_error": self._last_error,
        }
