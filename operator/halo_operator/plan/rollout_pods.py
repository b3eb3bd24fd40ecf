"""Builds what online RL adds to an attempt: a pod a rollout server, and what the trainers are told of the recipe and of them."""

from __future__ import annotations

from collections.abc import Iterable

from halo_api.recipe import settings_of
from halo_api.recipe_settings import RecipeSettings
from halo_api.report import Deadline
from halo_api.rollouts import GUARD_PORT, LIVE_PATH, READY_PATH, SERVE_PORT, RolloutPlan, ServerAddress
from halo_api.run_file import (
    BaseRef,
    ContextParallel,
    Reporting,
    ResumeFrom,
    RlvrPlan,
    RunFile,
    RunIdentity,
    attempt_name,
    claim_of,
    run_uri,
)
from halo_api.run_status import Frozen, FrozenRecipe, RolloutServer, Topology
from halo_api.training_job import TrainingJobSpec
from halo_operator.plan import names
from halo_operator.plan.pod_parts import gpu_placement, gpu_resources, parent_plan
from halo_operator.plan.pod_template import pod
from halo_operator.plan.world import Environment, Meta, Object

# A server has nothing to save: it is killed soon after it was asked to go, so that its GPUs are free.
SERVER_GRACE_SECONDS = 10.0
POD_GRACE_SECONDS = 20
# Its report says only that it is there, and nobody waits for its last word: the termination message has it.
SIGN_SECONDS = 15.0
PROBE_SECONDS = 5
# The guard asks vLLM for a token, which waits its turn behind a full batch.
PROBE_TIMEOUT_SECONDS = 10
# A minute of silence: a server that takes a policy, or a long prompt, is slow and not dead.
LIVE_FAILURES = 12
# Rows of an online run are all split: there are no whole ones.
EVERY_ROW = 1


def rollout_pods(
    meta: Meta,
    frozen: Frozen,
    layout: Topology,
    attempt: int,
    incarnations: Iterable[int],
    deadline: Deadline,
    env: Environment,
) -> tuple[Object, ...]:
    """Return the pods of one attempt that serve rollouts, one a server, each in its incarnation."""
    if frozen.recipe is None or frozen.rollout_image is None:
        return ()
    settings = settings_of(frozen.recipe.text)
    read = [frozen.base.source, *([frozen.parent.uri] if frozen.parent else [])]
    # Policies are read from where the trainer writes them.
    claims = (*(claim_of(source) for source in read), frozen.artifacts_claim)
    return tuple(
        pod(
            meta,
            name=names.rollout_pod(meta.name, meta.uid, one.server, incarnation, attempt),
            role="rollout",
            attempt=attempt,
            rank=one.server,
            run_file=rollout_file(meta, frozen, settings, one, attempt, incarnation, deadline, env),
            env=env,
            image=frozen.rollout_image,
            pull_policy=frozen.rollout_image_pull_policy or "IfNotPresent",
            read=claims,
            write=(),
            resources=gpu_resources(frozen, one.gpus),
            placement=gpu_placement(frozen) | beside_the_trainers(meta, frozen, attempt),
            metered=True,
            extra={
                "hostname": names.rollout_host(one.server, incarnation, attempt),
                "subdomain": names.rendezvous_service(meta.name, meta.uid),
            },
            labels={names.INCARNATION_LABEL: str(incarnation)},
            probes=probes(env.start_timeout_seconds),
            grace_seconds=POD_GRACE_SECONDS,
        )
        for one, incarnation in zip(layout.rollout, incarnations, strict=True)
    )


def rollout_file(
    meta: Meta,
    frozen: Frozen,
    settings: RecipeSettings,
    server: RolloutServer,
    attempt: int,
    incarnation: int,
    deadline: Deadline,
    env: Environment,
) -> RunFile:
    """Return the run file of one rollout server."""
    return RunFile(
        role="rollout",
        run=RunIdentity(kind="TrainingJob", namespace=meta.namespace, name=meta.name, uid=meta.uid, attempt=attempt),
        base=BaseRef(**frozen.base.model_dump()),
        rollout=RolloutPlan(
            server=server.server,
            incarnation=incarnation,
            gpus=server.gpus,
            context_length=context_length(frozen, settings),
            rank=settings.lora.rank,
            serving=settings.serving,
            routed_experts=settings.routing_replay,
        ),
        reporting=Reporting(
            url=env.report_url, interval_seconds=SIGN_SECONDS, final_push_seconds=SERVER_GRACE_SECONDS / 2
        ),
        deadline=deadline,
        grace_seconds=SERVER_GRACE_SECONDS,
    )


