"""`inspect`: counts a data set exactly as training will read it, or finds the first row that training could not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from halo_api.conditions import Reason
from halo_api.report import InspectionReport, LongRows, NamedRows, Outcome
from halo_api.run_file import BaseRef, RunFile, volume_path
from halo_trainer.data.jsonl import JsonLines
from halo_trainer.data.load import base_folder, load_template, row_check, token_row
from halo_trainer.data.tasks import TaskCounts, TaskLines
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
    # The check of a task's payload runs its gold query: it is done once, by the count.
    check = TaskLines().shape if run.data.kind == "tasks" else row_check(run.data.kind)
    for number, value in JsonLines(path):
        check(number, value)
    found = counted(path, run.data.kind, load_template(run.base, base), run.base)
    message = counted_words(found, run.base)
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, message=message, inspection=found)


def counted(path: Path, kind: str, template: Template, base: BaseRef) -> InspectionReport:
    """Count a file's rows as training will read them."""
    if kind == "tasks":
        return counted_tasks(path, template, base)
    lines = JsonLines(path)
    check = row_check(kind)
    tokens = trained = 0
    lengths = Lengths(base)
    for number, value in lines:
        row = token_row(template, check(number, value))
        tokens += row.tokens
        trained += row.trained_tokens
        lengths.add(len(row))
    return InspectionReport(
        sha256=lines.digest,
        rows=lengths.rows,
        tokens=tokens,
        trained_tokens=trained,
        longest_row=lengths.longest,
        longer=lengths.longer,
    )


def counted_tasks(path: Path, template: Template, base: BaseRef) -> InspectionReport:
    """Check every task of a file, and count the tokens of the prompts that episodes open with."""
    lines = JsonLines(path)
    check, counts, lengths = TaskLines(), TaskCounts(), Lengths(base)
    tokens = 0
    for number, value in lines:
        task = check.row(number, value)
        opening = check.opening(number, task)
        prompt = len(template.prompt_ids(list(opening.messages), list(opening.tools) or None))
        tokens += prompt
        lengths.add(prompt)
        counts.add(task)
    return InspectionReport(
        sha256=lines.digest,
        rows=lengths.rows,
        tokens=tokens,
        trained_tokens=0,
        longest_row=lengths.longest,
        longer=lengths.longer,
        environments=named(counts.environments, 8),
        tags=named(counts.tags, 16),
    )


def named(counts: Counter[str], most: int) -> tuple[NamedRows, ...]:
    """Return the most frequent names; of equally frequent ones the first by name."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    return tuple(NamedRows(name=name, rows=rows) for name, rows in ordered)


class Lengths:
    """How many rows there are, how long the longest is, and how many are longer than what people limit rows to."""

    def __init__(self, base: BaseRef) -> None:
        self.rows = self.longest = 0
        self._longer = dict.fromkeys(sorted({*LENGTHS, base.context_length}), 0)

    def add(self, tokens: int) -> None:
        """Count one row."""
        self.rows += 1
        self.longest = max(self.longest, tokens)
        for length in self._longer:
            self._longer[length] += tokens > length

    @property
    def longer(self) -> tuple[LongRows, ...]:
        """Beyond the first that no row is longer than, all are 0."""
        return tuple(LongRows(tokens=length, rows=rows) for length, rows in self._longer.items() if rows)


def counted_words(found: InspectionReport, base: BaseRef) -> str:
    """Say what was counted."""
    if found.environments:
        kinds, tags = (
            ", ".join(f"{one.name} {one.rows}" for one in names) for names in (found.environments, found.tags)
        )
        return (
            f"{found.rows} tasks ({kinds}), {found.tokens} tokens of {base.name} in the prompts that they open with, the longest "
            f"{found.longest_row}{'; tags: ' if tags else ''}{tags}"
        )
    return (
        f"{found.rows} rows, {found.tokens} tokens of {base.name}, {found.trained_tokens} of them trained, "
        f"the longest row {found.longest_row}"
    )
