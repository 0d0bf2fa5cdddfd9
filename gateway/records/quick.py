"""The line of a plain record: answered at the first attempt, its stages passed in order, its bodies like those before.

Nearly every record is plain, and its line costs as much as a layer or two, so it is put together here in one function
out of finished pieces: what lines of a model have in common is kept as bytes, numbers are formatted several at a time
or were so before. Every other record gets the line that `Renderer` makes, and both are the same line (a test holds
them together).
"""

from __future__ import annotations

import math
from binascii import hexlify

import orjson
from blake3 import blake3

from gateway.core.call import Attempt
from gateway.core.header_names import TRACEPARENT
from gateway.core.outcome import Outcome
from gateway.records.layout import Layout
from gateway.records.record import FIXED_BYTES, TEXT_MAX, PredictionRecord
from gateway.records.render import DIGEST_BYTES, MEMO_MAX, ROUND, Renderer, encode, like_before, sequence_shown, utc

QUICK_BYTES_MAX = 64 * 1024
"""Bodies up to this, both together, take no time worth speaking of: digests of them 10 us."""

_PLAIN_S = 1e9
"""Times below this are written alike by all encoders."""
_COUNTS = tuple(b"%d" % count for count in range(4096))
_THREE_DIGITS = tuple(b"%03d" % number for number in range(1000))
_OK = Outcome.OK
_UNARY = b',"outcome":"ok"}],"body_id":"","stream_message":0,"responses":1,"sequence":null,"input":'
"""The members from an attempt's outcome to `input`, of a call that was no part of anything."""

_dumps = orjson.dumps


class _Limits(dict[float, bytes]):
    """Time limits as JSON, by their microseconds plus `ROUND`: callers and policies have the same few."""

    def __missing__(self, shifted: float) -> bytes:
        if len(self) >= MEMO_MAX:
            self.clear()
        text = self[shifted] = encode((shifted - ROUND) / 1000.0)[:-1]
        return text


