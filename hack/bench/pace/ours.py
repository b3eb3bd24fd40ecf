"""Our side: the trainer's own `train`, held at each step by its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halo_api.report import ProgressReport
from halo_api.run_file import RunFile
from halo_trainer.budget import Budget
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.reporting import Reporting
from halo_trainer.train import train

from .link import Link
from .steps import counted, talks_of_steps


class Paced(Reporting):
    """A report that waits for the bench once all is loaded, and after each step."""

    def __init__(self, path: Path, run: RunFile, link: Link, counts: list[dict[str, Any]]) -> None:
        super().__init__(path, run)
        self._link, self._counts = link, counts

    def phase(self, phase: str) -> None:
        super().phase(phase)
        if phase == "Working":
            self._link.ready()

    def progress(self, progress: ProgressReport) -> None:
        super().progress(progress)
        self._link.stepped(loss=progress.loss, **self._counts[progress.step - 1])


def run(settings: dict[str, Any], link: Link) -> None:
    """Train; the bench ends the process."""
    file = RunFile.model_validate(settings["run"])
    volumes = settings["volumes"]
    steps = talks_of_steps(file, volumes, settings["rows"])
    counts = [counted(step, settings["config"]) for step in steps]
    report = Paced(Path(volumes) / f"{settings['name']}.json", file, link, counts)
    train(file, volumes, report, Ranks(), Budget())
