"""Episodes in worker processes: bounded, isolated, and never scored for what a worker did wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from halo_trainer.environments.base import EnvironmentFailed, Task
from halo_trainer.environments.registry import checking_settings
from halo_trainer.environments.sql_tasks import generate
from halo_trainer.environments.workers import Workers

SETTINGS = checking_settings("sql")
TASKS = tuple(generate(4, seed=1, difficulty="easy", style="chat"))


async def test_an_episode_crosses_whole_and_equal_tasks_score_equally() -> None:
    async with Workers(SETTINGS, workers=2) as pool:

        async def episode(task: Task, answer: str) -> tuple[str, float, str]:
            async with pool.session(task) as session:
                opening = await session.open()
                seen = await session.call("run_sql", {"query": "SELECT 1 AS one"})
                score = await session.score(answer)
                assert opening.tools[0]["function"]["name"] == "run_sql"
                return seen.content, score.reward, score.reason

        right = await asyncio.gather(*(episode(task, task.payload["gold"]) for task in TASKS))
        wrong = await asyncio.gather(*(episode(task, "ATTACH 'x' AS y") for task in TASKS))
        assert {(seen, reward) for seen, reward, _ in right} == {("one\n1", 1.0)}
        assert {reward for _, reward, _ in wrong} == {0.0}
        assert len(pool.pids) == 2


async def test_no_more_sessions_are_open_than_may_be() -> None:
    async with Workers(SETTINGS, workers=1, sessions=2) as pool:
        open_now = most = 0

        async def episode(task: Task) -> None:
            nonlocal open_now, most
            async with pool.session(task) as session:
                open_now += 1
                most = max(most, open_now)
                await session.open()
                await session.score("SELECT 1")
                open_now -= 1

        await asyncio.gather(*(episode(task) for task in TASKS * 3))
        assert most == 2


async def test_a_killed_worker_leaves_its_episodes_unscored_and_is_replaced() -> None:
    async with Workers(SETTINGS, workers=1) as pool:
        async with pool.session(TASKS[0]) as one, pool.session(TASKS[1]) as other:
            await one.open()
            await other.open()
            (before,) = pool.pids
            os.kill(before, signal.SIGKILL)
            for session in (one, other):
                with pytest.raises(EnvironmentFailed, match="lost"):
                    await session.score(TASKS[0].payload["gold"])
        async with pool.session(TASKS[0]) as session:
            await session.open()
            assert (await session.score(TASKS[0].payload["gold"])).passed
        assert pool.pids != (before,)
        assert pool.replaced == 1


async def test_a_hung_worker_costs_its_request_no_more_than_its_time() -> None:
    async with Workers(SETTINGS, workers=1, request_seconds=0.2) as pool:
        async with pool.session(TASKS[0]) as session:
            await session.open()
            os.kill(pool.pids[0], signal.SIGSTOP)
            with pytest.raises(EnvironmentFailed, match=r"took more than 0\.2 seconds to score"):
                await session.score("SELECT 1")
        assert pool.pids == ()


async def test_a_cancelled_request_leaves_no_answer_for_the_next() -> None:
    async with Workers(SETTINGS, workers=1) as pool:
        async with pool.session(TASKS[0]) as session:
            await session.open()
            os.kill(pool.pids[0], signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                # The worker is stopped: the request is under way until it is given up.
                async with asyncio.timeout(0.05):
                    await session.score("SELECT 1")
        async with pool.session(TASKS[1]) as session:
            await session.open()
            assert (await session.score(TASKS[1].payload["gold"])).passed


async def test_a_task_that_is_none_fails_its_own_session_alone() -> None:
    broken = Task("t-1", "sql", TASKS[0].payload | {"gold": "SELECT nothing FROM nowhere"})
    async with Workers(SETTINGS, workers=1) as pool, pool.session(broken) as session, pool.session(TASKS[0]) as good:
        await good.open()
        with pytest.raises(EnvironmentFailed, match="task t-1 can't be scored"):
            await session.open()
        assert (await good.score(TASKS[0].payload["gold"])).passed
        assert pool.replaced == 0


async def test_a_worker_knows_no_secret_and_may_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    async with Workers(SETTINGS, workers=1) as pool, pool.session(TASKS[0]) as session:
        await session.open()
        process = Path(f"/proc/{pool.pids[0]}")
        assert b"WANDB" not in (process / "environ").read_bytes()
        lines = (process / "limits").read_text().splitlines()[1:]
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max file size"] == limits["Max core file size"] == "0"
        assert limits["Max address space"] == str(2 << 30)
        assert limits["Max cpu time"] != "unlimited"
