"""HTTP/2 frames by hand, and changes to a row of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from tests.fuzz.mutations import NUMBERS, change

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END, END_HEADERS = 1, 4
STRETCHED_FROM = 300
FLAGS = (0, 1, 4, 5, 8, 9, 0x0C, 0x20, 0x24, 0x25, 0x2D)
TOKENS = (
    b"\x82",
    b"\x86",
    b"\xbe",
    b"\x40\x01a\x01b",
    b"\x00\x01a\x01b",
    b"\x20",
    b"\x3f\xe1\x1f",
    b"\xff\x00",
    b"\0\0\0\0\0",
)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, right or wrong."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def setting(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def split_frames(data: bytes) -> list[bytes]:
    """The frames; the last may be cut off."""
    frames = []
    at = 0
    while at < len(data):
        stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
        frames.append(data[at:stop])
        at = stop
    return frames


def stretched(data: bytes, times: int) -> bytes:
    """The frames with the payload of DATA, where there is much of it, so many times: inputs are short, and some frames
    are to be long. What is cut off at the end stays so.
    """
    frames = []
    for each in split_frames(data):
        payload = each[9:]
        if len(each) >= 9 + STRETCHED_FROM and each[3] == DATA and len(payload) == int.from_bytes(each[:3], "big"):
            payload *= times
            each = len(payload).to_bytes(4, "big")[1:] + each[3:9] + payload
        frames.append(each)
    return b"".join(frames)


def change_frames(data: bytes, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    """Frames repeated, moved, left out, put in; fields of their heads and bytes of their payload changed."""
    frames = split_frames(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not frames:
            frames = [chance.choice(pieces)]
        at = chance.randrange(len(frames))
        kind = chance.randrange(9)
        if kind == 0:
            frames[at:at] = [chance.choice(frames)] * chance.choice((1, 1, 2, 30))
        elif kind == 1:
            del frames[at : at + chance.choice((1, 1, 3))]
        elif kind == 2:
            frames[at], frames[-1] = frames[-1], frames[at]
        elif kind == 3:
            frames.insert(at, on_stream(chance.choice(pieces), chance.randrange(0, 12)))
        elif kind == 4:
            frames[at] = changed_head(frames[at], chance)
        elif kind == 5:
            frames[at : at + 1] = halves(frames[at], chance)
        elif kind == 6 and len(frames[at]) >= 13:
            number = struct.pack(">I", chance.choice(NUMBERS))
            frames[at] = frames[at][:9] + number + frames[at][13:]
        else:
            payload = change(frames[at][9:], chance, TOKENS)
            frames[at] = len(payload).to_bytes(4, "big")[1:] + frames[at][3:9] + payload
    return b"".join(frames)


def on_stream(frames: bytes, stream: int) -> bytes:
    """The same frames for another stream, those for the whole connection as they are."""
    moved = b""
    for each in split_frames(frames):
        moved += each[:5] + struct.pack(">I", stream) + each[9:] if any(each[5:9]) else each
    return moved


def changed_head(data: bytes, chance: random.Random) -> bytes:
    length, kind, flags, stream = data[:3], data[3:4], data[4:5], data[5:9]
    what = chance.randrange(4)
    if what == 0:
        length = (chance.choice(NUMBERS) & 0xFFFFFF).to_bytes(3, "big")
    elif what == 1:
        kind = bytes((chance.choice((*range(11), 0xFF)),))
    elif what == 2:
        flags = bytes((chance.choice(FLAGS),))
    else:
        stream = struct.pack(">I", chance.choice((*range(12), *NUMBERS)))
    return length + kind + flags + stream + data[9:]


def halves(data: bytes, chance: random.Random) -> list[bytes]:
    """Two frames of one: DATA twice, or a header block with its CONTINUATION."""
    if len(data) < 9 or data[3] not in (DATA, HEADERS, 9):
        return [data]
    kind, flags, stream, payload = data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:]
    cut = chance.randrange(len(payload) + 1)
    kept = END if kind == DATA else END_HEADERS
    second = DATA if kind == DATA else 9
    return [frame(kind, flags & ~kept, stream, payload[:cut]), frame(second, flags & kept, stream, payload[cut:])]
