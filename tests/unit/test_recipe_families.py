"""Each recipe against the one that the reference says it is made of: it differs in what the reference says, and in nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from halo_api import recipe_names
from halo_operator.recipes import RECIPES

OBJECTIVE = {"objective"}
CONTRACT = {"environment"}

# (what it is made of, the recipe, the settings or whole sections in which they differ)
MADE_OF = [
    ("sql_v2", "sql_v3", {"environment.version", "environment.skipOrphanForeignKeys"}),
    ("sql_v3", "support_v1", CONTRACT),
    ("sql_v3", "structured_v1", CONTRACT),
    ("sql_v3", "graded_v2", CONTRACT),
    ("structured_v1", "structured_v2", {"environment.version", "environment.extraction"}),
    ("sql_v3", "harness_v1", CONTRACT),
    # On the same environment, rewards and rows; the recipe decides how it is trained.
    ("sql_v3", "sql_v4_dapo_sync", OBJECTIVE | {"rollouts.groupSize", "lora.warmupSteps"}),
    ("sql_v4_dapo_sync", "sql_v4_dapo_async1", {"rollouts.mode", "rollouts.minReplicas", "objective.oldLogProbs", "objective.importanceCap"}),
    ("sql_v4_dapo_sync", "sql_v4_cispo_reuse2", OBJECTIVE | {"rollouts.updatesPerRound"}),
    ("graded_v2", "graded_v3_gspo_reuse2", OBJECTIVE | {"rollouts.updatesPerRound"}),
    ("sql_v4_dapo_sync", "sql_v4_dapo_sync_r3", {"routingReplay", "moeOnly"}),
    ("sql_v4_dapo_sync", "sql_v4_dapo_sync_lora", {"serving"}),
    ("sql_v4_dapo_sync_r3", "sql_v4_dapo_r3_122b", {"rollouts.contextTokens", "rollouts.thinking", "rollouts.reasoningAllowed", "rollouts.maxTurns", "rows.maxTokens"}),
    ("sql_v3", "code_contests_v4", CONTRACT | {"judgeAllowed", "rollouts.maxTokensPerTurn"}),
    ("bridged_v1", "bridged_v2", {"rows.layout", "bases"}),
    ("bridged_v2", "bridged_v3", {"rollouts.maxTurns"}),
    ("bridged_v3", "bridged_v4", {"rows.maxTokens"}),
    ("bridged_v4", "bridged_v5", {"reward", "rollouts.sendReasoningBack", "rollouts.maxTokensPerTurn", "rows.maxTokens"}),
]  # fmt: skip
# The roots: all that they are is in their own files.
ROOTS = {"sql_v2", "bridged_v1"}
WORDS = ("name", "summary", "digest")


def leaves(settings: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


@pytest.mark.parametrize(("of", "name", "differs"), MADE_OF, ids=[name for _, name, _ in MADE_OF])
def test_it_differs_from_what_it_is_made_of_in_what_the_reference_says(of: str, name: str, differs: set[str]) -> None:
    old, new = (dict(leaves(RECIPES[recipe].spec.to_json())) for recipe in (of, name))
    found = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)} - set(WORDS)
    beyond = {path for path in found if path not in differs and path.split(".")[0] not in differs}
    unsaid = {path for path in differs if not any(f == path or f.startswith(f"{path}.") for f in found)}
    assert (beyond, unsaid) == (set(), set())


def test_every_recipe_that_takes_jobs_is_here() -> None:
    assert {name for _, name, _ in MADE_OF} | ROOTS == set(recipe_names.RECIPES)


def test_a_chain_of_rft_and_rlvr_has_the_same_rank_and_alpha() -> None:
    """An RLVR run can continue what RFT has made with its defaults, 16 and 32."""
    assert {(e.spec.lora.rank, e.spec.lora.alpha) for e in RECIPES.values()} == {(16, 32)}
    assert {e.spec.lora.target_modules for e in RECIPES.values()} == {"all-linear"}
