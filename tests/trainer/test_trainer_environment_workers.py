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

        async def episode(task: Task, answer: str) -> tuple[str, float]:
            session = await pool.open(task)
            assert session.opening.tools[0]["function"]["name"] == "run_sql"
            seen = await session.call("run_sql", {"query": "SELECT 1 AS one"})
            score = await session.score(answer)
            await session.close()
            return seen.content, score.reward

        right = await asyncio.gather(*(episode(task, task.payload["gold"]) for task in TASKS))
        wrong = await asyncio.gather(*(episode(task, "ATTACH 'x' AS y") for task in TASKS))
        assert set(right) == {("one\n1", 1.0)}
        assert set(wrong) == {("one\n1", 0.0)}
        assert len(pool.pids) == 2


async def test_no_more_sessions_are_open_than_may_be() -> None:
    async with Workers(SETTINGS, workers=1, sessions=2) as pool:
        open_now = most = 0

        async def episode(task: Task) -> None:
            nonlocal open_now, most
            session = await pool.open(task)
            open_now += 1
            most = max(most, open_now)
            await session.score("SELECT 1")
            open_now -= 1
            await session.close()

        await asyncio.gather(*(episode(task) for task in TASKS * 3))
        assert most == 2


async def test_a_killed_worker_leaves_its_episodes_unscored_and_is_replaced() -> None:
    async with Workers(SETTINGS, workers=1, sessions=2) as pool:
        sessions = [await pool.open(task) for task in TASKS[:2]]
        (before,) = pool.pids
        os.kill(before, signal.SIGKILL)
        for session in sessions:
            with pytest.raises(EnvironmentFailed, match="lost"):
                await session.score(TASKS[0].payload["gold"])
            await session.close()
        again = await pool.open(TASKS[0])
        assert (await again.score(TASKS[0].payload["gold"])).passed
        assert pool.pids != (before,)
        assert pool.replaced == 1


async def test_a_hung_worker_costs_a_request_no_more_than_its_time() -> None:
    async with Workers(SETTINGS, workers=1, request_seconds=0.2) as pool:
        session = await pool.open(TASKS[0])
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(EnvironmentFailed, match=r"took more than 0\.2 seconds to score"):
            await session.score("SELECT 1")
        assert pool.pids == ()


async def test_who_gives_up_a_request_takes_nothing_from_the_others() -> None:
    async with Workers(SETTINGS, workers=1) as pool:
        given_up, other = [await pool.open(task) for task in TASKS[:2]]
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            # The worker is stopped: the request is under way for as long as anyone wants.
            async with asyncio.timeout(0.05):
                await given_up.score("SELECT 1")
        os.kill(pool.pids[0], signal.SIGCONT)
        await given_up.close()
        assert (await other.score(TASKS[1].payload["gold"])).passed
        assert pool.replaced == 0


async def test_a_task_that_is_none_fails_alone_and_keeps_no_place() -> None:
    broken = Task("t-1", "sql", TASKS[0].payload | {"gold": "SELECT nothing FROM nowhere"})
    async with Workers(SETTINGS, workers=1, sessions=2) as pool:
        good = await pool.open(TASKS[0])
        for _ in range(3):
            with pytest.raises(EnvironmentFailed, match="task t-1 can't be scored"):
                await pool.open(broken)
        assert (await good.score(TASKS[0].payload["gold"])).passed
        assert pool.replaced == 0


async def test_a_worker_knows_no_secret_and_may_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    async with Workers(SETTINGS, workers=1) as pool:
        await pool.open(TASKS[0])
        process = Path(f"/proc/{pool.pids[0]}")
        assert b"WANDB" not in (process / "environ").read_bytes()
        lines = (process / "limits").read_text().splitlines()[1:]
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max file size"] == limits["Max core file size"] == "0"
        assert limits["Max address space"] == str(2 << 30)
        assert limits["Max cpu time"] != "unlimited"