def rlvr_plan(
    meta: Meta, spec: TrainingJobSpec, frozen: Frozen, layout: Topology, attempt: int, resume: ResumeFrom | None
) -> RlvrPlan:
    """Return what the trainers train, with every default resolved."""
    recipe = recipe_of(frozen)
    settings = settings_of(recipe.text)
    group = layout.context_parallel
    return RlvrPlan(
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        settings=settings,
        steps=spec.steps,
        # Of each trainer GPU, also where several of them share every row.
        episodes=spec.batch * (layout.trainer_gpus or layout.nodes * layout.gpus_per_node),
        save_steps=spec.save_steps,
        seed=spec.seed,
        thinking=thinking_of(spec, settings),
        context_length=context_length(frozen, settings),
        output=f"{run_uri(frozen.artifacts_claim, meta.uid)}/{attempt_name(attempt)}",
        parent=parent_plan(frozen.parent) if frozen.parent else None,
        resume=resume,
        context_parallel=ContextParallel(group=group, whole_row=EVERY_ROW) if group else None,
    )


def recipe_of(frozen: Frozen) -> FrozenRecipe:
    """Return the recipe of a run that has one; raises ValueError of any other."""
    if frozen.recipe is None:
        raise ValueError("only bases halo_rlvr and halo_rft have a recipe")
    return frozen.recipe


def thinking_of(spec: TrainingJobSpec, settings: RecipeSettings) -> bool | None:
    """Return what rollouts sample with: as the job says, else as the recipe does; None: as the base's template has it."""
    if spec.mode is not None:
        return spec.mode == "reasoning"
    return False if settings.rollouts.thinking == "off" else None


def context_length(frozen: Frozen, settings: RecipeSettings) -> int:
    """Return the tokens that an episode may fill: the recipe's, as far as the base reaches."""
    return min(frozen.base.context_length, settings.rollouts.context_tokens or frozen.base.context_length)


def addresses(meta: Meta, attempt: int, incarnations: Iterable[int]) -> tuple[ServerAddress, ...]:
    """Return where the servers are, each in its incarnation."""
    domain = f"{names.rendezvous_service(meta.name, meta.uid)}.{meta.namespace}.svc"
    return tuple(
        ServerAddress(
            server=server,
            incarnation=incarnation,
            host=f"{names.rollout_host(server, incarnation, attempt)}.{domain}",
        )
        for server, incarnation in enumerate(incarnations)
    )


def ports() -> list[Object]:
    """Return the ports of a rollout server as its run's Service names them."""
    return [{"name": "serve", "port": SERVE_PORT}, {"name": "guard", "port": GUARD_PORT}]


def probes(start_seconds: int) -> Object:
    """Return the probes of a server: alive is what its guard says, ready that it can sample with the announced policy.

    A pod that is not alive ends, and is replaced; until the guard first answers it has as long as any pod has to start.
    """

    def asks(path: str, failures: int) -> Object:
        return {
            "httpGet": {"path": path, "port": GUARD_PORT},
            "periodSeconds": PROBE_SECONDS,
            "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
            "failureThreshold": failures,
        }

    return {
        "ports": [{"name": one["name"], "containerPort": one["port"]} for one in ports()],
        "startupProbe": asks(LIVE_PATH, max(start_seconds // PROBE_SECONDS, 1)),
        "livenessProbe": asks(LIVE_PATH, LIVE_FAILURES),
        "readinessProbe": asks(READY_PATH, 1),
    }


def beside_the_trainers(meta: Meta, frozen: Frozen, attempt: int) -> Object:
    """Return the wish to be on the trainers' node, or in the fabric of their GPUs; a wish only."""
    trainers = {names.RUN_LABEL: meta.uid, names.ROLE_LABEL: "trainer", names.ATTEMPT_LABEL: str(attempt)}
    term = {
        "topologyKey": frozen.gpu.topology_key or "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": trainers},
    }
    near = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return {"affinity": {"podAffinity": near}}
