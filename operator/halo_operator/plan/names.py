"""Names and labels of a run's children: legal, unique and the same every time, whatever the run is called."""

from __future__ import annotations

import hashlib

from halo_api.labels import ATTEMPT_LABEL as ATTEMPT_LABEL
from halo_api.labels import INCARNATION_LABEL as INCARNATION_LABEL
from halo_api.labels import RANK_LABEL as RANK_LABEL
from halo_api.labels import ROLE_LABEL as ROLE_LABEL
from halo_api.labels import RUN_LABEL as RUN_LABEL

KEY_LABEL = "halo.training/key"
OWNER_ANNOTATION = "halo.training/owner"
BASE_ANNOTATION = "halo.training/base-model"
REVISION_ANNOTATION = "halo.training/base-revision"
METERED_FINALIZER = "halo.training/metered"
# On a run while its hold is open, and on a Workspace while it has anything that is in no LedgerPage.
HOLD_FINALIZER = "halo.training/hold"

LONGEST_LABEL = 63


def tail(*parts: str) -> str:
    """Return ten hex digits that stand for `parts`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def key_label(kind: str, namespace: str, name: str) -> str:
    """Return the label value by which all pods of an object of that name are found, of every incarnation of it."""
    return hashlib.sha256("\0".join((kind, namespace, name)).encode()).hexdigest()[:20]


def child(owner: str, middle: str, *identity: str) -> str:
    """Return OWNER-MIDDLE-HASH as a DNS label of at most 63 characters; the hash keeps shortened names unique."""
    end = f"-{middle}-{tail(owner, *identity)}"
    stem = owner.replace(".", "-")[: LONGEST_LABEL - len(end)].rstrip("-")
    return stem + end


def trainer_pod(owner: str, uid: str, rank: int, attempt: int) -> str:
    """Return the name of a trainer pod; its end, -a<attempt>-<10 hex>, is what the chart's exec policy knows it by."""
    return child(owner, f"trainer-{rank}-a{attempt}", uid, "trainer", str(rank), str(attempt))


def rollout_pod(owner: str, uid: str, server: int, incarnation: int, attempt: int) -> str:
    """Return the name of a rollout server's pod; one that replaces another has the next incarnation."""
    identity = (uid, "rollout", str(server), str(incarnation), str(attempt))
    return child(owner, f"rollout-{server}-i{incarnation}-a{attempt}", *identity)


def inspect_pod(owner: str, uid: str, base_model: str, revision: str, attempt: int) -> str:
    """Return the name of the pod that inspects a data set with the tokenizer of one base's revision."""
    return child(owner, f"inspect-a{attempt}", uid, "inspect", base_model, revision, str(attempt))


def publish_pod(owner: str, uid: str, attempt: int, number: int) -> str:
    """Return the name of a pod that publishes what an attempt left."""
    return child(owner, f"publish-{number}-a{attempt}", uid, "publish", str(number), str(attempt))


def verify_pod(owner: str, uid: str, since: str, attempt: int) -> str:
    """Return the name of a pod that verifies an adapter; `since` is when the verification before began."""
    return child(owner, f"verify-a{attempt}", uid, "verify", since, str(attempt))


def rendezvous_service(owner: str, uid: str) -> str:
    """Return the name of the headless Service by which a run's pods meet; unlike a pod's, it must start with a letter."""
    return child(owner if owner[0].isalpha() else f"r{owner}", "trainer", uid, "rendezvous")


def host_name(rank: int, attempt: int) -> str:
    """Return the host name of a trainer pod: it carries the attempt, so that an old one is never met by a new one."""
    return f"a{attempt}-r{rank}"


def rollout_host(server: int, incarnation: int, attempt: int) -> str:
    """Return the host name of a rollout server: with another attempt or incarnation it is another one."""
    return f"a{attempt}-s{server}-i{incarnation}"
