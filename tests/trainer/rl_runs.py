"""Whole runs of online RL in this process: a server that samples from the very weights it is given, and an environment of a line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from rl_support import recipe
from rollout_peer import Peer

from halo_api.adapter import WEIGHTS
from halo_api.recipe_settings import RecipeSettings
from halo_api.report import Outcome, Report
from halo_api.rollouts import BASE_MODEL_NAME, Policy
from halo_api.run_file import RlvrPlan, RunFile, volume_path
from halo_trainer.adapter import adapter_tensors, put_weights
from halo_trainer.budget import Budget
from halo_trainer.data.load import load_template, load_tokenizer
from halo_trainer.environments.base import EnvironmentFailed, Observation, Opening, Score, Task
from halo_trainer.failures import failure_of
from halo_trainer.model import attach_lora, load_base
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.reporting import Reporting
from halo_trainer.rl.loop import train_online
from halo_trainer.rl.online import Source
from halo_trainer.rl.plan import train_plan
from halo_trainer.rollouts.background import Rollouts
from halo_trainer.rollouts.chat import Chat, stop_ids
from halo_trainer.rollouts.client import Retries
from halo_trainer.rollouts.completion import Sampling
from halo_trainer.rollouts.engine import EpisodeRules, Group, Wanted
from halo_trainer.rollouts.fleet import Patience

QUICK = Patience(again=(0.01, 0.05), look=0.02, alone=0.5, takes=2)


def settings(name: str = "sql_v3", **changes: Any) -> RecipeSettings:
    """Return a recipe made small; what it decides of the objective stays."""
    small: dict[str, Any] = {
        "rollouts__groupSize": 4,
        "rollouts__maxTokensPerTurn": 6,
        "lora__rank": 4,
        "lora__alpha": 8,
        "lora__learningRate": 0.02,
        "lora__warmupSteps": 0,
        "weightSync": {"prompts": 2, "tokens": 4, "maxMeanLogProbGap": 1e-4, "timeoutSeconds": 5, "retries": 1},
        "serving": "unmerged",
    }
    return recipe(name, **(small | changes))


def online_file(wanted: RecipeSettings, output: str = "run", attempt: int = 1, **plan: Any) -> RunFile:
    """Return a run file on volumes models and artifacts; two tasks a step."""
    return RunFile.model_validate(
        {
            "role": "train",
            "run": {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": attempt},
            "base": {
                "name": "tiny", "source": "pvc://models/tiny", "revision": "abcdef0", "dtype": "fp32",
                "contextLength": 512,
            },
            "data": {"name": "tasks", "kind": "tasks", "source": "pvc://data/tasks.jsonl"},
            "rlvr": {
                "recipe": "test", "recipeDigest": "sha256:" + "0" * 64, "settings": wanted.to_json(), "steps": 4,
                "episodes": 8, "saveSteps": 2, "seed": 3, "contextLength": 64,
                "output": f"pvc://artifacts/{output}",
            } | plan,
        }
    )  # fmt: skip


class ModelPeer(Peer):
    """A server of the tiny base that loads the adapter of each policy, as a guard does; `stale`: it only says so."""

    def __init__(self, root: Path, file: RunFile, stale: bool = False, **more: Any) -> None:
        assert file.rlvr
        base = root / "models" / "tiny"
        lora = train_plan(file.rlvr, "tasks").lora
        self._model = attach_lora(load_base(file.base, base), lora, 0).eval()
        self._fresh = {name: tensor.clone() for name, tensor in adapter_tensors(self._model).items()}
        self._root, self._stale, self._one = root, stale, threading.Lock()
        super().__init__(logits=self._logits, **more)

    @torch.no_grad()
    def _every(self, tokens: Sequence[int]) -> torch.Tensor:
        with self._one:
            found: torch.Tensor = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return found.double()

    def _logits(self, version: int, tokens: Sequence[int]) -> np.ndarray:
        return np.asarray(self._every(tokens)[-1].numpy())

    def guard(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        before = self.policy
        answer = super().guard(method, path, body)
        if self.policy is not before and self.policy and not self._stale:
            self._load(self.policy)
        return answer

    def _load(self, policy: Policy) -> None:
        tensors = self._fresh
        if policy.adapter:
            folder = Path(volume_path(policy.adapter.uri, str(self._root)))
            tensors = safetensors.torch.load((folder / WEIGHTS).read_bytes())
        with self._one:
            put_weights(self._model, tensors)

    def complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if "prompt_logprobs" not in body:
            return super().complete(body)
        prompt = body["prompt"]
        log_probs = self._every(prompt).log_softmax(-1)
        told = [{str(token): {"logprob": float(log_probs[at, token])}} for at, token in enumerate(prompt[1:])]
        return 200, json.dumps({"model": BASE_MODEL_NAME, "choices": [{"prompt_logprobs": [None, *told]}]}).encode()


class Letters:
    """An environment in which an answer is worth more the more letters it has; `fails` names tasks that it can't open."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def open(self) -> Opening:
        return Opening(({"role": "user", "content": self._task.payload["question"]},))

    async def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        raise EnvironmentFailed("there are no tools")

    async def score(self, answer: str) -> Score:
        reward = sum(letter.isalpha() for letter in answer) % 5 / 4
        return Score(reward, reward == 1.0, "by its letters")


