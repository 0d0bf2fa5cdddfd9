"""Where everything stands in a `ModelInferResponse`, and how it is written as JSON.

A model's answers differ in their elements and in the request id, and in nothing else as long as the shapes stay: the
layout of one is that of the next, byte for byte. Layouts of answers with outputs of fixed size are therefore kept, and
one that fits is found by comparing bytes, which costs a quarter of walking the message.
"""

from __future__ import annotations

from itertools import pairwise

import orjson

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.http_request import ALL_JSON, OutputPlan
from gateway.wire.kserve.parameters import to_json
from gateway.wire.kserve.response_view import OutputHead, ResponseView, Unpack, read_response

_LAYOUTS_MAX = 512
_CONSTANT_BYTES_MAX = 2048
_RAWS_MAX = 16
STEP_ELEMENTS = 8192
"""So many are written in one go, about 0.6 ms. Besides, the objects of a whole large tensor would fit into no cache,
which takes three times as long, and take 60 times its memory."""

Span = tuple[OutputHead, int, int]
"""An output, and where its bytes start and stop, counted from the layout's base."""


class Rendering:
    """A layout for one choice of binary outputs: each of `texts`, followed by the elements of the output in `shown` at
    the same place; then `last`; then, as they are, the bytes of the outputs in `tails`, `tail_bytes` in all. The
    document's opening brace and the id are not in it.
    """

    __slots__ = ("last", "shown", "tail_bytes", "tails", "texts")

    def __init__(self, opening: bytes, spans: list[Span], binary: list[bool]) -> None:
        self.texts: list[bytes] = []
        self.shown: list[Span] = []
        self.tails: list[Span] = []
        text = opening
        for span, is_binary in zip(spans, binary, strict=True):
            output, start, stop = span
            text += output.json_start
            if is_binary:
                text += b',"parameters":{"binary_data_size":%d}' % (stop - start)
                if stop > start:
                    self.tails.append(span)
            else:
                self.texts.append(text + b',"data":')
                self.shown.append(span)
                text = b""
            text += b"},"
        self.last = text.removesuffix(b",") + b"]}"
        self.tail_bytes = sum(stop - start for _, start, stop in self.tails)


Single = tuple[bytes, Unpack, int, bytes]
"""How an answer with one output of numbers, and without an id, is written as JSON: what stands before the numbers; what
reads them, and where; what stands behind them."""


class Layout:
    """`spans` are the outputs, `opening` is the document from the model's name up to the first of them."""

    __slots__ = ("_renderings", "constants", "named", "opening", "single", "spans", "start")

    def __init__(self, view: ResponseView, base: int) -> None:
        named = orjson.dumps({"model_name": view.model_name, "model_version": view.model_version})[1:-1]
        parameters = b',"parameters":' + to_json(view.parameters) if view.parameters else b""
        self.opening = named + parameters + b',"outputs":['
        self.spans: list[Span] = [
            (output, start - base, stop - base) for output, (start, stop) in zip(view.outputs, view.raws, strict=True)
        ]
        # Only of a layout that is kept:
        self.named = self.start = b""
        """What stands before the id, and that with all up to the first output's bytes."""
        self.constants: list[tuple[int, bytes]] = []
        """What stands around the outputs' bytes, and where."""
        self.single: Single | None = None
        self._renderings: dict[bool | tuple[bool, ...], Rendering] = {}

    def rendering(self, plan: OutputPlan) -> Rendering:
        """How `plan` wants it written."""
        default, explicit = plan.default, plan.explicit
        key: bool | tuple[bool, ...] = default
        if explicit:
            key = tuple([explicit.get(output.name, default) for output, _, _ in self.spans])
        found = self._renderings.get(key)
        if found is None:
            binary = [default] * len(self.spans) if isinstance(key, bool) else list(key)
            found = self._renderings[key] = Rendering(self.opening, self.spans, binary)
        return found

    def fits(self, message: bytes, id_field: bytes) -> bool:
        """Whether `message`, which has the right size, is the same but for the outputs' bytes and the id."""
        if not id_field:
            if not message.startswith(self.start):
                return False
            if len(self.constants) == 1:
                return True
        elif not message.startswith(self.named + id_field):
            return False
        base = len(self.named) + len(id_field)
        return all(message.startswith(constant, base + at) for at, constant in self.constants)


_layouts: dict[int, Layout] = {}
"""The last one of each size of message, the id not counted."""


def layout_of(message: bytes, request_id: str) -> tuple[Layout, int]:
    """The layout of a serialized `ModelInferResponse`, which mostly has the id of the request, and its base: what the
    places in the layout count from.

    Raises `GatewayError` (UPSTREAM_BROKEN) as `read_response` does.
    """
    id_field = pb.text_field(3, request_id) if request_id else b""
    size = len(message) - len(id_field)
    known = _layouts.get(size)
    if known is not None and known.fits(message, id_field):
        return known, len(known.named) + len(id_field)
    named = _named(message)
    base = named + len(id_field)
    layout = Layout(read_response(message), base)
    if message.startswith(id_field, named) and _keepable(layout.spans):
        _keep(layout, message, named, base, size)
    return layout, base


def single_of(message: bytes) -> Single | None:
    """The short way for the usual answer, without an id and all in JSON; None if the long one must be gone."""
    known = _layouts.get(len(message))
    return known.single if known is not None and message.startswith(known.start) else None


def _single(layout: Layout) -> Single | None:
    """`layout` as one, where what stands before the numbers is all there is besides them."""
    output, start, _ = layout.spans[0]
    if len(layout.constants) != 1 or output.unpack is None or output.count > STEP_ELEMENTS:
        return None
    rendering = layout.rendering(ALL_JSON)
    return b"{" + rendering.texts[0], output.unpack, len(layout.named) + start, rendering.last


def _keepable(spans: list[Span]) -> bool:
    """Whether answers with the same bytes around their outputs can be expected: not where elements have no fixed size.
    And whether the outputs' bytes stand behind the base, one after the other.
    """
    if not 0 < len(spans) <= _RAWS_MAX or any(output.byte_size is None for output, _, _ in spans):
        return False
    return spans[0][1] >= 0 and all(first[2] <= second[1] for first, second in pairwise(spans))


def _keep(layout: Layout, message: bytes, named: int, base: int, size: int) -> None:
    at = 0
    constants: list[tuple[int, bytes]] = []
    for _, start, stop in layout.spans:
        constants.append((at, message[base + at : base + start]))
        at = stop
    if base + at < len(message):
        constants.append((at, message[base + at :]))
    if named + sum(len(constant) for _, constant in constants) > _CONSTANT_BYTES_MAX:
        return
    layout.constants = constants
    layout.named = message[:named]
    layout.start = layout.named + constants[0][1]
    layout.single = _single(layout)
    if len(_layouts) >= _LAYOUTS_MAX:
        _layouts.clear()
    _layouts[size] = layout


def _named(message: bytes) -> int:
    """Where model and version end with which an answer of Triton's begins; 0 if it begins otherwise."""
    pos = 0
    for tag in (0x0A, 0x12):
        if pos + 1 >= len(message) or message[pos] != tag or message[pos + 1] > 0x7F:
            break
        pos += message[pos + 1] + 2
    return pos
