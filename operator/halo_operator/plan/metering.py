"""Meters a run: all its GPUs, from each attempt's last pod bound to its last container's end, added up once and for good.

It counts from the times that the status keeps, so that anybody can count again; no clock is read here. An attempt that has
ended is closed: its GPU seconds never change again, and they are all that is charged. One that still runs is counted up to its
last report, for people to see; what they saw never falls.
"""

from __future__ import annotations

from datetime import datetime

from halo_api.run_status import AttemptRecord, Settlement, Topology, Usage
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import money
from halo_operator.plan.attempts import Attempt
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.progress import record_of
from halo_operator.plan.wishes import Unit

TRAINER, ROLLOUT = "trainer", "rollout"


def metered(status: TrainingJobStatus, attempt: Attempt, gpus: int) -> TrainingJobStatus:
    """Return the status with every attempt that has ended closed, and this one counted up to its last report."""
    status = _closed(status, gpus)
    record, usage = record_of(status, attempt.number), status.usage
    if record and record.started_at and not _over(record):
        usage = live(usage, _open_ms(status, record, gpus), record.started_at)
    if usage is None or status.frozen is None:
        return status
    usage = by_role(usage, gpus, status.topology)
    usage = priced(usage, status.frozen.gpu.h100_equivalent, rate_of(status))
    return status if usage == status.usage else status.model_copy(update={"usage": usage})


def gpus_of(layout: Topology) -> int:
    """Return all GPUs of a run that is laid out so."""
    return layout.nodes * layout.gpus_per_node + sum(one.gpus for one in layout.rollout)


def by_role(usage: Usage, gpus: int, layout: Topology | None) -> Usage:
    """Return the usage with its GPU seconds by role: every GPU is billed for the same time, idle or not."""
    serving = sum(one.gpus for one in layout.rollout) if layout else 0
    if not serving:
        return usage
    total = total_ms(usage)
    rollout = total * serving // gpus
    seconds = {TRAINER: money.seconds(total - rollout), ROLLOUT: money.seconds(rollout)}
    return usage.model_copy(update={"gpu_seconds": seconds})


def rate_of(status: TrainingJobStatus) -> int | None:
    """Return what a GPU hour of the run costs in micro-USD: as its hold froze it, else as it was quoted."""
    held = status.hold.rate if status.hold else None
    quoted = status.estimate.usd_per_gpu_hour if status.estimate else None
    return None if (rate := held or quoted) is None else money.micro(rate)


def gpu_ms(gpus: int, start: datetime, end: datetime) -> int:
    """Return the GPU-milliseconds from start to end; none if the end lies before."""
    spent = end - start
    return gpus * max(0, spent.days * 86_400_000 + spent.seconds * 1000 + spent.microseconds // 1000)


def with_attempt(usage: Usage | None, number: int, milliseconds: int) -> Usage:
    """Return the usage with an attempt that has ended; one that is counted already changes nothing."""
    usage = usage or Usage(h100_hours="0")
    if number <= usage.through:
        return usage
    closed = closed_ms(usage) + milliseconds
    facts = {"through": number, "closed_gpu_seconds": money.seconds(closed), "since": None}
    return _with_total(usage.model_copy(update=facts), closed)


def live(usage: Usage | None, open_ms: int, since: str) -> Usage:
    """Return the usage with an attempt that still runs, beside those that have ended."""
    usage = (usage or Usage(h100_hours="0")).model_copy(update={"since": since})
    return _with_total(usage, closed_ms(usage) + open_ms)


def priced(usage: Usage, h100_equivalent: money.Amount, rate: int | None) -> Usage:
    """Return the usage with what its GPU seconds are in H100-hours and, at a rate in micro-USD a GPU hour, in USD."""
    total = total_ms(usage)
    hours = money.micro_hours(money.weighed(total, h100_equivalent))
    usd = None if rate is None else money.usd(money.charge(total, rate))
    return usage.model_copy(update={"h100_hours": money.usd(hours), "usd": usd})


def used(usage: Usage | None, unit: Unit, h100_equivalent: money.Amount, rate: int | None) -> int:
    """Return what the attempts that have ended come to, in millionths of the unit: what a hold is charged for."""
    closed = closed_ms(usage)
    if unit == "H100Hours":
        return money.micro_hours(money.weighed(closed, h100_equivalent))
    return money.charge(closed, rate or 0)


def settled(unit: Unit, held: int, used: int, quoted: int | None) -> Settlement:
    """Return what becomes of a hold; amounts in millionths of the unit."""
    charged = min(held, used)
    return Settlement(
        unit=unit,
        quoted=None if quoted is None else money.usd(quoted),
        held=money.usd(held),
        used=money.usd(used),
        charged=money.usd(charged),
        overrun=money.usd(used - charged),
        released=money.usd(held - charged),
    )


def closed_ms(usage: Usage | None) -> int:
    """Return the GPU-milliseconds of all attempts that have ended."""
    return _milliseconds(usage.closed_gpu_seconds) if usage else 0


def total_ms(usage: Usage | None) -> int:
    """Return the GPU-milliseconds of all attempts, with what is known of the one that still runs."""
    return sum(_milliseconds(found) for found in usage.gpu_seconds.values()) if usage else 0


def _closed(status: TrainingJobStatus, gpus: int) -> TrainingJobStatus:
    usage, records = status.usage, []
    for record in status.attempts:
        if _over(record) and record.attempt > (usage.through if usage else 0):
            spent = _record_ms(record, gpus)
            usage = with_attempt(usage, record.attempt, spent)
            record = record.model_copy(update={"gpu_seconds": money.seconds(spent)})
        records.append(record)
    return status if usage is status.usage else status.model_copy(update={"usage": usage, "attempts": records})


def _over(record: AttemptRecord) -> bool:
    return record.reason is not None and record.finished_at is not None


def _record_ms(record: AttemptRecord, gpus: int) -> int:
    """An attempt that never had all its pods on nodes has no start, and costs nothing."""
    start, end = parse_time(record.started_at), parse_time(record.finished_at)
    return gpu_ms(gpus, start, end) if start and end else 0


def _open_ms(status: TrainingJobStatus, record: AttemptRecord, gpus: int) -> int:
    """Progress from before its start is that of an attempt before: it counts as none."""
    start, last = parse_time(record.started_at), parse_time(status.progress.updated_at) if status.progress else None
    return gpu_ms(gpus, start, last) if start and last else 0


def _with_total(usage: Usage, milliseconds: int) -> Usage:
    """A clock that was set back, or a report that was read late, never takes away what was seen."""
    total = max(milliseconds, total_ms(usage))
    return usage.model_copy(update={"gpu_seconds": {TRAINER: money.seconds(total)}})


def _milliseconds(seconds: str) -> int:
    return int(money.exact(seconds, 3) * 1000)
