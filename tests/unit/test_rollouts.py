"""The rollout servers of a run while it goes on: replaced alone, told where they are, counted, stopped, and billed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.conditions import condition_of
from halo_api.report import Outcome, ProgressReport, Report, RolloutProgress
from halo_operator.plan.attempts import attempt_in
from halo_operator.plan.rollouts import servers_of
from halo_operator.plan.run import is_terminal, not_made, plan_run
from halo_operator.plan.stopping import deadlines_of
from halo_operator.plan.world import PodView
from tests.unit import builders as b
from tests.unit.builders import failure, seconds, success
from tests.unit.test_run_simulation import Simulation


class Run(Simulation):
    """A halo_rlvr run whose pods all run."""

    def __init__(self, servers: int = 2, trainers: int = 1, **changes: object) -> None:
        super().__init__(trainers, servers)
        self.world = b.online(trainers, servers, **({"perNode": 1} | changes))
        self.reconcile()
        self.start()

    def start(self) -> None:
        """Every pod that waits gets its node, and can do its work."""
        for pod in self.world.pods:
            if not pod.ended and not pod.running:
                self._change(pod.ref.uid, lambda p: replace(b.running(p, self.now), ready=True))
        self.reconcile()

    def pods(self, role: str) -> list[PodView]:
        return [p for p in self.world.pods if p.role == role and not p.ended]

    def server(self, number: int = 0) -> PodView:
        (found,) = [p for p in self.pods("rollout") if p.rank == number]
        return found

    def end(self, pod: PodView, outcome: Outcome, after: float = 5.0) -> None:
        """A pod ends, and the operator sees it."""
        self.now += seconds(after)
        self._end(pod, outcome)
        self.reconcile()

    def lose(self, number: int = 0, reason: str = "Crashed") -> None:
        self.end(self.server(number), failure(reason, "vLLM is gone"))

    def serving(self) -> list[tuple[int, int]]:
        """The servers that have a pod, and which it is of theirs."""
        return sorted((p.rank, p.incarnation) for p in self.pods("rollout"))

    def told(self) -> list[tuple[int, int]]:
        """Where trainers are told to look."""
        found = servers_of(self.world.meta, self.status)
        assert found
        return [(one.server, one.incarnation) for one in found.servers]

    def degraded(self) -> str | None:
        found = condition_of(self.status.conditions, "RolloutDegraded")
        return found.message if found else None

    def stopping(self) -> bool:
        return all(p.deleting_since for p in self.pods("rollout"))


def test_a_server_that_ends_is_replaced_alone_and_trainers_are_told_where_it_is() -> None:
    run = Run(2)
    trainers = run.pods("trainer")
    assert run.told() == [(0, 1), (1, 1)]
    run.lose(1)
    assert run.serving() == run.told() == [(0, 1), (1, 2)]
    assert run.pods("trainer") == trainers
    assert run.degraded() == (
        "1 of 2 rollout servers serve: server 1 is being replaced (1 of 3 replacements of the attempt)"
    )
    run.start()
    assert run.degraded() is None
    assert (run.status.attempt, run.status.failures) == (1, 0)


def test_an_operator_that_dies_between_the_status_and_the_pod_makes_the_same_one() -> None:
    run = Run(1)
    run._end(run.server(), failure("Crashed"))
    run.reconcile(crash_after=1)
    assert (run.told(), run.serving()) == ([(0, 2)], [])
    run.reconcile()
    assert run.told() == run.serving() == [(0, 2)]


def test_a_quota_that_refuses_the_next_one_uses_up_no_replacement() -> None:
    run = Run(1)
    run._end(run.server(), failure("Crashed"))
    run.reconcile(crash_after=1)
    for _ in range(5):
        refused = not_made(run.world, "pods are forbidden: exceeded quota", run.now)
        run.world = replace(run.world, status=refused.status or run.status)
        plan = plan_run(run.world, run.now)
        assert plan.status is None, "nothing is said that the next try would say otherwise"
        assert len(plan.create) == 1
        run.now += seconds(60)
    run.reconcile()
    run.start()
    assert run.told() == run.serving() == [(0, 2)]
    assert condition_of(run.status.conditions, "Scheduled").status == "True"


def test_the_fourth_end_ends_the_attempt_and_the_next_begins_anew() -> None:
    run = Run(2)
    for server in (0, 1, 1):
        run.lose(server)
        run.start()
    assert run.serving() == [(0, 2), (1, 3)]
    run.lose(0, "OutOfMemory")
    assert all(p.deleting_since for p in run.world.pods if not p.ended)
    for pod in [p for p in run.world.pods if not p.ended]:
        run.end(pod, failure("Interrupted"))
    run.reconcile()
    first = run.status.attempts[0]
    assert (first.reason, first.replaced) == ("RolloutLost", [0, 1, 1])
    assert "3 rollout servers were replaced" in first.message
    assert "OutOfMemory: vLLM is gone" in first.message
    assert (run.status.attempt, run.status.failures) == (2, 1)
    assert run.told() == run.serving() == [(0, 1), (1, 1)]
    assert {p.attempt for p in run.pods("rollout")} == {2}


def test_a_server_that_finds_no_place_again_ends_the_attempt() -> None:
    """All GPUs are paid for: a run does not go on for ever with fewer."""
    run = Run(2)
    run.lose(1)
    run._change(
        run.server(1).ref.uid, lambda p: replace(p, blocked="no node has a GPU", blocked_reason="Unschedulable")
    )
    run.now += seconds(590)
    run.reconcile()
    assert condition_of(run.status.conditions, "Ready").reason == "Running"
    run.now += seconds(20)
    run.reconcile()
    words = run.status.attempts[0].message
    assert words.startswith("rollout server 1 could not be replaced within 600 s (no node has a GPU)")


@pytest.mark.parametrize("reported", [True, False])
def test_servers_stop_as_soon_as_the_trainer_has_ended_and_none_comes_again(reported: bool) -> None:
    """Its report is there before its pod has ended."""
    run, outcome = Run(2), success()
    if reported:
        run.world = replace(run.world, report=Report(run_uid="uid-1", attempt=1, outcome=outcome))
        run.reconcile()
    else:
        run.end(run.pods("trainer")[0], outcome)
    assert run.stopping()
    assert not run.status.trained, "its GPUs are not free yet"
    for pod in run.pods("rollout"):
        run.end(pod, failure("Interrupted"))
    assert run.pods("rollout") == []
    assert run.status.attempts[0].replaced == []
    if reported:
        run.end(run.pods("trainer")[0], outcome)
    assert run.status.trained
    assert [p.role for p in run.world.pods if not p.ended] == ["publish"]


def suspend(run: Run) -> None:
    run.act("suspend", 0, 0)


def spend(run: Run) -> None:
    run.now += seconds(9000)


def remove(run: Run) -> None:
    run.world = replace(run.world, meta=replace(run.world.meta, deleting=True))


def fail(run: Run) -> None:
    run._end(run.pods("trainer")[0], failure("NonFiniteLoss"))


def drain(run: Run) -> None:
    run._change(run.pods("trainer")[0].ref.uid, lambda p: replace(p, deleting_since=run.now))


@pytest.mark.parametrize("what", [suspend, spend, remove, fail, drain])
def test_servers_stop_with_the_run_and_one_that_ends_then_is_not_replaced(what: Callable[[Run], None]) -> None:
    run = Run(2, budget={"h100Hours": 7.5})
    run._end(run.server(0), failure("Crashed"))
    what(run)
    plan = plan_run(run.world, run.now)
    assert [p for p in plan.create if p["metadata"]["labels"]["halo.training/role"] == "rollout"] == []
    assert plan.status is None or condition_of(plan.status.conditions, "RolloutDegraded") is None
    gone = {ref.uid for ref in (*plan.delete, *plan.expel)}
    assert {p.ref.uid for p in run.pods("rollout") if not p.deleting_since} <= gone


def test_trainers_that_vanish_are_not_made_again_beside_servers_of_their_attempt() -> None:
    """Their finalizers were taken off, as an uninstall does: what they had done is not known any more."""
    run = Run(1)
    run.world = replace(run.world, pods=tuple(run.pods("rollout")))
    run.reconcile()
    assert run.stopping()
    assert (run.status.attempt, run.status.failures) == (2, 1)
    run.end(run.server(), failure("Interrupted"))
    assert {(p.role, p.attempt) for p in run.world.pods if not p.ended} == {("trainer", 2), ("rollout", 2)}


def test_a_server_that_stops_at_the_budget_is_not_replaced() -> None:
    """By its own clock, a moment before the operator's."""
    run = Run(1, budget={"h100Hours": 7.5})
    run.lose(0, "BudgetReached")
    assert (run.serving(), run.status.attempts[0].replaced) == ([], [])


