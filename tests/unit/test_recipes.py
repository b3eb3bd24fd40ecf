"""The frozen recipes: their files never change, and the objects that people read are kept equal to them."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from importlib.resources import files
from typing import cast

import pytest
import yaml

from halo_api import recipe_names
from halo_api.recipe_settings import RecipeSettings
from halo_operator.cluster import Cluster, Object, Unreachable
from halo_operator.recipe_objects import keep, object_of, repair
from halo_operator.recipes import LOCK, RECIPES, contents, digest_of

SETTINGS = {name: entry.spec for name, entry in RECIPES.items()}


def names(wanted: object) -> set[str]:
    return {name for name, spec in SETTINGS.items() if wanted(spec)}  # type: ignore[operator]


def test_a_released_recipe_never_changes() -> None:
    """A file that differs from its line here is another recipe: give it another name, and leave this one as it was."""
    locked = dict(
        reversed(line.split("  ")) for line in files("halo_operator.recipes").joinpath(LOCK).read_text().splitlines()
    )
    assert {f"{name}.yaml": digest_of(content) for name, content in contents().items()} == {
        name: f"sha256:{digest}" for name, digest in locked.items()
    }


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_file_says_everything_that_the_model_knows_and_nothing_else(name: str) -> None:
    written = yaml.safe_load(contents()[name])
    assert RecipeSettings.model_validate(written).to_json() == written


def test_the_names_by_property_are_those_of_the_files() -> None:
    assert set(recipe_names.RECIPES) | set(recipe_names.RETIRED) == RECIPES.keys()
    assert {name: spec.successor for name, spec in SETTINGS.items() if spec.retired} == recipe_names.RETIRED
    assert names(lambda s: s.env_revision == "required") == set(recipe_names.BRIDGED)
    assert names(lambda s: s.dataset == "refused") == set(recipe_names.BRIDGED)
    taking = set(recipe_names.RECIPES)
    assert names(lambda s: s.rollouts.min_replicas >= 2) & taking == set(recipe_names.ASYNC)
    assert names(lambda s: s.rollouts.updates_per_round == 2) & taking == set(recipe_names.REUSE2)
    assert names(lambda s: not s.judge_allowed) & taking == set(recipe_names.CODE)
    assert names(lambda s: not s.rollouts.reasoning_allowed) == set(recipe_names.NO_THINKING)
    assert names(lambda s: s.env_revision == "required" and "halo_rft" in s.bases) == {recipe_names.RFT_BRIDGED}


def test_a_successor_takes_new_jobs() -> None:
    assert set(recipe_names.RETIRED.values()) <= set(recipe_names.RECIPES)
    assert recipe_names.DEFAULT in recipe_names.RECIPES


def test_what_the_seed_says_of_single_recipes() -> None:
    s = SETTINGS
    assert s["sql_v3"].environment.skip_orphan_foreign_keys
    assert not s["sql_v2"].environment.skip_orphan_foreign_keys
    assert {n: s[n].objective.name for n in s if "dapo" in n or "cispo" in n or "gspo" in n} == {
        n: next(o for o in ("DAPO", "CISPO", "GSPO") if o.lower() in n) for n in s if "pso" in n or "po_" in n
    }
    assert names(lambda r: r.serving == "unmerged") == {"sql_v4_dapo_sync_lora"}
    assert (
        names(lambda r: r.routing_replay)
        == names(lambda r: r.moe_only)
        == {"sql_v4_dapo_sync_r3", "sql_v4_dapo_r3_122b"}
    )
    large = s["sql_v4_dapo_r3_122b"]
    assert (large.rollouts.context_tokens, large.rollouts.max_turns, large.rows.max_tokens) == (8192, 6, 4096)
    assert [s[f"bridged_v{n}"].rows.layout for n in range(1, 6)] == ["turn"] + ["trajectory"] * 4
    assert [s[f"bridged_v{n}"].rollouts.max_turns for n in range(1, 6)] == [32, 32, None, None, None]
    assert [s[f"bridged_v{n}"].rows.max_tokens for n in range(1, 6)] == [None, None, None, 49152, 32768]
    strict = s["bridged_v5"]
    assert (strict.reward.name, strict.reward.broken_check_penalty) == ("strict-pass", 0.5)
    assert (strict.rollouts.max_tokens_per_turn, strict.rollouts.send_reasoning_back) == (16384, True)


def stored() -> list[dict]:
    """The objects as the API server gives them back."""
    bodies = [deepcopy(object_of(entry)) for entry in RECIPES.values()]
    for body in bodies:
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": "7"}
    return bodies


def test_objects_that_are_right_are_not_written() -> None:
    todo = repair(stored(), RECIPES)
    assert (todo.delete, todo.create, todo.replace) == ((), (), ())


def test_a_missing_one_is_made() -> None:
    todo = repair([b for b in stored() if b["metadata"]["name"] != "sql-v3"], RECIPES)
    assert [body["spec"]["name"] for body in todo.create] == ["sql_v3"]
    assert (todo.delete, todo.replace) == ((), ())


def test_one_that_was_written_otherwise_is_made_anew_since_it_cannot_be_changed() -> None:
    there = stored()
    next(b for b in there if b["metadata"]["name"] == "sql-v3")["spec"]["rollouts"]["groupSize"] = 4
    todo = repair(there, RECIPES)
    assert [b["metadata"]["uid"] for b in todo.delete] == ["sql-v3"]
    assert [b["spec"]["rollouts"]["groupSize"] for b in todo.create] == [8]


def test_one_that_was_retired_since_is_changed_in_place() -> None:
    there = stored()
    old = next(b for b in there if b["metadata"]["name"] == "sql-v1")["spec"]
    old["retired"] = False
    del old["successor"]
    todo = repair(there, RECIPES)
    assert [(b["metadata"]["resourceVersion"], b["spec"]["successor"]) for b in todo.replace] == [("7", "sql_v3")]
    assert (todo.delete, todo.create) == ((), ())


def test_one_that_this_operator_does_not_know_is_left_alone() -> None:
    newer = deepcopy(stored()[0])
    newer["metadata"]["name"] = "sql-v9"
    assert repair([*stored(), newer], RECIPES).delete == ()


class JustInstalled:
    """An API server that made the CRD moments ago, and so refuses the first requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.made: list[Object] = []

    async def list_all(self, kind: str) -> list[Object]:
        if self.refusals:
            self.refusals -= 1
            raise Unreachable(429, "storage is (re)initializing", "TooManyRequests")
        return self.made

    async def create(self, body: Object) -> None:
        self.made.append(body)


@pytest.mark.parametrize(("refusals", "found"), [(0, len(RECIPES)), (2, len(RECIPES)), (3, 0)])
def test_recipes_are_there_soon_after_an_installation(refusals: int, found: int) -> None:
    """Not only at the next look, ten minutes later."""
    server = JustInstalled(refusals)
    asyncio.run(keep(cast(Cluster, server), RECIPES, pauses=(0, 0)))
    assert len(server.made) == found
