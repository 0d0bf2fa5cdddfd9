"""wrk, h2load and curl as people run them, what they report, and what the gateway has counted meanwhile."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.tools import Tool
from tests.support.gateway_process import GatewayProcess
from tests.support.http_answer import Answer
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).with_name("wrk_infer.lua")
TIMEOUT_S = 90.0
PAGE_S = 0.6
"""The page of metrics is made anew at most twice a second (docs/metrics.md)."""
_GAUGES = ("sluice_calls_in_flight{", "sluice_calls_queued{")
_SERIES = re.compile(r"^sluice_calls_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SUMS = re.compile(r"^sums ((?:\d+ ?)+)$", re.MULTILINE)
_REQUESTS = re.compile(
    r"^requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, "
    r"(\d+) failed, (\d+) errored, (\d+) timeout$",
    re.MULTILINE,
)
_STATUSES = re.compile(r"^status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx$", re.MULTILINE)
_DATA = re.compile(r"\((\d+)\) data$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WrkReport:
    """What wrk says of one run, and what our script saw of the answers. A count of the script's may be one short for
    each connection: wrk ends in the middle of it.
    """

    requests: int
    connect_errors: int
    read_errors: int
    write_errors: int
    status_errors: int
    timeouts: int
    answered: int
    wrong: int
    said: str

    @property
    def failures(self) -> int:
        """All that the tool or the script found wrong."""
        errors = self.connect_errors + self.read_errors + self.write_errors
        return errors + self.status_errors + self.timeouts + self.wrong


@dataclass(frozen=True, slots=True)
class H2loadReport:
    """What h2load says of one run. `data_bytes` is the payload of all answers."""

    total: int
    succeeded: int
    failures: int
    ok_statuses: int
    data_bytes: int
    said: str


def run_wrk(
    tool: Tool,
    url: str,
    *,
    body: Path,
    expected: Path,
    request_id: str,
    connections: int,
    seconds: int,
    content_type: str = "application/json",
    json_length: int = 0,
    pipelined: int = 1,
) -> WrkReport:
    """POST `body` over so many connections that are kept open; `pipelined` requests at once on each."""
    words = [
        f"-t{min(2, connections)}",
        f"-c{connections}",
        f"-d{seconds}s",
        "--timeout",
        "10s",
        "-s",
        str(SCRIPT),
        url,
        "--",
    ]
    said = _run(tool, [*words, str(body), str(expected), request_id, content_type, str(json_length), str(pipelined)])
    found = _SUMS.search(said)
    assert found is not None, said
    requests, connect, read, write, status, timeouts, answered, wrong = map(int, found[1].split())
    return WrkReport(requests, connect, read, write, status, timeouts, answered, wrong, said)


def run_h2load(
    tool: Tool,
    url: str,
    *options: str,
    body: Path,
    headers: Mapping[str, str],
    requests: int,
    connections: int,
    streams: int,
) -> H2loadReport:
    """POST `body` so many times. Over HTTP/2 unless `options` say otherwise."""
    words = ["-n", str(requests), "-c", str(connections), "-m", str(streams), "-d", str(body), *options]
    for name, value in headers.items():
        words += ["-H", f"{name}: {value}"]
    said = _run(tool, [*words, url])
    counts, statuses, data = _REQUESTS.search(said), _STATUSES.search(said), _DATA.search(said)
    assert counts is not None, said
    assert statuses is not None, said
    assert data is not None, said
    total, _, _, succeeded, *failures = map(int, counts.groups())
    return H2loadReport(total, succeeded, sum(failures), int(statuses[1]), int(data[1]), said)


class Curl:
    """curl, as it is. Answers are read from its own dumps: heads with `-D`, bodies with `-o`."""

    def __init__(self, tool: Tool, directory: Path) -> None:
        self._tool = tool
        self._directory = directory
        self._runs = 0

    def run(self, *words: str, stdin: bytes = b"") -> str:
        """Its standard output. It must end with 0 and complain of nothing."""
        done = self._finished(words, stdin)
        said = done.stderr.decode(errors="replace")
        assert done.returncode == 0, f"curl ended with {done.returncode}: {said}"
        return done.stdout.decode()

    def answer(self, *words: str, stdin: bytes = b"") -> Answer:
        """The one answer to one URL; interim ones (100) are left out, trailers are among the headers."""
        self._runs += 1
        heads, body = self._directory / f"{self._runs}.heads", self._directory / f"{self._runs}.body"
        self.run("-D", str(heads), "-o", str(body), *words, stdin=stdin)
        found = answer_heads(heads.read_text("latin-1"))
        status, headers = found[-1]
        assert all(each == 100 for each, _ in found[:-1]), found
        return Answer(status, headers, body.read_bytes() if body.exists() else b"")

    def _finished(self, words: Sequence[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        # -q: whatever ~/.curlrc says is not part of the test. Proxies of the environment are none of its business.
        argv = [str(self._tool.program), "-q", "-sS", "--noproxy", "*", "--max-time", str(int(TIMEOUT_S)), *words]
        return subprocess.run(
            argv, env=self._tool.variables(), input=stdin, capture_output=True, timeout=TIMEOUT_S + 10, check=False
        )


def answer_heads(text: str) -> list[tuple[int, dict[str, str]]]:
    """The heads in curl's dump, in their order: status and headers, names in lower case. Trailers, which have no line
    of status, join the head before them.
    """
    found: list[tuple[int, dict[str, str]]] = []
    for block in text.replace("\r\n", "\n").strip("\n").split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("HTTP/"):
            found.append((int(lines[0].split(" ")[1]), {}))
            del lines[0]
        headers = found[-1][1]
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} stands twice"
            headers[name.lower()] = value.strip()
    return found


def counted_so_far(gateway: GatewayProcess, protocol: str, model: str) -> Counter[str]:
    """Calls that have ended so far, by their code, as the metrics page has them once no call is out any more."""
    end_s, found = time.monotonic() + TIMEOUT_S, None
    while time.monotonic() < end_s:
        before, page = found, gateway.get("metrics", "/metrics")[1].decode()
        found = _calls_by_code(page, protocol, model)
        out = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(_GAUGES)]
        assert out or not found, page
        if found == before and not any(out):
            return found
        time.sleep(PAGE_S)
    raise AssertionError(f"calls over {protocol} are out or end all the time: {found}")


def _calls_by_code(page: str, protocol: str, model: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for labels, value in _SERIES.findall(page):
        of = dict(_LABEL.findall(labels))
        if (of["protocol"], of["model"]) == (protocol, model):
            found[of["code"]] += int(float(value))
    return found


def recorded(gateway: GatewayProcess, request_id: str, count: int) -> Counter[str]:
    """Statuses in the prediction records of that id, as soon as there are `count` of them (or more)."""
    found: Counter[str] = Counter()

    def enough() -> bool:
        nonlocal found
        found = Counter(each["status"] for each in gateway.records() if each["request_id"] == request_id)
        return found.total() >= count

    wait_until(enough, TIMEOUT_S, f"not {count} records of {request_id}")
    return found


def _run(tool: Tool, words: Sequence[str]) -> str:
    """Run a tool to its end; both its outputs. It must end with 0."""
    done = subprocess.run(
        [str(tool.program), *words],
        env=tool.variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{tool.program.name} ended with {done.returncode}: {done.stdout[-3000:]}"
    return done.stdout
