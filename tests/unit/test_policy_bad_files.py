"""A table of bad policies: where each problem is reported, and what the report says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.policy_tree import FLEET, MODEL, problems_of, write

Expected = tuple[int, int, str]
"""Line, column, and a part of the problem as it is printed."""


def model(text: str, *expected: Expected) -> tuple[str, str, tuple[Expected, ...]]:
    """`text` appended to the good model, so it begins in line 6."""
    return "models/fraud.yaml", MODEL + text, expected


def whole_model(text: str, *expected: Expected) -> tuple[str, str, tuple[Expected, ...]]:
    return "models/fraud.yaml", text, expected


def changed(old: str, new: str, *expected: Expected) -> tuple[str, str, tuple[Expected, ...]]:
    assert old in MODEL
    return "models/fraud.yaml", MODEL.replace(old, new), expected


def fleet(text: str, *expected: Expected) -> tuple[str, str, tuple[Expected, ...]]:
    return "fleet.yaml", FLEET + text, expected


def whole_fleet(text: str, *expected: Expected) -> tuple[str, str, tuple[Expected, ...]]:
    return "fleet.yaml", text, expected


def pool(text: str, *expected: Expected) -> tuple[str, str, tuple[Expected, ...]]:
    """`text` instead of the pool's replicas: begins in line 3, column 5."""
    return "fleet.yaml", "pools:\n  cpu:\n" + text, expected


