"""Plans a Dataset's next move: one inspection a base model, until every one has counted the rows."""

from __future__ import annotations

from datetime import datetime

from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.dataset import DatasetStatus, Inspection, LongerThan, RowsOf
from halo_operator.plan import conditions, pods
from halo_operator.plan.checks.data import INSPECTED_KINDS
from halo_operator.plan.conditions import Facts, stamp
from halo_operator.plan.pod_view import alive, is_superseded
from halo_operator.plan.refusal import listed
from halo_operator.plan.world import DatasetWorld, Note, Object, Plan, PodRef, PodView

DatasetPlan = Plan[DatasetStatus]
T = ConditionType

INSPECTION_ATTEMPTS = 3
RECHECK_SECONDS = 60.0
TYPES = (T.READY,)


def plan_dataset(world: DatasetWorld, now: datetime) -> DatasetPlan:
    """Return what to do next. A Dataset that was read to the end is only read again for a base that is new to it."""
    mine = tuple(p for p in world.pods if p.owner_uid == world.meta.uid)
    strays = tuple(p.ref for p in world.pods if p.owner_uid != world.meta.uid and p.deleting_since is None)
    if world.meta.deleting:
        return Plan(delete=strays + alive(mine))
    status = world.status
    create: list[Object] = []
    delete: list[PodRef] = list(strays)
    problems: list[tuple[Reason, str]] = []
    waits: list[tuple[Reason, str]] = []
    if world.spec.kind not in INSPECTED_KINDS:
        inspected = f"{', '.join(INSPECTED_KINDS[:-1])} and {INSPECTED_KINDS[-1]}"
        words = f"spec.kind: found {world.spec.kind}, which this version does not inspect yet; only {inspected} are"
        return settle(world, status, [], [*delete, *alive(mine)], [], [(Reason.NOT_YET_AVAILABLE, words)], now)
    if world.spec.environment is not None:
        words = f"spec.environment: found {world.spec.environment}; this version does not inspect the tasks of a harness yet, only those of its own environments"
        return settle(world, status, [], [*delete, *alive(mine)], [], [(Reason.NOT_YET_AVAILABLE, words)], now)
    for name in world.spec.base_models:
        revision = revision_of(world, name)
        # What another revision's tokenizer counts is no count of this one's.
        views = [p for p in mine if p.base_model == name and p.base_revision == revision]
        delete += alive([p for p in mine if p.base_model == name and p.base_revision != revision])
        if any(i.base_model == name and i.revision == revision for i in status.inspections):
            delete += alive(views)
            continue
        step = inspect(world, name, views, status, now)
        status = step.status
        create += step.create
        delete += step.delete
        problems += [step.problem] if step.problem else []
        waits += [step.wait] if step.wait else []
    return settle(world, status, create, delete, problems, waits, now)


class Step:
    """What one base's inspection needs next."""

    def __init__(
        self,
        status: DatasetStatus,
        create: tuple[Object, ...] = (),
        delete: tuple[PodRef, ...] = (),
        problem: tuple[Reason, str] | None = None,
        wait: tuple[Reason, str] | None = None,
    ) -> None:
        self.status, self.create, self.delete, self.problem, self.wait = status, create, delete, problem, wait


