"""Whether a client that leaves has changed its mind, or has waited for as long as it said that it would."""

from __future__ import annotations

from gateway.core.call import Call

EXPIRY_GRACE_S = 0.02
"""A caller that leaves this close to its own deadline leaves because of it: its clock began before the gateway's. That
is a time-out of the replica, and not a change of mind (field case FH-19).
"""
GRACE_SHARE_MAX = 0.25
"""But of a limit of a few milliseconds no more than this is close to its end."""


def expires(call: Call, now_s: float) -> bool:
    """Whether `call`, whose client leaves now, leaves because the time limit that it named passes this moment."""
    timeout_s = call.timeout_s
    if timeout_s is None:
        return False
    grace_s = min(EXPIRY_GRACE_S, GRACE_SHARE_MAX * timeout_s)
    return call.arrived_s + timeout_s - now_s <= grace_s and call.deadline_s - now_s <= grace_s
