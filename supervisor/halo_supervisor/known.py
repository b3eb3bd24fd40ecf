"""Tells the role which of its checkpoints a status names, or may come to name: it may delete the others, and only those."""

from __future__ import annotations

import logging
from pathlib import Path

from halo_api.report import Answer
from halo_api.retention import KnownCheckpoints

log = logging.getLogger(__name__)


class Known:
    """Keeps the file that the role reads before it deletes a checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = KnownCheckpoints()
        self._before = self._known
        self._written: KnownCheckpoints | None = None

    def telling(self, steps: set[int]) -> bool:
        """Note what the next push says, before it does; where that can't be noted, it must not be said.

        A role takes a checkpoint back before it looks here and deletes it, so that whoever comes second sees the other: when
        the report still has it after this, it stays.
        """
        self._before = self._known
        self._known = self._known.model_copy(update={"told": tuple(sorted(steps.union(self._known.told)))})
        return self._write()

    def unheard(self) -> None:
        """Note that nobody heard the last push."""
        self._known = self._before
        self._write()

    def answered(self, answer: Answer) -> None:
        """Note what the run's status names now; an answer that does not know says nothing."""
        named = answer.checkpoints
        if named is None and answer.saved_step is not None:
            # An operator that does not name them all: the one that a resume would start from must stay.
            named = (answer.saved_step,)
        if named is not None:
            self._known = self._known.answered(named)
            self._write()

    def _write(self) -> bool:
        if self._known == self._written:
            return True
        new = self._path.with_name(f".{self._path.name}")
        try:
            new.write_text(self._known.model_dump_json(by_alias=True, exclude_none=True))
            new.replace(self._path)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)
            return False
        self._written = self._known
        return True
