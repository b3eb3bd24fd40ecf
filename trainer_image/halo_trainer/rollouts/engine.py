"""Plays episodes: opens a task's session, samples turns, does the tool calls, scores, many at once; groups come out as they are done.

An episode that a server, an environment or the time failed is not scored, and another sample of its task takes its place, so
often a group; what is still missing then is left out. Every random draw of an episode is decided by the run's seed, the round,
the task, which sample of it this is, and the turn: not by the server, nor by what else was sampled when.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from halo_api.conditions import Reason
from halo_api.recipe_settings import Rollouts
from halo_trainer.environments.base import EnvironmentFailed, Observation, Opening, Score, Task
from halo_trainer.failures import RunFailure
from halo_trainer.rollouts.calls import Call, Reply
from halo_trainer.rollouts.chat import Chat, Conversation
from halo_trainer.rollouts.client import Client, Clock
from halo_trainer.rollouts.completion import Ask, ServerFailed
from halo_trainer.rollouts.episode import Episode, Turn
from halo_trainer.seeds import derived_seed


class RemoteSession(Protocol):
    """A session in an environment worker. Each method has a time limit of its own, and raises EnvironmentFailed."""

    async def open(self) -> Opening: ...
    async def call(self, name: str, arguments: dict[str, Any]) -> Observation: ...
    async def score(self, answer: str) -> Score: ...


class Environments(Protocol):
    """The workers that sessions live in: environments.workers.Workers. To enter a session may mean to wait for room."""

    def session(self, task: Task) -> contextlib.AbstractAsyncContextManager[RemoteSession]: ...


@dataclass(frozen=True)
class Wanted:
    """A group that is to be sampled. `round` and the task decide its draws: the same pair is never wanted twice in a run."""

    task: Task
    round: int
    # Its place in the round, by which groups are put in order again.
    place: int


@dataclass(frozen=True)
class Group:
    """The episodes of one task: those scored, and those that were not, in the order of their samples."""

    wanted: Wanted
    episodes: tuple[Episode, ...]
    unscored: tuple[Episode, ...]


@dataclass(frozen=True)
class EpisodeRules:
    """What bounds an episode and a group; None: nothing but the context and the environment."""

    group_size: int
    max_turns: int | None
    max_tokens_per_turn: int
    # Tokens that prompts and answers of an episode may have.
    context: int
    # How long an episode may take, waiting for a place at a server aside.
    seconds: float = 3600.0
    # Episodes of a group that may be sampled in the place of unscored ones.
    replacements: int = 8
    # Episodes at once.
    concurrent: int = 256

    @classmethod
    def of(cls, rollouts: Rollouts, context: int, **more: Any) -> EpisodeRules:
        """Take them from a recipe; `context` is what an episode may fill, the recipe's or the base's."""
        bounds = (rollouts.group_size, rollouts.max_turns, rollouts.max_tokens_per_turn)
        return cls(*bounds, min(context, rollouts.context_tokens or context), **more)


@dataclass
class _Played:
    """An episode so far, to be told of whatever ends it."""

    turns: list[Turn] = field(default_factory=list)
    messages: Sequence[dict[str, Any]] = ()
    truncated: bool = False


class _TooLong(Exception):
    """The task's own prompt leaves no room for an answer."""


