"""The token rows of every step, as our trainer makes and orders them, and what each step has to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halo_api.run_file import RunFile, volume_path
from halo_trainer.data.batches import step_rows
from halo_trainer.data.load import load_template, training_rows
from halo_trainer.data.template import TokenRow

from .figures import causal_flops


def rows_of_steps(file: RunFile, volumes: str, fan: int = 1) -> list[list[TokenRow]]:
    """Return the rows of each step in our own order, longest first; for each row of ours there are `fan` in the file."""
    plan, base, data = file.train, file.base, file.data
    template = load_template(base, Path(volume_path(base.source, volumes)))
    rows = list(training_rows(data, Path(volume_path(data.source, volumes)), template))
    found = []
    for step in range(plan.steps):
        units = step_rows(len(rows) // fan, plan.batch, plan.seed, step)
        taken = [rows[fan * unit + part] for unit in units for part in range(fan)]
        found.append(sorted(taken, key=len, reverse=True))
    return found


def counted(steps: list[list[TokenRow]], config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens, trained tokens and FLOPs of each step; the config is the base's."""
    return [
        {
            "tokens": sum(len(row) for row in step),
            "trained": sum(row.trained_tokens for row in step),
            "flops": causal_flops(config, [len(row) for row in step]),
        }
        for step in steps
    ]
