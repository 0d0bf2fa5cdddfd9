"""A request with large binary tensors, put together while it arrives: each byte goes where it stands in the message."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.wire.kserve.http_request import Form, HttpInferRequest, Piece
from gateway.wire.slab import PLACE_BYTES_LEAST, Slab


class FillingRequest:
    """What `Form.request` makes of all tensors at once. It takes the bytes behind the JSON in order, as many as the
    form says; `request` is due when they are all there.
    """

    __slots__ = ("_form", "_left", "_number", "_slab")

    def __init__(self, form: Form, tail: Sequence[Piece]) -> None:
        """`tail` is what has come of the tensors."""
        self._form = form
        self._slab = Slab(sum(map(len, form.texts)) + form.tail_bytes)
        self._number = 0
        """Tensors that have begun, and in `_left` what is to come of the last one."""
        self._left = 0
        self._begin_next()
        for piece in tail:
            self.put(piece)

    def _begin_next(self) -> None:
        """Write what stands before the next tensor that has bytes."""
        form = self._form
        while not self._left and self._number < len(form.sizes):
            self._slab.put(form.texts[self._number])
            self._left = form.sizes[self._number]
            self._number += 1

    def put(self, data: Piece) -> None:
        """The next bytes."""
        rest = memoryview(data)
        while rest:
            assert self._left, "more bytes than the request has"
            piece = rest[: self._left]
            self._slab.put(piece)
            rest = rest[len(piece) :]
            self._took(len(piece))

    def place(self, size: int) -> memoryview | None:
        """Where some of the next `size` bytes, which must not be the last ones, can be received to; None if there is no
        such place. Say `placed` then.
        """
        room = min(size, self._left)
        return self._slab.place(room) if room >= PLACE_BYTES_LEAST else None

    def placed(self, size: int) -> None:
        """So many bytes have been received to the last place."""
        self._slab.placed(size)
        self._took(size)

    def _took(self, size: int) -> None:
        self._left -= size
        if not self._left:
            self._begin_next()

    def request(self) -> HttpInferRequest:
        """The request, whole. Once."""
        form = self._form
        self._slab.put(form.texts[-1])
        return form.made(self._slab.take())
