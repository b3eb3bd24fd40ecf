"""Checks of the adapter that a run continues: is it there, is it genuine, and is it of the same making."""

from __future__ import annotations

from datetime import datetime

from halo_api.conditions import Reason
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.resolve import alpha_of, rank_of
from halo_operator.plan.world import RunWorld

FIELD = "spec.parent.adapter"


def parent_is_another(world: RunWorld) -> Refusal | None:
    """A run's own adapter, which has its name, can't be there before it."""
    if world.spec.parent is None or world.spec.parent.adapter != world.meta.name:
        return None
    return Refusal(
        Reason.PARENT_UNFIT,
        f"{FIELD}: found {world.meta.name!r}, the name of the run itself and of the adapter that it will publish; "
        "name another adapter, or the run otherwise",
    )


def parent_is_there(world: RunWorld) -> Refusal | None:
    """An adapter that another run still trains may come."""
    if world.spec.parent is None or world.catalog.parent is not None:
        return None
    return Refusal(
        Reason.PARENT_PENDING,
        f"{FIELD}: found {world.spec.parent.adapter!r}, but there is no such Adapter in namespace {world.meta.namespace}; the run starts when it is published",
        pending=True,
    )


def parent_was_trained(world: RunWorld) -> Refusal | None:
    """Where an adapter without a receipt came from nobody can say."""
    parent = world.catalog.parent
    if parent is None or (parent.spec.trained_by is not None and parent.spec.receipt is not None):
        return None
    origin = "was published without a receipt" if parent.spec.trained_by else "was imported and has no training receipt"
    return Refusal(
        Reason.PARENT_UNFIT,
        f"{FIELD}: found {parent.name}, which {origin}, and can be served but never continued; name one that a run has published",
    )


def parent_is_verified(world: RunWorld) -> Refusal | None:
    """Its receipt and its files must have been found right, and not before the run was made."""
    parent = world.catalog.parent
    if parent is None or parent_was_trained(world):
        return None
    verified, status = parent.verified, parent.status
    if status.verification is not None and verification_needed(world):
        was = f" (when that was last done: {verified.message})" if verified.status == "False" else ""
        return pending(f"{parent.name}, which is being verified again before it is used{was}", status.waiting)
    if verified.status == "False":
        return Refusal(
            Reason.PARENT_UNFIT,
            f"{FIELD}: found {parent.name}, whose receipt or files were found wrong ({verified.message}); name another adapter",
        )
    if verified.status == "Unknown" or verification_needed(world):
        return pending(f"{parent.name}, which is not verified yet", status.waiting)
    return None


def pending(found: str, waiting: str | None) -> Refusal:
    """Wait for a verification, and say what that waits for."""
    held_up = f"; that waits: {waiting}" if waiting else ""
    return Refusal(
        Reason.PARENT_PENDING, f"{FIELD}: found {found}; the run starts when it was found right{held_up}", pending=True
    )


def verification_needed(world: RunWorld) -> datetime | None:
    """Return since when its parent must have been verified, if it was not; nobody asks of a run that is not made yet."""
    parent, since = world.catalog.parent, world.meta.created_at
    if parent is None or since is None or parent.spec.trained_by is None:
        return None
    done = parent.status.verification
    return since if done is None or datetime.fromisoformat(done.started_at) < since else None


def parent_is_alike(world: RunWorld) -> Refusal | None:
    """Same base at the same revision, same rank and alpha: else its weights mean something else."""
    parent, base = world.catalog.parent, world.catalog.base
    if parent is None or base is None:
        return None
    theirs, rank, alpha = parent.spec, rank_of(world), alpha_of(world)
    differs = [
        f"{what} {has} (found {found} here)"
        for what, has, found in (
            ("baseModel", theirs.base.name, base.name),
            ("revision", theirs.base.revision, base.spec.revision),
            ("rank", theirs.rank, rank),
            ("alpha", f"{theirs.alpha:g}", f"{alpha:g}"),
        )
        if has != found
    ]
    if not differs:
        return None
    return Refusal(
        Reason.PARENT_UNFIT,
        f"{FIELD}: {parent.name} has {', '.join(differs)}; a run continues only its like: use the same, or another adapter",
    )


PARENT = (parent_is_another, parent_is_there, parent_was_trained, parent_is_verified, parent_is_alike)
