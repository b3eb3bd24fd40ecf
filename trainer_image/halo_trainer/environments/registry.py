"""The task environments that this version has, by the name that recipes and tasks call them."""

from __future__ import annotations

from collections.abc import Callable

from halo_api.recipe_settings import TaskEnvironment
from halo_trainer.environments.base import Environment
from halo_trainer.environments.sql import SqlEnvironment

_MAKERS: dict[str, Callable[[TaskEnvironment], Environment]] = {"sql": SqlEnvironment}
NAMES = tuple(_MAKERS)


def environment_of(settings: TaskEnvironment) -> Environment:
    """Return the environment that a recipe's settings describe; LookupError for one that this version does not have."""
    make = _MAKERS.get(settings.name)
    if make is None:
        raise LookupError(
            f"environment: found {settings.name}, which this version does not have; use {', '.join(NAMES)}"
        )
    return make(settings)


def checking_settings(name: str) -> TaskEnvironment:
    """Return the settings that a data set's tasks are checked with, which no recipe is known of: those of the newest ones."""
    return TaskEnvironment.model_validate(
        {
            "name": name,
            "version": 3,
            "split": "train",
            "hiddenVariants": True,
            "skipOrphanForeignKeys": True,
            "extraction": False,
            "isolatedRuntime": False,
            "unscored": "leave-out",
        }
    )
