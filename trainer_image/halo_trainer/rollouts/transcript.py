"""Sampled episodes as a person reads them: a few of each step, as JSON lines beside the run's output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halo_api.transcript import EPISODES_FOLDER, step_file, step_of
from halo_trainer.files import replace_file
from halo_trainer.rollouts.engine import Group
from halo_trainer.rollouts.episode import Episode

# Episodes of a step, and steps, that are kept; characters of a message.
EPISODES, STEPS, CHARACTERS = 32, 200, 20_000


def write_transcript(
    output: Path, step: int, groups: Sequence[Group], most: int = EPISODES, steps: int = STEPS
) -> Path:
    """Write the step's episodes to OUTPUT/episodes/step-STEP.jsonl, and remove those of long ago; return the file.

    Where not all can be kept, some of every group are, and a quarter are those that were not scored.
    """
    folder = output / EPISODES_FOLDER
    path = folder / step_file(step)
    lines = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n" for each in _chosen(step, groups, most)]
    replace_file(path, "".join(lines))
    written = sorted((found, each) for each in folder.iterdir() if (found := step_of(each.name)) is not None)
    for _, old in written[:-steps]:
        old.unlink(missing_ok=True)
    return path


def _chosen(step: int, groups: Sequence[Group], most: int) -> list[dict[str, Any]]:
    ordered = sorted(groups, key=lambda group: group.wanted.place)
    ranked = [
        (group.wanted.place, episode, rank)
        for group in ordered
        for rank, episode in enumerate((*group.episodes, *group.unscored))
    ]
    ranked.sort(key=lambda each: (each[2], each[0]))
    scored, unscored = ([each for each in ranked if each[1].scored is wished] for wished in (True, False))
    few = unscored[: max(most // 4, most - len(scored))]
    kept = sorted([*scored[: most - len(few)], *few], key=lambda each: (each[0], each[2]))
    return [line_of(step, place, episode) for place, episode, _ in kept]


def line_of(step: int, group: int, episode: Episode) -> dict[str, Any]:
    """Return what is told of an episode: how it came out, what sampled it, and what was said."""
    line = {
        "step": step,
        "group": group,
        "task": episode.task,
        "sample": episode.sample,
        "reward": episode.reward,
        "passed": episode.passed,
        "reason": episode.reason,
        "checks": episode.checks,
        "failure": episode.failure,
        "detail": episode.detail,
        "truncated": episode.truncated,
        "policies": sorted({turn.policy for turn in episode.turns}),
        "servers": sorted({turn.server for turn in episode.turns}),
        "turns": len(episode.turns),
        "tokens": episode.sampled_tokens,
        "seconds": round(episode.seconds, 3),
        "messages": [_message(message) for message in episode.messages],
    }
    return {name: value for name, value in line.items() if value not in (None, "", {})}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    return {name: _cut(value) if isinstance(value, str) else value for name, value in message.items()}


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]} … {len(text) - CHARACTERS} characters more"
