"""Recipe objects are made and kept equal to the operator's own recipes, and cost nothing once they are."""

from __future__ import annotations

from typing import Any

import pytest

from halo_operator.recipes import RECIPES
from tests.api.audit import AuditLog
from tests.api.kube import OPERATOR, Kubectl, eventually
from tests.api.operator_process import replica
from tests.api.stage import GROUP, Stage

pytestmark = pytest.mark.api


def recipes(stage: Stage) -> dict[str, Any]:
    return {item["spec"]["name"]: item for item in stage.api.items(f"{GROUP}/recipes")}


def test_recipe_objects_are_made_and_kept(stage: Stage, installed_chart: Kubectl, alone: None) -> None:
    """Its own operators: the objects are looked at when one starts, and with every relist."""

    def are_right() -> bool:
        return {n: r["spec"] for n, r in recipes(stage).items()} == {n: r.spec.to_json() for n, r in RECIPES.items()}

    with replica(installed_chart) as first:
        first.wait_until_leading()
        eventually(are_right, "every recipe has its object")
    stage.api.delete(f"{GROUP}/recipes/sql-v2")
    stage.api.delete(f"{GROUP}/recipes/sql-v3")
    forged = RECIPES["sql_v3"].spec.to_json() | {"summary": "Another one."}
    stage.api.post(
        f"{GROUP}/recipes",
        {"apiVersion": "halo.training/v1alpha1", "kind": "Recipe", "metadata": {"name": "sql-v3"}, "spec": forged},
    )
    with replica(installed_chart) as second:
        second.wait_until_leading()
        eventually(are_right, "what was deleted and what was forged is right again")
    uids = {name: recipe["metadata"]["uid"] for name, recipe in recipes(stage).items()}
    log = AuditLog(installed_chart.kubeconfig)
    with replica(installed_chart) as third:
        third.wait_until_leading()
        eventually(
            lambda: any(e.user == OPERATOR and e.resource == "recipes" for e in log.entries()), "it has looked", 60
        )
    assert [str(e) for e in log.entries() if e.user == OPERATOR and e.resource == "recipes" and e.is_write] == []
    assert {name: recipe["metadata"]["uid"] for name, recipe in recipes(stage).items()} == uids