class Environment:
    """Sessions of it, in this process."""

    @contextlib.asynccontextmanager
    async def session(self, task: Task) -> AsyncIterator[Letters]:
        yield Letters(task)

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


TASKS = [
    Task(f"t{n}", "sql", {"question": f"Colour of {['sky', 'grass', 'snow', 'coal'][n % 4]} {n}?"}) for n in range(7)
]


@dataclasses.dataclass
class Asked:
    """What a run asked to be sampled: places, tasks and the policy of each, in the order that it asked."""

    groups: list[tuple[int, str, int]] = dataclasses.field(default_factory=list)
    # Called before each sampling with its number, and with each group of it.
    before: Callable[[int], None] = lambda number: None
    after: Callable[[int, Group], None] = lambda number, group: None
    number: int = 0


class Watched(Rollouts):
    """The episode engine, which notes what it is asked."""

    asked: Asked

    def sample(self, wanted: Iterable[Wanted], stop: threading.Event | None = None) -> Iterator[Group]:
        policy = self.fleet.policy
        assert policy
        every = list(wanted)
        self.asked.number += 1
        self.asked.before(self.asked.number)
        self.asked.groups += [(each.place, each.task.id, policy.version) for each in every]
        for group in super().sample(every, stop):
            yield group
            self.asked.after(self.asked.number, group)


def online(
    root: Path, file: RunFile, peers: Sequence[Peer], asked: Asked | None = None, patience: Patience = QUICK
) -> Report:
    """Train in this process; return the last report, which has the outcome."""

    def make(run: RunFile, plan: RlvrPlan, volumes: str, folder: Path) -> Source:
        base = root / "models" / "tiny"
        template, tokenizer = load_template(run.base, base), load_tokenizer(run.base, base)
        stops = stop_ids(template, tokenizer, base)
        watched = Watched(
            [peer.address for peer in peers], run.run.attempt, None,
            Sampling.of(plan.settings.rollouts, stops, len(tokenizer)),
            Chat(template, stops, plan.settings.rows.layout), Environment,
            EpisodeRules.of(plan.settings.rollouts, plan.context_length), plan.seed, patience,
            Retries(attempts=3, pause=(0.01, 0.05)), plan.settings.weight_sync.timeout_seconds,
        )  # fmt: skip
        watched.asked = asked or Asked()
        return Source(TASKS, watched)

    path = root / "report.json"
    report = Reporting(path, file)
    try:
        outcome = train_online(file, str(root), report, Ranks(), Budget(), make)
    except Exception as error:
        failure = failure_of(error)
        kept = report.last_checkpoint
        outcome = Outcome(result="Failed", reason=failure.reason, message=str(failure), checkpoint=kept)
    report.finish(outcome)
    return Report.model_validate_json(path.read_bytes())
