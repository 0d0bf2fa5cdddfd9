"""`sluice demo`: real Tritons, the gateway and live traffic on this machine, and an honest summary at the end.

Runs from a checkout: the local fleet lives in `deploy/local`, beside the package. Whatever ends the demo (Ctrl-C,
`--seconds`, an error) stops everything that it started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.output import fail, write_json
from gateway.policy.schema import PolicySet

if TYPE_CHECKING:
    from gateway.cli.demo_traffic import Traffic

EXAMPLE = """examples:
  sluice demo                    until Ctrl-C
  sluice demo --seconds 30       stops by itself; exit 0 only if all was well"""

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ROOT / "policies"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("--seconds", type=float, default=None, help="stop after this long (default: run until Ctrl-C)")
    parser.add_argument(
        "--replicas", type=int, default=2, help="Triton servers, as many as policies/fleet.yaml names (2)"
    )
    parser.add_argument(
        "--rate", type=float, default=40.0, help="calls and sequences begun per second (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="OUT", help="write the summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    if not (ROOT / "deploy" / "local").is_dir():
        return fail("the demo needs a checkout of the project: deploy/local is not beside the installed package")
    if arguments.seconds is not None and arguments.seconds <= 0:
        return fail("--seconds must be above 0")
    if arguments.rate <= 0:
        return fail("--rate must be above 0")
    if arguments.replicas < 1:
        return fail("--replicas must be 1 or more")
    if arguments.json:
        write_json(arguments.json, {"ok": False})  # a place that cannot be written is said now, not after the demo
    sys.path.insert(0, str(ROOT))
    from deploy.local.errors import LocalFleetError
    from gateway.policy.load import load_policies
    from gateway.policy.problems import PolicyError

    try:
        policies = load_policies(str(POLICIES))
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 2
    _interruptible()
    try:
        summary = _run(arguments, policies)
    except KeyboardInterrupt:
        print("\ndemo: interrupted before its end, so there is no summary; everything that was started is stopped")
        return 130
    except LocalFleetError as error:
        return fail(f"{error}", 1)
    except DemoError as error:
        return fail(f"demo: {error}", 1)
    if arguments.json:
        write_json(arguments.json, summary)
    _print_summary(summary)
    return 0 if summary["ok"] else 1


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def _run(arguments: argparse.Namespace, policies: PolicySet) -> dict[str, Any]:
    from deploy.local.fleet import LocalFleet
    from deploy.local.layout import MODELS, STATE_FILE
    from gateway.cli.demo_traffic import Traffic

    _require_free_ports(policies)
    traffic = Traffic(policies, arguments.rate)
    with LocalFleet(arguments.replicas, MODELS, state_file=STATE_FILE) as fleet:
        with _gateway(policies) as gateway:
            _print_addresses(policies)
            try:
                asyncio.run(_until_a_signal(traffic, arguments.seconds))
            except asyncio.CancelledError:
                print("\ndemo: stopping")
            finally:
                _interruptible()  # the loop has put the defaults back
            code = _stop(gateway)
        servers = [server.spec.name for server in fleet]
        prefixes = tuple(server.run.shm_prefix for server in fleet if server.run is not None)
    records = _count_records(policies, traffic)
    left = _left_in_shared_memory(prefixes)
    (streams, responses), (sequences, steps) = traffic.streamed(), traffic.sequences()
    return {
        "ok": traffic.errors == 0 and traffic.calls > 0 and records == traffic.calls and code == 0 and not left,
        "calls": traffic.calls,
        "errors": traffic.errors,
        "streams": {"count": streams, "responses": responses},
        "sequences": {"count": sequences, "steps": steps},
        "records": records,
        "gateway_exit_code": code,
        "servers": servers,
        "shared_memory_left": left,
        "traffic": traffic.summary(),
    }


async def _until_a_signal(traffic: Traffic, seconds: float | None) -> None:
    """Raises CancelledError when a signal ends the traffic; its calls under way have ended by then."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await traffic.run(seconds)


