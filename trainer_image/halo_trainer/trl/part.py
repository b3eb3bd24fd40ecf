"""How a trainer of TRL's becomes a part of our loop: what it is told, and what it must leave alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def loop_arguments(device: torch.device) -> dict[str, Any]:
    """Return the settings that are the loop's business: TRL's trainer shows, reports and writes nothing."""
    return {
        # Nothing is written there: the loop has its own checkpoints.
        "output_dir": tempfile.gettempdir(),
        "use_cpu": device.type == "cpu",
        "report_to": [],
        "disable_tqdm": True,
    }


@contextmanager
def settled_threads() -> Iterator[None]:
    """Keep the number of threads, on which the last bits depend: accelerate sets another one, by the cores of the machine."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def own_precision(model: Any) -> Iterator[None]:
    """Keep the adapter's weights as they are: on a base in 4 bits TRL rounds them to bf16, where small updates are lost."""
    trained = {parameter: parameter.data for parameter in model.parameters() if parameter.requires_grad}
    yield
    for parameter, weights in trained.items():
        parameter.data = weights


def stand_alone(trainer: Any) -> None:
    """Let it count its own process alone: the loop adds the processes' shares up, which need not be alike."""
    trainer.accelerator.gather = trainer.accelerator.gather_for_metrics = _own


def _own(values: Any) -> Any:
    return values
