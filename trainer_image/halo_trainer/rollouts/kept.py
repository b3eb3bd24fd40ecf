"""Where a run's sampled episodes lie: of each step the file of the latest attempt that sampled it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from halo_api.run_file import attempt_of
from halo_api.transcript import EPISODES_FOLDER, step_of


def transcripts(folder: Path, readable: Callable[[Path], bool]) -> dict[int, Path]:
    """Return the files of all attempts below a run's folder, by step."""
    attempts = {number: path / EPISODES_FOLDER for path in folder.iterdir() if (number := attempt_of(path.name))}
    found: dict[int, Path] = {}
    for number in sorted(attempts):
        if not (readable(attempts[number]) and attempts[number].is_dir()):
            continue
        for path in attempts[number].iterdir():
            step = step_of(path.name)
            if step is not None and readable(path) and path.is_file():
                found[step] = path
    return found