def _interruptible() -> None:
    """SIGINT too, though it is Python's default: a shell without job control starts `make demo &` with it ignored, and
    then nothing would stop the demo but SIGTERM.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _require_free_ports(policies: PolicySet) -> None:
    from deploy.local.ports import require_free

    listen = policies.fleet.gateway.listen
    require_free(
        int(address.rpartition(":")[2]) for address in (listen.http, listen.grpc, listen.metrics, listen.admin)
    )


@contextmanager
def _gateway(policies: PolicySet) -> Iterator[subprocess.Popen[bytes]]:
    log = ROOT / ".run" / "logs" / "gateway.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        # A session of its own: Ctrl-C in the terminal reaches the demo alone, which then stops the gateway in order.
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", str(POLICIES)],
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_ready(process, policies, log)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], policies: PolicySet, log: Path) -> None:
    listen = policies.fleet.gateway.listen
    urls = [f"http://127.0.0.1:{listen.metrics.rpartition(':')[2]}/readyz"]
    models = f"http://127.0.0.1:{listen.http.rpartition(':')[2]}/v2/models"
    urls.extend(f"{models}/{model}/ready" for model in policies.models)
    waited_s, step_s = 0.0, 0.2
    while waited_s < READY_TIMEOUT_S:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise DemoError(f"the gateway ended with code {process.returncode}; its last words:\n{tail}")
        if all(_answers(url) for url in urls):
            print("demo: the gateway is ready: every model has a warmed replica")
            return
        waited_s += step_s
        _pause(step_s)
    raise DemoError(f"the gateway was not ready within {READY_TIMEOUT_S:.0f} s; see {log}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _pause(seconds: float) -> None:
    """Sleep that a signal ends."""
    signal.sigtimedwait([], seconds)


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    print("demo: the gateway drains")
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _print_addresses(policies: PolicySet) -> None:
    listen = policies.fleet.gateway.listen
    here = {
        name: getattr(listen, name).replace("0.0.0.0", "127.0.0.1") for name in ("http", "grpc", "metrics", "admin")
    }
    print(f"""
  HTTP     http://{here["http"]}       KServe v2, any Triton client
  gRPC     {here["grpc"]}              the same
  metrics  http://{here["metrics"]}/metrics
  admin    http://{here["admin"]}/v1/fleet   (token in .run/state/admin-token)

  try      .venv/bin/sluice infer fraud
           .venv/bin/sluice infer streamer --input 'text_input="Errors should"' --input delay_ms=200
           .venv/bin/sluice infer accumulator --sequence 7 --start --input value=5
           .venv/bin/sluice log tail -f
           .venv/bin/python -m deploy.local freeze triton-1     (or kill; then thaw, or start)

  or       curl http://{here["http"]}/v2/models/fraud/infer -d @policies/warmup/fraud.json
           curl -N http://{here["http"]}/v2/models/streamer/generate_stream \\
             -d '{{"text_input": "Beautiful is", "max_tokens": 12, "delay_ms": 200}}'
           curl -s http://{here["metrics"]}/metrics | grep sluice_calls_total

  stop     Ctrl-C
""")


def _count_records(policies: PolicySet, traffic: Traffic) -> int:
    """How many of the traffic's calls have a record. Calls from elsewhere (`sluice infer`) are not counted. The
    messages of one gRPC stream share its request id.
    """
    directory = Path(os.path.normpath(Path(policies.base_dir) / policies.fleet.records.dir))
    found: set[tuple[str, int]] = set()
    twice = 0
    for file in directory.glob("*.jsonl"):
        if file.stat().st_mtime < traffic.started_wall_s - 1:
            continue
        with file.open("rb") as lines:
            for line in lines:
                if traffic.prefix.encode() in line:
                    record = json.loads(line)
                    call = record.get("request_id", ""), record.get("stream_message", 0)
                    twice += call in found
                    found.add(call)
    return len(found) - twice


def _left_in_shared_memory(prefixes: tuple[str, ...]) -> list[str]:
    return sorted(path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(prefixes))


def _print_summary(summary: dict[str, Any]) -> None:
    print(
        f"\n  {'model':<18}{'over':<18}{'calls':>7}{'responses':>11}{'errors':>8}{'p50 ms':>9}{'p99 ms':>9}  versions"
    )
    for row in summary["traffic"]:
        print(
            f"  {row['model']:<18}{row['over']:<18}{row['calls']:>7}{row['responses']:>11}{row['errors']:>8}"
            f"{row['p50_ms']:>9.2f}{row['p99_ms']:>9.2f}  {', '.join(row['versions'])}"
        )
        for text in row["error_texts"]:
            print(f"      error: {text}")
    streams, sequences = summary["streams"], summary["sequences"]
    print(
        f"  (times of streams are those to their first response)\n\n"
        f"  {summary['calls']} calls, {summary['errors']} errors; among the calls {streams['count']} whole streams of "
        f"{streams['responses']} responses, and {sequences['steps']} steps of {sequences['count']} whole sequences\n"
        f"  {summary['records']} prediction records; the gateway exited with {summary['gateway_exit_code']}; "
        f"shared-memory files left: {summary['shared_memory_left'] or 'none'}"
    )
    print("  all was well" if summary["ok"] else "  NOT all was well")
