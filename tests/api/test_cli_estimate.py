"""kubectl halo estimate, explain-refusal and import, as processes against a real API server with the webhook and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.client import Api
from tests.api.kube import ROOT, Kubectl
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.stage import Stage
from tests.api.webhook import Served, served

pytestmark = pytest.mark.api


class Halo:
    """The command as a user types it, in the stage's namespace."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage, self._folder = stage, folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kubectl = self._stage.kubectl
        environment = os.environ | {
            "PATH": f"{kubectl.tools}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubectl.kubeconfig),
            "PYTHONPATH": str(ROOT / "operator"),
        }
        command = [sys.executable, "-m", "halo_cli", *arguments, "-n", kubectl.namespace]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def file(self, *bodies: dict[str, Any]) -> str:
        path = self._folder / "run.yaml"
        path.write_text(yaml.safe_dump_all(bodies))
        return str(path)


@pytest.fixture
def halo(stage: Stage, tmp_path: Path) -> Halo:
    return Halo(stage, tmp_path)


@pytest.fixture(scope="module")
def served_here(installed_chart: Kubectl, api: Api, alone: None) -> Iterator[Served]:
    with served(installed_chart, api) as found:
        yield found


@pytest.fixture
def webhook(stage: Stage, served_here: Served) -> OperatorProcess:
    served_here.join(stage)
    return served_here.operator


def within(asked: Any, stored: Any) -> bool:
    """Whether all that was asked for is stored; the API server adds defaults, at every depth."""
    if isinstance(asked, dict):
        return all(key in stored and within(value, stored[key]) for key, value in asked.items())
    if isinstance(asked, list):
        return len(asked) == len(stored) and all(map(within, asked, stored))
    return bool(asked == stored)


def rlvr(stage: Stage, **changes: Any) -> dict[str, Any]:
    body = training_job(stage.base, "rl", base="halo_rlvr", gpu={"type": stage.base, "count": 2}, batch=8)
    del body["spec"]["lora"]
    body["spec"] |= {"rlvr": {"dataset": "tasks"}} | changes
    return body


def test_a_quote_is_the_webhook_s_and_makes_nothing(stage: Stage, webhook: OperatorProcess, halo: Halo) -> None:
    stage.inspected_dataset()
    stage.api.patch(f"/apis/halo.training/v1alpha1/gpuclasses/{stage.base}", {"spec": {"prices": [{"region": "eu", "usdPerHour": 2.5}]}})  # fmt: skip
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    said = halo("estimate", "-f", halo.file(config, training_job(stage.base)))
    assert said.returncode == 0, said.stderr + said.stdout
    head, quote, detail = said.stdout.splitlines()
    assert head == "TrainingJob run"
    assert "H100-hours" in quote
    assert "USD" in quote
    assert detail.startswith("  first checkpoint after ")
    assert stage.api.items(stage.path("trainingjobs")) == []
    # The run that is then made keeps the very quote.
    stage.create(training_job(stage.base))
    stage.pod()
    estimate = stage.status()["estimate"]
    assert quote.strip().startswith(f"{estimate['h100Hours']['centre']} H100-hours")
    notes = lambda: [e["note"] for e in stage.events() if e["reason"] == "Started"]  # noqa: E731
    stage.until(notes, "the event that it started is there")
    (started,) = notes()
    assert started.endswith(f"; quote: {quote.strip()}")
    again = halo("estimate", "-f", halo.file(training_job(stage.base)))
    assert "a run of this name exists already" in again.stdout


