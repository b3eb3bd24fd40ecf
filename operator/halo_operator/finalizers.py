"""Finalizers as JSON patches that change nothing else: each holds for the object exactly as it was read, or for none."""

from __future__ import annotations

from halo_operator.cluster import Cluster, Conflict, Object, Rejected

# What the API server says to a patch whose test fails; to an object that its schema refuses it says more.
FAILED_TEST = "due to an error in our request"


def adding(body: Object, finalizer: str) -> list[Object]:
    """Return the patch that puts a finalizer on the object as it was read, or nothing when it has it."""
    meta = body["metadata"]
    if finalizer in (there := meta.get("finalizers", [])):
        return []
    added: Object = (
        {"op": "add", "path": "/metadata/finalizers/-", "value": finalizer}
        if there
        else {"op": "add", "path": "/metadata/finalizers", "value": [finalizer]}
    )
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}, added]


def removing(body: Object, finalizer: str) -> list[Object]:
    """Return the patch that takes a finalizer off exactly this object, whatever else changed, or nothing when it has none."""
    meta = body["metadata"]
    if finalizer not in (there := meta.get("finalizers", [])):
        return []
    path = f"/metadata/finalizers/{there.index(finalizer)}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "test", "path": path, "value": finalizer},
        {"op": "remove", "path": path},
    ]


async def change(cluster: Cluster, body: Object, operations: list[Object]) -> Object:
    """Apply such a patch and return the object with its new metadata, so that a write may follow; raises Conflict, NotFound."""
    if not operations:
        return body
    meta = body["metadata"]
    try:
        return body | {"metadata": await cluster.patch(body["kind"], meta["namespace"], meta["name"], operations)}
    except Rejected as error:
        if error.status == 422 and FAILED_TEST in str(error):
            raise Conflict(409, str(error)) from None
        raise