class QuickRenderer(Renderer):
    """A `Renderer`, with a quick way for plain records."""

    def __init__(self, twin: Renderer | None = None) -> None:
        super().__init__(twin)
        self._hasher = blake3()
        """Used again and again: making one costs more than hashing a small body."""
        self._who: dict[tuple[object, ...], bytes] = {}
        self._heads: dict[str, bytes] = {}
        self._limits = _Limits()
        self._whole_s = -math.inf
        self._begin = b""
        """A line up to the whole second `_whole_s` of its time."""

    def quick(self, record: PredictionRecord) -> bytes:
        """The line of a record that takes microseconds: small, and with bodies like those before. b"" for any other.

        It is what `line` makes, for less.
        """
        model, message, reply = record.model, record.message, record.reply
        if record.size_bytes > QUICK_BYTES_MAX + FIXED_BYTES or record.tensors == "full":
            return b""
        if message is None or reply is None:
            taken = None if message is None else self._requests.find(model, message)
            given = None if reply is None else self._answers.find(model, reply)
            if (taken is None) is not (message is None) or (given is None) is not (reply is None):
                return b""
            return self._carefully(record, taken, given)
        try:
            taken, given = self._requests.known[model, len(message)], self._answers.known[model, len(reply)]
        except KeyError:
            return b""
        if (
            taken is None
            or given is None
            or message[taken.start] != taken.first
            or reply[given.start] != given.first
            or (taken.others and not taken.fits(message))
            or (given.others and not given.fits(reply))
        ):
            # One of them is new. This counts it.
            self._requests.find(model, message)
            self._answers.find(model, reply)
            return b""
        trail = record.trail
        arrived_s, ended_s, attempts = record.arrived_s, record.ended_s, trail.attempts
        received_s, routed_s, admitted_s = trail.received_s, trail.routed_s, trail.admitted_s
        answered_s, timeout_s = trail.answered_s, record.timeout_s
        if not (
            0.0 < arrived_s <= received_s <= routed_s <= admitted_s <= answered_s <= ended_s < _PLAIN_S
            and record.plain
            and len(attempts) == 1
            and trail.notes is None
        ):
            return self._carefully(record, taken, given)
        attempt = attempts[0]
        started_s, tried_s, request_id = attempt.started_s, attempt.ended_s, record.request_id
        if not (
            arrived_s <= started_s <= tried_s <= ended_s
            and attempt.outcome is _OK
            and attempt.kind == "primary"
            and not attempt.text
            and len(request_id) <= TEXT_MAX
        ):
            return self._carefully(record, taken, given)
        try:
            trace = b""
            for name, value in record.metadata:
                if name == TRACEPARENT:
                    trace = value[3:35].encode()
                    if len(trace) != 32 or not trace.isalnum():
                        return self._carefully(record, taken, given)
                    break
            key = (
                record.protocol,
                record.identity.tenant,
                record.criticality,
                model,
                record.version,
                trail.version_served,
                trail.version_routed,
                trail.routed_by,
                trail.artifact_hash,
                trail.policy_revision,
                trail.pool,
                trail.rung,
            )
            who = self._who.get(key) or self._learned_who(key, record)
            head = self._heads.get(attempt.replica) or self._learned_head(attempt)
            if trail.responses == 1 and not record.body_id and not record.stream_position and record.sequence is None:
                middle = _UNARY
            else:
                middle = _middle(record)
            past_s = record.arrived_wall_s - self._whole_s
            micro = int(past_s * 1e6 + 0.5) if 0.0 <= past_s < 1.0 else 1_000_000
            if micro >= 1_000_000:
                micro = self._begin_second(record.arrived_wall_s)
            hasher, limits = self._hasher, self._limits
            hasher.reset()
            hasher.update(message)
            input_digest = hexlify(hasher.digest(DIGEST_BYTES))
            hasher.reset()
            hasher.update(reply)
            output_digest = hexlify(hasher.digest(DIGEST_BYTES))
            # The first number keeps the bracket, and the id comes last because it may have commas in it.
            _, duration, receive, route, queue, upstream, write, start, tried, shown_id = _dumps(
                (
                    0,
                    ((ended_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((received_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((routed_s - received_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((admitted_s - routed_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((answered_s - admitted_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((ended_s - answered_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((started_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    ((tried_s - started_s) * 1e6 + ROUND - ROUND) / 1000.0,
                    request_id,
                )
            ).split(b",", 9)
            # In two parts: Python builds a tuple of more than 30 piece by piece, for twice the price.
            front = (
                self._begin,
                _THREE_DIGITS[micro // 1000],
                _THREE_DIGITS[micro % 1000],
                b'Z","request_id":',
                shown_id[:-1],
                b',"trace_id":"',
                trace,
                who,
                b"null" if timeout_s is None else limits[timeout_s * 1e6 + ROUND],
                b',"deadline_ms":',
                limits[(record.deadline_s - arrived_s) * 1e6 + ROUND],
                b',"duration_ms":',
                duration,
                b',"stages_ms":{"receive":',
                receive,
                b',"route":',
                route,
                b',"queue":',
                queue,
                b',"upstream":',
                upstream,
                b',"write":',
                write,
            )
            back = (
                b'},"replicas_ready":',
                _COUNTS[trail.replicas_ready],
                b',"queued_ahead":',
                _COUNTS[trail.queued_ahead],
                b',"in_flight_at_admit":',
                _COUNTS[trail.in_flight_at_admit],
                b',"limit_at_admit":',
                _COUNTS[trail.limit_at_admit],
                head,
                start,
                b',"duration_ms":',
                tried,
                middle,
                taken.begin,
                input_digest,
                b'","tensors":',
                taken.shown or taken.json(message),
                b'},"output":',
                given.begin,
                output_digest,
                b'","tensors":',
                given.shown or given.json(reply),
                b"}}\n",
            )
            return b"".join(front + back)
        except (IndexError, UnicodeEncodeError, orjson.JSONEncodeError):
            # A count too large for the table, or a text that is not UTF-8.
            return self._carefully(record, taken, given)

    def _carefully(self, record: PredictionRecord, taken: Layout | None, given: Layout | None) -> bytes:
        line = self._fields(record)
        line.input = like_before(record.message, taken, record.input_bytes, record.omitted)
        line.output = like_before(record.reply, given, record.output_bytes, record.omitted)
        return encode(line)

    def _learned_who(self, key: tuple[object, ...], record: PredictionRecord) -> bytes:
        """The members from the end of `trace_id` to `timeout_asked_ms`."""
        if len(self._who) >= MEMO_MAX:
            self._who.clear()
        shown = self._who_and_where(record, record.trail)
        found = self._who[key] = f'","protocol":{shown},"message":"","outcome":"ok","timeout_asked_ms":'.encode()
        return found

    def _learned_head(self, attempt: Attempt) -> bytes:
        """The members from `attempt_count` to the only attempt's `start_ms`."""
        if len(self._heads) >= MEMO_MAX:
            self._heads.clear()
        shown = f',"attempt_count":1,"attempts":[{{"replica":{self._head(attempt)},"start_ms":'
        found = self._heads[attempt.replica] = shown.encode()
        return found

    def _begin_second(self, wall_s: float) -> int:
        """Begin the lines of a second. Returns the microseconds in it."""
        whole, micro = utc(wall_s)[:-1].split(".")
        self._begin = f'{{"schema":1,"time":"{whole}.'.encode()
        self._whole_s = float(round(wall_s * 1e6) // 1_000_000) if math.isfinite(wall_s) else -math.inf
        return int(micro)


def _middle(record: PredictionRecord) -> bytes:
    """The members from the attempt's outcome to `input`, whatever they are. Raises JSONEncodeError."""
    sequence = record.sequence
    return b',"outcome":"ok"}],"body_id":%b,"stream_message":%d,"responses":%d,"sequence":%b,"input":' % (
        _dumps(record.body_id),
        record.stream_position,
        record.trail.responses,
        b"null" if sequence is None else encode(sequence_shown(sequence))[:-1],
    )
