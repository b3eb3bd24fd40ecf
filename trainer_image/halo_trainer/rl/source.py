"""Where a run's episodes come from: the tasks of its data set, its rollout servers, and workers of the recipe's environment."""

from __future__ import annotations

import os
from pathlib import Path

from halo_api.conditions import Reason
from halo_api.recipe_settings import WeightSync
from halo_api.rollouts import SERVERS_NAME
from halo_api.run_file import RlvrPlan, RunFile, volume_path
from halo_trainer.data.load import load_config, load_template, load_tokenizer
from halo_trainer.data.tasks import training_tasks
from halo_trainer.environments.workers import Workers
from halo_trainer.failures import RunFailure
from halo_trainer.rl.online import Source
from halo_trainer.rollouts.background import Rollouts
from halo_trainer.rollouts.chat import Chat, stop_ids
from halo_trainer.rollouts.completion import Sampling
from halo_trainer.rollouts.engine import EpisodeRules
from halo_trainer.rollouts.fleet import PATIENCE, Patience

# A worker is mostly idle: its episodes wait for servers.
MOST_WORKERS = 8


def source_of(file: RunFile, plan: RlvrPlan, volumes: str, folder: Path) -> Source:
    """Read the tasks and the base's template; servers are asked and workers started once the source is opened."""
    if file.data is None or not file.servers:
        raise RunFailure(
            Reason.INVALID_SPEC, "the run file has no data or no rollout servers; the operator writes both"
        )
    settings, base = plan.settings, Path(volume_path(file.base.source, volumes))
    data = Path(volume_path(file.data.source, volumes))
    tasks = list(training_tasks(file.data, data, settings.environment))
    template, tokenizer = load_template(file.base, base), load_tokenizer(file.base, base)
    stops = stop_ids(template, tokenizer, base)
    vocabulary = load_config(file.base, base).get_text_config().vocab_size
    # As many episodes as all servers may have at once.
    episodes = PATIENCE.in_flight * len(file.servers)
    rollouts = Rollouts(
        file.servers,
        file.run.attempt,
        folder / SERVERS_NAME,
        Sampling.of(settings.rollouts, stops, vocabulary),
        Chat(template, stops, settings.rows.layout, plan.thinking, file.base.name),
        lambda: Workers(settings.environment, workers=workers(), sessions=episodes),
        EpisodeRules.of(settings.rollouts, plan.context_length, concurrent=episodes),
        plan.seed,
        patience=patience_of(settings.weight_sync),
        take_seconds=settings.weight_sync.timeout_seconds,
    )
    return Source(tasks, rollouts)


def workers() -> int:
    """Return how many environment workers this machine has room for."""
    return max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // 2))


def patience_of(sync: WeightSync) -> Patience:
    """Return how long servers are waited for: tried again as the recipe says, then as long as a restarted one may take.

    A server that took no policy is set aside. It is not ready then, so that its pod is replaced, and what replaces it has as long.
    """
    tries = sync.retries + 1
    return Patience(takes=tries, alone=max(PATIENCE.alone, 2 * tries * sync.timeout_seconds))
