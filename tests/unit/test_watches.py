"""Which events of a Workspace matter: its own status is written often, and wakes nobody."""

from __future__ import annotations

from typing import Any

from halo_operator.watches import Grants


def body(uid: str = "a", generation: int = 1, namespace: str = "team", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "uid": uid, "generation": generation, **meta}}


def test_what_matters_of_a_workspace() -> None:
    grants = Grants()
    story = [
        ("listed at the start", None, body(), True),
        ("its status is written", "MODIFIED", body(resourceVersion="2"), False),
        ("a finalizer comes", "MODIFIED", body(finalizers=["halo.training/hold"]), False),
        ("its spec changes", "MODIFIED", body(generation=2), True),
        ("listed again after a gap", None, body(generation=2), False),
        ("another namespace's", "ADDED", body("b", namespace="other"), True),
        ("it is deleted", "MODIFIED", body(generation=2, deletionTimestamp="now"), True),
        ("its status is written meanwhile", "MODIFIED", body(generation=2, deletionTimestamp="now"), False),
        ("it is gone", "DELETED", body(generation=2, deletionTimestamp="now"), True),
        ("made anew", "ADDED", body("c"), True),
        ("made anew in a gap of the watch", None, body("d"), True),
    ]
    for moment, type_, found, matters in story:
        assert grants.changed(type_, found) is matters, moment
