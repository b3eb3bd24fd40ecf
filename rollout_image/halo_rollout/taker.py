"""Taking a policy: one at a time, each checked by a sampled request before it counts as served."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

from halo_api.adapter import WEIGHTS
from halo_api.rollouts import BASE_MODEL_NAME, Policy, PolicyAnswer
from halo_api.run_file import RunFile
from halo_rollout.engine import Engine, EngineFailed
from halo_rollout.flags import KEPT_POLICIES
from halo_rollout.health import Health
from halo_rollout.policies import Refused, check, check_layers, fetch, superseded

TAKE_SECONDS = 900.0
SAMPLE_SECONDS = 120.0


class Broken(Exception):
    """The engine has weights that nobody knows: it must not sample any more."""


class Taker:
    """The policy that a server has, and how it gets the next. `health` is the guard's, told of what is going on."""

    def __init__(
        self, run: RunFile, base: Path, volumes: str, scratch: Path, engine: Engine, experts: bool = True
    ) -> None:
        """`experts`: whether an adapter beside the base may have a LoRA on experts."""
        assert run.rollout is not None
        self.health = Health(time.monotonic())
        self.answer = PolicyAnswer()
        self.lock = asyncio.Lock()
        self._run = run
        self._plan = run.rollout
        self._base = base
        self._volumes = volumes
        self._scratch = scratch
        self._engine = engine
        self._experts = experts
        # Adapters that the engine has, oldest first.
        self._loaded: list[str] = []

    @property
    def model(self) -> str:
        """The model that requests name for the policy that is served."""
        return self.answer.policy.model if self.answer.policy else BASE_MODEL_NAME

    async def take(self, policy: Policy) -> PolicyAnswer:
        """Serve a policy; return at once for the one that is served already. Raises Refused, EngineFailed and Broken."""
        async with self.lock:
            check(policy, self.answer.policy, self._run)
            if policy == self.answer.policy:
                return self.answer
            begun = time.monotonic()
            folder = self._scratch / policy.name if policy.adapter else None
            before = self.health.sampled
            self.health = self.health.taking(begun + TAKE_SECONDS)
            try:
                if policy.adapter and folder:
                    await asyncio.to_thread(fetch, policy.adapter, self._volumes, folder, self._plan.rank)
                    if policy.serving == "unmerged" and not self._experts:
                        check_layers(folder / WEIGHTS)
                if policy.serving == "folded":
                    await self._fold(policy, folder)
                else:
                    await self._load(policy, folder)
            except (Refused, EngineFailed):
                # What was served still is.
                self._forget(policy.name)
                if before:
                    self.health = self.health.answered(before, time.monotonic())
                raise
            finally:
                self.health = self.health.taken(time.monotonic())
            self.health = self.health.answered(policy.model, time.monotonic())
            self.answer = PolicyAnswer(policy=policy, seconds=round(time.monotonic() - begun, 3))
            return self.answer

    async def probe(self) -> None:
        """Sample with the policy that is served, unless one is being taken; raises EngineFailed."""
        if self.lock.locked():
            return
        model = self.model
        await self._sample(model)
        if model == self.model:
            self.health = self.health.answered(model, time.monotonic())

    async def _load(self, policy: Policy, folder: Path | None) -> None:
        try:
            if folder is not None:
                await self._engine.load(policy.name, folder, TAKE_SECONDS)
            await self._sample(policy.model)
        except EngineFailed:
            # It may be there in part, and would stand in the way of another try.
            await self._unload(policy.name)
            raise
        if folder is not None:
            self._loaded.append(policy.name)
        for name in superseded(self._loaded, KEPT_POLICIES):
            await self._unload(name)
            self._loaded.remove(name)
            self._forget(name)

    async def _unload(self, name: str) -> None:
        with contextlib.suppress(EngineFailed):
            await self._engine.unload(name, SAMPLE_SECONDS)

    async def _fold(self, policy: Policy, folder: Path | None) -> None:
        try:
            problem = await self._engine.fold(self._base, self._run.base.dtype, folder, TAKE_SECONDS)
            await self._sample(policy.model)
        except EngineFailed as error:
            raise Broken(f"policy {policy.name} was not folded into the base as it should be: {error}") from error
        if problem:
            raise Refused(f"policy {policy.name}: {problem}")
        self._forget(policy.name)

    async def _sample(self, model: str) -> None:
        await self._engine.sample(model, SAMPLE_SECONDS, routes=self._plan.routed_experts)

    def _forget(self, name: str) -> None:
        shutil.rmtree(self._scratch / name, ignore_errors=True)
