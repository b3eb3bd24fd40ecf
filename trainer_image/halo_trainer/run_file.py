"""The run file as a verb is given it: the operator's, or one that a person wrote for a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from halo_api.conditions import Reason
from halo_api.run_file import RunFile
from halo_trainer.failures import RunFailure


def read_run_file(path: Path) -> RunFile:
    """Read a run file; what is wrong with it is one sentence with the field."""
    try:
        return RunFile.model_validate_json(path.read_bytes())
    except OSError as error:
        found = f"can't be read ({error.strerror})"
        raise RunFailure(Reason.INVALID_SPEC, f"the run file {path} {found}; name one with --run-file") from error
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        words = f"the run file {path} is none ({where}: {first['msg'][:200]}); mend it, or name another with --run-file"
        raise RunFailure(Reason.INVALID_SPEC, words) from error
