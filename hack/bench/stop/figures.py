"""What a run that was stopped at its budget must have left: its times, its adapter, its charge; all counted again from its pods."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from halo_api.conditions import Reason

Object = dict[str, Any]

HOUR = 3600
MICRO = 1_000_000


@dataclass(frozen=True)
class Stopped:
    """One run by the times of its pods, each as the API has it."""

    name: str
    scenario: str
    hung: bool
    gpus: int
    bound: datetime
    ended: datetime
    hold_seconds: Decimal
    publish_seconds: float
    step: int
    published_by: str
    adapter_after: float

    @property
    def used_seconds(self) -> int:
        """On all of its GPUs."""
        return self.gpus * round((self.ended - self.bound).total_seconds())

    @property
    def deadline(self) -> datetime:
        return deadline(self.bound, self.hold_seconds, self.gpus, self.publish_seconds)

    @property
    def overrun(self) -> float:
        return float(max(Decimal(0), self.used_seconds - self.hold_seconds))

    @property
    def slack(self) -> float:
        """What it was told to stop too early, in GPU seconds that were paid for."""
        return float(max(Decimal(0), self.hold_seconds - self.used_seconds))

    @property
    def late(self) -> float:
        """How long after its deadline, the end of its steps, its last container ended."""
        return (self.ended - self.deadline).total_seconds()


def deadline(bound: datetime, hold_seconds: Decimal, gpus: int, publish_seconds: float) -> datetime:
    """When a run must do no more steps: what its hold buys, less the time to publish."""
    return bound + timedelta(seconds=float(hold_seconds) / gpus - publish_seconds)


# --- what pods and runs say


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def bound_at(pod: Object) -> datetime | None:
    """When the pod was given its node: by the API server's clock."""
    found = (c for c in pod.get("status", {}).get("conditions", ()) if c["type"] == "PodScheduled")
    return next((time_of(c["lastTransitionTime"]) for c in found if c["status"] == "True"), None)


def ended_at(pod: Object) -> datetime | None:
    """When its container ended: by the node's clock, which here is the same."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((time_of(s["state"]["terminated"]["finishedAt"]) for s in statuses if "terminated" in s["state"]), None)


def condition(body: Object, type_: str) -> Object:
    found = (c for c in body.get("status", {}).get("conditions", ()) if c["type"] == type_)
    return next(found, {"status": "Unknown", "reason": "", "message": ""})


def is_over(run: Object) -> bool:
    return any(condition(run, type_)["status"] == "True" for type_ in ("Complete", "Failed"))


def publish_seconds(run: Object) -> float:
    """What the run's quote sets aside for its adapter."""
    return next(float(p["seconds"]) for p in run["status"]["estimate"]["phases"] if p["name"] == "publish")


# --- what must be so


def wrong_with_run(run: Object, stopped: Stopped) -> Iterable[str]:
    """Yield what is not as it must be with how the run ended and what it used."""
    complete, failed = condition(run, "Complete"), condition(run, "Failed")
    if (complete["status"], complete["reason"]) != ("True", Reason.BUDGET_REACHED):
        yield f"is not Complete for BudgetReached: Complete {complete['reason']}, Failed {failed['reason']}: {failed['message']}"
    if run["status"].get("attempt") != 1:
        yield f"took {run['status'].get('attempt')} attempts"
    closed = Decimal(run["status"].get("usage", {}).get("closedGpuSeconds", "-1"))
    if closed != stopped.used_seconds:
        yield f"usage.closedGpuSeconds is {closed}, and by its pods it used {stopped.used_seconds}"


def wrong_with_adapter(run: Object, adapter: Object | None, folder: Path | None) -> Iterable[str]:
    """Yield what is not as it must be with the adapter and its bytes."""
    if adapter is None or folder is None:
        yield "has no Adapter of its name"
        return
    spec = adapter["spec"]
    if spec["trainedBy"]["uid"] != run["metadata"]["uid"]:
        yield f"its Adapter is of {spec['trainedBy']}"
    if (named := run["status"].get("adapter", {}).get("digest")) != spec["digest"]:
        yield f"its status names the adapter {named}, and the Adapter is {spec['digest']}"
    lines = []
    for file in sorted(spec["files"], key=lambda file: file["path"]):
        path = folder / file["path"]
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "not there"
        if f"sha256:{found}" != file["sha256"]:
            yield f"{file['path']} is {found}, and should be {file['sha256']}"
        lines.append(f"{found}  {file['path']}\n")
    if (digest := f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}") != spec["digest"]:
        yield f"its files make {digest}, and its Adapter says {spec['digest']}"


def wrong_with_entry(entry: Object | None, stopped: Stopped, budget: Decimal, equivalent: Decimal) -> Iterable[str]:
    """Yield what is not as it must be with the ledger's entry: to the second, and to the millionth of an H100-hour."""
    if entry is None:
        yield "is not in the ledger"
        return
    used = rounded_up(stopped.used_seconds * equivalent / HOUR)
    right = {
        "unit": "H100Hours",
        "held": budget,
        "used": used,
        "charged": min(used, budget),
        "overrun": used - min(used, budget),
        "gpuSeconds": Decimal(stopped.used_seconds),
        "outcome": Reason.BUDGET_REACHED,
    }
    for figure, value in right.items():
        found = Decimal(entry[figure]) if isinstance(value, Decimal) else entry[figure]
        if found != value:
            yield f"its entry says {figure} {entry[figure]}, and should say {value}"


def rounded_up(hours: Decimal) -> Decimal:
    """To a millionth, as a charge is."""
    return (hours * MICRO).to_integral_value(ROUND_CEILING) / MICRO


def wrong_with_book(status: Object, granted: Decimal) -> Iterable[str]:
    """Yield what is not as it must be with the Workspace once all of its runs are over."""
    use, entries = status.get("allocation", {}), status.get("settled", ())
    charged = sum((Decimal(entry["charged"]) for entry in entries), Decimal(0))
    if status.get("holds"):
        yield f"the Workspace still holds {status['holds']}"
    if Decimal(use.get("held", "-1")) != 0 or Decimal(use.get("spent", "-1")) != charged:
        yield f"the allocation says {use}, and the entries add up to {charged}"
    if Decimal(use.get("balance", "-1")) != granted - charged:
        yield f"the balance is {use.get('balance')}, and {granted} less {charged} is left"
