"""What a new user runs: the policies that come with the project, the demo's traffic, `sluice infer` and `sluice log`,
before a real Triton with all models.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import MODELS, LocalFleet, free_ports
from gateway.cli import demo_rows, main
from gateway.cli.demo_rows import SEQUENCE, STEPS, STREAM, TOKENS, Answered, Clients
from gateway.cli.demo_traffic import Traffic
from gateway.policy.load import load_policies
from gateway.runtime.clock import SystemClock
from tests.conftest import replicas_of
from tests.support.gateway_process import ROOT, GatewayProcess, write_policies
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One server, and a gateway with the project's own policies of models, but for their deadlines."""
    directory = tmp_path_factory.mktemp("demo")
    with LocalFleet(1, MODELS, ports=free_ports(1), log_dir=tmp_path_factory.mktemp("demo-logs")) as fleet:
        for folder in ("models", "warmup"):
            shutil.copytree(ROOT / "policies" / folder, directory / folder)
        for file in (directory / "models").glob("*.yaml"):
            without_haste(file)
        listen = write_policies(directory, replicas_of(fleet), models={})
        with GatewayProcess(directory, listen) as process:
            yield process.wait_ready().wait_warmed(*MODELS)
            assert process.stop() == 0, process.log_text()
            assert "names no admission.slots_per_replica" not in process.log.read_text()


def without_haste(file: Path) -> None:
    """Longer deadlines in a policy: those of the project are a quarter of a second for some models, and a machine that
    is busy with other tests may stand still for as long.
    """
    text = file.read_text()
    for name, value in (("default_ms", 20_000), ("max_ms", 60_000), ("first_response_s", 20)):
        text = re.sub(rf"(?m)^( +{name}:) \d+", rf"\1 {value}", text)
    file.write_text(text if "\ndeadline:" in text else f"{text}\ndeadline: {{default_ms: 20000}}\n")


def infer(demo: GatewayProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and what `--json` wrote."""
    out = demo.directory / "out.json"
    code = main(["infer", *words, "--url", f"http://{demo.http}", "--json", str(out)])
    document: dict[str, Any] = json.loads(out.read_text())
    return code, document


def output(document: dict[str, Any], name: str) -> list[Any]:
    return next(each["data"] for each in document["answer"]["outputs"] if each["name"] == name)


async def test_each_row_of_the_demos_traffic_works(demo: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_rows, "PATIENCE_MS", 20_000)
    async with asyncio.timeout(60), Clients(demo.http, demo.grpc, SystemClock(), random.Random(1)) as clients:
        plans = clients.plans()
        assert {plan.model for plan in plans} == set(MODELS)
        for number, plan in enumerate(plans):
            answers: list[Answered] = [each async for each in plan.send(f"row-{number}")]
            assert len(answers) == (len(STEPS) if plan.kind == SEQUENCE else 1), plan
            assert {each.responses for each in answers} == {TOKENS if plan.kind == STREAM else 1}, plan


async def test_the_demos_traffic_counts_what_has_a_record(
    demo: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_rows, "PATIENCE_MS", 20_000)  # the demo is no more patient than its users
    policies = load_policies(str(demo.directory))
    traffic = Traffic(policies, rate=40.0)
    async with asyncio.timeout(60):
        await traffic.run(4.0)  # some six times what all rows need for a turn
    assert traffic.errors == 0, traffic.summary()
    streams, responses = traffic.streamed()
    sequences, steps = traffic.sequences()
    assert responses == streams * TOKENS > 0
    assert steps == sequences * len(STEPS) > 0
    assert traffic.calls == sum(row["calls"] for row in traffic.summary())

    def recorded() -> int:
        return sum(record["request_id"].startswith(traffic.prefix) for record in demo.records())

    wait_until(lambda: recorded() >= traffic.calls)
    assert recorded() == traffic.calls


def test_infer_shows_a_stream(demo: GatewayProcess) -> None:
    code, told = infer(demo, "streamer", "--input", 'text_input="chars:aé\\n"')
    assert code == 0
    assert [each["response"]["text_output"] for each in told["responses"]] == ["a", "é", "\n"]
    code, told = infer(demo, "streamer", "--input", 'text_input="x"', "--input", "fail_at=2")
    assert code == 1
    assert len(told["responses"]) == 2
    assert "fail_at is 2" in told["error"]


def test_infer_makes_the_steps_of_sequences(demo: GatewayProcess) -> None:
    for model, name in (("accumulator", "4711"), ("accumulator-text", "till-7")):
        assert infer(demo, model, "--sequence", name, "--start", "--input", "value=5")[0] == 0
        code, told = infer(demo, model, "--sequence", name, "--end", "--input", "value=2")
        assert code == 0
        assert output(told, "sum") == [7]
        assert infer(demo, model, "--sequence", name, "--input", "value=1")[0] == 1, "it has ended"


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"accumulator", "accumulator-text"}))
def test_infer_needs_no_more_than_the_name_of_a_model_without_sequences(demo: GatewayProcess, model: str) -> None:
    code, told = infer(demo, model)
    assert code == 0, told


def test_the_log_shows_streams_and_sequences(demo: GatewayProcess, capsys: pytest.CaptureFixture[str]) -> None:
    _, stream = infer(demo, "streamer", "--input", 'text_input="x"', "--input", "max_tokens=5")
    _, step = infer(demo, "accumulator", "--sequence", "99", "--start", "--end")
    ids = [told["headers"]["x-request-id"] for told in (stream, step)]
    wait_until(lambda: set(ids) <= {record["request_id"] for record in demo.records()})
    capsys.readouterr()
    assert main(["log", "tail", "-n", "50", "--dir", str(demo.directory / "records")]) == 0
    lines = {line.rpartition("id=")[2]: line for line in capsys.readouterr().out.splitlines()}
    assert "  5 responses  " in lines[ids[0]]
    assert "  sequence 99 start+end  " in lines[ids[1]]
