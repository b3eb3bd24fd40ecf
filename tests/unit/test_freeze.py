"""What admission freezes: every default resolved, of each kind of training, and how its GPUs are laid out."""

from __future__ import annotations

import pytest

from halo_api.run_file import ContextParallel
from halo_api.run_status import FrozenLora
from halo_operator.plan.freeze import freeze
from halo_operator.plan.pods import Start, trainer_pods
from halo_operator.plan.split import group_for
from halo_operator.plan.topology import layout_of
from halo_operator.plan.world import BaseEntry, RunWorld
from halo_operator.recipes import RECIPES, digest_of
from tests.refusals import world_training_job as table
from tests.unit import builders as b


def test_lora_trl_has_every_default_resolved() -> None:
    lora = freeze(b.world()).lora
    assert lora is not None
    assert (lora.trainer, lora.method, lora.rank, lora.alpha, lora.learning_rate) == ("Halo", "sft", 16, 32.0, 2e-4)
    assert (lora.max_length, lora.micro_batch, lora.overlength, lora.beta) == (2048, 1, "refuse", None)
    assert lora.packing


def test_only_sft_with_halo_packs_and_may_be_told_not_to() -> None:
    for lora in ({"packing": False}, {"trainer": "TRL"}, {"method": "dpo", "trainer": "TRL"}):
        frozen = freeze(b.world(spec=b.spec(lora=lora))).lora
        assert frozen is not None
        assert not frozen.packing, lora


def test_a_run_that_was_frozen_before_there_was_packing_has_none() -> None:
    assert not FrozenLora.model_validate({"dataset": "chat", "trainer": "Halo"}).packing


def test_dpo_has_its_own_learning_rate_and_beta() -> None:
    lora = freeze(b.world(spec=b.spec(lora={"method": "dpo", "trainer": "TRL"}))).lora
    assert lora is not None
    assert (lora.trainer, lora.learning_rate, lora.beta) == ("TRL", 5e-6, 0.1)


def test_what_is_asked_is_what_is_frozen() -> None:
    asked = {
        "rank": 8,
        "alpha": 4,
        "learningRate": 1e-3,
        "schedule": "linear",
        "maxLength": 512,
        "targetModules": ["q_proj"],
    }
    lora = freeze(b.world(spec=b.spec(lora=asked))).lora
    assert lora is not None
    assert asked.items() <= lora.to_json().items()


def test_a_child_has_its_parents_rank_and_alpha() -> None:
    frozen = freeze(b.world(spec=table.CHILD, catalog=b.catalog(parent=b.parent(rank=4, alpha=2))))
    assert frozen.lora is not None
    assert frozen.parent is not None
    assert (frozen.lora.rank, frozen.lora.alpha) == (4, 2.0)
    assert (frozen.parent.name, frozen.parent.digest, frozen.parent.receipt) == ("support-v3", b.DIGEST, b.RECEIPT)
    assert frozen.parent.files == {"adapter_model.safetensors": b.DIGEST}


def test_halo_rlvr_freezes_its_recipe_and_its_rollout_gpus() -> None:
    frozen = freeze(b.of_tasks(b.rlvr_spec("sql_v2")))
    assert frozen.recipe is not None
    assert (frozen.recipe.name, frozen.recipe.digest) == ("sql_v2", RECIPES["sql_v2"].digest)
    assert digest_of(frozen.recipe.text.encode()) == frozen.recipe.digest
    assert frozen.rlvr is not None
    assert frozen.rlvr.rollout_gpus == 1
    assert frozen.lora is None


def test_halo_rft_freezes_what_was_asked() -> None:
    frozen = freeze(b.of_tasks(b.rft_spec()))
    assert frozen.recipe is not None
    assert frozen.rft is not None
    assert (frozen.recipe.name, frozen.rft.samples, frozen.rft.tasks) == ("sql_v3", 8, 1024)


@pytest.mark.parametrize(
    ("what", "world", "expected"),
    [
        ("one node", b.world(spec=b.spec(gpu={"type": "h100", "count": 4})), (1, 4, 4, None, None, [])),
        ("two nodes", b.world(spec=b.spec(gpu={"type": "h100", "count": 16}, batch=16)), (2, 8, 16, None, None, [])),
        ("long rows", table.rows(60_000, 8), (1, 8, 8, 2, 4, [])),
        ("long rows on two nodes", table.rows(200_000, 16), (2, 8, 16, 8, 2, [])),
        ("an online run", b.of_tasks(b.rlvr_spec()), (1, 1, 1, None, None, [1])),
        ("the Workspace's default", b.of_tasks(b.rlvr_spec(gpu=table.EIGHT), workspace=b.workspace(pipeline={"rolloutGpus": 3})), (1, 5, 5, None, None, [3])),
        ("the base's own GPUs", table.split(4, BaseEntry("smol", b.base(gpus=2))), (1, 2, 2, None, None, [2])),
        ("two servers", table.split(8, rolloutGpus=4, rolloutReplicas=2), (1, 4, 4, None, None, [2, 2])),
        ("one group", table.split(5, spec={"contextParallel": 4}), (1, 4, 4, 4, 1, [1])),
    ],
)  # fmt: skip
def test_gpus_are_laid_out(what: str, world: RunWorld, expected: tuple) -> None:
    found = layout_of(world)
    servers = [server.gpus for server in found.rollout]
    layout = (found.nodes, found.gpus_per_node, found.trainer_gpus, found.context_parallel, found.groups, servers)
    assert layout == expected, what


@pytest.mark.parametrize(
    ("asked", "world", "group"),
    [
        ("nothing", b.world(), None),
        ("auto, and no row needs it", b.world(spec=b.spec(contextParallel="auto")), 1),
        ("auto", table.rows(100_000, 16, batch=16), 4),
    ],
)
def test_the_run_file_says_how_many_ranks_share_which_rows(asked: str, world: RunWorld, group: int | None) -> None:
    layout = layout_of(world)
    pods = trainer_pods(world.meta, world.spec, freeze(world), layout, Start(attempt=1), world.environment)
    plans = [b.run_file(pod).train for pod in pods]
    assert len(plans) == layout.nodes
    expected = None if group is None else ContextParallel(group=group, whole_row=32_768)
    assert [plan.context_parallel for plan in plans if plan] == [expected] * layout.nodes, asked
    # Ranks count over nodes one after the other, so that consecutive ones share a node.
    assert group is None or layout.gpus_per_node % group == 0


def test_a_long_row_is_shared_by_as_few_gpus_as_hold_it() -> None:
    assert [group_for(n) for n in (1, 32_768, 32_769, 65_536, 65_537, 131_072, 262_144)] == [1, 1, 2, 2, 4, 4, 8]
    assert group_for(262_145) is None
