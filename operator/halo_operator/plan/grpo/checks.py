"""The facts that decide whether a GrpoRun is accepted: one check a fact, in order, each with the code of the API's answer.

403 is no check: only the role that may create GrpoRuns can, and the API server says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from halo_api.conditions import ConditionType, Reason, condition_of
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.refusal import Refusal, listed

Check = Callable[[GrpoWorld], Refusal | None]

WINDOW = timedelta(seconds=60)
INLINE_BYTES = 96 * 1024


def fine_tuning_is_on(world: GrpoWorld) -> Refusal | None:
    """Where the feature is off there is no such API."""
    if world.catalog.workspace.spec.features.fine_tuning:
        return None
    return Refusal(
        Reason.FEATURE_OFF,
        f"metadata.namespace: found {world.meta.namespace}, whose Workspace has features.fineTuning: false; ask the platform team to turn it on",
        code=404,
    )


def starts_keep_their_rate(world: GrpoWorld) -> Refusal | None:
    """So many runs may start a minute, by their creation; what was refused for it does not count.

    One that was looked at before, or asked for its hold, has passed: its place is taken, whatever was made in the same second since.
    """
    held = world.meta.uid in world.catalog.workspace.status.holds
    if held or world.asked_seconds > 0 or condition_of(world.status.conditions, ConditionType.ACCEPTED):
        return None
    limit = world.catalog.workspace.spec.starts_per_minute
    mine = (world.created_at, world.meta.uid)
    since = world.created_at - WINDOW
    before = [
        start
        for start in world.starts
        if start.uid != world.meta.uid
        and not start.limited
        and since < start.created_at <= world.created_at
        and (start.decided or (start.created_at, start.uid) < mine)
    ]
    if len(before) < limit:
        return None
    oldest = min(start.created_at for start in before)
    return Refusal(
        Reason.RATE_LIMITED,
        f"metadata.creationTimestamp: found {len(before)} GrpoRuns of namespace {world.meta.namespace} made in the 60 s before, "
        f"and {limit} may start a minute; make it again after {(oldest + WINDOW).strftime('%H:%M:%SZ')}",
        code=429,
    )


def model_is_known(world: GrpoWorld) -> Refusal | None:
    """The model must be in the catalog."""
    if world.catalog.base is not None:
        return None
    found = world.spec.model
    return Refusal(
        Reason.UNKNOWN_BASE_MODEL,
        f"spec.model: found {found!r}, which is not in the catalog (kubectl get basemodels); {listed(found, world.catalog.base_names)}",
    )


def model_is_fine_tunable(world: GrpoWorld) -> Refusal | None:
    """The catalog says what a base can train."""
    base = world.catalog.base
    if base is None or (base.spec.fine_tunable and "grpo" in base.spec.offers):
        return None
    what = f"offers {', '.join(base.spec.offers)}" if base.spec.fine_tunable else "has fineTunable: false"
    return Refusal(
        Reason.BASE_NOT_OFFERED,
        f"spec.model: found {base.name}, which {what}; use a model that is fine-tunable and offers grpo (kubectl get basemodels)",
    )


def adapter_name_is_free(world: GrpoWorld) -> Refusal | None:
    """The adapter gets the run's name; one that another run made is never overwritten."""
    adapter = world.catalog.adapter
    if adapter is None or adapter.run_uid == world.meta.uid:
        return None
    return Refusal(
        Reason.ADAPTER_NAME_TAKEN,
        f"metadata.name: found {adapter.name!r}, but an Adapter of that name was made by another run; choose another name, or delete that Adapter",
    )


def schemas_are_json(world: GrpoWorld) -> Refusal | None:
    """A JSON schema is an object, or true or false."""
    for index, assertion in enumerate(world.spec.reward.assertions or ()):
        if assertion.type != "json_schema":
            continue
        try:
            good = isinstance(json.loads(assertion.value or "", parse_constant=no_constant), dict | bool)
        except (ValueError, RecursionError):
            good = False
        if not good:
            found = (assertion.value or "")[:60]
            return Refusal(
                Reason.INVALID_SPEC,
                f"spec.reward.assertions[{index}].value: found {found!r}, which is no JSON schema; write it as a JSON object in a string",
            )
    return None


def no_constant(word: str) -> None:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(word)


def inline_tasks_are_few(world: GrpoWorld) -> Refusal | None:
    """An object of the API is no place for data."""
    tasks = world.spec.tasks_inline
    if tasks is None:
        return None
    # As it is sent: compact, and with the schema's camelCase names.
    size = len(json.dumps([task.to_json() for task in tasks], ensure_ascii=False, separators=(",", ":")).encode())
    if size <= INLINE_BYTES:
        return None
    return Refusal(
        Reason.INVALID_SPEC,
        f"spec.tasksInline: found {len(tasks)} tasks of {size} bytes, and {INLINE_BYTES} fit; "
        "put them into a Dataset of kind tasks and name it in spec.tasksFrom",
    )


def alias_is_there(world: GrpoWorld) -> Refusal | None:
    """What is adopted needs a name that is served already."""
    adopt, alias = world.spec.auto_adopt, world.catalog.alias
    if adopt is None:
        return None
    if alias is None:
        found = adopt.alias_name
        return Refusal(
            Reason.ALIAS_MISSING,
            f"spec.autoAdopt.aliasName: found {found!r}, but there is no such ModelAlias in namespace {world.meta.namespace}; "
            f"create it before the run, or leave spec.autoAdopt out; {listed(found, world.catalog.alias_names)}",
        )
    if not alias.spec.canaries.allowed:
        return Refusal(
            Reason.CANARY_NOT_ALLOWED,
            f"spec.autoAdopt.aliasName: found {alias.name!r}, whose canaries.allowed is false; name another alias, or leave spec.autoAdopt out",
        )
    return None