def test_every_gpu_is_billed_until_the_last_one_is_free_by_role() -> None:
    run = Run(2, 4, gpus_each=3, perNode=8)
    run.lose(0)
    run.start()
    run.end(run.pods("trainer")[0], success(), 95)
    for pod in run.pods("trainer"):
        run.end(pod, success(), 0)
    for pod in run.pods("rollout"):
        run.end(pod, failure("Interrupted"), 10)
    usage = run.status.usage
    # 5 s until a server was lost, 95 to the trainers' end, 20 until the last server was gone; 4 GPUs train, 6 serve.
    assert usage
    assert usage.gpu_seconds == {"trainer": "480", "rollout": "720"}
    assert usage.closed_gpu_seconds == "1200"
    assert run.status.attempts[0].gpu_seconds == "1200"


def test_whoever_comes_later_stops_when_the_others_do() -> None:
    run = Run(1, budget={"h100Hours": 7.5})
    run.lose()
    run.now += seconds(100)
    run.start()
    left = deadlines_of(run.world.spec, run.status, run.world.pods, run.now).by_pod
    first, then = left[run.pods("trainer")[0].ref.name], left[run.server().ref.name]
    assert first.remaining_seconds
    assert then.remaining_seconds == first.remaining_seconds - 105
    assert then.sequence > first.sequence
    assert [update.ref for update in plan_run(run.world, run.now).update if update.ref == run.server().ref]


