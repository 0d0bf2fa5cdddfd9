"""What of Triton's surface is refused over both protocols, and where to do it instead: one text for both."""

from __future__ import annotations

SHARED_MEMORY = (
    "shared memory is not served here: a region exists on the host of one model server, and a call may go to any; send "
    "tensors as binary data in the request, or register the region at a model server and send the calls there too"
)
TRACE = (
    "trace settings are not served here: they belong to one model server and not to the fleet; read or change them on "
    "each model server itself"
)
LOG = (
    "log settings are not served here: they belong to one model server and not to the fleet; read or change them on "
    "each model server itself"
)
LOAD = (
    "models are not loaded and unloaded by callers here: releases are the operator's; load or unload on each model "
    "server itself, and say in the model's policy which versions callers may reach"
)
