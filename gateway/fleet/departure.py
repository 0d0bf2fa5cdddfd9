"""Departure: a replica whose address is gone stays for what nobody else serves, and only for that long.

Whoever writes a new list of addresses may name servers that have just been started. If the old ones left at once, there
would be nobody until the first new one is warm; a list that changes faster than servers warm would never have anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from types import MappingProxyType

from gateway.core.snapshot import ReplicaView
from gateway.fleet.model_record import Key
from gateway.fleet.replica import Replica

KEPT_S = 60.0
"""At most this long, in seconds, a replica whose address is gone takes calls of what no other one serves."""


def needed(replicas: Iterable[Replica], departing: Collection[str]) -> dict[str, frozenset[Key]]:
    """For each departing replica, by id: the model versions that it serves and no replica of its pool that stays does.
    One that is down, or serves nothing, is needed for nothing.
    """
    staying: dict[str, set[Key]] = {}
    leaving: list[Replica] = []
    for each in replicas:
        if each.id in departing:
            leaving.append(each)
        else:
            staying.setdefault(each.pool, set()).update(each.serving())
    return {each.id: frozenset(each.serving()) - staying.get(each.pool, set()) for each in leaving}


def shown(view: ReplicaView, keys: frozenset[Key]) -> ReplicaView:
    """What others may see of a departing replica: the model versions that it is needed for."""
    return replace(view, models=MappingProxyType({key: each for key, each in view.models.items() if key in keys}))
