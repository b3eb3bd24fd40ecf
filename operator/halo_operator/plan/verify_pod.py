"""Builds the pod that hashes the files of an adapter again: it reads one claim, needs no GPU and is not billed."""

from __future__ import annotations

from halo_api.adapter import AdapterSpec
from halo_api.run_file import RunFile, RunIdentity, VerifyPlan, claim_of
from halo_operator.plan import names
from halo_operator.plan.pod_template import FILES_RESOURCES, pod
from halo_operator.plan.world import Environment, Meta, Object


def verify_pod(meta: Meta, spec: AdapterSpec, since: str, attempt: int, env: Environment) -> Object:
    """Return the pod of one attempt; `since` is when the verification before began, so that no name comes again."""
    run_file = RunFile(
        role="verify",
        run=RunIdentity(kind="Adapter", namespace=meta.namespace, name=meta.name, uid=meta.uid, attempt=attempt),
        verify=VerifyPlan(uri=spec.uri, files=tuple(spec.files)),
        reporting=None,
        grace_seconds=5.0,
    )
    return pod(
        meta,
        name=names.verify_pod(meta.name, meta.uid, since, attempt),
        role="verify",
        attempt=attempt,
        rank=0,
        run_file=run_file,
        env=env,
        image=env.trainer_image,
        pull_policy=env.image_pull_policy,
        read=(claim_of(spec.uri),),
        write=(),
        resources=FILES_RESOURCES,
        placement={},
        metered=False,
        extra={},
    )
