"""Any order of what a cluster can do to a run: the invariants hold after every step, and in the end the run ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.adapter import AdapterSpec
from halo_api.conditions import is_true
from halo_api.report import Outcome, Report
from halo_api.run_file import PublishPlan
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import names
from halo_operator.plan.run import is_terminal, plan_run
from halo_operator.plan.world import AdapterEntry, GpuEntry, PodView, RunWorld
from tests.unit.builders import (
    NOW,
    catalog,
    checkpoint,
    ended,
    failure,
    gpu,
    online,
    pod,
    published,
    publisher,
    run_file,
    running,
    seconds,
    server_pod,
    spec,
    success,
    world,
)

STEPS = 100


class Simulation:
    """A cluster of one run: it carries plans out, possibly only up to a crash of the operator."""

    def __init__(self, nodes: int, servers: int = 0) -> None:
        found = catalog(gpu=GpuEntry("h100", gpu(perNode=1)))
        trained = world(spec=spec(gpu={"type": "h100", "count": nodes}), catalog=found)
        self.world: RunWorld = online(nodes, servers, perNode=1) if servers else trained
        self.now: datetime = NOW
        self.report: Report | None = None
        self.ever: set[tuple[str, int, int, int]] = set()
        self.adapters = 0
        self.adapter: AdapterSpec
        self.plans: dict[str, PublishPlan | None] = {}

    @property
    def status(self) -> TrainingJobStatus:
        return self.world.status

    def reconcile(self, crash_after: int = 99) -> None:
        """Plan and carry out at most `crash_after` of the plan's writes, in the operator's order."""
        before = self.status
        found = AdapterEntry("run", "uid-1", self.adapter) if self.adapters else None
        self.world = replace(self.world, catalog=replace(self.world.catalog, adapter=found))
        plan = plan_run(self.world, self.now)
        assert bool(plan.statement) == any(child["kind"] == "Adapter" for child in plan.first), "each has its receipt"
        self._no_server_without_need(plan.create)
        writes: list = [(self._first, child) for child in plan.first]
        writes += [(self._status, plan.status)] if plan.status else []
        writes += [(self._delete, ref) for ref in plan.delete]
        writes += [(self._release, ref) for ref in plan.release]
        writes += [(self._create, child) for child in plan.create]
        for write, what in writes[:crash_after]:
            write(what)
        self._hold(before)

    def _hold(self, before: TrainingJobStatus) -> None:
        live = [p for p in self.world.pods if not p.ended]
        if is_terminal(before):
            assert self.status.conditions == before.conditions, "terminal is final"
        assert len({p.ref.name for p in self.world.pods}) == len(self.world.pods), (
            "never two trainers of one attempt and rank, nor two servers of one incarnation"
        )
        replaced = [p for p in self.world.pods if p.role == "rollout" and p.incarnation > 1]
        for number in {p.attempt for p in replaced}:
            assert sum(p.attempt == number for p in replaced) <= 3, "at most three replacements an attempt"
        assert len([p for p in live if p.role == "publish"]) <= 1, "never two that publish"
        assert self.adapters <= 1, "never two Adapters of one run"
        assert (self.status.attempt or 0) >= (before.attempt or 0), "attempts only grow"
        kept = {c.step for c in before.checkpoints[-1:]}
        assert kept <= {c.step for c in self.status.checkpoints} or self.world.spec.backoff_limit, (
            "a checkpoint is never lost"
        )
        assert all(p.attempt <= (self.status.attempt or 0) for p in live), (
            "the status names an attempt before its pods exist"
        )
        if is_true(self.status.conditions, "Complete"):
            assert self.adapters, "complete means that the adapter is there"
            assert self.status.adapter
            assert self.status.adapter.digest == self.adapter.digest

    def _no_server_without_need(self, created: tuple[dict, ...]) -> None:
        """A server is made while its trainers run, or with them."""
        for child in created:
            labels = child["metadata"]["labels"]
            if labels[names.ROLE_LABEL] == "rollout" and labels[names.INCARNATION_LABEL] != "1":
                number = int(labels[names.ATTEMPT_LABEL])
                mine = [p for p in self.world.pods if (p.role, p.attempt) == ("trainer", number)]
                assert mine
                assert all(not p.ended and p.deleting_since is None for p in mine), "nobody samples any more"
                assert not self.world.spec.suspend

    def _first(self, child: dict) -> None:
        if child["kind"] == "Adapter":
            self.adapters += 1
            self.adapter = AdapterSpec.model_validate(child["spec"])

    def _status(self, status: TrainingJobStatus) -> None:
        self.world = replace(self.world, status=status)

    def _create(self, child: dict) -> None:
        labels = child["metadata"]["labels"]
        if labels[names.ROLE_LABEL] == "publish":
            view = replace(publisher(child), running=False, bound_at=None, created_at=self.now)
            self.plans[view.ref.uid] = run_file(child).publish
            if all(p.ref.uid != view.ref.uid for p in self.world.pods):
                self.world = replace(self.world, pods=(*self.world.pods, view))
            return
        attempt, rank = int(labels[names.ATTEMPT_LABEL]), int(labels[names.RANK_LABEL])
        role, incarnation = labels[names.ROLE_LABEL], int(labels.get(names.INCARNATION_LABEL, "1"))
        assert (role, attempt, rank, incarnation) not in self.ever, "a pod of an attempt is made once"
        self.ever.add((role, attempt, rank, incarnation))
        made = (
            pod(attempt, rank, created_at=self.now)
            if role == "trainer"
            else server_pod(rank, incarnation, attempt, created_at=self.now)
        )
        assert made.ref.name == child["metadata"]["name"]
        self.world = replace(self.world, pods=(*self.world.pods, made))

    def _delete(self, ref) -> None:  # type: ignore[no-untyped-def]
        self._change(ref.uid, lambda p: replace(p, deleting_since=p.deleting_since or self.now))
        self._collect()

    def _release(self, ref) -> None:  # type: ignore[no-untyped-def]
        self._change(ref.uid, lambda p: replace(p, metered=False))
        self._collect()

    def _change(self, uid: str, change) -> None:  # type: ignore[no-untyped-def]
        self.world = replace(self.world, pods=tuple(change(p) if p.ref.uid == uid else p for p in self.world.pods))

    def _collect(self) -> None:
        """The API server removes a deleted pod once it ended and nobody holds it."""
        self.world = replace(
            self.world, pods=tuple(p for p in self.world.pods if p.metered or p.deleting_since is None or not p.ended)
        )

    def act(self, action: str, which: int, step: int) -> None:
        """Something happens in the cluster."""
        self.now += seconds(7)
        live = [p for p in self.world.pods if not p.ended]
        target = live[which % len(live)] if live else None
        match action:
            case "run" if target:
                self._change(target.ref.uid, lambda p: running(p, self.now))
            case "succeed" | "spoil" if target and target.role == "publish":
                corrupt = failure("CheckpointCorrupt")
                self._end(target, corrupt if action == "spoil" else published(self.plans[target.ref.uid]))
            case "succeed" if (
                target and target.role == "trainer" and target.running and target.attempt == self.status.attempt
            ):
                self._end(target, success(STEPS, target.attempt))
            case "crash" if target:
                self._end(target, failure("Crashed", attempt=target.attempt))
            case "oom" if target:
                self._end(target, failure("OutOfMemory", attempt=target.attempt))
            case "evict" if target:
                self._change(target.ref.uid, lambda p: replace(p, deleting_since=self.now))
                self._end(target, failure("Interrupted", step=step, attempt=target.attempt))
            case "delete":
                self.world = replace(self.world, pods=tuple(p for p in self.world.pods if p.metered or not p.ended))
            case "report" if self.status.attempt:
                found = Report(
                    run_uid="uid-1", attempt=self.status.attempt, checkpoints=(checkpoint(step, self.status.attempt),)
                )
                self.world = replace(self.world, report=found)
            case "suspend":
                self.world = replace(self.world, spec=self.world.spec.model_copy(update={"suspend": True}))
            case "resume":
                self.world = replace(self.world, spec=self.world.spec.model_copy(update={"suspend": False}))
        for p in [p for p in self.world.pods if p.deleting_since and not p.ended]:
            self._end(p, failure("Interrupted", attempt=p.attempt))

    def _end(self, view: PodView, outcome: Outcome) -> None:
        self._change(view.ref.uid, lambda p: ended(p, outcome, self.now))
        self._collect()


ACTIONS = st.tuples(
    st.sampled_from(
        ["run", "run", "succeed", "spoil", "delete", "crash", "oom", "evict", "report", "suspend", "resume", "nothing"]
    ),
    st.integers(0, 3),
    st.integers(1, STEPS),
    st.integers(0, 4),
)


# A busy machine is no failure.
@settings(deadline=None)
@given(st.integers(1, 2), st.integers(0, 2), st.lists(ACTIONS, max_size=30))
def test_whatever_happens_the_invariants_hold_and_the_run_can_be_finished(
    nodes: int, servers: int, actions: list[tuple[str, int, int, int]]
) -> None:
    simulation = Simulation(nodes, servers)
    for action, which, step, crash_after in actions:
        simulation.reconcile(crash_after)
        simulation.act(action, which, step)
    simulation.act("resume", 0, 1)
    for _ in range(60):
        simulation.reconcile()
        for which in range(nodes + servers):
            simulation.act("run", which, 1)
        for which in range(nodes + servers):
            simulation.act("succeed", which, 1)
        simulation.now += seconds(60)
    assert is_terminal(simulation.status)
    assert [p for p in simulation.world.pods if not p.ended or p.metered] == [], "nothing runs and nothing is held"


# A busy machine is no failure.
@settings(deadline=None)
@given(st.integers(1, 2), st.integers(0, 2), st.lists(ACTIONS, max_size=20))
def test_planning_again_on_what_a_plan_led_to_changes_nothing(
    nodes: int, servers: int, actions: list[tuple[str, int, int, int]]
) -> None:
    simulation = Simulation(nodes, servers)
    for action, which, step, _ in actions:
        simulation.reconcile()
        simulation.act(action, which, step)
    for _ in range(4):
        simulation.reconcile()
    plan = plan_run(simulation.world, simulation.now)
    assert (plan.status, plan.first, plan.create, plan.delete, plan.release) == (None, (), (), (), ())
