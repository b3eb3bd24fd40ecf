"""The pods of a halo_rlvr run and what each is told: who trains, who serves, on how many GPUs, and where everybody is."""

from __future__ import annotations

import pytest

from halo_api.rollouts import GUARD_PORT, LIVE_PATH, READY_PATH, Servers
from halo_api.run_file import ContextParallel, RunFile
from halo_operator.plan.adapter import adapter_spec
from halo_operator.plan.rollout_pods import thinking_of
from halo_operator.plan.rollouts import servers_of
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import Object, RunWorld
from halo_operator.recipes import RECIPES
from tests.unit import builders as b


def made(world: RunWorld) -> tuple[list[Object], list[Object], Object]:
    """The trainers' and the servers' pods of the first attempt, and their Service."""
    plan = plan_run(world, b.NOW)
    assert plan.status
    roles: dict[str, list[Object]] = {"trainer": [], "rollout": []}
    for child in plan.create:
        roles[child["metadata"]["labels"]["halo.training/role"]].append(child)
    (service,) = plan.first
    return roles["trainer"], roles["rollout"], service


def gpus_of(child: Object) -> str:
    return str(child["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


@pytest.mark.parametrize(
    ("what", "world", "trainers", "servers"),
    [
        ("one and one", b.online(), ["1"], ["1"]),
        ("the last three of five serve, on one each", b.online(2, 3), ["2"], ["1", "1", "1"]),
        ("a server is tensor parallel inside", b.online(4, 2, 2), ["4"], ["2", "2"]),
        ("trainers of two nodes", b.online(16, 1), ["8", "8"], ["1"]),
        ("one group, on one node", b.online(4, 1, contextParallel=4), ["4"], ["1"]),
    ],
)
def test_gpus_are_split_and_all_pods_of_an_attempt_are_made_together(
    what: str, world: RunWorld, trainers: list[str], servers: list[str]
) -> None:
    train, serve, _ = made(world)
    assert ([gpus_of(pod) for pod in train], [gpus_of(pod) for pod in serve]) == (trainers, servers), what
    assert [b.run_file(pod).rollout.gpus for pod in serve] == [int(gpus) for gpus in servers]


def test_a_server_is_found_by_its_attempt_and_incarnation_before_it_is_ready() -> None:
    (trainer,), servers, service = made(b.online(1, 2))
    told = b.run_file(trainer).servers
    where = [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.team.svc" for pod in servers]
    assert [one.host for one in told] == where
    assert [host.split(".")[0] for host in where] == ["a1-s0-i1", "a1-s1-i1"]
    assert service["metadata"]["name"] == servers[0]["spec"]["subdomain"]
    assert service["spec"]["publishNotReadyAddresses"]
    selects = service["spec"]["selector"].items()
    assert all(selects <= pod["metadata"]["labels"].items() for pod in (trainer, *servers))


def test_a_server_s_pod_lives_by_its_guard_s_word() -> None:
    (pod,) = made(b.online())[1]
    container = pod["spec"]["containers"][0]
    assert container["image"] == "rollout:1"
    asked = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    ready, live = {"path": READY_PATH, "port": GUARD_PORT}, {"path": LIVE_PATH, "port": GUARD_PORT}
    assert asked == {"livenessProbe": live, "readinessProbe": ready, "startupProbe": live}
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounts["/volumes/halo-artifacts"], "policies are only read"
    # Gone with room to spare within the minute that a trainer's end leaves it.
    assert pod["spec"]["terminationGracePeriodSeconds"] <= 30


def test_its_run_file_says_what_to_serve() -> None:
    (pod,) = made(b.online(1, 1, 2, recipe="sql_v4_dapo_sync_lora"))[1]
    file = b.run_file(pod)
    assert file.rollout
    assert (file.role, file.train, file.rlvr) == ("rollout", None, None)
    plan = file.rollout
    assert (plan.server, plan.incarnation, plan.gpus, plan.rank, plan.serving) == (0, 1, 2, 16, "unmerged")
    assert plan.context_length == 2048, "the base's, where the recipe has none"


def trainer_file(world: RunWorld) -> RunFile:
    return b.run_file(made(world)[0][0])


def test_a_trainer_is_told_the_whole_recipe_and_every_default() -> None:
    file = trainer_file(b.online(2, 2, seed=7, saveSteps=20))
    assert (file.role, file.train, file.data.kind, file.data.sha256) == ("train", None, "tasks", b.DIGEST)
    plan, recipe = file.rlvr, RECIPES["sql_v3"]
    assert plan
    assert (plan.recipe, plan.recipe_digest) == ("sql_v3", recipe.digest)
    assert plan.settings.to_json().items() <= recipe.spec.to_json().items()
    assert (plan.steps, plan.save_steps, plan.seed, plan.episodes) == (100, 20, 7, 32)
    assert (plan.output, plan.resume, plan.context_length) == ("pvc://halo-artifacts/uid-1/a1", None, 2048)


def test_one_group_splits_every_row_and_samples_for_each_of_its_gpus() -> None:
    plan = trainer_file(b.online(4, 1, contextParallel=4)).rlvr
    assert plan
    assert (plan.episodes, plan.context_parallel) == (64, ContextParallel(group=4, whole_row=1))


@pytest.mark.parametrize(
    ("mode", "recipe", "thinking"),
    [
        (None, "sql_v3", None),
        ("final", "sql_v3", False),
        ("reasoning", "sql_v3", True),
        (None, "sql_v4_dapo_r3_122b", False),
    ],
)
def test_thinking_is_as_the_job_says_else_as_the_recipe_does(
    mode: str | None, recipe: str, thinking: bool | None
) -> None:
    assert thinking_of(b.rlvr_spec(recipe, mode=mode), RECIPES[recipe].spec) == thinking


def test_the_largest_run_fits_where_it_is_told() -> None:
    """A run file is an annotation, and those of an object have 256 KiB together."""
    world = b.online(8, 512, recipe="sql_v4_dapo_sync")
    assert len(trainer_file(world).canonical()) < 200_000


def test_admission_freezes_the_image_and_the_answers_to_pushes_have_the_addresses() -> None:
    plan = plan_run(b.online(1, 2), b.NOW)
    assert plan.status
    assert plan.status.frozen
    assert (plan.status.frozen.rollout_image, plan.status.frozen.rollout_image_pull_policy) == (
        "rollout:1",
        "IfNotPresent",
    )
    found = servers_of(b.world().meta, plan.status)
    assert found == Servers(attempt=1, servers=b.run_file(plan.create[0]).servers)
    assert servers_of(b.world().meta, plan_run(b.world(), b.NOW).status) is None
    assert plan_run(b.world(), b.NOW).status.frozen.rollout_image is None


def test_a_server_has_the_trainers_deadline() -> None:
    world = b.online(budget={"h100Hours": 20})
    plan = plan_run(world, b.NOW)
    files = [b.run_file(child) for child in plan.create]
    assert len(files) == 2
    assert files[0].deadline == files[1].deadline
    assert files[0].deadline
    assert files[0].deadline.remaining_seconds


@pytest.mark.parametrize(("mode", "served"), [(None, None), ("final", "final"), ("reasoning", "reasoning")])
def test_the_adapter_has_the_recipe_s_lora_and_the_mode_that_was_sampled_in(
    mode: str | None, served: str | None
) -> None:
    world = b.online(mode=mode)
    frozen, made = plan_run(world, b.NOW).status.frozen, b.success().adapter
    assert made
    spec = adapter_spec(world.meta, world.spec, frozen, made)
    assert (spec.rank, spec.alpha, spec.mode) == (16, 32.0, served)
