"""kubectl halo import: every known key of the two platforms' bodies finds its field, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from halo_api.grpo_run import GrpoRunSpec
from halo_api.training_job import TrainingJobSpec
from halo_api.training_methods import LoraSpec, RftSpec, RlvrSpec
from halo_cli.__main__ import main
from halo_cli.import_fields import SNAKE_CASE, model_in
from halo_cli.importer import PART_OF, RFT_LORA, UNKNOWN, imported, read
from halo_cli.kubectl import CliError, Object

RLVR = {
    "name": "sales-rl", "base": "halo_rlvr", "base_model": "Qwen3.6-35B-A3B", "gpu": "H100", "gpu_count": 8, "max_steps": 200, "batch": 64,
    "save_steps": 20, "seed": 1, "parent": "sales-v3", "budget_h100_hours": 12.5, "mode": "reasoning", "context_parallel": 2,
    "recipe": "sql_v4_dapo_async1", "rollout_gpus": 4, "rollout_replicas": 2, "dataset": "sales-questions",
    "warmup": {"env_revision": "echo-v1", "steps": 10, "why": "start easy"}, "judge": {"criterion": "helpful", "weight": 0.5},
    "notify": ["ops@team.example"], "trainable": "lora",
}  # fmt: skip
GRPO = {
    "model": "Qwen/Qwen3-8B", "qlora": False, "reward": {"mode": "compositional", "criterionIds": ["helpful"], "assertions": [{"type": "exec", "command": "true", "timeoutSec": 5, "shell": "sh"}]},
    "promptCount": 200, "gpuHourBudget": 12.5, "rewardBudgetUsd": 25, "platformGpu": {"gpuType": "H100", "region": "eu-west", "gpuCount": 2},
    "environment": {"proxy_base_url": "http://tools:8080/v1", "max_steps": 20, "simulate": True},
    "tasksInline": [{"goal": ["Book", {"a_b": 1}], "verifier": [{"command": "check", "timeout_sec": 9}]}],
    "prompt_count": 7, "webhookUrl": "https://hooks.example",
}  # fmt: skip


def test_a_job_becomes_a_training_job() -> None:
    found = imported(RLVR, None, "team-a", "body.json")
    unknown = json.loads(found.body["metadata"]["annotations"].pop(UNKNOWN))
    assert unknown == {"notify": ["ops@team.example"], "warmup": {"why": "start easy"}}
    assert found.body == {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "sales-rl", "namespace": "team-a", "annotations": {}},
        "spec": {
            "base": "halo_rlvr",
            "baseModel": "qwen3.6-35b-a3b",
            "gpu": {"type": "h100", "count": 8},
            "steps": 200,
            "batch": 64,
            "saveSteps": 20,
            "seed": 1,
            "parent": {"adapter": "sales-v3"},
            "trainable": "lora",
            "budget": {"h100Hours": 12.5},
            "mode": "reasoning",
            "contextParallel": 2,
            "rlvr": {
                "recipe": "sql_v4_dapo_async1",
                "rolloutGpus": 4,
                "rolloutReplicas": 2,
                "dataset": "sales-questions",
                "warmup": {"envRevision": "echo-v1", "steps": 10},
                "judge": {"criterion": "helpful", "weight": 0.5},
            },
        },
    }
    assert TrainingJobSpec.model_validate(found.body["spec"]).rlvr


def test_a_grpo_body_becomes_a_grpo_run() -> None:
    found = imported(GRPO, "support", None, "body.json").body
    assert json.loads(found["metadata"]["annotations"][UNKNOWN]) == {
        "prompt_count": 7,
        "webhookUrl": "https://hooks.example",
        "reward": {"assertions": {"0": {"shell": "sh"}}},
    }
    spec = found["spec"]
    assert (spec["model"], spec["platformGpu"]["gpuType"], spec["promptCount"]) == ("qwen3-8b", "h100", 200)
    assert spec["environment"] == {"proxyBaseUrl": "http://tools:8080/v1", "maxSteps": 20, "simulate": True}
    # Free values stay as they are, whatever their keys look like.
    assert spec["tasksInline"] == [{"goal": ["Book", {"a_b": 1}], "verifier": [{"command": "check", "timeoutSec": 9}]}]
    assert GrpoRunSpec.model_validate(spec).environment


def test_rejection_sampling_has_its_lora_settings_flat() -> None:
    body = {
        "base": "halo_rft",
        "base_model": "b",
        "gpu": "h100",
        "steps": 9,
        "batch": 8,
        "rank": 32,
        "samples": 4,
        "rft": {"tasks": 10},
    }
    assert imported(body, "x", None, "b.json").body["spec"] == {
        "base": "halo_rft", "baseModel": "b", "steps": 9, "batch": 8, "lora": {"rank": 32}, "rft": {"samples": 4, "tasks": 10}, "gpu": {"type": "h100"},
    }  # fmt: skip


def test_null_is_what_is_unset() -> None:
    found = imported({"base": "lora_trl", "parent": None, "dataset": "d", "new": None}, "x", None, "b.json").body
    assert found["spec"] == {"base": "lora_trl", "lora": {"dataset": "d"}}
    assert json.loads(found["metadata"]["annotations"][UNKNOWN]) == {"new": None}


BAD: list[tuple[str, Any, str]] = [
    ("no kind of body", {"steps": 4}, "found neither base (lora_trl, halo_rlvr, halo_rft), which a job has, nor reward"),
    ("no such base", {"base": "lora"}, "base: found 'lora'; use one of lora_trl, halo_rlvr, halo_rft"),
    ("two numbers of steps", {"base": "lora_trl", "steps": 4, "max_steps": 5}, "max_steps: found 5 after 4 for steps; keep one of them"),
    ("a part that is no object", {"base": "lora_trl", "lora": "x"}, "lora: found a string; it must be an object"),
    ("a GPU of another shape", {"base": "lora_trl", "gpu": {"kind": "H100"}}, "gpu: found {'kind': 'H100'}; give a type, or an object"),
    ("a model no catalog can have", {"base": "lora_trl", "base_model": "Qwen 3!"}, "base_model: found 'Qwen 3!', which can't name"),
    ("a heap of unknown fields", {"base": "lora_trl", "log": "x" * 300_000}, "more than the 200000 that fit an annotation"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_cannot_be_mapped_is_one_sentence(body: Object, words: str) -> None:
    with pytest.raises(CliError) as caught:
        imported(body, "x", None, "b.json")
    assert str(caught.value).startswith("b.json: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "found no JSON"),
        ("[]", "found an array; give one JSON object"),
        ('{"base": "lora_trl", "base": "halo_rft"}', "found key 'base' twice"),
        ('{"alpha": NaN}', "found NaN, which is no number of JSON"),
        ('{"a":' * 100_000, "found no JSON"),
        ('{"alpha": 1e999}', "found 1e999, which no number can hold"),
        ('{"seed": ' + "9" * 5000 + "}", "found no JSON"),
        (r'{"note": "\ud800"}', "found no JSON"),
    ],
)
def test_what_is_no_body_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(CliError) as caught:
        read(text, "b.json")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given_name", "body_name", "file", "name"),
    [
        ("a.b-1", "x", "f.json", "a.b-1"), (None, "my-run", "f.json", "my-run"), (None, "My Run!", "f.json", "my-run"), (None, "v1..2 .x", "f.json", "v1.2.x"),
        (None, None, "dir/Sales_RL.json", "sales-rl"),
    ],
)  # fmt: skip
def test_the_name_is_as_given_else_the_bodys_else_the_files(
    given_name: str | None, body_name: str | None, file: str, name: str
) -> None:
    body = {"base": "lora_trl"} | ({"name": body_name} if body_name else {})
    found = imported(body, given_name, None, file)
    assert found.body["metadata"]["name"] == name
    kept = json.loads(found.body["metadata"].get("annotations", {}).get(UNKNOWN, "{}"))
    assert kept == ({"name": body_name} if body_name and body_name != name else {})


def test_the_command_prints_yaml_and_notes_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "platform.json"
    file.write_text(json.dumps(RLVR))
    assert main(["import", str(file), "-n", "team-a", "--name", "one"]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["metadata"]["name"] == "one"
    assert err.splitlines() == [
        "gpu H100 is written h100, as the catalog's objects are",
        "base_model Qwen3.6-35B-A3B is written qwen3.6-35b-a3b, as the catalog's objects are",
        f"kept in the annotation {UNKNOWN}, where nothing reads it: name, warmup, notify",
    ]
    assert main(["import", str(tmp_path / "none.json")]) == 1
    assert "can't be read" in capsys.readouterr().err


# --- every known key comes back under its JSON name

scalars = st.one_of(
    st.integers(-(2**53), 2**53), st.text(max_size=8), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6)  # fmt: skip
Pair = tuple[Any, Any]


@st.composite
def pairs(draw: st.DrawFn, model: type[BaseModel], snake: bool, leave_out: tuple[str, ...] = ()) -> Pair:
    """A body of a model as the platform writes it, and the spec that it means."""
    body: Object = {}
    spec: Object = {}
    snake = snake or model in SNAKE_CASE
    for attribute, info in model.model_fields.items():
        if attribute in leave_out or not draw(st.booleans()):
            continue
        alias = info.alias or attribute
        inner = model_in(info.annotation)
        if inner is None:
            value = draw(scalars)
            there: Pair = (value, value)
        elif "list" in str(info.annotation):
            several = draw(st.lists(pairs(inner, snake), max_size=2))
            there = ([one for one, _ in several], [other for _, other in several])
        else:
            there = draw(pairs(inner, snake))
        body[attribute if snake and draw(st.booleans()) else alias], spec[alias] = there
    return body, spec


PARTS = {"lora_trl": LoraSpec, "halo_rlvr": RlvrSpec, "halo_rft": RftSpec}
# Written in a way of their own: tested above.
APART = ("base", "base_model", "gpu", "parent", "budget", "lora", "rlvr", "rft")


@given(st.data(), st.sampled_from(sorted(PARTS)), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_known_key_of_a_job_comes_back(data: st.DataObject, base: str, nested: bool) -> None:
    common, common_spec = data.draw(pairs(TrainingJobSpec, True, APART))
    own, own_spec = data.draw(pairs(PARTS[base], True))
    part = PART_OF[base]
    body = {"base": base, **common, **({part: own} if nested else own)}
    found = imported(body, "x", None, "b.json").body
    assert found["spec"] == {"base": base, **common_spec, part: own_spec}
    assert "annotations" not in found["metadata"]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_known_key_of_a_grpo_run_comes_back(data: st.DataObject) -> None:
    body, spec = data.draw(pairs(GrpoRunSpec, False, ("model", "suspend", "platform_gpu", "auto_adopt")))
    found = imported(body | {"promptCount": 10}, "x", None, "b.json").body
    assert found["spec"] == spec | {"promptCount": 10}
    assert "annotations" not in found["metadata"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=12), json_values, max_size=5), st.sampled_from(["lora_trl", "grpo"])
)
@settings(max_examples=200, deadline=None)
def test_no_unknown_field_is_lost(fields: Object, kind: str) -> None:
    fields = {f"x-{key}": value for key, value in fields.items()}
    start = {"promptCount": 10} if kind == "grpo" else {"base": kind}
    found = imported(start | fields, "x", None, "b.json").body
    assert json.loads(found["metadata"].get("annotations", {}).get(UNKNOWN, "{}")) == fields
    assert yaml.safe_load(yaml.safe_dump(found)) == found


def test_rft_takes_of_lora_what_the_api_takes() -> None:
    assert set(RFT_LORA) <= set(LoraSpec.model_fields)
