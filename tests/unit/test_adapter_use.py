"""What an adapter descends from, and for whom it is verified again: a run takes no parent on an older word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halo_api.adapter import Adapter, AdapterParent, AdapterStatus
from halo_api.run_status import ReceiptRef
from halo_operator.adapters import Demand
from halo_operator.plan.checks.parent import parent_is_verified, verification_needed
from halo_operator.plan.freeze import freeze
from halo_operator.plan.world import RunWorld
from halo_operator.queue import Key
from halo_operator.signing import sign
from tests.unit import builders as b
from tests.unit.adapter_scene import Scene, published
from tests.unit.builders_receipt import KEY, statement


def test_lineage_is_the_parent_and_what_that_descends_from() -> None:
    grandparent = {"name": "base-sft", "digest": b.DIGEST, "receipt": b.DIGEST}
    parent, asked = b.parent().spec, b.spec(parent={"adapter": "support-v3"})
    frozen = freeze(b.world(spec=asked, catalog=b.catalog(parent=b.parent())))
    receipt = sign(statement(spec=asked, frozen=frozen), KEY).decode()
    child = published(receipt, parent=AdapterParent(name="support-v3", digest=parent.digest))
    scene = Scene(child, receipt)
    scene.parent = Adapter(spec=parent, status=AdapterStatus.model_validate({"lineage": [grandparent]}))
    assert scene.verify() == ("True", "Verified", "True")
    known = [("support-v3", parent.receipt.digest if parent.receipt else ""), ("base-sft", b.DIGEST)]
    assert [(one.name, one.receipt) for one in scene.status.lineage] == known
    # The parent is deleted, and then another adapter has its name, of the same bytes and another making.
    again = parent.model_copy(update={"receipt": ReceiptRef(digest=b.DIGEST)})
    for other in (None, Adapter(spec=again, status=AdapterStatus())):
        scene.parent, scene.wanted = other, scene.now
        assert scene.verify() == ("True", "Verified", "True")
        assert [(one.name, one.receipt) for one in scene.status.lineage] == known


def run_of(verified: str, began: str | None, waiting: str | None = None, **meta: Any) -> RunWorld:
    entry = b.parent(verified)
    facts = {"startedAt": began, "finishedAt": began, "digest": b.DIGEST}
    status = AdapterStatus.model_validate({"verification": facts if began else None, "waiting": waiting})
    world = b.world(
        spec=b.spec(parent={"adapter": "support-v3"}), catalog=b.catalog(parent=replace(entry, status=status))
    )
    return replace(world, meta=replace(world.meta, **({"created_at": b.NOW} | meta)))


BEFORE, AFTER = "2026-11-29T11:59:59Z", "2026-11-29T12:00:00Z"


@pytest.mark.parametrize(
    ("world", "reason", "words"),
    [
        (run_of("True", AFTER), None, ""),
        (run_of("True", BEFORE), "ParentPending", "support-v3, which is being verified again before it is used"),
        (run_of("False", BEFORE), "ParentPending", "(when that was last done: the digest differs)"),
        (run_of("False", AFTER), "ParentUnfit", "the digest differs"),
        (run_of("Unknown", None), "ParentPending", "which is not verified yet"),
        (run_of("Unknown", None, "no such claim"), "ParentPending", "that waits: no such claim"),
        # Somebody who may write a status called it verified; no pod ever looked.
        (run_of("True", None), "ParentPending", "which is not verified yet"),
        # A run that is not made yet.
        (run_of("True", BEFORE, created_at=None), None, ""),
    ],
)  # fmt: skip
def test_a_run_takes_a_parent_that_was_verified_since_it_was_made(
    world: RunWorld, reason: str | None, words: str
) -> None:
    refusal = parent_is_verified(world)
    assert (refusal.reason if refusal else None) == reason
    assert words in (refusal.message if refusal else "")
    needed = verification_needed(world)
    assert (needed is not None) == (reason == "ParentPending")
    assert needed in (None, b.NOW)


def test_what_is_asked_again_wakes_nobody_and_is_forgotten_once_it_is_met() -> None:
    woken: list[Key] = []
    demand = Demand(woken.append)
    key = Key("Adapter", "team", "run")
    for later in (0, 0, 5, 2):
        demand.want("team", "run", b.NOW + b.seconds(later))
    assert woken == [key, key]
    assert demand.since(key) == b.NOW + b.seconds(5)
    demand.met(key, b.NOW + b.seconds(2))
    assert demand.since(key)
    demand.met(key, b.NOW + b.seconds(5))
    assert demand.since(key) is None
    demand.want("team", "run", b.NOW)
    demand.met(key, None)
    assert demand.since(key) is None
