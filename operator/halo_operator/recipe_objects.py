"""Keeps the Recipe objects of the cluster equal to the operator's own recipes, so that people read what runs will do.

Nothing is read from them: what trains is decided by the files. An object that the operator does not know is left alone,
since a newer operator may have made it while this one was leaving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from halo_api import API_VERSION
from halo_operator.cluster import Cluster, ClusterError, Conflict, NotFound, Object
from halo_operator.plan.world import RecipeEntry

log = logging.getLogger(__name__)

# What may change of a released recipe; of anything else the API server refuses a change.
MAY_CHANGE = {"retired", "successor"}
# Seconds between tries. Right after an installation the API server answers 429 ("storage is (re)initializing") or 404 for the
# CRDs that were just made, and nobody should miss the recipes until the next look, ten minutes later.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
LABELS = {"app.kubernetes.io/name": "halo", "app.kubernetes.io/managed-by": "halo-operator"}


@dataclass(frozen=True)
class Repair:
    """Objects to make, to change and to take away before they are made anew."""

    delete: tuple[Object, ...] = ()
    create: tuple[Object, ...] = ()
    replace: tuple[Object, ...] = ()


def object_of(entry: RecipeEntry) -> Object:
    """Return the object of a recipe."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Recipe",
        "metadata": {"name": entry.name.replace("_", "-"), "labels": LABELS},
        "spec": entry.spec.to_json(),
    }


def repair(there: Iterable[Object], recipes: Mapping[str, RecipeEntry]) -> Repair:
    """Return what makes the objects that are there equal to the recipes: nothing when they are."""
    found = {body["metadata"]["name"]: body for body in there}
    wanted = {body["metadata"]["name"]: body for body in map(object_of, recipes.values())}
    wrong = {name for name, body in wanted.items() if name in found and found[name].get("spec") != body["spec"]}
    spoilt = {name for name in wrong if settings(found[name]) != settings(wanted[name])}
    return Repair(
        delete=tuple(found[name] for name in sorted(spoilt)),
        create=tuple(wanted[name] for name in sorted(spoilt | wanted.keys() - found.keys())),
        replace=tuple(found[name] | {"spec": wanted[name]["spec"]} for name in sorted(wrong - spoilt)),
    )


def settings(body: Object) -> Object:
    """Return what of a released recipe never changes."""
    return {key: value for key, value in body.get("spec", {}).items() if key not in MAY_CHANGE}


async def keep(cluster: Cluster, recipes: Mapping[str, RecipeEntry], pauses: Sequence[float] = PAUSES) -> None:
    """Repair the objects; what still fails after the pauses is logged, and the next look tries again."""
    for pause in (*pauses, 0.0):
        try:
            await repair_once(cluster, recipes)
        except Conflict as error:
            log.info("a Recipe object was written by somebody else meanwhile: %s", error)
            return
        except ClusterError as error:
            failure = error
            await asyncio.sleep(pause)
        else:
            return
    if isinstance(failure, NotFound):
        log.warning("Recipe objects can't be kept: their CRD is not there; helm upgrade --set crds.enabled=true")
    else:
        log.warning("Recipe objects: %s", failure)


async def repair_once(cluster: Cluster, recipes: Mapping[str, RecipeEntry]) -> None:
    """Write what differs."""
    todo = repair(await cluster.list_all("Recipe"), recipes)
    for body in todo.delete:
        await cluster.delete("Recipe", "", body["metadata"]["name"], body["metadata"]["uid"])
    for body in todo.create:
        await cluster.create(body)
    for body in todo.replace:
        await cluster.replace(body)