CASES = {
    # Unknown keys.
    "misspelled key": model(
        "deadlin: {max_ms: 1}\n", (6, 1, "deadlin: unknown key; did you mean `deadline`? allowed: model, pool")
    ),
    "capitals": model("Deadline: {max_ms: 100}\n", (6, 1, "did you mean `deadline`?")),
    "dash for underscore": model(
        "deadline:\n  max-ms: 100\n", (7, 3, "deadline.max-ms: unknown key; did you mean `max_ms`")
    ),
    "key like nothing": model("quxxle: 1\n", (6, 1, "quxxle: unknown key; allowed: model, pool, objective")),
    "key of another section": model("p99_ms: 3\n", (6, 1, "it belongs under `objective`")),
    "key of the other file": model("identity: {}\n", (6, 1, "it belongs in fleet.yaml, as `identity`")),
    "model's key in the fleet": fleet("ladder: none\n", (6, 1, "it belongs in the model's file under models/")),
    "unknown key deep in the fleet": fleet(
        "gateway:\n  http:\n    header_max: 3\n", (8, 5, "gateway.http.header_max: unknown key")
    ),
    "unknown key in a replica": pool(
        "    replicas: {static: [{grpc: 'h:1', http: 'h:2', rest: 'h:3'}]}\n",
        (3, 52, "static[0].rest: unknown key; allowed: grpc, http, metrics"),
    ),
    "misspelled required key is not also missing": changed("pool: cpu", "pol: cpu", (2, 1, "did you mean `pool`?")),
    # Units in keys.
    "seconds for milliseconds": model(
        "deadline:\n  default_s: 5\n",
        (7, 3, "deadline.default_s: unknown key; did you mean `default_ms` (milliseconds)? Write `default_ms: 5000`"),
    ),
    "megabytes for bytes": model(
        "limits: {body_mb_max: 4}\n", (6, 10, "did you mean `body_bytes_max` (bytes)? Write `body_bytes_max: 4000000`")
    ),
    "unit left out": model("warmup: {timeout: 5}\n", (6, 10, "did you mean `timeout_ms` (milliseconds)?")),
    "unit in another place": model("limits: {body_max_bytes: 5}\n", (6, 10, "did you mean `body_bytes_max`")),
    "fractional seconds": fleet("records: {flush_interval_s: 0.05}\n", (6, 11, "Write `flush_interval_ms: 50`")),
    "milliseconds for seconds": fleet(
        "gateway: {drain: {finish_ms: 1500}}\n", (6, 19, "did you mean `finish_s` (seconds)? Write `finish_s: 1.5`")
    ),
    "unit key with a number that has no end": model(
        "deadline: {max_s: 1e999999999}\n", (6, 12, "did you mean `max_ms`")
    ),
    # Units in values.
    "5s": model(
        "deadline: {max_ms: 5s}\n", (6, 20, "`5s` is text with a unit; the key counts milliseconds: write 5000")
    ),
    "100ms": model("deadline: {max_ms: 100ms}\n", (6, 20, "write 100")),
    "4MiB": model("limits: {body_bytes_max: 4MiB}\n", (6, 26, "the key counts bytes: write 4194304")),
    "64 KiB": model('limits: {body_bytes_max: "64 KiB"}\n', (6, 26, "write 65536")),
    "1.5 min": fleet("gateway: {drain: {finish_s: 1.5 min}}\n", (6, 29, "the key counts seconds: write 90")),
    "time for bytes": model("limits: {body_bytes_max: 5s}\n", (6, 26, "text with another unit; the key counts bytes")),
    "unit where none is": model("warmup: {calls: 3x}\n", (6, 17, "`3x` is text, not a number; write 3")),
    "percent": model('split: {"2": 5%}\n', (6, 14, "write 5")),
    # Types.
    "text for number": model(
        'deadline: {max_ms: "5"}\n', (6, 20, "`5` is in quotes, so it is text; write 5 without quotes")
    ),
    "bool for number": model(
        "deadline: {max_ms: true}\n",
        (6, 20, "`true` is a truth value; write a whole number of milliseconds, 1 to 86400000"),
    ),
    "fraction for whole number": model(
        "warmup: {calls: 1.5}\n", (6, 17, "`1.5` is not written as a whole number; round it")
    ),
    "10.0 for whole number": model("warmup: {calls: 10.0}\n", (6, 17, "not written as a whole number; write 10")),
    "huge float for whole number": model(
        "warmup: {calls: 1.0e300}\n", (6, 17, "not written as a whole number; write 1e+300")
    ),
    "null for number": model(
        "warmup: {calls: null}\n", (6, 17, "there is no value (null); write a whole number, 0 to 1000")
    ),
    "tilde": model("warmup: {calls: ~}\n", (6, 17, "there is no value (null)")),
    "nothing for an optional number": model(
        "deadline:\n  default_ms:\n", (7, 3, "deadline.default_ms: there is no value (null)")
    ),
    "section without keys": model(
        "deadline:\nversions: ['1']\n",
        (
            6,
            1,
            "deadline: there is no value (null); fill in some of its keys (default_ms, max_ms, first_response_s, "
            "idle_s, total_s, stages), or remove it",
        ),
    ),
    "scalar for section": model(
        "admission: 3\n", (6, 12, "`3` stands where a mapping is wanted; allowed: slots_per_replica, queue_max")
    ),
    "list for section": model("admission: [3]\n", (6, 12, "a list stands where a mapping is wanted")),
    "mapping for number": model("warmup: {calls: {a: 1}}\n", (6, 17, "a mapping stands here; write a whole number")),
    "list for text": changed("pool: cpu", "pool: [cpu]", (2, 7, "a list stands here; write a pool's name")),
    "scalar for list": model('versions: "1"\n', (6, 11, 'a list is wanted; write `["1"]`')),
    "mapping for list": model("versions: {a: 1}\n", (6, 11, "a mapping stands here; write a list")),
    "null for list": model("versions:\n", (6, 1, "there is no value (null); write a list")),
    "list for mapping": model('split: ["1"]\n', (6, 8, "a list stands here; write a mapping from a version")),
    "number for name": changed("model: fraud", "model: 7", (1, 8, '`7` is a number, not text; write "7"')),
    "bool for text": changed(
        "impact: Payments wait for a manual review", "impact: true", (5, 9, "`true` is a truth value, not text")
    ),
    "version as number": model("versions: [1]\n", (6, 12, 'versions[0]: `1` is a number, not text; write "1"')),
    "version as float": model("versions: [2.0]\n", (6, 12, 'write "2"')),
    "split key as number": model("split: {2: 100}\n", (6, 9, 'split["2"]: `2` is a number, not text; write "2"')),
    "port alone for address": fleet("gateway: {listen: {http: 8000}}\n", (6, 26, 'write "127.0.0.1:8000"')),
    "yes for bool": model(
        "records: {mandatory: yes}\n", (6, 22, "`yes` is text in YAML 1.2; write true, without quotes")
    ),
    "off for bool": model("records: {mandatory: off}\n", (6, 22, "write false, without quotes")),
    "1 for bool": model("records: {mandatory: 1}\n", (6, 22, "`1` is a number in YAML 1.2; write true")),
    "quoted true for bool": model('records: {mandatory: "true"}\n', (6, 22, "write true, without quotes")),
    "unknown choice": model("records: {tensors: all}\n", (6, 20, "`all` is not known; allowed: full, none, summary")),
    "number for choice": model("records: {tensors: 1}\n", (6, 20, "allowed: full, none, summary")),
    # YAML 1.1 and number spellings.
    "leading zero": model("warmup: {calls: 012}\n", (6, 17, "`012` begins with a zero; write 12")),
    "underscores": model("admission: {queue_max: 1_000}\n", (6, 24, "numbers have no separators; write 1000")),
    "sexagesimal": model(
        "deadline: {max_ms: 12:30}\n", (6, 20, "`12:30` is text; write a whole number of milliseconds")
    ),
    "date": model("deadline: {max_ms: 2024-01-01}\n", (6, 20, "`2024-01-01` is text")),
    "nan": changed("p99_ms: 50", "p99_ms: .nan", (3, 21, "`.nan` is not a finite number")),
    "infinity": changed("p99_ms: 50", "p99_ms: .inf", (3, 21, "not a finite number")),
    "float that overflows": changed("p99_ms: 50", "p99_ms: 1e999", (3, 21, "not a finite number")),
    "power that overflows": model("warmup: {calls: 1e99}\n", (6, 17, "1e99 is out of range")),
    "thousands of digits": model(f"warmup: {{calls: {'9' * 6000}}}\n", (6, 17, "is out of range; write 0 to 1000")),
    # Ranges.
    "too small": model(
        "deadline: {max_ms: 0}\n", (6, 20, "deadline.max_ms: 0 is out of range; write 1 to 86400000 milliseconds")
    ),
    "negative": model("warmup: {calls: -1}\n", (6, 17, "-1 is out of range; write 0 to 1000")),
    "too large": model("warmup: {calls: 1001}\n", (6, 17, "1001 is out of range")),
    "zero objective": changed("p99_ms: 50", "p99_ms: 0", (3, 21, "write above 0 and at most 3600000 milliseconds")),
    "open range": fleet(
        "gateway: {body_memory_bytes: 5}\n",
        (6, 30, "write at least 1048576 bytes"),
    ),
    "text too short": changed(
        "impact: Payments wait for a manual review",
        "impact: bad",
        (5, 9, "the text is too short (3 characters); at least 8"),
    ),
    "text too long": changed("impact: Payments", f"impact: {'x' * 501}", (5, 9, "the text is too long")),
    "empty text": changed("pool: cpu", 'pool: ""', (2, 7, "`` is not a pool's name")),
    "line break in text": changed(
        "impact: Payments wait for a manual review",
        "impact: |\n  Payments wait.\n",
        (5, 9, "U+000A); keep it on one line; after `>` or `|` write `-`"),
    ),
    "escaped control character": changed("pool: cpu", 'pool: "c\\0pu"', (2, 7, "U+0000")),
    "escaped surrogate": changed("pool: cpu", 'pool: "c\\ud800pu"', (2, 7, "U+D800")),
    # Names and addresses.
    "version zero": model('versions: ["0"]\n', (6, 12, "`0` is not a version")),
    "version with leading zero": model('versions: ["01"]\n', (6, 12, "without leading zeros")),
    "pool with capitals": whole_fleet(
        "pools:\n  CPU: {replicas: {static: [{grpc: 'h:1', http: 'h:2'}]}}\n",
        (2, 3, "pools.CPU: `CPU` is not a pool's name"),
    ),
    "port out of range": pool(
        "    replicas: {static: [{grpc: 'h:70000', http: 'h:2'}]}\n", (3, 32, "port 70000 is out of range")
    ),
    "port zero": pool("    replicas: {static: [{grpc: 'h:0', http: 'h:2'}]}\n", (3, 32, "ports go from 1 to 65535")),
    "no port": pool(
        "    replicas: {static: [{grpc: triton, http: 'h:2'}]}\n", (3, 32, "the port is missing; write `triton:8001`")
    ),
    "URL": pool(
        "    replicas: {static: [{grpc: 'http://h:1', http: 'h:2'}]}\n", (3, 32, "a URL, not an address; write `h:1`")
    ),
    "bare IPv6": pool(
        "    replicas: {static: [{grpc: '::1:8001', http: 'h:2'}]}\n", (3, 32, "put an IPv6 address in brackets")
    ),
    "no host": fleet("gateway: {listen: {http: ':80'}}\n", (6, 26, "the host is missing; write `127.0.0.1:80`")),
    "no IP address": pool(
        "    replicas: {static: [{grpc: '10.0.0.256:1', http: 'h:2'}]}\n", (3, 32, "`10.0.0.256` is not an IP address")
    ),
    "no host name": pool(
        "    replicas: {static: [{grpc: '-a.b:1', http: 'h:2'}]}\n", (3, 32, "`-a.b` is not a host name")
    ),
    # Missing keys.
    "missing pool": changed("pool: cpu\n", "", (1, 1, "the key `pool` is missing; The pool that runs it")),
    "missing objective's key": changed("{p99_ms: 50}", "{}", (3, 12, "objective: the key `p99_ms` is missing")),
    "missing grpc": pool("    replicas: {static: [{http: 'h:2'}]}\n", (3, 25, "static[0]: the key `grpc` is missing")),
    "no pools": whole_fleet("pools: {}\n", (1, 8, "the mapping is empty; give at least 1 entry")),
    # Across fields.
    "unknown pool": changed(
        "pool: cpu",
        "pool: gpu",
        (2, 7, "there is no pool `gpu` in fleet.yaml; name a pool of fleet.yaml, or add this one there; allowed: cpu"),
    ),
    "no source of replicas": pool(
        "    replicas: {}\n", (3, 15, "pools.cpu.replicas: says nothing of where the replicas are")
    ),
    "two sources": pool(
        "    replicas:\n      static: [{grpc: 'h:1', http: 'h:2'}]\n      dns: {host: h}\n",
        (5, 12, "`static` and `dns` stand together; keep exactly one"),
    ),
    "no replicas": pool("    replicas: {static: []}\n", (3, 24, "the list is empty; give at least one replica")),
    "more than replicas_max": pool(
        "    replicas_max: 1\n    replicas:\n      static: [{grpc: 'h:1', http: 'h:2'}, {grpc: 'h:3', http: 'h:4'}]\n",
        (5, 15, "2 replicas are more than `replicas_max` (1)"),
    ),
    "one address twice": pool(
        "    replicas:\n      static:\n      - {grpc: 'h:1', http: 'h:2'}\n      - {grpc: 'H:01', http: 'h:4'}\n",
        (6, 16, "stands already in line 5, pools.cpu.replicas.static[0].grpc"),
    ),
    "one address in two pools": fleet(
        "  gpu: {replicas: {static: [{grpc: '127.0.0.1:18001', http: 'h:4'}]}}\n",
        (6, 36, "pools.gpu.replicas.static[0].grpc: `127.0.0.1:18001` stands already in line 5"),
    ),
    "the gateway as its own replica": pool(
        "    replicas: {static: [{grpc: 'localhost:8001', http: 'h:2'}]}\n",
        (3, 32, "is the gateway's own `listen.grpc` (0.0.0.0:8001)"),
    ),
    "listeners on one port": fleet(
        "gateway: {listen: {grpc: '0.0.0.0:8000'}}\n",
        (6, 26, "`http` (0.0.0.0:8000) and `grpc` (0.0.0.0:8000) want the same port"),
    ),
    "listener under a wildcard": fleet("gateway: {listen: {admin: '127.0.0.1:8000'}}\n", (6, 27, "want the same port")),
    "recheck after interval": pool(
        "    health: {interval_ms: 100, recheck_ms: 200}\n    replicas: {dns: {host: h}}\n",
        (3, 44, "`recheck_ms` (200) is longer than `interval_ms` (100)"),
    ),
    "api_key without file": fleet("identity: {mode: api_key}\n", (6, 18, "`mode: api_key` needs `identity.keys_file`")),
    "file without api_key": fleet(
        "identity: {keys_file: keys.yaml}\n", (6, 23, "with `mode: none` nobody is asked for a key")
    ),
    "missing keys_file": fleet("identity: {mode: api_key, keys_file: k.yaml}\n", (6, 38, "there is no file")),
    "missing request_file": model(
        "warmup: {request_file: nope.json}\n", (6, 24, "nope.json; paths are relative to fraud.yaml")
    ),
    "request_file with a NUL": model('warmup: {request_file: "a\\0b"}\n', (6, 24, "U+0000")),
    "directory of a replica file": pool(
        "    replicas: {file: {path: nowhere/r.yaml}}\n", (3, 29, "there is no directory")
    ),
    "capitals in a header": fleet(
        "gateway: {forward_headers: [X-Team]}\n", (6, 29, "`X-Team` has capitals; write `x-team`")
    ),
    "no header": fleet("gateway: {forward_headers: ['a b']}\n", (6, 29, "not a header's name or prefix")),
    "star inside": fleet("gateway: {forward_headers: ['x-*-y']}\n", (6, 29, "not a header's name or prefix")),
    "hop-by-hop header": fleet("gateway: {forward_headers: [te]}\n", (6, 29, "never forwarded")),
    "credential header": fleet("gateway: {forward_headers: [cookie]}\n", (6, 29, "never forwarded")),
    "content headers": fleet("gateway: {forward_headers: [content-*]}\n", (6, 29, "never forwarded")),
    "header twice": fleet("gateway: {forward_headers: [a, a]}\n", (6, 32, "stands twice")),
    "pool sends more than gRPC takes": fleet(
        "gateway: {grpc: {message_bytes_max: 1024}}\n",
        (6, 37, "pool `cpu` may send 67108864 bytes, but gRPC callers may get only 1024"),
    ),
    "body larger than a message": model(
        "limits: {body_bytes_max: 70000000}\n",
        (6, 26, "more than `pools.cpu.message_bytes_max` in fleet.yaml lets through (67108864)"),
    ),
    "more JSON than body": model(
        "limits: {body_bytes_max: 1000, json_bytes_max: 1001}\n",
        (6, 48, "`json_bytes_max` (1001) is more than `body_bytes_max` (1000)"),
    ),
    "floor above the slots": model(
        "admission: {slots_per_replica: 8, limit: {floor_per_replica: 9}}\n",
        (6, 62, "(9) is more than `admission.slots_per_replica` (8)"),
    ),
    "slots above the cap": model(
        "admission: {slots_per_replica: 8, limit: {cap_per_replica: 7}}\n",
        (6, 32, "`admission.slots_per_replica` (8) is more than `admission.limit.cap_per_replica` (7)"),
    ),
    "floor above the cap": model(
        "admission: {limit: {floor_per_replica: 3, cap_per_replica: 2}}\n",
        (6, 40, "(3) is more than `admission.limit.cap_per_replica` (2)"),
    ),
    "a cap of a limit that stands still": model(
        "admission: {limit: {adaptive: false, cap_per_replica: 9}}\n",
        (6, 55, "bounds a limit that `adaptive: false` holds still"),
    ),
    "no versions": model("versions: []\n", (6, 11, "the list is empty; name versions, or remove the key")),
    "version twice": model("versions: ['1', '1']\n", (6, 17, '"1" stands twice')),
    "split outside versions": model(
        "versions: ['1']\nsplit: {'1': 1, '2': 1}\n",
        (7, 17, '"2" is not among `versions`; add it there, or remove it here; allowed: 1'),
    ),
    "all weights zero": model("split: {'1': 0, '2': 0}\n", (6, 8, "all weights are 0")),
    "one weight and it is zero": model("split: {'1': 0}\n", (6, 8, "all weights are 0")),
    "no weights": model("split: {}\n", (6, 8, "no version has a weight")),
    "negative weight": model(
        "split: {'1': -5, '2': 105}\n", (6, 14, 'split["1"]: -5 is out of range; write 0 to 1000000')
    ),
    "weight in quotes": model("split: {'1': '90', '2': 10}\n", (6, 14, 'split["1"]: `90` is in quotes')),
    "weight null": model("split: {'1': null, '2': 10}\n", (6, 14, 'split["1"]: there is no value (null)')),
    "weight nan": model("split: {'1': .nan, '2': 10}\n", (6, 14, 'split["1"]: `.nan` is not a finite number')),
    "weight infinite": model("split: {'1': .inf}\n", (6, 14, "not a finite number")),
    "default above maximum": model(
        "deadline: {default_ms: 200, max_ms: 100}\n", (6, 24, "`default_ms` (200) is longer than `max_ms` (100)")
    ),
    "default above the default maximum": model(
        "deadline: {default_ms: 40000}\n", (6, 24, "is longer than `max_ms` (30000)")
    ),
    "promise above the deadline": model(
        "deadline: {default_ms: 20}\n", (3, 21, "the promise (50 ms) is longer than `deadline.default_ms` (20)")
    ),
    "promise above the maximum": changed(
        "p99_ms: 50", "p99_ms: 40000", (3, 21, "longer than `deadline.max_ms` (30000)")
    ),
    # Sizes.
    "no rows at all": model("limits: {batch_max: 0}\n", (6, 21, "limits.batch_max: 0 is out of range")),
    "length of nothing limited": model("limits: {input_length_of: ids}\n", (6, 27, "no `input_length_max` limits it")),
    "work by what": model("work: {by: rows}\n", (6, 12, "`rows` is not known; allowed: batch, bytes, elements")),
    "work without a measure": model("work: {unit: 3}\n", (6, 7, "work: the key `by` is missing")),
    "parameter without a name": model("work: {by: parameter}\n", (6, 12, "does not say which")),
    "parameter of an input": model(
        "work: {by: parameter, parameter: w, input: x}\n", (6, 44, "not of an input; remove `input`")
    ),
    "parameter not asked for": model("work: {by: batch, parameter: w}\n", (6, 30, "no parameter is looked at")),
    "value of no input": model("work: {by: value}\n", (6, 12, "does not say of which input")),
    "unit of nothing": model("work: {by: batch, unit: 0}\n", (6, 25, "work.unit: 0 is out of range")),
    "default above most": model(
        "work: {by: batch, default: 9, max: 3}\n", (6, 28, "`default` (9) is more than `max` (3)")
    ),
    "lanes without work": model(
        "admission: {lanes: {larger: [{name: large, work_above: 3}]}}\n", (6, 20, "all calls count as 1 without `work`")
    ),
    "no lanes": model("work: {by: batch}\nadmission: {lanes: {larger: []}}\n", (7, 29, "admission.lanes.larger")),
    "lanes out of order": model(
        "work: {by: batch}\nadmission: {lanes: {larger: [{name: a, work_above: 3}, {name: b, work_above: 3}]}}\n",
        (7, 78, "3 is not above the lane before it (3)"),
    ),
    "lanes of one name": model(
        "work: {by: batch}\nadmission: {lanes: {larger: [{name: a, work_above: 3}, {name: a, work_above: 4}]}}\n",
        (7, 63, "two lanes are named `a`"),
    ),
    "a lane that is called small": model(
        "work: {by: batch}\nadmission: {lanes: {larger: [{name: small, work_above: 3}]}}\n",
        (7, 37, "`small` is the first lane's name"),
    ),
    "a lane's name": model(
        "work: {by: batch}\nadmission: {lanes: {larger: [{name: Large, work_above: 3}]}}\n",
        (7, 37, "admission.lanes.larger[0].name"),
    ),
    "a share of more than half": model(
        "work: {by: batch}\nadmission: {lanes: {larger: [{name: a, work_above: 3, share: 0.7}]}}\n",
        (7, 62, "share: 0.7 is out of range"),
    ),
    "a lane that nothing reaches": model(
        "work: {by: batch, max: 3}\nadmission: {lanes: {larger: [{name: a, work_above: 3}]}}\n",
        (7, 52, "no call counts as more than 3"),
    ),
    "memory that nobody counts": model(
        "memory: {fixed_bytes: 3}\n", (6, 9, "pool `cpu` has no `memory_bytes` in fleet.yaml")
    ),
    "memory of less than nothing": model("memory: {bytes_per_unit: -1}\n", (6, 26, "memory.bytes_per_unit")),
    "a ceiling of nothing": pool(
        "    replicas: {static: [{grpc: 'h:1', http: 'h:2'}]}\n    in_flight_max: 0\n",
        (4, 20, "pools.cpu.in_flight_max: 0 is out of range"),
    ),
    "memory of a few bytes": pool(
        "    replicas: {static: [{grpc: 'h:1', http: 'h:2'}]}\n    memory_bytes: 1000\n",
        (4, 19, "pools.cpu.memory_bytes: 1000 is out of range"),
    ),
    # Not available yet.
    "stages beyond the default deadline": model(
        "deadline: {default_ms: 100, stages: {ingress_ms: 40, inference_ms: 61.5}}\n",
        (
            6,
            37,
            "deadline.stages: the stages come to 101.5 ms, more than `deadline.default_ms` (100 ms); shorten some, "
            "or write `default_ms: 102` or more",
        ),
    ),
    "stages beyond the default of the default deadline": model(
        "deadline: {stages: {inference_ms: 1001}}\n",
        (6, 20, "the stages come to 1001 ms, more than `deadline.default_ms` (1000, the default, ms)"),
    ),
    "stages without inference": model(
        "deadline: {stages: {ingress_ms: 1}}\n", (6, 20, "deadline.stages: the key `inference_ms` is missing")
    ),
    "a stage that there is not": model(
        "deadline: {stages: {inference_ms: 40, post_processing_ms: 5}}\n",
        (6, 39, "deadline.stages.post_processing_ms: unknown key; did you mean `postprocessing_ms`"),
    ),
    "a stage in seconds": model(
        "deadline: {stages: {inference_s: 0.04}}\n", (6, 21, "did you mean `inference_ms` (milliseconds)? Write")
    ),
    "a stage without time": model(
        "deadline: {stages: {inference_ms: 0}}\n", (6, 35, "write above 0 and at most 86400000 milliseconds")
    ),
    "stages in the wrong place": model("stages: {inference_ms: 40}\n", (6, 1, "it belongs under `deadline`")),
    "a later key at another depth": model(
        "deadline: {coalesce: 3, max_ms: 100}\n", (6, 12, "deadline.coalesce: not available yet")
    ),
    "cost": changed(
        "{p99_ms: 50}", "{p99_ms: 50, cost_per_1k: 1}", (3, 25, "objective.cost_per_1k: not available yet")
    ),
    "regime batch": model("regime: batch\n", (6, 9, "`batch` is not available yet; the batch regime")),
    "regime unheard of": model("regime: sometimes\n", (6, 9, "`sometimes` is not known; allowed: online")),
    "ladder as list": changed(
        "ladder: none", "ladder: [smaller, default]", (4, 9, "ladder: a list is not available yet")
    ),
    "ladder as name": changed("ladder: none", "ladder: cached", (4, 9, "`cached` is not available yet")),
    "a burst without a rate": fleet(
        "quotas: {default: {burst: 5}}\n", (6, 27, "quotas.default.burst: a burst without `rate_per_s` limits nothing")
    ),
    "a burst without a rate on a model": fleet(
        "quotas: {tenants: {a: {models: {fraud: {burst: 5}}}}}\n",
        (6, 48, "quotas.tenants.a.models.fraud.burst: a burst without `rate_per_s`"),
    ),
    "a quota on a model that nobody names": fleet(
        "quotas: {tenants: {a: {models: {frod: {concurrency_max: 5}}}}}\n",
        (6, 33, "quotas.tenants.a.models.frod: no policy names a model `frod`; name a model of models/*.yaml"),
    ),
    "a quota on a model that limits nothing": fleet(
        "quotas: {default: {models: {fraud: {}}}}\n",
        (6, 36, "quotas.default.models.fraud: nothing is limited"),
    ),
    "a rate with a unit": fleet(
        "quotas: {default: {rate_per_s: 5s}}\n",
        (6, 32, "quotas.default.rate_per_s: `5s` is text, not a number; write 5"),
    ),
    "no place at all": fleet(
        "quotas: {default: {concurrency_max: 0}}\n", (6, 37, "quotas.default.concurrency_max: 0 is out of range")
    ),
    "redis": fleet("redis: {url: x}\n", (6, 1, "redis: not available yet")),
    "sinks": fleet("records: {sinks: []}\n", (6, 11, "records.sinks: not available yet")),
    # YAML itself.
    "key twice": model("pool: cpu\n", (6, 1, "pool: the key stands twice, first in line 2; keep one of the two")),
    "key twice deep": model(
        "warmup:\n  calls: 1\n  calls: 2\n", (8, 3, "warmup.calls: the key stands twice, first in line 7")
    ),
    "same version twice, quoted and not": model("split: {'1': 5, 1: 6}\n", (6, 17, "the key stands twice")),
    "anchor": model("warmup: &w {calls: 1}\n", (6, 9, "warmup: `&w` is an anchor")),
    "alias": model(
        "versions: &v ['1']\nlimits: *v\n", (6, 11, "`&v` is an anchor"), (7, 9, "limits: `*v` is an alias")
    ),
    "alias of nothing": model("limits: *v\n", (6, 9, "`*v` is an alias")),
    "merge key": model("warmup:\n  <<: {calls: 1}\n", (7, 3, "warmup: `<<` is a merge key; write the keys out")),
    "tag": model("warmup: {calls: !!int '5'}\n", (6, 17, "warmup.calls: `tag:yaml.org,2002:int` is a tag")),
    "python tag": model("warmup: !!python/object:os.system {}\n", (6, 9, "is a tag; remove it")),
    "complex key": model("? [a]\n: 1\n", (6, 3, "a key that is a list or a mapping")),
    "empty file": whole_model("", (1, 1, "the file is empty")),
    "only comments": whole_model("# nothing\n\n", (1, 1, "the file is empty")),
    "two documents": model(
        "---\nmodel: other\n", (6, 1, "a second document begins here (`---`); keep one document per file")
    ),
    "directive": whole_model("%YAML 1.1\n---\n" + MODEL, (1, 1, "a `%` directive stands before `---`")),
    "tab for indentation": model("warmup:\n\tcalls: 1\n", (7, 1, "a tab stands where YAML takes only spaces")),
    "unclosed bracket": model("versions: ['1'\n", (7, 1, "not YAML")),
    "unclosed quote": model("versions: ['1\n", (7, 1, "close the quote")),
    "colon in text": changed(
        "impact: Payments wait", "impact: Payments: wait", (5, 17, "put the text in quotes if it contains `: `")
    ),
    "bad indentation": model("warmup:\n  calls: 1\n timeout_ms: 10\n", (8, 2, "check the indentation")),
    "reserved character": changed("model: fraud", "model: @fraud", (1, 8, "put the text in quotes")),
    "bad escape": changed("model: fraud", 'model: "a\\qb"', (1, 11, "not YAML")),
    "impossible escape": changed("model: fraud", 'model: "\\UFFFFFFFF"', (1, 1, "not YAML")),
    "control character": model("#\x07\n", (6, 2, "character U+0007 may not stand in a policy file")),
    "line separator": model("# a\u2028b\n", (6, 4, "character U+2028")),
    "text for a file": whole_model("fraud\n", (1, 1, "`fraud` stands where a mapping is wanted")),
    "list for a file": whole_model("- model: fraud\n", (1, 1, "a list stands where a mapping is wanted")),
    "too deep": model("split: " + "[" * 40 + "]" * 40 + "\n", (6, 31, "nested deeper than 24 levels")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_file_is_refused_with_place_and_remedy(name: str, tmp_path: Path) -> None:
    file, text, expected = CASES[name]
    if file == "fleet.yaml":
        write(tmp_path, fleet=text)
    else:
        write(tmp_path, model=text)
    found = [problem for problem in problems_of(tmp_path) if problem.file == str(tmp_path / file)]
    listing = "\n".join(map(str, found))
    assert [(problem.line, problem.column) for problem in found] == [(line, column) for line, column, _ in expected], (
        listing
    )
    for problem, (_, _, part) in zip(found, expected, strict=True):
        assert part in str(problem)


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert len(CASES) >= 80


def test_a_usual_call_must_fit_beside_its_model(tmp_path: Path) -> None:
    fleet_text = FLEET.replace("    replicas:", "    memory_bytes: 2000000\n    replicas:", 1)
    assert fleet_text != FLEET
    write(tmp_path, fleet=fleet_text, model=MODEL + "memory: {fixed_bytes: 1500000, bytes_per_unit: 500000}\n")
    assert not problems_of(tmp_path)
    write(tmp_path, fleet=fleet_text, model=MODEL + "memory: {fixed_bytes: 1500000, bytes_per_unit: 500001}\n")
    (problem,) = problems_of(tmp_path)
    assert "a usual call needs 2000001 bytes with the model, and pool `cpu` has 2000000" in str(problem)