def step(number: int, **facts: object) -> ProgressReport:
    found = RolloutProgress.model_validate({"reward": 0.25, "scored": 32, "servers": 2} | facts)
    return ProgressReport(step=number, steps=100, loss=0.1, rollouts=found)


def test_the_status_tells_what_the_episodes_were_like_and_counts_those_without_a_reward() -> None:
    run = Run(2)

    def report(progress: ProgressReport) -> None:
        run.now += seconds(20)
        run.world = replace(run.world, report=Report(run_uid="uid-1", attempt=1, progress=progress))
        run.reconcile()

    report(step(1, passRate=0.2, kl=0.01, mismatch=0.002, staleness=0, policy=0, tokensPerSecond=500))
    progress = run.status.progress
    assert progress
    assert progress.rollouts
    assert (progress.reward, progress.rollouts.pass_rate, progress.rollouts.tokens_per_second) == (0.25, 0.2, 500.0)
    assert run.degraded() is None
    report(step(2, scored=29, unscored=3, unscoredReasons={"server": 2, "timeout": 1}))
    assert run.degraded() == "step 2: 3 of 32 episodes have no reward, and train nothing (server 2, timeout 1)"
    report(step(3, servers=1))
    assert run.degraded() == "step 3: 1 of 2 rollout servers took part"
    report(step(4))
    assert run.degraded() is None


def test_a_second_loss_moments_after_the_first_is_in_the_status_before_its_pod_too() -> None:
    """Progress alone may wait for its write; which incarnation is whose may not."""
    run = Run(2)
    run.world = replace(run.world, report=Report(run_uid="uid-1", attempt=1, progress=step(1)))
    run.reconcile()
    run.end(run.server(0), failure("Crashed"), 1)
    run.end(run.server(1), failure("Crashed"), 1)
    assert run.told() == run.serving() == [(0, 2), (1, 2)]


def test_until_the_first_step_it_says_which_servers_load() -> None:
    run = Run(2)
    run._change(run.server(1).ref.uid, lambda p: replace(p, ready=False))
    run.reconcile()
    assert run.status.waiting
    assert run.status.waiting.startswith("1 of 2 rollout servers are not ready yet")
    run.now += seconds(20)
    run.world = replace(run.world, report=Report(run_uid="uid-1", attempt=1, progress=step(1)))
    run.reconcile()
    assert run.status.waiting is None


# A busy machine is no failure.
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["lose", "evict", "start", "report", "again"]), st.integers(0, 1)), max_size=12)
)
def test_whichever_servers_end_none_is_two_pods_and_at_most_three_are_replaced_an_attempt(
    happens: list[tuple[str, int]],
) -> None:
    run = Run(2)
    for what, server in happens:
        there = [p for p in run.pods("rollout") if p.rank == server]
        if what in ("lose", "evict") and there:
            run.end(there[0], failure("Crashed" if what == "lose" else "Interrupted"))
        elif what == "start":
            run.start()
        elif what == "report":
            run.world = replace(run.world, report=Report(run_uid="uid-1", attempt=run.status.attempt or 1))
        # What was asked to go has gone.
        for pod in [p for p in run.world.pods if p.deleting_since and not p.ended]:
            run._end(pod, failure("Interrupted", attempt=pod.attempt))
        run.reconcile()
        for record in run.status.attempts:
            assert len(record.replaced) <= 3
        attempt = attempt_in(run.status.topology, run.status.attempt or 1, run.world.pods)
        live = [p.rank for p in attempt.rollouts if not p.ended]
        assert len(live) == len(set(live)), "a server is one pod at a time"
        if not is_terminal(run.status):
            assert run.told() == [(n, 1 + run_replaced(run).count(n)) for n in (0, 1)]


def run_replaced(run: Run) -> list[int]:
    return next((r.replaced for r in run.status.attempts if r.attempt == run.status.attempt), [])
