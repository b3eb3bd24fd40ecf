"""Whatever a status names is on the disk, and the disk is bounded: over the real report, supervisor, memory and fold.

Only the network, the API server and the bytes of a checkpoint are played. A push that was sent once may arrive at any time, any
number of times, at either of two operators that both believe they lead.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.report import Answer, CheckpointReport, DiskReport, Report
from halo_api.retention import MOST_UNDECIDED, kept_steps, left_out, undecided
from halo_api.run_file import RunFile
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.progress import resume_from, with_checkpoints, with_report, without_last_checkpoint
from halo_operator.reports import Reports
from halo_supervisor import reporter
from halo_supervisor.paths import Paths
from halo_supervisor.push import PushFailure
from halo_trainer.checkpoints.retention import prune_checkpoints, tell_checkpoint
from halo_trainer.reporting import Reporting
from tests.unit.builders import DIGEST, NOW

LOSS = (1.0, 0.5, None)
ROOM = DiskReport(free_bytes=1, checkpoint_bytes=1)
# Of one attempt: what its status names, what it may tell beyond that, one that is held back, and the one just saved.
MOST = 4 + MOST_UNDECIDED + 1 + 1

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


def test_a_checkpoint_may_go_once_a_status_went_on_to_a_newer_one_without_it() -> None:
    assert [step for step in (5, 10, 20, 25) if left_out(step, (5, 20))] == [10]
    assert [step for step in (5, 10, 20, 25) if undecided(step, (5, 20))] == [25]
    assert undecided(1, ())


class Pod:
    """One attempt: the trainer and the supervisor, with a folder for reports and one for checkpoints."""

    def __init__(self, cluster: Cluster, attempt: int, step: int) -> None:
        self.step, self.attempt = step, attempt
        self.disk = cluster.root / f"a{attempt}"
        self.disk.mkdir()
        work = cluster.root / f"work-{attempt}"
        work.mkdir()
        run = {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": attempt}
        base = {"name": "b", "source": "pvc://m/b", "revision": "r", "dtype": "fp32", "contextLength": 9}
        file = RunFile.model_validate({"role": "train", "run": run, "base": base, "reporting": {"url": "https://h/"}})
        paths = Paths(report=work / "report.json")
        self.report = Reporting(paths.report, file)
        self.supervisor = reporter.Reporter(file, paths, lambda _: None)

    def folder(self, step: int) -> Path:
        return self.disk / f"step-{step}"

    def save(self, loss: float | None) -> None:
        """As the trainer does: make room, write, report."""
        prune_checkpoints(self.report, self.folder)
        self.step += 1
        self.folder(self.step).mkdir()
        assert len(list(self.disk.iterdir())) <= MOST
        uri = f"pvc://artifacts/a{self.attempt}/step-{self.step}"
        made = CheckpointReport(step=self.step, uri=uri, digest=DIGEST, loss=loss, at="2026-11-29T11:30:00Z")
        tell_checkpoint(self.report, made, ROOM, self.folder)

    def push(self) -> None:
        # Without its thread.
        self.supervisor._push(self.supervisor.current().model_copy(update={"held": None}))


class Cluster:
    """The stored status and its version, two operators, and what is still on its way: pushes, and writes of the status."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.status = TrainingJobStatus(attempt=1)
        self.version = 0
        self.operators = [Reports(), Reports()]
        self.leader = 0
        self.sent: list[Report] = []
        self.writes: list[tuple[Reports, int, TrainingJobStatus]] = []
        self.network = "works"
        self.saves_amid = 0
        self.pods = [Pod(self, 1, 0)]

    def take(self, report: Report, *_: Any) -> Answer | PushFailure:
        """The network, and at its other end what the server does; the trainer saves while the push is on its way."""
        self.sent.append(report)
        answer: Answer | PushFailure = PushFailure(self.network)
        if self.network != "cut before":
            answer = self.arrive(report, self.operators[self.leader])
        for _ in range(self.saves_amid):
            next(pod for pod in self.pods if pod.attempt == report.attempt).save(1.0)
        return PushFailure(self.network) if self.network == "cut after" else answer

    def arrive(self, report: Report, reports: Reports) -> Answer | PushFailure:
        if reports.is_stale(report):
            return PushFailure("HTTP 410", final=True)
        reports.put(report)
        return Answer(
            acknowledged=reports.acknowledged(report),
            saved_step=reports.saved_step(report.run_uid),
            checkpoints=reports.named_steps(report),
        )

    def look(self) -> None:
        """Begin to reconcile: what it will write is decided by what is read now."""
        reports = self.operators[self.leader]
        self.writes.append((reports, self.version, with_report(self.status, reports.latest("uid-1"), NOW)))

    def write(self, which: int) -> None:
        """One of the writes arrives, of either operator; the API server takes it if nobody wrote since it looked."""
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
        last, reports = self.pods[-1], self.operators[self.leader]
        status = with_report(self.status, reports.latest("uid-1"), NOW)
        if not alive:
            status = with_checkpoints(status, (last.report.last_checkpoint,))
        if corrupt and status.checkpoints:
            status = without_last_checkpoint(status)
        self.store(status.model_copy(update={"attempt": last.attempt + 1}))
        reports.written("uid-1", self.status)
        resume = resume_from(self.status)
        if not alive:
            self.pods.pop()
        self.pods.append(Pod(self, last.attempt + 1, resume.step if resume else 0))

    def act(self, name: str, number: int) -> None:
        pod = self.pods[-1 - (number // 7) % len(self.pods)]
        match name:
            case "save":
                for loss in LOSS[: 1 + number // 4]:
                    pod.save(loss if number % 4 else 2.0)
            case "push":
                self.saves_amid = number % 3
                pod.push()
            case "late":
                if self.sent:
                    self.arrive(self.sent[-1 - number % len(self.sent)], self.operators[self.leader])
            case "look":
                self.look()
            case "write":
                self.write(number)
            case "tell":
                # All goes well for once.
                self.network, self.saves_amid = "works", 0
                pod.push()
                self.look()
                self.write(-1)
                pod.push()
            case "restart":
                self.operators[self.leader] = Reports()
            case "other":
                self.leader = 1 - self.leader
            case "relaunch":
                self.relaunch(alive=bool(number & 1), corrupt=bool(number & 2))
            case _:
                self.network = name

    def hold(self) -> None:
        for kept in self.status.checkpoints:
            assert (self.root / f"a{kept.attempt}" / f"step-{kept.step}").is_dir(), kept
        for pod in self.pods:
            last = pod.report.last_checkpoint
            assert last is None or (pod.folder(last.step).is_dir() and last.step == pod.step)


NAMES = ["save", "push", "look", "write", "tell"] * 3 + [
    "late",
    "late",
    "restart",
    "other",
    "other",
    "relaunch",
    "works",
    "cut before",
    "cut after",
]
ACTIONS = st.tuples(st.sampled_from(NAMES), st.integers(0, 13))


# A busy machine is no failure.
@settings(deadline=None, max_examples=300)
@given(st.lists(ACTIONS, min_size=20, max_size=60))
def test_whatever_a_status_names_is_there_and_the_disk_is_bounded(actions: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cluster = Cluster(Path(folder))
        patch.setattr(reporter, "push", cluster.take)
        for name, number in actions:
            cluster.act(name, number)
            cluster.hold()


@pytest.mark.parametrize(("network", "most"), [("works", 4), ("cut before", 12), ("cut after", 12)])
def test_how_much_lies_on_the_disk(network: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After twelve saves that went well, 48 more: with the operator, without it, and with one whose answers are lost.

    The best is the last one here, as it often is. The last one is told as soon as somebody listens again.
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
    cluster.act("tell", 0)
    pod.save(1.0)
    cluster.act("tell", 0)
    assert [kept.step for kept in cluster.status.checkpoints][-1] == 61
    pod.save(1.0)
    assert len(list(pod.disk.iterdir())) == 4
