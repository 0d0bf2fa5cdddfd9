"""Triton Python model `streamer`: decoupled, one response per token.

Inputs, all [1]: `text_input` BYTES; optional `max_tokens` INT32, `first_delay_ms` and `delay_ms` FP32, `fail_at`
INT32, `fail_with` BYTES, `final` BYTES; `orders.py` says what they mean. Outputs, all [1]: `text_output` BYTES and
`index` INT32, from 0.

As language-model backends do, it takes requests out of Triton's queue at once and serves up to STREAMS of them side by
side; more wait in the queue. Between tokens it asks whether the request was cancelled, at least every CANCEL_POLL_S.

The log has two lines per request, at its start and at its end: event ("start" or "end"), id (the request's id), start_s
and end_s (CLOCK_MONOTONIC, one for all processes of the machine), time_unix_s; and at the end `sent` (responses with a
token) and outcome ("ok", "error", "crash", "cancelled", or "broken" for a fault of the model itself).

After a crash this Triton stays ready: it lets the streams that were running hang in silence and refuses new requests
("Stub process ... is not healthy") until it is restarted.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The stub puts the folder of the version on sys.path.
from execution_log import ExecutionLog  # type: ignore[import-not-found]
from markov import Chain, zen  # type: ignore[import-not-found]
from orders import CRASH, FINAL_APART, FINAL_JOINED, Order  # type: ignore[import-not-found]

STREAMS = 64
CANCEL_POLL_S = 0.02
LOG_MAX_BYTES = 64 * 1024 * 1024
TEXTS = ("fail_with", "final")
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One instance; Triton calls `execute` from one thread, which hands each request to a thread of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Train the chain (a millisecond) and open the log that SLUICE_STREAMER_LOG names, if it names one."""
        del args
        self.chain = Chain(zen())
        log = os.environ.get("SLUICE_STREAMER_LOG", "")
        self.log = ExecutionLog(Path(log), LOG_MAX_BYTES) if log else None
        self.free = threading.Semaphore(STREAMS)
        self.threads = ThreadPoolExecutor(STREAMS, thread_name_prefix="stream")

    def finalize(self) -> None:
        """Triton calls it when no request is left."""
        self.threads.shutdown()
        if self.log is not None:
            self.log.close()

    def execute(self, requests: list[Any]) -> None:
        """Begin each request; returns when all have begun."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                order = _order(request)
            except ValueError as problem:
                sender.send(_error(str(problem), "INVALID_ARG"), flags=FINAL)
                continue
            self.free.acquire()
            self.threads.submit(self._serve, request.request_id(), order, sender)

    def _serve(self, request_id: str, order: Order, sender: Any) -> None:
        times: dict[str, Any] = {"start_s": time.monotonic(), "time_unix_s": time.time()}
        self._write({"event": "start", "id": request_id, **times})
        try:
            sent, outcome = self._answer(order, sender)
        except Exception as problem:  # in a pool nobody would hear of it
            pb_utils.Logger.log_error(f"streamer: request {request_id!r} broke off: {problem!r}")
            sent, outcome = -1, "broken"
            sender.send(_error(f"broke off: {problem!r}", "INTERNAL"), flags=FINAL)
        times["end_s"] = time.monotonic()
        self._write({"event": "end", "id": request_id, **times, "sent": sent, "outcome": outcome})
        if outcome == "crash":
            os._exit(1)
        self.free.release()

    def _answer(self, order: Order, sender: Any) -> tuple[int, str]:
        """Send the whole answer; returns how many tokens went out and the outcome."""
        error_joined, token_joined = order.final != FINAL_APART, order.final == FINAL_JOINED
        tokens = order.tokens(self.chain)
        token = next(tokens, None)
        delay_ms, sent = order.first_delay_ms, 0
        while token is not None or sent == order.fail_at:
            if not _wait(sender, delay_ms / 1000.0):
                _send_last(sender, _error("cancelled by the caller", "CANCELLED"), error_joined)
                return sent, "cancelled"
            if sent == order.fail_at:
                if order.fail_with == CRASH:
                    return sent, "crash"
                _send_last(sender, _error(f"bad input: fail_at is {sent}", order.fail_with), error_joined)
                return sent, "error"
            assert token is not None
            response = _response(token, sent)
            token = next(tokens, None)
            delay_ms, sent = order.delay_ms, sent + 1
            if token is None and sent != order.fail_at:
                _send_last(sender, response, token_joined)
                return sent, "ok"
            sender.send(response)
        sender.send(flags=FINAL)
        return sent, "ok"

    def _write(self, line: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write([line])


def _order(request: Any) -> Order:
    given: dict[str, Any] = {}
    for tensor in request.inputs():
        value = tensor.as_numpy().item()
        name = tensor.name()
        given["text" if name == "text_input" else name] = value.decode() if name in TEXTS else value
    return Order(**given)


def _wait(sender: Any, delay_s: float) -> bool:
    """Let so much time pass; false as soon as the request is seen to be cancelled."""
    deadline_s = time.monotonic() + delay_s
    while not sender.is_cancelled():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return True
        time.sleep(min(left_s, CANCEL_POLL_S))
    return False


def _send_last(sender: Any, response: Any, joined: bool) -> None:
    if joined:
        sender.send(response, flags=FINAL)
    else:
        sender.send(response)
        sender.send(flags=FINAL)


def _response(token: bytes, index: int) -> Any:
    outputs = [
        pb_utils.Tensor("text_output", np.asarray([token], dtype=np.object_)),
        pb_utils.Tensor("index", np.asarray([index], dtype=np.int32)),
    ]
    return pb_utils.InferenceResponse(output_tensors=outputs)


def _error(message: str, code: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))