def test_a_refusal_is_explained_before_the_run_is_made_and_after(
    stage: Stage, webhook: OperatorProcess, halo: Halo
) -> None:
    bad = halo.file(training_job(stage.base, gpu={"type": stage.base, "count": 9}, batch=9))
    said = halo("explain-refusal", "-f", bad)
    assert said.returncode == 1
    assert said.stdout.startswith("TrainingJob run: would be refused\n  spec.gpu.count: found 9")
    assert "  Unfit: " in said.stdout
    assert "  what to do: " in said.stdout
    quote = halo("estimate", "-f", bad)
    assert quote.returncode == 1
    assert "refused (Unfit): spec.gpu.count: found 9" in quote.stdout
    schema = halo("explain-refusal", "-f", halo.file(training_job(stage.base, steps=0)))
    assert "spec.steps" in schema.stdout
    assert "schema" in schema.stdout
    waits = halo("explain-refusal", "-f", halo.file(training_job(stage.base)))
    assert (waits.returncode, waits.stdout.splitlines()[0]) == (0, "TrainingJob run: would wait")
    stage.create(training_job(stage.base))
    stage.until_state("Waiting")
    there = halo("explain-refusal", "tj/run")
    assert there.returncode == 0
    assert there.stdout.startswith("TrainingJob run: Waiting\n  spec.lora.dataset: found 'chat'")
    assert "DatasetPending: waits: " in there.stdout


def test_a_run_that_would_wait_is_quoted_where_its_size_is_known(
    stage: Stage, webhook: OperatorProcess, halo: Halo
) -> None:
    offers = {"spec": {"offers": ["lora_trl", "halo_rlvr"]}}
    stage.api.patch(f"/apis/halo.training/v1alpha1/basemodels/{stage.base}", offers)
    said = halo("estimate", "-f", halo.file(rlvr(stage)))
    assert said.returncode == 0, said.stderr
    assert "H100-hours" in said.stdout.splitlines()[1]
    assert "waits: spec.rlvr.dataset: found 'tasks'" in said.stdout


def test_without_the_webhook_there_is_no_quote_and_it_says_so(stage: Stage, halo: Halo) -> None:
    said = halo("estimate", "-f", halo.file(training_job(stage.base)))
    assert said.returncode == 1
    assert "  no quote: Halo's webhook did not answer; the chart's value webhook.enabled" in said.stdout


def test_what_is_asked_wrongly_is_one_sentence(stage: Stage, halo: Halo) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    for arguments, words in (
        (("estimate", "-f", halo.file(config)), "found ConfigMap; name a file with a TrainingJob or a GrpoRun"),
        (("estimate", "-f", "/nowhere.yaml"), "does not exist"),
        (("explain-refusal",), "takes either KIND/NAME"),
        (("explain-refusal", "pod/x"), "name an object as KIND/NAME"),
        (("explain-refusal", "tj/none"), "there is no TrainingJob none in namespace "),
    ):
        said = halo(*arguments)
        assert said.returncode == 1, arguments
        assert said.stderr.startswith("kubectl halo: "), said.stderr
        assert words in said.stderr
        assert len(said.stderr.splitlines()) == 1


def test_imported_bodies_are_taken_by_the_api_server(stage: Stage, halo: Halo, tmp_path: Path) -> None:
    job = {
        "base": "lora_trl", "base_model": stage.base, "gpu": stage.base, "gpu_count": 1, "steps": 20, "batch": 4, "save_steps": 5,
        "dataset": "chat", "rank": 8, "learning_rate": 1e-05, "notify": "ops",
    }  # fmt: skip
    grpo = {
        "model": "Qwen/Qwen3-8B", "reward": {"mode": "single", "criterionId": "solved"}, "promptCount": 20, "gpuHourBudget": 2.5, "rewardBudgetUsd": 1,
        "environment": {"proxy_base_url": "http://tools.team.svc:8080/v1", "max_steps": 8}, "tasksInline": [{"goal": ["go"], "verifier": [{"command": "true", "timeout_sec": 5}]}] * 30,
    }  # fmt: skip
    for name, body in (("job", job), ("grpo", grpo)):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(body))
        made = halo("import", str(file))
        assert made.returncode == 0, made.stderr
        taken = stage.kubectl.run(
            "create", "--validate=strict", "-f", "-", "-o", "json", stdin=yaml.safe_load(made.stdout)
        )
        assert taken.returncode == 0, taken.stderr
        spec = yaml.safe_load(made.stdout)["spec"]
        assert within(spec, json.loads(taken.stdout)["spec"])
        assert json.loads(taken.stdout)["metadata"]["namespace"] == stage.namespace
    assert json.loads(stage.run("job")["metadata"]["annotations"]["halo.training/unknown-fields"]) == {"notify": "ops"}
