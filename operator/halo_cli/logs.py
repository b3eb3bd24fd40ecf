"""`kubectl halo logs RUN`: the log of the pod that trains it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halo_api.labels import ATTEMPT_LABEL, RANK_LABEL, ROLE_LABEL, RUN_LABEL
from halo_api.training_job import TrainingJobStatus
from halo_cli.kubectl import CliError, Kubectl, NotThere, Object
from halo_cli.watch import exit_code, state_words, status_of

ROLE = "trainer"
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Wait:
    """There is no log yet; `message` says why."""

    message: str


def logs(kubectl: Kubectl, name: str, attempt: int | None, rank: int, follow: bool, say: Callable[[str], None]) -> int:
    """Stream the log; with `follow`, wait for it to begin."""
    said = ""
    while True:
        try:
            run = kubectl.get("trainingjobs.halo.training", name)
        except NotThere:
            raise kubectl.absent("TrainingJob", name, "trainingjobs") from None
        status = status_of(run)
        number = attempt or status.attempt
        pods = kubectl.get("pods", "--selector", selector(run, number))["items"] if number else []
        found = chosen(name, status, pods, number, rank)
        if isinstance(found, str):
            return kubectl.show("logs", found, "--container", ROLE, *(["--follow"] if follow else []))
        if not follow:
            raise CliError(found.message)
        if found.message != said:
            say(found.message)
            said = found.message
        time.sleep(LOOK_SECONDS)


def selector(run: Object, attempt: int | None) -> str:
    """Return the label selector of an attempt's pods."""
    return f"{RUN_LABEL}={run['metadata']['uid']},{ROLE_LABEL}={ROLE},{ATTEMPT_LABEL}={attempt}"


def chosen(name: str, status: TrainingJobStatus, pods: Sequence[Object], attempt: int | None, rank: int) -> str | Wait:
    """Return the name of the pod whose log is asked for, or why it must be waited for."""
    why = state_words(status)
    over = exit_code(status) is not None
    if attempt is None:
        if over:
            raise CliError(f"{name} never had a pod: {why}")
        return Wait(f"{name} has no pod yet: {why}")
    current = status.attempt or 0
    if attempt > current:
        raise CliError(f"--attempt: found {attempt}, but {name} is at attempt {current}")
    nodes = status.topology.nodes if status.topology else 1
    if rank >= nodes:
        raise CliError(f"--rank: found {rank}, but {name} has {nodes} trainer pod{'s' if nodes > 1 else ''}, from 0")
    pod = next((p for p in pods if p["metadata"]["labels"].get(RANK_LABEL) == str(rank)), None)
    if pod is None:
        if over or attempt < current:
            raise CliError(f"the pod of attempt {attempt} is gone, and its log with it; {name} is at attempt {current}")
        return Wait(f"attempt {attempt} of {name} has no pod now: {why}")
    if not has_begun(pod):
        if over or attempt < current:
            raise CliError(f"pod {pod['metadata']['name']} never started: {why}")
        return Wait(f"pod {pod['metadata']['name']} has not started yet: {why}")
    return str(pod["metadata"]["name"])


def has_begun(pod: Object) -> bool:
    """Whether the pod's container runs or ran, so that there is a log."""
    states = [container.get("state", {}) for container in pod.get("status", {}).get("containerStatuses", [])]
    return any("running" in state or "terminated" in state for state in states)
