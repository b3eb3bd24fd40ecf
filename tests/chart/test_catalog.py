"""The chart's own base models: those of examples/, only where their kind is known, on whichever claim the weights lie."""

from __future__ import annotations

from typing import Any

import yaml

from halo_api.catalog import BaseModelSpec
from tests.chart.rendering import CHART, ROOT, of_kind, render

KNOWN = "--api-versions=halo.training/v1alpha1/BaseModel"
ON: dict[str, Any] = {"catalog.install": True}


def examples() -> dict[str, Any]:
    files = (ROOT / "examples" / name for name in ("base-models.yaml", "catalog.yaml"))
    return of_kind([body for file in files for body in yaml.safe_load_all(file.read_text())], "BaseModel")


def test_they_are_those_of_the_examples() -> None:
    made = of_kind(render(ON, KNOWN), "BaseModel")
    assert {name: body["spec"] for name, body in made.items()} == {n: b["spec"] for n, b in examples().items()}
    assert {"qwen3-4b", "qwen3-8b", "qwen3.6-35b-a3b", "qwen3.5-122b-a10b", "smollm2-135m"} == made.keys()
    for body in made.values():
        BaseModelSpec.model_validate(body["spec"])
        assert body["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_two_gpus_serve_the_35b_and_one_recipe_trains_the_122b() -> None:
    specs = {name: body["spec"] for name, body in examples().items()}
    assert (specs["qwen3.6-35b-a3b"]["gpus"], specs["qwen3.6-35b-a3b"]["moe"]) == (2, True)
    assert specs["qwen3.5-122b-a10b"]["recipes"] == ["sql_v4_dapo_r3_122b"]


def test_their_weights_may_lie_on_another_claim() -> None:
    made = of_kind(render(ON | {"catalog.modelsClaim": "weights"}, KNOWN), "BaseModel")
    assert {body["spec"]["source"].split("/")[2] for body in made.values()} == {"weights"}


def test_a_first_install_and_whoever_wants_none_has_none() -> None:
    assert of_kind(render(ON), "BaseModel") == of_kind(render({}, KNOWN), "BaseModel") == {}


def test_the_chart_s_copy_is_that_of_the_examples() -> None:
    copy = CHART / "files" / "catalog"
    assert (copy / "base-models.yaml").read_text() == (ROOT / "examples" / "base-models.yaml").read_text()
    small = (ROOT / "examples" / "catalog.yaml").read_text().split("---\n")[0]
    assert (copy / "small.yaml").read_text() == small, "run hack/sync-chart"
