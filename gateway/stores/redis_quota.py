"""RedisQuotaStore: leases of quotas from a Redis, by one script per quota, with the clock of Redis.

The script is `decide/quota_cell.py` in Redis's own language; a property test holds the two together. One hash a quota:
`level` and `stamp` of the bucket, and `g:<gateway>` with what it holds, what it wants, and until when. It lives as long
as it says anything: a quota that expires is a full one. The script reads and writes one key and loops over the gateways
(at most 64), so it blocks Redis for some microseconds.

A question whose answer is lost is never sent again: it would be paid twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from gateway.decide.quota_cell import Grant
from gateway.stores.face import QuotaQuestion
from gateway.stores.redis_link import Command, RedisLink

PREFIX = "sluice:quota:"
GATEWAYS_MAX = 64

CLOCK = "local t = redis.call('TIME') local now = tonumber(t[1]) + tonumber(t[2]) / 1000000"
CELL = """
local key = KEYS[1]
local gateway = 'g:' .. ARGV[1]
local rate, burst = tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, share = tonumber(ARGV[4]), tonumber(ARGV[5])
local lease, gateways_max = tonumber(ARGV[6]), tonumber(ARGV[7])
local tokens, owed = tonumber(ARGV[8]), tonumber(ARGV[9])
local slots, in_flight = tonumber(ARGV[10]), tonumber(ARGV[11])
local granted, given, life = 0, 0, lease

if rate > 0 then
  local level, stamp = unpack(redis.call('HMGET', key, 'level', 'stamp'))
  level, stamp = tonumber(level), tonumber(stamp)
  if level and stamp then
    level = math.min(burst, level + math.max(0, now - stamp) * rate)
  else
    level = burst
  end
  level = math.max(level - owed, -burst)
  granted = math.max(0, math.min(tokens, math.floor(level + 1e-9)))
  level = level - granted
  redis.call('HSET', key, 'level', string.format('%.17g', level), 'stamp', string.format('%.6f', now))
  life = math.max(life, (burst - level) / rate)
end

if limit > 0 and slots > 0 then
  local fields = redis.call('HGETALL', key)
  local others, count, own = 0, 0, nil
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'g:' then
      local held, wanted, till = string.match(fields[i + 1], '^(%d+) (%d+) ([%d.]+)$')
      held, wanted, till = tonumber(held), tonumber(wanted), tonumber(till)
      if not till or math.min(till, now + lease) <= now then
        redis.call('HDEL', key, fields[i])
      else
        count = count + 1
        if till > now + lease then
          redis.call('HSET', key, fields[i], string.format('%d %d %.6f', held, wanted, now + lease))
        end
        if fields[i] == gateway then own = held else others = others + math.max(held, math.min(wanted, share)) end
      end
    end
  end
  if own or count < gateways_max then
    given = math.max(0, math.min(slots, limit - others))
    local held = math.max(given, math.min(own or 0, in_flight))
    redis.call('HSET', key, gateway, string.format('%d %d %.6f', held, slots, now + lease))
  end
end

redis.call('PEXPIRE', key, math.ceil(math.min(life, 604800) * 1000) + 1000)
return {granted, given}
"""
SCRIPT = CLOCK + CELL


class RedisQuotaStore:
    """Raises `BadRedisUrlError`. `answer_s`: what comes later is no answer."""

    def __init__(self, url: str, now_s: Callable[[], float], *, lease_s: float, answer_s: float) -> None:
        self._link = RedisLink(url, now_s)
        self._lease_s = lease_s
        self._answer_s = answer_s
        self._digest = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
        self._loaded_on = 0
        """The connection whose server knows the script."""

    async def ready(self) -> bool:
        return await self._link.ready()

    async def lease(self, gateway: str, questions: Sequence[QuotaQuestion]) -> Sequence[Grant | None]:
        load: list[Command] = [] if self._loaded_on == self._link.connections else [("SCRIPT LOAD", SCRIPT)]
        asked: list[Command] = [
            ("EVALSHA", self._digest, 1, key_of(each.tenant, each.model), *arguments(gateway, each, self._lease_s))
            for each in questions
        ]
        answers = await self._link.ask([*load, *asked], self._answer_s)
        if answers is None:
            return [None] * len(questions)
        grants = [_grant(answer) for answer in answers[len(load) :]]
        # An error may mean that scripts were flushed.
        self._loaded_on = 0 if None in grants else self._link.connections
        return grants

    async def aclose(self) -> None:
        await self._link.aclose()

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return self._link.statistics(now_s)


def key_of(tenant: str, model: str) -> str:
    """A key that says nothing of who the tenant is to whoever looks into Redis."""
    name = f"{len(tenant)}/{tenant}/{model}".encode("utf-8", "surrogatepass")
    return PREFIX + hashlib.blake2b(name, digest_size=16).hexdigest()


def arguments(gateway: str, question: QuotaQuestion, lease_s: float) -> tuple[str | int | float, ...]:
    """What the script is told. 0 for a limit that is not set."""
    settings, ask = question.settings, question.ask
    return (
        gateway,
        0.0 if settings.rate_per_s is None else settings.rate_per_s,
        settings.burst_tokens(),
        settings.concurrency_max or 0,
        settings.share_slots(question.share) or 0,
        lease_s,
        GATEWAYS_MAX,
        ask.tokens,
        ask.owed,
        ask.slots,
        ask.in_flight,
    )


def _grant(answer: Any) -> Grant | None:
    if isinstance(answer, ResponseError) or not isinstance(answer, list) or len(answer) != 2:
        return None
    tokens, slots = answer
    return Grant(tokens, slots) if isinstance(tokens, int) and isinstance(slots, int) else None
