"""Whatever a status names is on the disk, and the disk is bounded: over the real report, supervisor, memory and fold.

Only the network, the API server and the bytes of a checkpoint are played.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.report import Answer, CheckpointReport, DiskReport, Report
from halo_api.retention import KnownCheckpoints, kept_steps
from halo_api.run_file import RunFile
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.progress import resume_from, with_checkpoints, with_report, without_last_checkpoint
from halo_operator.reports import Reports
from halo_supervisor import reporter
from halo_supervisor.paths import Paths
from halo_supervisor.push import PushFailure
from halo_trainer.checkpoints.retention import prune_checkpoints
from halo_trainer.reporting import Reporting
from tests.unit.builders import DIGEST, NOW

LOSS = (1.0, 0.5, None)
ROOM = DiskReport(free_bytes=1, checkpoint_bytes=1)
# Of one attempt: what its status names, the newest and the best that it keeps by itself, and the one just saved.
MOST = 4 + 4 + 1

LOSSES = st.dictionaries(
    st.integers(0, 40), st.sampled_from([None, math.nan, math.inf, 0.5, 1.0, 1.5, 2.0]), max_size=12
)


@given(LOSSES, LOSSES)
def test_what_was_left_out_never_comes_back(old: dict[int, float | None], new: dict[int, float | None]) -> None:
    """Nor does it matter in how many looks the checkpoints were seen."""
    both = old | new
    first = kept_steps({step: both[step] for step in old})
    then = kept_steps({step: both[step] for step in first | new.keys()})
    assert then == kept_steps(both)
    assert len(then) <= 4


def test_the_last_three_and_the_best_are_kept_and_of_equals_the_last() -> None:
    losses = {1: 9.0, 2: 0.5, 3: 0.5, 4: 1.0, 5: math.nan, 6: 1.0, 7: None}
    assert sorted(kept_steps(losses)) == [3, 5, 6, 7]


def test_a_checkpoint_is_free_once_a_status_went_on_without_it_or_when_nobody_heard_of_it() -> None:
    known = KnownCheckpoints(named=(5, 20), told=(25,))
    assert [step for step in (5, 10, 20, 25, 30) if known.is_free(step)] == [10, 30]
    assert known.answered((20, 25)) == KnownCheckpoints(named=(20, 25))


class HookedReporting(Reporting):
    """A report between two writes of which others act."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def name_checkpoints(self, checkpoints: tuple[CheckpointReport, ...]) -> bool:
        written = super().name_checkpoints(checkpoints)
        self.between()
        return written


