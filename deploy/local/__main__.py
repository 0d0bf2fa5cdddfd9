"""The command `python -m deploy.local`: a fleet of real Triton servers on this machine.

Exit codes: 0 done; 1 it failed, or (status) not every server is ready; 2 wrong usage; 3 this machine lacks something;
4 no such server, or no fleet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.local.check import preflight
from deploy.local.environment import TritonEnvironment, ensure_environment, find_python, locate
from deploy.local.errors import LocalFleetError
from deploy.local.fleet import LocalFleet
from deploy.local.layout import (
    CORE_MODELS,
    ENVIRONMENT_DIR,
    LOG_DIR,
    MODELS,
    REPOSITORY_DIR,
    STATE_FILE,
    exclusive,
    print_progress,
)
from deploy.local.ports import BASE_PORT, Ports
from deploy.local.processes import remove_stale_shm_files
from deploy.local.repository import build_repository
from deploy.local.server import TritonServer, check_argument
from deploy.local.state import read_state, write_state
from deploy.local.tools import KINDS, TOOLS_DIR, ensure_tool

DONE, FAILED, NOT_READY, MACHINE, UNKNOWN = 0, 1, 1, 3, 4

SETS = {"core": CORE_MODELS, "all": MODELS}
"""Words that `--models` takes for several models."""

EXAMPLE = """\
example:
  python -m deploy.local up --replicas 2      start triton-0 and triton-1, from port 18000 on
  python -m deploy.local freeze triton-1      stop it in its tracks; its connections stay open
  python -m deploy.local thaw triton-1
  python -m deploy.local status --json -
  python -m deploy.local down

exit codes: 0 done; 1 failed, or (status) not every server is ready; 2 wrong usage;
3 this machine lacks something; 4 no such server, or no fleet"""


UP_EXAMPLE = """\
up --replicas 3 --models core streamer

with TLS on the gRPC ports:
  python -m deploy.local up --triton-argument=--grpc-use-ssl=true \\
    --triton-argument=--grpc-server-cert=$PWD/triton.pem --triton-argument=--grpc-server-key=$PWD/triton.key"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="python -m deploy.local",
        description="Real Triton servers with the demo models on this machine, on loopback ports.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, example: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example:\n  python -m deploy.local {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--json", metavar="OUT", help="write the result as JSON to this file; - is stdout")
        return command

    up = add("up", "build what is missing and start the servers", UP_EXAMPLE)
    _fleet_arguments(up)
    up.add_argument(
        "--triton-argument",
        type=_triton_argument,
        action="append",
        default=[],
        metavar="--FLAG=VALUE",
        help="a flag for every Triton, joined to the option by `=`; may be repeated; files by their whole path",
    )
    up.add_argument("--attach", action="store_true", help="stay; Ctrl-C stops the servers")
    up.set_defaults(any_ports=False, tools=False)  # it checks as `check` does
    check = add("check", "say what this machine lacks, and change nothing", "check --replicas 2")
    _fleet_arguments(check)
    check.add_argument(
        "--any-ports", action="store_true", help="ask for no ports: whoever starts servers finds free ones"
    )
    check.add_argument("--tools", action="store_true", help=f"ask for {', '.join(KINDS)} too, which tests drive")
    add("build", "build the environment and the model repository only", "build")
    add("tools", f"set up those of {', '.join(KINDS)} that are not on PATH, without root rights", "tools")
    add("status", "say how each server is", "status --json -")
    for name, text in (
        ("start", "start one server of the fleet again"),
        ("stop", "stop one server: SIGTERM, and SIGKILL after a while"),
        ("kill", "kill one server and its stubs (SIGKILL)"),
        ("freeze", "freeze one server and its stubs (SIGSTOP)"),
        ("thaw", "let a frozen server go on (SIGCONT)"),
    ):
        add(name, text, f"{name} triton-1").add_argument("name", metavar="NAME", help="for example triton-0")
    add("down", "stop all servers", "down")
    clean = add("clean", "stop all servers; remove models, logs and stale shared memory", "clean --environment")
    clean.add_argument("--environment", action="store_true", help="remove .triton and the tools as well")
    return root


def _fleet_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--replicas", type=_positive, default=2, metavar="N", help="servers (default: 2)")
    command.add_argument(
        "--models",
        nargs="+",
        choices=[*MODELS, *SETS],
        default=["all"],
        metavar="MODEL",
        help=f"of {', '.join(MODELS)}; core means the first {len(CORE_MODELS)} (default: all)",
    )
    command.add_argument("--base-port", type=_positive, default=BASE_PORT, metavar="PORT", help=f"default: {BASE_PORT}")


def chosen_models(words: Sequence[str]) -> tuple[str, ...]:
    """The models that the words of `--models` mean, each once."""
    return tuple(dict.fromkeys(model for word in words for model in SETS.get(word, (word,))))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _triton_argument(text: str) -> str:
    try:
        check_argument(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments)
    except LocalFleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace) -> int:
    command: str = arguments.command
    if command == "check":
        return _check(arguments)
    if command == "up":
        return _up(arguments)
    if command == "build":
        build_repository(ensure_environment())
        _report(arguments, {"environment": str(ENVIRONMENT_DIR), "repository": str(REPOSITORY_DIR)}, "")
        return DONE
    if command == "tools":
        return _tools(arguments)
    if command == "status":
        return _status(arguments)
    if command == "down":
        return _down(arguments)
    if command == "clean":
        return _clean(arguments)
    return _one(arguments)


