"""`kubectl halo episodes RUN`: sampled episodes of an online RL run, to be read turn by turn, from its claim."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halo_api.run_file import claim_of
from halo_api.transcript import EpisodeSeen, is_wanted, seen
from halo_cli.episodes_view import Paint, shown
from halo_cli.kubectl import CliError, Kubectl
from halo_cli.plot import Place, place_of
from halo_cli.volume_pod import Asked as AskedPod
from halo_cli.volume_pod import VolumePod, settings_of
from halo_cli.watch import state_words

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """Whose episodes, which of them, and as what."""

    run: str
    step: int | None
    passed: bool | None
    task: str | None
    limit: int
    json: bool
    pod: AskedPod


def episodes(kubectl: Kubectl, asked: Asked, say: Say, note: Say) -> int:
    """Show them; return 0, or raise CliError where there are none to show."""
    place = place_of(kubectl, asked.run)
    if place.status.frozen and place.status.frozen.rlvr is None:
        raise CliError(f"{asked.run} samples no episodes: its base is not halo_rlvr")
    with VolumePod(
        kubectl, settings_of(kubectl, asked.pod), {claim_of(place.uri): True}, asked.pod.timeout, note
    ) as pod:
        step, lines = transcript(pod, place, asked.step)
    found = [(episode, line) for line in lines if (episode := seen(line))]
    wanted = [(episode, line) for episode, line in found if is_wanted(episode, asked.passed, asked.task)]
    counts = f"step {step} of {asked.run}: {counted([episode for episode, _ in found])}"
    if not wanted:
        raise CliError(f"none of those are asked for; {counts}")
    if asked.json:
        for _, line in wanted[: asked.limit]:
            say(line.decode())
        return 0
    paint = Paint(sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    for episode, _ in wanted[: asked.limit]:
        say(shown(episode, paint))
        say("")
    left = len(wanted) - asked.limit
    say(counts + (f"; {left} more are asked for, see --limit" if left > 0 else ""))
    return 0


def transcript(pod: VolumePod, place: Place, step: int | None) -> tuple[int, list[bytes]]:
    """Return which step's episodes were found, and their lines."""
    try:
        answer = pod.ask("episodes", "--source", place.uri, *(["--step", str(step)] if step is not None else []))
    except CliError as error:
        raise CliError(f"the episodes of {place.name} can't be read: {error}") from None
    first, *lines = answer.splitlines()
    said = json.loads(first)
    kept: list[int] = said["steps"]
    if not kept:
        raise CliError(f"{place.name} has no episodes yet: {state_words(place.status)}")
    if said["step"] not in kept:
        raise CliError(f"--step: found {said['step']}; {place.name} has episodes of {ranges(kept)}")
    return said["step"], lines


def counted(found: Sequence[EpisodeSeen]) -> str:
    """Return how episodes ended, in words."""
    passed = sum(is_wanted(episode, True, None) for episode in found)
    failed = sum(is_wanted(episode, False, None) for episode in found)
    unscored = len(found) - passed - failed
    many = f"{len(found)} episode{'s' if len(found) != 1 else ''}"
    return f"{many}, {passed} passed, {failed} failed" + (f", {unscored} not scored" if unscored else "")


def ranges(steps: Sequence[int]) -> str:
    """Return steps in words: 3, 5 to 9."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][-1] + 1:
            parts[-1].append(step)
        else:
            parts.append([step])
    words = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(words)}"