class HookedReporter(reporter.Reporter):
    """A supervisor between two looks of which the role acts."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def current(self) -> Report:
        self.between()
        return super().current()


class Pod:
    """One attempt: the trainer and the supervisor, with a folder for reports and one for checkpoints."""

    def __init__(self, root: Path, attempt: int, step: int) -> None:
        self.step, self.attempt = step, attempt
        self.disk = root / f"a{attempt}"
        self.disk.mkdir()
        work = root / f"work-{attempt}"
        work.mkdir()
        run = {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": attempt}
        base = {"name": "b", "source": "pvc://m/b", "revision": "r", "dtype": "fp32", "contextLength": 9}
        file = RunFile.model_validate({"role": "train", "run": run, "base": base, "reporting": {"url": "https://h/"}})
        self.paths = Paths(report=work / "report.json")
        self.report = HookedReporting(self.paths.report, file)
        self.supervisor = HookedReporter(file, self.paths, lambda _: None)

    def folder(self, step: int) -> Path:
        return self.disk / f"step-{step}"

    def save(self, loss: float | None) -> None:
        """As the trainer does: make room, write, report."""
        prune_checkpoints(self.report, self.folder)
        self.step += 1
        self.folder(self.step).mkdir()
        uri = f"pvc://artifacts/a{self.attempt}/step-{self.step}"
        made = CheckpointReport(step=self.step, uri=uri, digest=DIGEST, loss=loss, at="2026-11-29T11:30:00Z")
        self.report.checkpoint(made, ROOM)

    def push(self) -> None:
        # Without its thread.
        self.supervisor._push(self.supervisor.current())

    @property
    def told(self) -> int:
        known = self.report.known_checkpoints()
        return len(known.told) if known else 0


class Cluster:
    """The stored status, its version, the operator's process of the day, and writes that are still on their way."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.status = TrainingJobStatus(attempt=1)
        self.version = 0
        self.reports = Reports()
        self.writes: list[tuple[Reports, int, TrainingJobStatus]] = []
        self.network = "works"
        self.pods = [Pod(root, 1, 0)]

    def take(self, report: Report, *_: Any) -> Answer | PushFailure:
        """As the server does."""
        if self.network in ("refused", "cut before"):
            return PushFailure(self.network, unheard=self.network == "refused")
        if self.reports.is_stale(report):
            return PushFailure("HTTP 410", unheard=True, final=True)
        self.reports.put(report)
        if self.network == "cut after":
            return PushFailure(self.network)
        return Answer(
            acknowledged=self.reports.acknowledged(report),
            saved_step=self.reports.saved_step(report.run_uid),
            checkpoints=self.reports.named_steps(report),
        )

    def look(self) -> None:
        """Begin to reconcile: what it will write is decided by what is read now."""
        self.writes.append((self.reports, self.version, with_report(self.status, self.reports.latest("uid-1"), NOW)))

    def write(self, which: int) -> None:
        """One of the writes arrives, of whatever process; the API server takes it if nobody wrote since it looked."""
        if not self.writes:
            return
        reports, version, new = self.writes.pop(which % len(self.writes))
        if version == self.version:
            self.store(new)
            reports.written("uid-1", self.status)

    def store(self, status: TrainingJobStatus) -> None:
        if status != self.status:
            self.version += 1
            self.status = status

    def relaunch(self, alive: bool, corrupt: bool) -> None:
        """The pod is lost, or ends and its last word is read; a cut off one goes on beside its successor."""
        last = self.pods[-1]
        status = with_report(self.status, self.reports.latest("uid-1"), NOW)
        if not alive:
            status = with_checkpoints(status, (last.report.last_checkpoint,))
        if corrupt and status.checkpoints:
            status = without_last_checkpoint(status)
        self.store(status.model_copy(update={"attempt": last.attempt + 1}))
        self.reports.written("uid-1", self.status)
        resume = resume_from(self.status)
        if not alive:
            self.pods.pop()
        self.pods.append(Pod(self.root, last.attempt + 1, resume.step if resume else 0))

    def act(self, name: str, number: int) -> None:
        pod = self.pods[number % len(self.pods)]
        match name:
            case "save":
                for loss in LOSS[: 1 + number // 4]:
                    pod.save(loss if number % 4 else 2.0)
            case "push":
                pod.push()
            case "look":
                self.look()
            case "write":
                self.write(number)
            case "restart":
                self.reports = Reports()
            case "relaunch":
                self.relaunch(alive=bool(number & 1), corrupt=bool(number & 2))
            case _:
                self.network = name

    def hold(self) -> None:
        for kept in self.status.checkpoints:
            assert (self.root / f"a{kept.attempt}" / f"step-{kept.step}").is_dir(), kept
        for pod in self.pods:
            assert len(list(pod.disk.iterdir())) <= MOST + pod.told


NAMES = ["save", "push", "look", "write"] * 4 + [
    "restart",
    "relaunch",
    "works",
    "works",
    "refused",
    "cut before",
    "cut after",
]
ACTIONS = st.tuples(st.sampled_from(NAMES), st.integers(0, 9))


def play(cluster: Cluster, actions: list[tuple[str, int]], amid: list[tuple[str, int]]) -> None:
    """Do the actions, and those of `amid` in the gaps of pushes and of pruning."""
    waiting, inside, busy = list(amid), False, set[str]()

    def between() -> None:
        nonlocal inside
        if waiting and not inside:
            inside = True
            name, number = waiting.pop()
            # A process does one thing at a time: the trainer saves amid a push, and the others act amid a save.
            if name not in busy:
                cluster.act(name, number)
            inside = False

    for name, number in actions:
        busy = {name, "relaunch"}
        for pod in cluster.pods:
            pod.report.between = pod.supervisor.between = between  # type: ignore[method-assign]
        cluster.act(name, number)
        cluster.hold()


# A busy machine is no failure.
@settings(deadline=None)
@given(st.lists(ACTIONS, min_size=20, max_size=80), st.lists(ACTIONS, min_size=5, max_size=20))
def test_whatever_a_status_names_is_there_and_the_disk_is_bounded(
    actions: list[tuple[str, int]], amid: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cluster = Cluster(Path(folder))
        patch.setattr(reporter, "push", cluster.take)
        play(cluster, actions, amid)


@pytest.mark.parametrize(("network", "most"), [("works", 4), ("refused", 7), ("cut before", 51)])
def test_how_much_lies_on_the_disk(network: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After twelve saves that went well, 48 more: with the operator, without it, and with one that may have heard each.

    The best is the last one here, as it often is.
    """
    cluster = Cluster(tmp_path)
    monkeypatch.setattr(reporter, "push", cluster.take)
    pod, found = cluster.pods[0], []
    for number in range(60):
        cluster.network = "works" if number < 12 else network
        pod.save(1.0)
        for name in ("push", "look", "write", "push"):
            cluster.act(name, 0)
        found.append(len(list(pod.disk.iterdir())))
        cluster.hold()
    assert max(found) == most
    assert cast(CheckpointReport, pod.report.last_checkpoint).step == 60
