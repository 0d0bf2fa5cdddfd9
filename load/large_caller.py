"""One caller of large tensors in a process of its own, so that making and comparing them delays no other caller:

    python -m load.large_caller http|grpc HOST:PORT BYTES

It sends one call after the other to `identity` until SIGTERM, gives the one that is out a moment to end, and prints one
line of JSON: `calls` that ended, and `errors` by kind, wrong answers included.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys

import uvloop

from load.closed_loop import PAUSE_AFTER_ERROR_S, ask
from load.connection import Connection
from load.grpc_connection import GrpcConnection
from load.http_connection import HttpConnection
from load.inputs import Calls
from load.large_inputs import TensorInputs

DEADLINE_MS = 30_000


async def send_until_told(protocol: str, address: str, size: int, stop: asyncio.Event) -> dict[str, object]:
    """Call until `stop` is set. Returns what the process prints."""
    make = HttpConnection if protocol == "http" else GrpcConnection
    connection: Connection = make(address, TensorInputs(size))
    calls = Calls(random.getrandbits(32), DEADLINE_MS)
    ended, errors = 0, dict[str, int]()
    try:
        while not stop.is_set():
            error = await ask(connection, calls.next())
            ended += 1
            if error:
                errors[error] = errors.get(error, 0) + 1
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)
    finally:
        await connection.aclose()
    return {"calls": ended, "errors": errors}


async def _main(protocol: str, address: str, size: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(json.dumps(await send_until_told(protocol, address, size, stop)), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
