"""What a run's spec names: the one list of what admission looks up and waits for."""

from __future__ import annotations

from dataclasses import dataclass

from halo_api.training_job import TrainingJobSpec


@dataclass(frozen=True)
class References:
    """Names of other objects in a spec; None where it names none."""

    dataset: str | None = None
    parent: str | None = None
    recipe: str | None = None
    environment: str | None = None
    warmup: str | None = None
    retention: str | None = None
    criterion: str | None = None


def references(spec: TrainingJobSpec) -> References:
    """Return what a run needs to be there until it is accepted."""
    parent = spec.parent.adapter if spec.parent else None
    if rlvr := spec.rlvr:
        return References(
            dataset=rlvr.dataset,
            parent=parent,
            recipe=rlvr.recipe,
            environment=rlvr.env_revision,
            warmup=rlvr.warmup.env_revision if rlvr.warmup else None,
            retention=rlvr.retention.env_revision if rlvr.retention else None,
            criterion=rlvr.judge.criterion if rlvr.judge else None,
        )
    if rft := spec.rft:
        return References(dataset=rft.dataset, parent=parent, recipe=rft.recipe, environment=rft.env_revision)
    return References(dataset=spec.lora.dataset if spec.lora else None, parent=parent)
