"""One configuration: that many runs of that many pods, created at once, and what became of them at what cost."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from tests.api.operator_process import OperatorProcess, training_job

from .api import Api
from .costs import AuditLog, busy_seconds, cpu_seconds, forget_peak, peak_mib, per_run, stored_bytes
from .stand import NAMESPACE, Stand, gpu_class

CORE, HALO = "api/v1", "apis/halo.training/v1alpha1"
# In the order in which nothing makes anew what was deleted before.
LEFT_BEHIND = (
    (HALO, "trainingjobs"),
    (CORE, "pods"),
    (CORE, "services"),
    (HALO, "adapters"),
    ("apis/events.k8s.io/v1", "events"),
)
# Above this share of the machine for others, the seconds say more about them: such a measurement is repeated.
QUIET_SHARE = 0.1
LIMIT_SECONDS = 900.0
FINALIZER = "halo.training/metered"


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    created_s: float
    pods_s: float
    terminal_s: float
    writes: float
    reads: float
    refused: float
    etcd_kb: float
    operator_cpu_s: float
    cpu_s: dict[str, float]
    rss_mib: float
    other_share: float
    writes_by_client: dict[str, float]
    writes_by_kind: dict[str, float]
    reads_by_kind: dict[str, float]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def measured(stand: Stand, api: Api, n: int, pods: int, runs: int, warm: int, extra: int) -> dict[str, Any]:
    """The medians of `runs` measurements after `warm` more; the least disturbed of up to `extra` more count."""
    floors = [await floor(api, n * pods) for _ in range(min(runs, 3))]
    operator = stand.operator()
    samples: list[Sample] = []
    try:
        for number in range(warm + runs + extra):
            sample = await once(stand, api, operator, n, pods)
            say(
                f"{n} runs of {pods}: all pods {sample.pods_s:.2f} s, all terminal {sample.terminal_s:.2f} s, "
                f"{sample.writes:.2f} writes a run, operator {sample.operator_cpu_s:.1f} CPU-s and {sample.rss_mib:.0f} MiB, "
                f"others {sample.other_share:.0%} of the machine{' (warm-up)' if number < warm else ''}"
            )
            samples += [sample] if number >= warm else []
            if sum(s.other_share <= QUIET_SHARE for s in samples) >= runs:
                break
        await clear(api)
    finally:
        operator.stop()
    best = sorted(samples, key=lambda s: s.other_share)[:runs]
    # Breakdowns are of the least disturbed one.
    figures = {
        name: value if isinstance(value, dict) else round(statistics.median(getattr(s, name) for s in best), 3)
        for name, value in asdict(best[0]).items()
    }
    figures["rss_mib"] = round(max(s.rss_mib for s in samples), 1)
    floor_s = round(statistics.median(floors), 3)
    ratio = round(figures["pods_s"] / floor_s, 2)
    return {
        "n": n,
        "pods": pods,
        "measured": len(best),
        **figures,
        "floor_s": floor_s,
        "pods_to_floor": ratio,
    }


async def once(stand: Stand, api: Api, operator: OperatorProcess, n: int, pods: int) -> Sample:
    """Create the runs and follow them to the end, and past it until the operator has nothing left to write."""
    await clear(api)
    audit = AuditLog(stand.home.audit_log, NAMESPACE)
    pids = {**stand.pids(), "operator": operator.pid, "bench": os.getpid()}
    forget_peak(operator.pid)
    offset, bytes_before = audit.end(), await asyncio.to_thread(stored_bytes, stand.home, NAMESPACE)
    made = await api.watch(CORE, "pods", n * pods, lambda _: True, metadata_only=True)
    ended = await api.watch(HALO, "trainingjobs", n, is_complete)
    before, busy = {name: cpu_seconds(pid) for name, pid in pids.items()}, busy_seconds()
    started = time.monotonic()
    await api.create_all(HALO, "trainingjobs", [a_run(index, pods) for index in range(n)])
    created = time.monotonic()
    async with asyncio.timeout(LIMIT_SECONDS):
        made_at, ended_at = await made, await ended
    after, busy_after = {name: cpu_seconds(pid) for name, pid in pids.items()}, busy_seconds()
    await settled(api)
    ours = sum(after[name] - before[name] for name in pids)
    requests = await asyncio.to_thread(audit.since, offset)
    stored = await asyncio.to_thread(stored_bytes, stand.home, NAMESPACE) - bytes_before
    return Sample(
        created_s=created - started,
        pods_s=made_at - started,
        terminal_s=ended_at - started,
        writes=requests.writes.total() / n,
        reads=requests.reads.total() / n,
        refused=requests.refused / n,
        etcd_kb=stored / n / 1000,
        operator_cpu_s=cpu_seconds(operator.pid) - before["operator"],
        cpu_s={name: round(after[name] - before[name], 2) for name in pids},
        rss_mib=peak_mib(operator.pid),
        other_share=max(0.0, busy_after - busy - ours) / (ended_at - started) / (os.cpu_count() or 1),
        writes_by_client=requests.by_client(n),
        writes_by_kind=per_run(requests.writes, n),
        reads_by_kind=per_run(requests.reads, n),
    )


async def floor(api: Api, count: int) -> float:
    """Seconds that a plain client needs for as many pods, with no controller between: what the API server allows."""
    await clear(api)
    made = await api.watch(CORE, "pods", count, lambda _: True, metadata_only=True)
    started = time.monotonic()
    await api.create_all(CORE, "pods", [plain_pod(index) for index in range(count)])
    return await made - started


async def settled(api: Api) -> None:
    """Wait until the operator has let go of every pod, and for its last event."""
    async with asyncio.timeout(60):
        while any(FINALIZER in pod.get("finalizers", ()) for pod in await metadata(api, CORE, "pods")):  # noqa: ASYNC110
            await asyncio.sleep(0.3)
    await asyncio.sleep(2)


async def clear(api: Api) -> None:
    """Delete what runs leave, until nothing of it is there, and wait for the watchers to see that."""
    for kind in LEFT_BEHIND:
        async with asyncio.timeout(LIMIT_SECONDS):
            while await metadata(api, *kind):
                await api.delete_all(*kind)
                await asyncio.sleep(0.2)
    await asyncio.sleep(1)


async def metadata(api: Api, group: str, resource: str) -> list[dict[str, Any]]:
    return [item["metadata"] for item in await api.metadata(group, resource)]


def is_complete(run: dict[str, Any]) -> bool:
    """Whether the run ended well; one that did not ends the bench."""
    conditions = {c["type"]: c for c in run.get("status", {}).get("conditions", ())}
    failed = conditions.get("Failed", {})
    if failed.get("status") == "True":
        raise RuntimeError(f"run {run['metadata']['name']} failed: {failed['reason']}: {failed['message']}")
    return bool(conditions.get("Complete", {}).get("status") == "True")


def a_run(index: int, pods: int) -> dict[str, Any]:
    return training_job("bench", f"run-{index:04}", gpu={"type": gpu_class(pods), "count": pods})


def plain_pod(index: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"plain-{index:04}"},
        "spec": {
            # No scheduler: nothing but the creation itself is in the floor.
            "schedulerName": "none",
            "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