def inspect(world: DatasetWorld, name: str, views: list[PodView], status: DatasetStatus, now: datetime) -> Step:
    """Return what to do for one base that has not counted the rows yet."""
    base = world.bases.get(name)
    if base is None:
        words = f"spec.baseModels: found {name!r}, which is not in the catalog (kubectl get basemodels); {listed(name, world.base_names)}"
        return Step(status, problem=(Reason.UNKNOWN_BASE_MODEL, words), delete=alive(views))
    if not base.source.startswith("pvc://"):
        words = f"spec.baseModels: the weights of {name} lie at {base.source}, which this version can't read yet; put them on a claim"
        return Step(status, wait=(Reason.NOT_YET_AVAILABLE, words), delete=alive(views))
    reading = (Reason.INSPECTING, f"reading it with the tokenizer of {name}")
    if not views:
        return Step(status, create=(pods.inspect_pod(world, name, base, 1),), wait=reading)
    last = max(views, key=lambda p: p.attempt)
    if not last.ended and is_superseded(last, world.environment):
        # It is made again once it is gone.
        return Step(status, delete=alive((last,)), wait=reading)
    if not last.ended and last.blocked and last.blocked_reason:
        return Step(status, wait=(Reason(last.blocked_reason), f"pod {last.ref.name}: {last.blocked}"))
    if not last.ended:
        return Step(status, wait=reading)
    outcome = last.outcome
    if outcome and outcome.result == "Succeeded" and outcome.inspection:
        found = outcome.inspection
        entry = Inspection(
            base_model=name,
            revision=base.revision,
            sha256=found.sha256,
            rows=found.rows,
            tokens=found.tokens,
            trained_tokens=found.trained_tokens,
            longest_row=found.longest_row,
            longer=[LongerThan(tokens=length.tokens, rows=length.rows) for length in found.longer],
            environments=[RowsOf(name=one.name, rows=one.rows) for one in found.environments],
            tags=[RowsOf(name=one.name, rows=one.rows) for one in found.tags],
            at=stamp(now),
        )
        others = [i for i in status.inspections if i.base_model != name]
        # A Dataset is one version of a file, also for a base, or a revision of one, that counts it later.
        before = status.sha256 or next((i.sha256 for i in others), None)
        if before and before != found.sha256:
            words = f"spec.source: the file changed between two inspections ({before} and {found.sha256}); create a new Dataset for new rows"
            return Step(status, problem=(Reason.DATASET_CHANGED, words))
        new = status.model_copy(update={"inspections": sorted([*others, entry], key=lambda i: i.base_model)})
        return Step(new, delete=alive(views))
    reason = outcome.reason if outcome else Reason.CRASHED
    message = outcome.message if outcome else "the inspection left no outcome"
    if (outcome is None or outcome.retriable) and last.attempt < INSPECTION_ATTEMPTS:
        again = pods.inspect_pod(world, name, base, last.attempt + 1)
        return Step(
            status,
            create=(again,),
            delete=alive(views),
            wait=(Reason.INSPECTING, f"reading it again: {reason}: {message}"),
        )
    return Step(status, problem=(reason, message))


def settle(
    world: DatasetWorld,
    status: DatasetStatus,
    create: list[Object],
    delete: list[PodRef],
    problems: list[tuple[Reason, str]],
    waits: list[tuple[Reason, str]],
    now: datetime,
) -> DatasetPlan:
    """Return the plan with the one status that says it all."""
    facts: Facts
    if problems:
        reason, message = problems[0]
        facts = {T.READY: ("False", reason, message), T.STALLED: ("True", reason, message)}
        note = Note("Warning", reason, message)
    elif waits and create and conditions.is_rejected(refused := condition_of(status.conditions, T.READY)) and refused:
        # It stays true until the pod is there.
        return rejected(world, refused.message, now, tuple(create), tuple(delete))
    elif waits:
        reason, message = waits[0]
        facts = {T.READY: ("False", reason, message), T.RECONCILING: ("True", reason, message)}
        note = Note("Normal" if reason == Reason.INSPECTING else "Warning", reason, message)
    else:
        first = status.inspections[0]
        words = f"{first.rows} rows, {first.tokens} tokens, the longest row {first.longest_row}"
        facts = {T.READY: ("True", Reason.INSPECTED, words)}
        status = status.model_copy(update={"sha256": first.sha256, "rows": first.rows})
        note = Note("Normal", Reason.INSPECTED, words)
    generation = world.meta.generation
    new = status.model_copy(
        update={
            "conditions": conditions.update(status.conditions, facts, generation, now, TYPES),
            "observed_generation": generation,
            "waiting": waits[0][1] if waits and not problems else None,
        }
    )
    unknown = any(reason == Reason.UNKNOWN_BASE_MODEL for reason, _ in problems)
    return Plan(
        status=new if new != world.status else None,
        create=tuple(create),
        delete=tuple(delete),
        notes=(note,) if new.conditions != world.status.conditions else (),
        requeue_after=RECHECK_SECONDS if waits or unknown else None,
    )


def rejected(
    world: DatasetWorld,
    message: str,
    now: datetime,
    create: tuple[Object, ...] = (),
    delete: tuple[PodRef, ...] = (),
) -> DatasetPlan:
    """Say what refused the pod: a quota or a policy, which may change, so that it is tried again."""
    facts: Facts = {
        T.READY: ("False", Reason.POD_REJECTED, message),
        T.RECONCILING: ("True", Reason.POD_REJECTED, message),
    }
    generation = world.meta.generation
    new = world.status.model_copy(
        update={
            "conditions": conditions.update(world.status.conditions, facts, generation, now, TYPES),
            "observed_generation": generation,
            "waiting": message,
        }
    )
    return Plan(
        status=new if new != world.status else None,
        create=create,
        delete=delete,
        notes=(Note("Warning", Reason.POD_REJECTED, message),) if new != world.status else (),
        requeue_after=RECHECK_SECONDS,
    )


def revision_of(world: DatasetWorld, name: str) -> str | None:
    """Return the catalog's revision of a base; one that left the catalog keeps what was counted."""
    base = world.bases.get(name)
    if base is not None:
        return base.revision
    return next((i.revision for i in world.status.inspections if i.base_model == name), None)
