"""What the head of an inference request says of its body and of its answer's."""

from __future__ import annotations

from gateway.edge.http_coding import request_coding
from gateway.wire.http1 import RequestHead


class HeadWords:
    """`named` is the value of `Inference-Header-Content-Length`, `accepts` that of `Accept-Encoding`, None if there is
    none. `deflated`: the body is compressed, in a coding that is taken. `expects`: it is sent only when asked for.
    `chunked`: its length is not told.
    """

    __slots__ = ("accepts", "chunked", "deflated", "expects", "named")

    def __init__(self, head: RequestHead) -> None:
        self.named = head.get(b"inference-header-content-length")
        self.accepts = head.get(b"accept-encoding")
        self.deflated = request_coding(head) is not None
        self.expects = head.expect_continue
        self.chunked = head.chunked
