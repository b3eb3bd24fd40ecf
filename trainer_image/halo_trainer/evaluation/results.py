"""The results of an evaluation as a file, JSON lines: first how it was made, then every episode; and what two files say together."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halo_api.conditions import Reason
from halo_api.transcript import EpisodeSeen
from halo_trainer.evaluation.bootstrap import Comparison, compared
from halo_trainer.failures import RunFailure
from halo_trainer.rollouts.engine import Group
from halo_trainer.rollouts.transcript import line_of

# The two ways to sample, in the order that they are told.
WAYS = ("greedy", "sampled")


@dataclass(frozen=True)
class Results:
    """An evaluation: its settings, and the episodes of each way to sample."""

    path: Path
    settings: Mapping[str, Any]
    episodes: Mapping[str, Sequence[EpisodeSeen]]

    def scores(self, way: str) -> dict[str, float]:
        """Return the mean reward of each task's scored episodes."""
        rewards: dict[str, list[float]] = defaultdict(list)
        for episode in self.episodes.get(way, ()):
            if episode.reward is not None:
                rewards[episode.task].append(episode.reward)
        return {task: sum(found) / len(found) for task, found in rewards.items()}


def lines_of(way: str, group: Group) -> Iterator[dict[str, Any]]:
    """Yield a task's episodes as lines, unscored ones last."""
    for episode in (*group.episodes, *group.unscored):
        yield {"way": way} | line_of(0, group.wanted.place, episode)


def read_results(path: Path) -> Results:
    """Read a file of results; RunFailure says which line is none."""
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        settings = dict(json.loads(first)["evaluation"])
    except OSError as error:
        raise RunFailure(Reason.INVALID_SPEC, f"{path}: can't be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        words = f"{path} is no file of results, whose first line says how they were made; name what --out wrote"
        raise RunFailure(Reason.INVALID_SPEC, words) from error
    episodes: dict[str, list[EpisodeSeen]] = defaultdict(list)
    for number, line in enumerate(lines, 2):
        try:
            value = json.loads(line)
            episodes[value["way"]].append(EpisodeSeen.model_validate(value))
        except (ValueError, KeyError, TypeError) as error:
            words = f"{path}: line {number} is no episode ({type(error).__name__}); evaluate again"
            raise RunFailure(Reason.INVALID_SPEC, words) from error
    return Results(path, settings, episodes)


def write_results(path: Path, settings: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of results."""
    with path.open("w", encoding="utf-8") as file:
        for value in ({"evaluation": dict(settings)}, *lines):
            file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def summary(results: Results) -> str:
    """Return an evaluation in one line."""
    parts = []
    for way in WAYS:
        episodes = results.episodes.get(way, ())
        scored = [episode for episode in episodes if episode.reward is not None]
        if not scored:
            continue
        passed = sum(bool(episode.passed) for episode in scored)
        scores = results.scores(way)
        reward = sum(scores.values()) / len(scores)
        parts.append(
            f"{way}: passed {passed} of {len(scored)} ({passed / len(scored):.1%}), reward {reward:.4f} of {len(scores)} tasks"
        )
    unscored = sum(episode.reward is None for episodes in results.episodes.values() for episode in episodes)
    return "; ".join([*(parts or ["nothing was scored"]), *([f"{unscored} not scored"] if unscored else [])])


def compare(before: Results, after: Results) -> dict[str, Comparison]:
    """Compare two evaluations, way by way, over the tasks that both have scored; RunFailure where there are none."""
    found = {}
    for way in WAYS:
        first, second = before.scores(way), after.scores(way)
        if both := [task for task in first if task in second]:
            found[way] = compared([first[task] for task in both], [second[task] for task in both])
    if not found:
        words = f"{before.path} and {after.path} have no scored task in common; evaluate both on the same tasks"
        raise RunFailure(Reason.INVALID_SPEC, words)
    return found


def comparison_line(way: str, found: Comparison) -> str:
    """Return a comparison in one line."""
    return (
        f"{way}: reward {found.before:.4f} → {found.after:.4f}, difference {found.difference:+.4f}, "
        f"95 % interval [{found.low:+.4f}, {found.high:+.4f}] over {found.tasks} tasks: {found.verdict}"
    )


def differing(before: Results, after: Results) -> list[str]:
    """Return the settings that decide a score and are not the same in both."""
    names = ("tasks", "seed", "samples", "temperature", "maxNewTokens", "maxTurns", "context")
    return [
        f"{name} {before.settings.get(name)} and {after.settings.get(name)}"
        for name in names
        if before.settings.get(name) != after.settings.get(name)
    ]