def _environment() -> TritonEnvironment:
    _, version = find_python()
    return locate(ENVIRONMENT_DIR, version)


def _check(arguments: argparse.Namespace) -> int:
    ports = [port for index in range(arguments.replicas) for port in Ports.numbered(index, arguments.base_port)]
    tools = KINDS if arguments.tools else ()
    problems = preflight(arguments.replicas, [] if arguments.any_ports else ports, tools)
    found = {"problems": [{"what": each.what, "remedy": each.remedy} for each in problems]}
    _report(arguments, found, "\n".join(map(str, problems)) or "nothing is missing")
    return MACHINE if problems else DONE


def _tools(arguments: argparse.Namespace) -> int:
    tools = {name: ensure_tool(name) for name in KINDS}
    found = {name: {"program": str(tool.program), "version": tool.version} for name, tool in tools.items()}
    _report(arguments, {"tools": found}, "\n".join(f"{name} {tool.version}" for name, tool in tools.items()))
    return DONE


def _up(arguments: argparse.Namespace) -> int:
    if any(server.alive() for server in read_state(STATE_FILE, _environment()).values()):
        print("error: a fleet is up already\n  remedy: python -m deploy.local down", file=sys.stderr)
        return FAILED
    code = _check(argparse.Namespace(**{**vars(arguments), "json": None}))
    if code != DONE:
        return code
    fleet = LocalFleet(
        arguments.replicas,
        chosen_models(arguments.models),
        base_port=arguments.base_port,
        state_file=STATE_FILE,
        detached=not arguments.attach,
        arguments=arguments.triton_argument,
    )
    if not arguments.attach:
        fleet.start()
        _report(arguments, _describe(fleet.servers), "stop it with: python -m deploy.local down")
        return DONE
    with fleet:
        _report(arguments, _describe(fleet.servers), "Ctrl-C stops the servers")
        ending = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        signal.sigwait(ending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)  # a second one does not wait for an orderly stop
    return DONE


def _status(arguments: argparse.Namespace) -> int:
    servers = read_state(STATE_FILE, _environment())
    if not servers:
        return _no_fleet()
    described = _describe(servers)
    lines = [
        f"{each['name']:<10} {each['state'] + (', ready' if each['ready'] else ''):<15} "
        f"http {each['http']}  grpc {each['grpc']}  {each['memory_bytes'] // 2**20} MB  {' '.join(each['models'])}"
        + (f"  NOT READY: {', '.join(each['unready'])}" if each["state"] == "running" and each["unready"] else "")
        for each in described["servers"]
    ]
    _report(arguments, described, "\n".join(lines))
    return DONE if all(each["ready"] for each in described["servers"]) else NOT_READY


def _one(arguments: argparse.Namespace) -> int:
    with exclusive("fleet"):
        servers = read_state(STATE_FILE, _environment())
        if not servers:
            return _no_fleet()
        server = servers.get(arguments.name)
        if server is None:
            print(f"error: no server {arguments.name}; there are {', '.join(servers)}", file=sys.stderr)
            return UNKNOWN
        if arguments.command == "start":
            server.start()
        else:
            getattr(server, arguments.command)()
        write_state(STATE_FILE, servers.values())
    if arguments.command == "start":
        server.wait_ready()
    _report(arguments, _describe({server.spec.name: server}), f"{server.spec.name}: {server.state()}")
    return DONE


def _down(arguments: argparse.Namespace) -> int:
    with exclusive("fleet"):
        servers = read_state(STATE_FILE, _environment())
        for server in servers.values():
            server.begin_stop()
        for server in servers.values():
            server.finish_stop()
            print_progress(f"{server.spec.name}: stopped")
        STATE_FILE.unlink(missing_ok=True)
        remove_stale_shm_files()
    _report(arguments, {"stopped": list(servers)}, "" if servers else "no fleet was up")
    return DONE


def _clean(arguments: argparse.Namespace) -> int:
    code = _down(argparse.Namespace(json=None))
    removed: list[Path] = [REPOSITORY_DIR, LOG_DIR]
    if arguments.environment:
        removed += [ENVIRONMENT_DIR, TOOLS_DIR]
    for directory in removed:
        if directory.exists():
            shutil.rmtree(directory)
            print_progress(f"removed {directory}")
    _report(arguments, {"removed": [str(directory) for directory in removed]}, "")
    return code


def _no_fleet() -> int:
    print("error: no fleet is up\n  remedy: python -m deploy.local up", file=sys.stderr)
    return UNKNOWN


def _describe(servers: dict[str, TritonServer]) -> dict[str, Any]:
    return {"servers": [_described(name, server) for name, server in servers.items()]}


def _described(name: str, server: TritonServer) -> dict[str, Any]:
    unready = server.unready()
    return {
        "name": name,
        "state": server.state(),
        "ready": not unready,
        "unready": unready,
        "http": server.spec.http_address,
        "grpc": server.spec.grpc_address,
        "metrics": server.spec.metrics_url,
        "pid": None if server.run is None else server.run.server.pid,
        "memory_bytes": server.memory_bytes(),
        "models": list(server.spec.models),
        "log": str(server.spec.log),
    }


def _report(arguments: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    if arguments.json == "-":
        print(json.dumps(result, indent=1))
    elif arguments.json:
        try:
            Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise LocalFleetError(
                f"--json: {arguments.json} cannot be written ({error.strerror})", "name another file"
            ) from error
    if arguments.json != "-" and text:
        print(text)


if __name__ == "__main__":
    sys.exit(main())
