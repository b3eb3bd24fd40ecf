"""Weights & Biases, where a Workspace names a project: frozen with the run, told to its first trainer pod, the key from a Secret."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from halo_api.run_file import RUN_ANNOTATION, RunFile
from halo_api.tracking import Wandb
from halo_operator.plan.freeze import freeze
from halo_operator.plan.pods import Start, trainer_pods
from halo_operator.plan.topology import layout_of
from halo_operator.plan.world import Object
from tests.unit import builders as b

NAMED = {"project": "support", "secretName": "keys"}
UNSET: dict[str, Any] = {}


def pods(tracking: dict[str, Any], gpus: int = 1, attempt: int = 1) -> list[Object]:
    asked = b.spec(gpu={"type": "h100", "count": gpus}) if gpus > 1 else b.spec()
    world = b.world(spec=asked, catalog=b.catalog(workspace=b.workspace(**tracking)))
    frozen = freeze(world)
    layout = layout_of(world)
    return list(trainer_pods(world.meta, world.spec, frozen, layout, Start(attempt), world.environment))


def told(pod: Object) -> tuple[Any, list[Object]]:
    """Return what the run file says of W&B, and the variables beside those of every pod."""
    run_file = RunFile.model_validate_json(pod["metadata"]["annotations"][RUN_ANNOTATION])
    container = pod["spec"]["containers"][0]
    return run_file.wandb, [each for each in container["env"] if "WANDB" in each["name"]]


def test_nothing_is_told_where_the_workspace_says_nothing() -> None:
    (pod,) = pods(UNSET)
    assert told(pod) == (None, [])
    assert "wandb" not in pod["metadata"]["annotations"][RUN_ANNOTATION]


def test_all_attempts_are_one_run_there_whose_key_the_operator_never_sees() -> None:
    tracking = {"tracking": {"wandb": NAMED | {"entity": "team", "baseUrl": "https://wandb.example.com"}}}
    (first,), (second,) = (pods(tracking, attempt=attempt) for attempt in (1, 2))
    assert told(first) == told(second)
    plan, variables = told(first)
    assert plan.to_json() == {
        "project": "support",
        "entity": "team",
        "baseUrl": "https://wandb.example.com",
        "id": "uid-1",
        "name": "team/run",
        "secret": "keys, key WANDB_API_KEY",
    }
    # Optional: no run waits for a Secret that is missing.
    reference = {"name": "keys", "key": "WANDB_API_KEY", "optional": True}
    assert variables == [{"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": reference}}]


def test_only_the_first_node_is_told() -> None:
    first, *others = pods({"tracking": {"wandb": NAMED}}, gpus=16)
    assert told(first)[0].project == "support"
    assert others
    assert all(told(pod) == (None, []) for pod in others)


@pytest.mark.parametrize(
    "wrong",
    [{"project": "a/b"}, {"project": ""}, {"entity": "a b"}, {"baseUrl": "wandb.example.com"}, {"secretName": "A"}, {"secretKey": "a/b"}],
)  # fmt: skip
def test_what_is_no_name_or_address_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Wandb.model_validate(NAMED | wrong)
