"""An Adapter is Verified by work alone: what its files and its receipt are now, judged again whenever somebody is about to use it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from halo_api.adapter import AdapterSpec, AdapterStatus, Verification
from halo_api.conditions import ConditionType, Reason
from halo_api.receipt_check import Problem
from halo_api.report import Outcome
from halo_api.run_file import RunFile
from halo_operator.plan.verify import AdapterPlan, plan_adapter
from halo_operator.signing import sign, verifier_of
from tests.unit import builders as b
from tests.unit.adapter_scene import ENVELOPE, Scene, found, published
from tests.unit.builders_receipt import KEY, OTHER_KEY, statement

OTHERS = sign(statement(2, "other", "uid-2"), KEY).decode()
T = ConditionType


# --- what is right, and what is wrong


def test_an_adapter_is_verified_by_a_pod_that_hashed_its_files() -> None:
    scene = Scene()
    plan = scene.look()
    assert scene.verdict == ("Unknown", "Verifying", "False")
    assert scene.said(T.RECONCILING).status == "True"
    assert scene.look() == replace(plan, status=None, create=())
    run = RunFile.model_validate_json(scene.pod["metadata"]["annotations"]["halo.training/run-file"])
    assert run.verify
    assert (run.role, run.run.kind, run.verify.uri) == ("verify", "Adapter", scene.spec.uri)
    assert list(run.verify.files) == scene.spec.files
    scene.end(found())
    told = scene.look(later=5)
    assert scene.verdict == ("True", "Verified", "True")
    assert [note.reason for note in told.notes] == ["Verified"]
    assert f"signed by the key {KEY.key_id}" in scene.said().message
    assert scene.status.verification == Verification(
        started_at="2026-11-29T12:00:00Z",
        finished_at="2026-11-29T12:00:00Z",
        digest=scene.spec.digest,
        key_id=KEY.key_id,
    )
    assert {c.type for c in scene.status.conditions} == {"Verified", "Ready"}
    # From then on nothing is asked of anybody.
    for later in (0, 60, 10**7):
        assert scene.look(later) == AdapterPlan()


def test_the_pod_is_the_adapters_own_reads_one_claim_and_costs_no_gpu() -> None:
    scene = Scene()
    scene.look()
    meta, spec = scene.pod["metadata"], scene.pod["spec"]
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Adapter", "adapter-1", True)
    assert "finalizers" not in meta
    (container,) = spec["containers"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert [v["persistentVolumeClaim"] for v in spec["volumes"] if "persistentVolumeClaim" in v] == [
        {"claimName": "halo-artifacts", "readOnly": True}
    ]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("Changed", "adapter_model.safetensors: found sha256:1, the Adapter says sha256:2; it was changed"),
        ("Truncated", "adapter_model.safetensors: found 7 bytes of 200; it was cut"),
        ("Missing", "tokenizer/vocab.txt: not found"),
        ("Extra", "code.py: found, and the Adapter has no such file"),
    ],
)
def test_a_file_that_is_not_as_it_was_is_named(problem: str, words: str) -> None:
    scene = Scene()
    assert scene.verify(found((problem, words), digest=b.DIGEST)) == ("False", problem, "False")
    assert scene.said().message.startswith(f"{words}; put {scene.spec.uri} back")
    assert scene.said(T.STALLED).reason == problem
    assert scene.status.verification
    assert scene.status.verification.digest == b.DIGEST
    assert scene.look(later=10**7) == AdapterPlan()


RESIGNED = sign(statement() | {}, OTHER_KEY).decode()
LATER = sign(statement(usage=None), KEY).decode()
FORGED = json.dumps(json.loads(ENVELOPE) | {"payload": json.loads(OTHERS)["payload"]}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("receipt", "spec", "reason", "words"),
    [
        (None, published(), "NoReceipt", "metadata.annotations[halo.training/receipt]: found none"),
        (ENVELOPE, published(receipt=None), "NoReceipt", "spec.receipt: found none"),
        ("garbage", published(), "BadEnvelope", "receipt: no JSON"),
        ("{}", published(), "BadEnvelope", "receipt: no DSSE envelope"),
        (ENVELOPE.replace("in-toto", "outtoto"), published(), "WrongPayloadType", "receipt.payloadType: found"),
        (FORGED, published(), "WrongSignature", "it is no signature of key"),
        (RESIGNED, published(RESIGNED), "UnknownKey", f"found {OTHER_KEY.key_id}; the keys that are trusted: {KEY.key_id}"),
        (OTHERS, published(), "OtherAdapter", "it is of team/other after step 100"),
        (OTHERS, published(OTHERS), "OtherAdapter", "it is of team/other after step 100"),
        (LATER, published(), "OtherAdapter", "spec.receipt.digest: found"),
        (ENVELOPE, published(rank=8), "Changed", "spec.rank: found 8, and the receipt says 16"),
        (ENVELOPE, published(digest=b.DIGEST), "Changed", "spec.digest: found"),
    ],
)  # fmt: skip
def test_a_receipt_that_is_not_the_adapters_own_is_named(
    receipt: str | None, spec: AdapterSpec, reason: str, words: str
) -> None:
    scene = Scene(spec, receipt)
    assert scene.verify() == ("False", reason, "False")
    assert words in scene.said().message
    assert scene.status.verification
    assert scene.status.verification.key_id is None


@pytest.mark.parametrize(
    ("of_config", "words"),
    [
        ({"rank": 8}, "adapter_config.json.r: found 8, and the receipt says 16"),
        ({"alpha": None}, "adapter_config.json.lora_alpha: found null"),
        ({"base": "large"}, 'adapter_config.json.base_model_name_or_path: found "large"'),
    ],
)
def test_the_adapters_own_configuration_must_say_the_same(of_config: dict[str, Any], words: str) -> None:
    scene = Scene()
    assert scene.verify(found(**of_config)) == ("False", "Changed", "False")
    assert words in scene.said().message


def test_a_pod_that_found_nothing_wrong_is_not_believed_with_another_digest() -> None:
    assert Scene().verify(found(digest=b.DIGEST)) == ("False", "Changed", "False")


def test_all_that_is_wrong_is_told_the_receipt_first() -> None:
    scene = Scene(receipt="garbage")
    gone = [("Missing", f"{n}: not found") for n in range(4)]
    assert scene.verify(found(*gone)) == ("False", "BadEnvelope", "False")
    assert scene.said().message.count("not found") == 2
    assert "; and 2 more; put the Adapter back" in scene.said().message


def test_every_problem_is_a_reason() -> None:
    assert {problem.value for problem in Problem} - {Problem.UNVERIFIED} <= {reason.value for reason in Reason}


def test_a_rotated_key_stays_good_until_somebody_takes_it_out() -> None:
    scene = Scene()
    scene.keys |= dict([verifier_of(OTHER_KEY.public_pem)])
    assert scene.verify() == ("True", "Verified", "True")
    scene.keys.pop(KEY.key_id)
    assert scene.look(later=60) == AdapterPlan()
    scene.wanted = scene.now
    assert scene.verify() == ("False", "UnknownKey", "False")
    assert "ConfigMap halo-operator-receipt-keys" in scene.said().message


def test_an_imported_adapter_is_ready_and_never_verified() -> None:
    spec = published(trained_by=None, receipt=None)
    scene = Scene(spec, None)
    assert scene.verify(found(base="Qwen/Qwen3-8B", revision=None)) == ("False", "NoReceipt", "True")
    assert {c.type for c in scene.status.conditions} == {"Verified", "Ready"}
    cut = ("Truncated", "adapter_model.safetensors: found 7 bytes of 200; it was cut")
    assert Scene(spec, None).verify(found(cut)) == ("False", "Truncated", "False")
    other = Scene(spec, None)
    assert other.verify(found(rank=8)) == ("False", "Changed", "False")
    assert "spec.rank: found 16, and r of its adapter_config.json is 8" in other.said().message
    # Nobody can give one a receipt afterwards.
    assert Scene(published(trained_by=None), ENVELOPE).verify() == ("False", "NoReceipt", "True")


# --- when it is looked at again


def test_it_is_verified_again_for_whoever_asks_later_and_keeps_its_verdict_meanwhile() -> None:
    scene = Scene()
    scene.verify()
    first = scene.status
    scene.wanted = scene.now + timedelta(seconds=60)
    scene.look(later=60)
    assert scene.status == first
    again = scene.pod["metadata"]["name"]
    assert again != scene.made[0]["metadata"]["name"]
    scene.end(found())
    told = scene.look(later=5)
    assert scene.verdict == ("True", "Verified", "True")
    assert told.notes == ()
    assert scene.status.verification
    assert scene.status.verification.started_at == "2026-11-29T12:01:05Z"
    assert scene.look() == AdapterPlan()


def test_a_pod_that_began_before_somebody_asked_is_not_enough_for_them() -> None:
    scene = Scene()
    scene.look()
    scene.wanted = scene.now + timedelta(seconds=1)
    scene.end(found())
    scene.look(later=5)
    assert scene.verdict == ("True", "Verified", "True")
    scene.look()
    scene.end(found(("Missing", "x: not found")))
    scene.look(later=5)
    assert scene.verdict == ("False", "Missing", "False")
    assert (len(scene.made), scene.pods) == (2, {})


def test_files_that_were_put_back_are_found_right_again() -> None:
    scene = Scene()
    assert scene.verify(found(("Missing", "x: not found"))) == ("False", "Missing", "False")
    scene.wanted = scene.now
    assert scene.verify() == ("True", "Verified", "True")


# --- what may come between


def test_what_keeps_the_pod_from_looking_is_said_and_goes_away() -> None:
    scene = Scene()
    scene.look()
    why = 'persistentvolumeclaim "halo-artifacts" not found'
    scene.pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": why}]
    told = scene.look(later=1)
    assert scene.verdict == ("Unknown", "Unschedulable", "False")
    assert scene.status.waiting == f"pod {scene.pod['metadata']['name']}: {why}"
    assert [note.reason for note in told.notes] == ["Unschedulable"]
    assert scene.look(later=3600) == AdapterPlan()
    scene.bind()
    scene.look(later=1)
    assert (scene.verdict, scene.status.waiting) == (("Unknown", "Verifying", "False"), None)


def test_a_claim_that_can_not_be_mounted_is_told_and_tried_elsewhere() -> None:
    scene = Scene()
    scene.look()
    scene.bind()
    assert scene.look().requeue_after == 60
    scene.look(later=60)
    assert scene.verdict == ("Unknown", "NotStarted", "False")
    assert "node-0 and not running" in str(scene.status.waiting)
    scene.look(later=b.ENVIRONMENT.start_timeout_seconds)
    assert len(scene.made) == 2
    assert scene.pod["metadata"]["labels"]["halo.training/attempt"] == "2"
    # What was wrong is still said: nobody knows yet that it went away.
    assert scene.said().reason == "NotStarted"
    scene.end(found())
    scene.look(later=5)
    assert (scene.verdict, scene.status.waiting) == (("True", "Verified", "True"), None)


def test_a_pod_whose_image_was_put_right_since_is_followed_at_once() -> None:
    scene = Scene()
    scene.look()
    scene.pod["spec"]["containers"][0]["image"] = "trainer:typo"
    waiting = {"name": "verify", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    scene.pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    scene.look(later=5)
    assert len(scene.made) == 2
    assert scene.pod["spec"]["containers"][0]["image"] == "trainer:1"


def test_a_pod_that_could_not_look_is_followed_by_others_ever_later() -> None:
    scene = Scene()
    scene.look()
    denied = Outcome(result="Failed", reason=Reason.PERMISSION_DENIED, message="/volumes/x is not open")
    waits = []
    for _ in range(8):
        scene.end(denied)
        scene.look(later=1)
        assert scene.verdict == ("Unknown", "PermissionDenied", "False")
        assert "/volumes/x is not open; it is tried again" in str(scene.status.waiting)
        wait = scene.look().requeue_after
        assert wait
        waits.append(wait + 1)
        assert scene.look(later=wait - 0.5).create == ()
        before = scene.status
        scene.look(later=0.5)
        assert scene.status == before
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    scene.end(found())
    scene.look(later=5)
    assert (scene.verdict, scene.status.waiting, scene.pods) == (("True", "Verified", "True"), None, {})


def test_a_verdict_that_can_not_be_had_again_is_no_verdict() -> None:
    scene = Scene()
    scene.verify()
    scene.wanted = scene.now + timedelta(seconds=1)
    scene.look(later=2)
    scene.end(Outcome(result="Failed", reason=Reason.CRASHED, message="Input/output error"))
    scene.look(later=1)
    assert scene.verdict == ("Unknown", "Crashed", "False")
    # Also if whoever asked is gone: what is unsettled is settled.
    scene.wanted = None
    scene.look(later=10)
    scene.end(found())
    scene.look(later=1)
    assert scene.verdict == ("True", "Verified", "True")


def test_a_quota_that_refuses_the_pod_is_said_once_and_tried_every_minute() -> None:
    scene = Scene()
    why = 'pods "run-verify-a1-0123456789" is forbidden: exceeded quota'
    scene.look(refused=why)
    assert (scene.verdict, scene.status.waiting) == (("Unknown", "PodRejected", "False"), why)
    writes = scene.writes
    for _ in range(3):
        plan = scene.look(later=60, refused=why)
        assert (plan.status, plan.notes, plan.requeue_after, len(plan.create)) == (None, (), 60, 1)
    assert (scene.status.waiting, scene.writes - writes) == (why, 3)
    assert scene.verify() == ("True", "Verified", "True")


def test_a_pod_that_is_deleted_is_made_again() -> None:
    scene = Scene()
    scene.look()
    scene.pods.clear()
    scene.look(later=1)
    scene.pod["metadata"]["deletionTimestamp"] = scene.now.isoformat()
    scene.bind()
    plan = scene.look(later=1)
    assert (plan.create, plan.delete) == ((), ())
    assert plan.requeue_after
    scene.pods.clear()
    assert scene.verify() == ("True", "Verified", "True")


def test_a_deleted_adapter_takes_its_pods_along_and_one_of_its_name_begins_anew() -> None:
    scene = Scene()
    scene.look()
    old = scene.pod
    scene.meta = replace(scene.meta, deleting=True)
    assert [ref.uid for ref in plan_adapter(scene.world, scene.now).delete] == ["pod-0"]
    assert plan_adapter(scene.world, scene.now).create == ()
    # The garbage collector has not come by yet, and its pod is told to be right.
    scene.end(found())
    scene.meta, scene.status = (
        replace(scene.meta, uid="adapter-2", deleting=False),
        AdapterStatus(observed_generation=-1),
    )
    scene.look()
    assert scene.verdict == ("Unknown", "Verifying", "False")
    assert scene.pod["metadata"]["name"] != old["metadata"]["name"]
    assert scene.verify() == ("True", "Verified", "True")


@pytest.mark.parametrize("dies_after", range(4))
@pytest.mark.parametrize("at_look", range(5))
def test_the_operator_may_die_after_any_write(at_look: int, dies_after: int) -> None:
    """The first pod fails, the second tells; whoever looks next goes on, and no pod is made twice or left behind."""
    scene = Scene()
    told = [Outcome(result="Failed", reason=Reason.NODE_LOST), found()]
    for number in range(12):
        scene.look(later=4, dies_after=dies_after if number == at_look else None)
        assert len(scene.pods) <= 1
        waiting = [pod for pod in scene.pods.values() if pod["status"]["phase"] == "Pending"]
        if number % 2 and waiting and told:
            scene.end(told.pop(0))
    assert scene.verdict == ("True", "Verified", "True")
    assert (scene.pods, len(scene.made), told) == ({}, 2, [])
    assert scene.look(later=600) == AdapterPlan()
