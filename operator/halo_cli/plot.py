"""`kubectl halo plot RUN …`: the curves of runs over their steps, on the terminal or as a picture, from their claims."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halo_api.metrics_history import METRICS_NAME, StepMetrics, joined, parsed, stride
from halo_api.run_file import claim_of, run_uri
from halo_api.training_job import TrainingJobStatus
from halo_cli import plot_image, plot_terminal
from halo_cli.kubectl import CliError, Kubectl, NotThere
from halo_cli.plot_series import caption, panels
from halo_cli.volume_pod import Asked as AskedPod
from halo_cli.volume_pod import VolumePod, settings_of
from halo_cli.watch import state_words, status_of

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """Which runs, which of their metrics (none: the usual), and as what."""

    runs: Sequence[str]
    metrics: Sequence[str]
    svg: str | None
    png: str | None
    pod: AskedPod


@dataclass(frozen=True)
class Place:
    """Where the metrics of a run lie."""

    name: str
    uri: str
    status: TrainingJobStatus


def plot(kubectl: Kubectl, asked: Asked, say: Say, note: Say) -> int:
    """Draw; return 0, or raise CliError where there is nothing to draw."""
    pictures = [(form, where) for form, where in (("svg", asked.svg), ("png", asked.png)) if where is not None]
    need("matplotlib" if pictures else "plotille")
    places = [place_of(kubectl, name) for name in dict.fromkeys(asked.runs)]
    claims = {claim_of(place.uri): True for place in places}
    with VolumePod(kubectl, settings_of(kubectl, asked.pod), claims, asked.pod.timeout, note) as pod:
        runs = {place.name: history_of(pod, place) for place in places}
    charts = panels(runs, asked.metrics)
    for name, steps in runs.items():
        if (every := stride(steps[-1].step)) > 1:
            note(f"{name}: one step of {every} is drawn, since it has {steps[-1].step}")
    for form, where in pictures:
        write(where, plot_image.drawn(charts, runs, form))
    if not pictures:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        say(plot_terminal.drawn(charts, shutil.get_terminal_size().columns, coloured))
        say("")
        for name, steps in runs.items():
            say(caption(name, steps))
    return 0


def need(package: str) -> None:
    """Say that something is missing before a pod is started for it."""
    if importlib.util.find_spec(package) is None:
        raise CliError(f"drawing takes the package {package}, which the extra plot of this package brings")


def place_of(kubectl: Kubectl, name: str) -> Place:
    """Return where the metrics of a run lie, if it ever had an attempt that could write any."""
    if "/" in name:
        raise CliError(f"{name} is no name of a TrainingJob; name one, as the curves are read from the run's claim")
    try:
        body = kubectl.get("trainingjobs.halo.training", name)
    except NotThere:
        raise kubectl.absent("TrainingJob", name, "trainingjobs") from None
    status = status_of(body)
    if status.attempt is None or status.frozen is None:
        raise CliError(f"{name} has no step yet: {state_words(status)}")
    return Place(name, run_uri(status.frozen.artifacts_claim, body["metadata"]["uid"]), status)


def history_of(pod: VolumePod, place: Place) -> list[StepMetrics]:
    """Return the steps of a run, one of each."""
    try:
        answer = pod.ask("metrics", "--source", place.uri)
    except CliError as error:
        raise CliError(f"the metrics of {place.name} can't be read: {error}") from None
    steps = joined(step for line in answer.splitlines() if (step := parsed(line)))
    if steps:
        return steps
    told = place.status.progress
    if told is None or told.step == 0:
        raise CliError(f"{place.name} has no step yet: {state_words(place.status)}")
    raise CliError(
        f"{place.name} is at step {told.step}, and found no {METRICS_NAME} of it below {place.uri}: "
        "its folder was removed, or an image from before plots trained it"
    )


def write(where: str, picture: bytes) -> None:
    """Write a picture to a file, or to standard output for -."""
    if where == "-":
        sys.stdout.buffer.write(picture)
        return
    try:
        Path(where).write_bytes(picture)
    except OSError as error:
        raise CliError(f"{where}: can't be written: {error.strerror}") from None
