"""The one asynchronous shape: `Service.send(call) -> Reply`, the same at every depth.

The rules, which every layer and the transport keep:

1. `send` either returns a `Reply` or raises. A unary call's `send` returns when the whole message *and* its status
   are known, so an answer is never taken back; a streaming call's (`call.session` is set) at its first response or
   error, with a `StreamReply`. What is raised is `GatewayError`, or `asyncio.CancelledError` if the
   task was cancelled from outside. A layer that has nothing to do after the one below it may do its work, and raise,
   as soon as it is called, and hand out the other's coroutine: so `await` it where you call it.
2. Whatever a layer takes, it gives back in a `finally`: every `await` may be the last thing the layer ever runs.
3. A `Reply` that was returned must be closed with `aclose(outcome)`, exactly once, by whoever it was returned to; a
   layer that keeps something past its own return (a stream's slot, say) hangs its release on the reply.
4. A layer never looks above itself, knows no protocol, and builds no response status.
5. A cancellation that neither the caller nor the deadline caused is a fault of the gateway. It is turned into one
   where it is seen to be so (the edge), never into silence.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.call import Call
from gateway.core.reply import Reply


class Service(Protocol):
    """Something that answers calls."""

    async def send(self, call: Call) -> Reply: ...