class Engine:
    """Samples groups of episodes with the fleet's current policy."""

    def __init__(self, client: Client, chat: Chat, environments: Environments, rules: EpisodeRules, seed: int) -> None:
        self._client, self._chat, self._environments, self._rules, self._seed = client, chat, environments, rules, seed

    async def sample(self, wanted: Iterable[Wanted]) -> AsyncGenerator[Group, None]:
        """Yield groups as they are done. Close it early, and what still plays is stopped and its sessions are closed."""
        gate = asyncio.Semaphore(self._rules.concurrent)
        tasks = [asyncio.create_task(self._group(each, gate)) for each in wanted]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            await _stopped(tasks)

    async def _group(self, wanted: Wanted, gate: asyncio.Semaphore) -> Group:
        spare = self._rules.replacements
        size = self._rules.group_size
        played: list[Episode] = []

        async def fill(sample: int) -> None:
            nonlocal spare
            async with gate:
                while True:
                    played.append(episode := await self._episode(wanted, sample))
                    if episode.scored or episode.failure == "PromptTooLong" or spare == 0:
                        return
                    spare -= 1
                    # Which sample comes next must not depend on the order in which others fail.
                    sample += size

        await _all_of([asyncio.create_task(fill(place)) for place in range(size)])
        self._client.fleet.forget([_key(wanted), *(_key(wanted, episode.sample) for episode in played)])
        played.sort(key=lambda episode: (episode.sample % size, episode.sample))
        scored, unscored = ([each for each in played if each.scored is wished] for wished in (True, False))
        return Group(wanted, tuple(scored), tuple(unscored))

    async def _episode(self, wanted: Wanted, sample: int) -> Episode:
        began = time.monotonic()
        played = _Played()
        episode = Episode(wanted.task.id, sample, ())
        try:
            async with asyncio.timeout(self._rules.seconds) as timeout:
                score = await self._play(wanted, sample, Clock(timeout), played)
            episode = replace(
                episode, reward=score.reward, passed=score.passed, checks=dict(score.checks), reason=score.reason
            )
        except (ServerFailed, EnvironmentFailed) as error:
            kind = ServerFailed if isinstance(error, ServerFailed) else EnvironmentFailed
            episode = replace(episode, failure=kind.__name__, detail=str(error))
        except TimeoutError:
            episode = replace(episode, failure="TimedOut", detail=f"it took more than {self._rules.seconds:g} s")
        except _TooLong as error:
            episode = replace(episode, failure="PromptTooLong", detail=str(error))
        except RunFailure as error:
            # The task, or what a tool gave back, is something that the chat template can't write.
            episode = replace(episode, failure=error.reason.value, detail=str(error))
        except UnicodeEncodeError:
            found = f"task {wanted.task.id} has half a surrogate pair; write the character whole"
            episode = replace(episode, failure=Reason.TEMPLATE_MISMATCH.value, detail=found)
        return replace(
            episode,
            turns=tuple(played.turns),
            messages=tuple(played.messages),
            truncated=played.truncated,
            seconds=time.monotonic() - began,
        )

    async def _play(self, wanted: Wanted, sample: int, clock: Clock, played: _Played) -> Score:
        async with contextlib.AsyncExitStack() as stack:
            go_on = await stack.enter_async_context(clock.stopped())
            session = await stack.enter_async_context(self._environments.session(wanted.task))
            go_on()
            opening = await session.open()
            conversation = self._chat.open(opening.messages, opening.tools)
            played.messages = conversation.messages
            reply = await self._turns(session, conversation, wanted, sample, clock, played)
            return await session.score(reply.content)

    async def _turns(
        self,
        session: RemoteSession,
        conversation: Conversation,
        wanted: Wanted,
        sample: int,
        clock: Clock,
        played: _Played,
    ) -> Reply:
        """Sample turns until one calls nothing, or a limit is met; return the last."""
        rules, keys = self._rules, (_key(wanted, sample), _key(wanted))
        reply: Reply | None = None
        while True:
            room = rules.context - len(conversation.prompt)
            if room < 1:
                if reply is None:
                    found = (
                        f"its prompt has {len(conversation.prompt)} tokens, the context of an episode {rules.context}"
                    )
                    raise _TooLong(f"task {wanted.task.id}: {found}")
                played.truncated = True
                return reply
            seed = derived_seed(self._seed, "rollout", wanted.round, wanted.task.id, sample, len(played.turns))
            ask = Ask(conversation.prompt, min(room, rules.max_tokens_per_turn), seed)
            turn = await self._client.sample(ask, keys, clock)
            played.turns.append(turn)
            reply = conversation.answered(turn.answer)
            played.truncated = turn.finish == "length"
            if played.truncated or not reply.calls or len(played.turns) == rules.max_turns:
                return reply
            conversation.observed(turn.answer, await self._observations(session, reply.calls))

    async def _observations(self, session: RemoteSession, calls: Sequence[Call]) -> list[tuple[Call, str]]:
        """Do a turn's calls, one after the other; what is wrong with one is its result."""
        found = []
        for call in calls:
            if call.problem is not None:
                found.append((call, f"error: {call.problem}"))
            else:
                found.append((call, (await session.call(call.name, call.arguments)).content))
        return found


def _key(wanted: Wanted, sample: int | None = None) -> str:
    group = f"{wanted.round}/{wanted.task.id}"
    return group if sample is None else f"{group}/{sample}"


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all, or for the first that fails: then stop the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        await _stopped(tasks)


async def _stopped(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
