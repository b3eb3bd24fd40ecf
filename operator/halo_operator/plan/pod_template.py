"""The template of every pod of ours, written as its YAML would be: the supervisor under the *restricted* standard."""

from __future__ import annotations

from collections.abc import Sequence

from halo_api import API_VERSION
from halo_api.report import Deadline
from halo_api.run_file import (
    BORN_FOLDER,
    BORN_PATH,
    CA_ANNOTATION,
    DEADLINE_ANNOTATION,
    DIGEST_VARIABLE,
    INFO_FOLDER,
    REPORT_AUDIENCE,
    RUN_ANNOTATION,
    TOKEN_PATH,
    VOLUMES_FOLDER,
    WORK_FOLDER,
    RunFile,
    digest_of,
)
from halo_operator.plan import names
from halo_operator.plan.world import Environment, Meta, Object

USER_ID = 65532
# Above the supervisor's own grace, so that it can still write its outcome and push it.
POD_GRACE_SECONDS = 90
TOKEN_SECONDS = 3600
# Of a pod that only reads, hashes or copies files.
FILES_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def pod(
    meta: Meta,
    *,
    name: str,
    role: str,
    attempt: int,
    rank: int,
    run_file: RunFile,
    env: Environment,
    image: str,
    pull_policy: str,
    read: tuple[str, ...],
    write: tuple[str, ...],
    resources: Object,
    placement: Object,
    metered: bool,
    extra: Object,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    variables: Sequence[Object] = (),
    probes: Object | None = None,
    grace_seconds: int | None = None,
) -> Object:
    """Return a pod under the *restricted* Pod Security Standard whose first process is the supervisor."""
    text = run_file.canonical()
    claims = {claim: claim not in write for claim in (*read, *write)}
    volumes = {claim: volume_name(index) for index, claim in enumerate(claims)}
    tokens = [report_token()] if run_file.reporting else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": {
                names.RUN_LABEL: meta.uid,
                names.KEY_LABEL: names.key_label(meta.kind, meta.namespace, meta.name),
                names.ROLE_LABEL: role,
                names.ATTEMPT_LABEL: str(attempt),
                names.RANK_LABEL: str(rank),
                "app.kubernetes.io/name": "halo",
                "app.kubernetes.io/component": role,
                "app.kubernetes.io/managed-by": "halo",
                **(labels or {}),
            },
            "annotations": {
                names.OWNER_ANNOTATION: f"{meta.kind}/{meta.name}",
                RUN_ANNOTATION: text,
                CA_ANNOTATION: env.ca_bundle,
                DEADLINE_ANNOTATION: (run_file.deadline or Deadline(sequence=0)).canonical(),
                **(annotations or {}),
            },
            "ownerReferences": [owner(meta)],
            **({"finalizers": [names.METERED_FINALIZER]} if metered else {}),
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_seconds or (POD_GRACE_SECONDS if metered else 10),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **placement,
            **extra,
            "containers": [
                {
                    "name": role,
                    "image": image,
                    "imagePullPolicy": pull_policy,
                    "env": [
                        {"name": DIGEST_VARIABLE, "value": digest_of(text)},
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "USER", "value": "halo"},
                        *variables,
                    ],
                    "resources": resources,
                    **(probes or {}),
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "info", "mountPath": INFO_FOLDER, "readOnly": True},
                        {"name": "born", "mountPath": BORN_FOLDER, "readOnly": True},
                        *(
                            {"name": "token", "mountPath": TOKEN_PATH.rsplit("/", 1)[0], "readOnly": True}
                            for _ in tokens
                        ),
                        {"name": "work", "mountPath": WORK_FOLDER},
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "shm", "mountPath": "/dev/shm"},
                        *(
                            {"name": volumes[claim], "mountPath": f"{VOLUMES_FOLDER}/{claim}", "readOnly": read_only}
                            for claim, read_only in claims.items()
                        ),
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "info",
                    "downwardAPI": {
                        "items": [
                            {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
                            for path, key in (
                                ("run.json", RUN_ANNOTATION),
                                ("ca.crt", CA_ANNOTATION),
                                ("deadline.json", DEADLINE_ANNOTATION),
                            )
                        ]
                    },
                },
                {
                    # Apart from the annotations, because it must never be written again: its time is the pod's birth.
                    "name": "born",
                    "downwardAPI": {
                        "items": [{"path": BORN_PATH.rsplit("/", 1)[1], "fieldRef": {"fieldPath": "metadata.uid"}}]
                    },
                },
                *tokens,
                {"name": "work", "emptyDir": {"sizeLimit": "64Mi"}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                *(
                    {"name": volumes[claim], "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}
                    for claim, read_only in claims.items()
                ),
            ],
        },
    }


def report_token() -> Object:
    """Return the volume of the token that a report is pushed with; what pushes none has none to lose."""
    source = {"audience": REPORT_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    return {"name": "token", "projected": {"sources": [{"serviceAccountToken": source}]}}


def owner(meta: Meta) -> Object:
    """Return the controller reference to the object that owns a child."""
    return {
        "apiVersion": API_VERSION,
        "kind": meta.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def volume_name(index: int) -> str:
    """Return the name of a pod's volume for its index-th claim: a claim's own name may be too long for one."""
    return f"claim-{index}"
