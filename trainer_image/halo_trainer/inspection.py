"""`inspect`: counts a data set exactly as training will read it, or finds the first row that training could not."""

from __future__ import annotations

from pathlib import Path

from halo_api.conditions import Reason
from halo_api.report import InspectionReport, LongRows, Outcome
from halo_api.run_file import BaseRef, RunFile, volume_path
from halo_trainer.data.jsonl import JsonLines
from halo_trainer.data.load import base_folder, load_template, row_check, token_row
from halo_trainer.data.template import Template
from halo_trainer.failures import RunFailure
from halo_trainer.reporting import Reporting

# What people limit rows to: from 256 to 16,777,216 tokens, which is the most that a base may see.
LENGTHS = tuple(2**power for power in range(8, 25))


def inspect(run: RunFile, volumes: str, report: Reporting) -> Outcome:
    """Read the file twice: first the shape of every row, which takes no tokenizer and so fails within a second."""
    if run.data is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no data to inspect; the operator writes it")
    path = Path(volume_path(run.data.source, volumes))
    base = base_folder(run.base, Path(volume_path(run.base.source, volumes)))
    report.phase("Working")
    check = row_check(run.data.kind)
    for number, value in JsonLines(path):
        check(number, value)
    found = counted(path, run.data.kind, load_template(run.base, base), run.base)
    message = counted_words(found, run.base)
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, message=message, inspection=found)


def counted(path: Path, kind: str, template: Template, base: BaseRef) -> InspectionReport:
    """Count a file's rows as training will read them."""
    lines = JsonLines(path)
    check = row_check(kind)
    rows = tokens = trained = longest = 0
    longer = dict.fromkeys(sorted({*LENGTHS, base.context_length}), 0)
    for number, value in lines:
        row = token_row(template, check(number, value))
        rows += 1
        tokens += row.tokens
        trained += row.trained_tokens
        longest = max(longest, len(row))
        for length in longer:
            longer[length] += len(row) > length
    return InspectionReport(
        sha256=lines.digest,
        rows=rows,
        tokens=tokens,
        trained_tokens=trained,
        longest_row=longest,
        # Beyond the first that no row is longer than, all are 0.
        longer=tuple(LongRows(tokens=length, rows=found) for length, found in longer.items() if found),
    )


def counted_words(found: InspectionReport, base: BaseRef) -> str:
    """Say what was counted."""
    return (
        f"{found.rows} rows, {found.tokens} tokens of {base.name}, {found.trained_tokens} of them trained, "
        f"the longest row {found.longest_row}"
    )
