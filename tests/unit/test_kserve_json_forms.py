"""JSON requests that come again: one that is known by its form comes to what decoding the whole of it comes to."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError
from gateway.wire.kserve import http_request
from gateway.wire.kserve.http_request import HttpInferRequest, decode_document, decode_http_infer
from gateway.wire.kserve.json_forms import JsonForms
from gateway.wire.kserve.json_text import load_object

PLAIN = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2.5]}]}'
SENT = (
    PLAIN,
    json.dumps(json.loads(PLAIN)).encode(),
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"INT64","data":[[1,2]]}],"outputs":[{"name":"y"}]}',
    b'{"parameters":{"sequence_id":7,"sequence_start":true},"inputs":[{"name":"x","datatype":"FP32","data":[1,2],'
    b'"parameters":{},"shape":[2]}],"outputs":[{"name":"y","parameters":{"classification":2}}]}',
    b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[2],"data":[1,2]}],"parameters":{"binary_data_output":true}}',
)
ELEMENTS = st.one_of(
    st.lists(st.one_of(st.integers(-3, 300), st.floats(allow_nan=False), st.booleans(), st.none()), max_size=4),
    st.lists(st.integers(0, 255), min_size=2, max_size=2),
    st.recursive(st.integers(0, 9), lambda inner: st.lists(inner, max_size=3), max_leaves=6),
    st.sampled_from([[[1], [2]], [1, "2"], {}, "12", 10**30, [10**30, 1], [1e300, 1]]),
)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "_json_forms", JsonForms())


def told(decode: object) -> object:
    try:
        return decode()  # type: ignore[operator]
    except GatewayError as error:
        return error.reason, error.code, error.message


def fresh(text: bytes) -> HttpInferRequest:
    return decode_document(load_object(text))


def known(text: bytes) -> bool:
    """Whether it is known by its form; in any case it comes to what it comes to by itself."""
    assert told(lambda: decode_http_infer(text)) == told(lambda: fresh(text))
    try:
        return http_request._json_forms.read(text) is not None
    except GatewayError:
        return True


@pytest.mark.parametrize("text", SENT)
def test_a_document_is_known_the_second_time(text: bytes) -> None:
    assert http_request._json_forms.read(text) is None
    assert known(text)
    assert known(text.replace(b"1", b"9") if text.count(b"1") == 1 else text)


@given(st.sampled_from(SENT), ELEMENTS, st.sampled_from([b"%b", b" %b\n", b"%b,", b"%b]", b"[%b", b"%b}", b"%b NaN"]))
@example(PLAIN, [1.0, 2.0], b'%b,"data":[3,4]')
@example(PLAIN, [1.0, 2.0], b'[9,9],"data":%b')
@example(PLAIN, [1.0, 2.0], b'%b}],"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[3,4]')
def test_whatever_the_elements_are_it_comes_to_what_decoding_all_of_it_does(
    text: bytes, elements: object, form: bytes
) -> None:
    http_request._json_forms = JsonForms()
    decode_http_infer(text)
    at = text.index(b'"data":') + 7
    stop = text.index(b"]", at) + 1
    stop += text[stop : stop + 1] == b"]" and b"[[" in text
    known(text[:at] + form % json.dumps(elements).encode() + text[stop:])


@given(st.sampled_from(SENT), st.integers(0, 60), st.integers(0, 3), st.binary(max_size=3))
def test_whichever_bytes_are_others_it_comes_to_what_decoding_all_of_it_does(
    text: bytes, at: int, drop: int, junk: bytes
) -> None:
    http_request._json_forms = JsonForms()
    decode_http_infer(text)
    for place in (at, len(text) - at):
        known(text[:place] + junk + text[place + drop :])


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace(b'{"inputs"', b'{"id":"a","inputs"'),
        PLAIN.replace(b"]}]}", b']},{"name":"y","datatype":"INT8","shape":[1],"data":[1]}]}'),
        PLAIN.replace(b"]}]}", b'],"data":[3,4]}]}'),
        PLAIN.replace(b"]}]}", b'],"data":[]}]}').replace(b"[2]", b"[0]"),
        PLAIN.replace(b'"name"', b'"parameters":{"data":1},"name"'),
        PLAIN.replace(b"2.5", b"NaN"),
        b"\xef\xbb\xbf" + PLAIN,
        b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["a"]}]}',
        b'{"inputs":[{"name":"x","datatype":"BOOL","shape":[1],"data":[2]}]}',
        PLAIN.replace(b'"x"', b'"%b"' % (b"x" * 3000)),
        # As deep as the fast parser goes, and deeper than Python does.
        PLAIN.replace(b'{"inputs"', b'{"data":%b%b,"inputs"' % (b"[" * 1015, b"]" * 1015)),
        PLAIN.replace(b"]}]}", b']}],"x":%b%b}' % (b"[" * 1015, b"]" * 1015)),
        PLAIN.replace(b"[2]", b"[9000]").replace(b"1,2.5", b",".join([b"1"] * 9000)),
    ],
)
def test_what_has_no_form(text: bytes) -> None:
    assert not known(text)


def test_other_parts_of_known_documents_stay_what_they_are() -> None:
    first = decode_http_infer(SENT[3])
    second = decode_http_infer(SENT[3].replace(b"[1,2]", b"[3,4]"))
    assert (second.plan, second.sequence, second.classified) == (first.plan, first.sequence, ("y",))
    assert second.sequence is not None
    assert second.message != first.message


def test_what_is_remembered_is_bounded() -> None:
    forms = http_request._json_forms
    for number in range(20_000):
        decode_http_infer(PLAIN.replace(b'"x"', b'"x%d"' % number))
    assert 256 <= len(forms) <= 512
    for number in range(600):
        forms._unknown = 0
        decode_http_infer(PLAIN.replace(b'"x"', b'"y%d"' % number))
    assert len(forms) <= 512
