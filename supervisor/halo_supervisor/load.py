"""Reading the run file: it is trusted only when its digest is the one in the pod's environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from halo_api.run_file import DIGEST_VARIABLE, RunFile, digest_of


class UntrustedRunFile(Exception):
    """The run file is missing, is not the one that the operator wrote, or can't be understood."""


def load_run_file(path: Path, expected_digest: str | None) -> RunFile:
    """Return the checked run file; nothing in it is used before its digest is known to be right."""
    if not expected_digest:
        raise UntrustedRunFile(
            f"the environment has no {DIGEST_VARIABLE}, so {path} can't be trusted; the operator sets it"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UntrustedRunFile(f"the run file {path} can't be read: {error}") from error
    if digest_of(text) != expected_digest:
        raise UntrustedRunFile(
            f"the run file {path} has digest {digest_of(text)} and {DIGEST_VARIABLE} says {expected_digest}; it was changed"
        )
    try:
        return RunFile.model_validate_json(text)
    except ValidationError as error:
        raise UntrustedRunFile(f"the run file {path} can't be understood by this image: {error}") from error
