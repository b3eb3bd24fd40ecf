"""`inspect FILE…`: rows for a person's eye: what each is as tokens, and which of them train; or how many there are."""

from __future__ import annotations

import argparse
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef, volume_path
from halo_trainer.data.bundle import Tally, Tree, linear_bundles, tree_bundles
from halo_trainer.data.jsonl import JsonLines
from halo_trainer.data.load import load_config, load_template, local_base, local_path
from halo_trainer.data.preference import preference_row
from halo_trainer.data.steps import ChatLines
from halo_trainer.data.tasks import TaskLines
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.inspection import counted, counted_words
from halo_trainer.rotary import reach
from halo_trainer.run_file import read_run_file

TRAINED, CONTEXT, EDGE = "bold green", "dim", "magenta"
# What a terminal would obey: shown as the pictures that Unicode has for it.
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


@dataclass(frozen=True)
class Piece:
    """A few characters of a row: the least that its tokens can be told apart by."""

    text: str
    tokens: int
    trained: bool


def view(options: argparse.Namespace) -> int:
    """Show the rows that were asked for, or count all; return the exit code."""
    wanted = selected(options.rows) if options.rows else []
    if options.bundle is not None and options.bundle < 1:
        raise RunFailure(Reason.INVALID_SPEC, f"--bundle: found {options.bundle}; use 1 or more")
    base, folder, files = _sources(options)
    template = load_template(base, folder)
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    colour = console.color_system is not None
    if wanted:
        console.print(Text(f"{'green' if colour else '⟦…⟧'} trains; the rest is context", style=CONTEXT))
    for path, kind in files:
        with _named(path, len(files)):
            kind = kind or _kind(path)
            if options.bundle and kind != "chat":
                raise RunFailure(Reason.INVALID_SPEC, f"--bundle: {path} has rows of kind {kind}, which are no steps")
            tally = Tally()
            bundles = _bundles(_steps(path, template), options.bundle, base, folder, tally) if options.bundle else None
            if wanted:
                shown = 0
                for number, title, row in _rows(path, kind, template, wanted, bundles):
                    shown = number
                    console.print(Text(f"{path.name}, {title}", style="bold"))
                    console.print(shown_row(template, row, colour, options.tokens))
                if (first := missing(wanted, shown)) is not None:
                    raise RunFailure(Reason.INVALID_SPEC, f"--rows: {path} has no row {first}; name a lower one")
            elif bundles:
                for _ in bundles:
                    pass
                console.print(f"{path.name}: bundle {options.bundle}: {tally}")
            else:
                console.print(f"{path.name}: {counted_words(counted(path, kind, template, base), base)}")
    return 0


@contextmanager
def _named(path: Path, files: int) -> Iterator[None]:
    """Say of which file a line is, where there are several."""
    try:
        yield
    except RunFailure as failure:
        if files > 1 and str(failure).startswith("line "):
            raise RunFailure(failure.reason, f"{path.name}: {failure}") from failure
        raise


def selected(text: str) -> list[range]:
    """Return the numbers that `N`, `N,M` and `N-M` name; rows count from 1, as lines do."""
    found = []
    for part in text.split(","):
        first, to, last = part.partition("-")
        last = last if to else first
        # As a whole number of thousands of digits can't be read.
        if not (first.isdecimal() and last.isdecimal() and len(part) < 40 and 0 < int(first) <= int(last)):
            raise RunFailure(
                Reason.INVALID_SPEC, f"--rows: found {text!r}; write row numbers from 1 on, as 3, as 3,7 or as 3-7"
            )
        found.append(range(int(first), int(last) + 1))
    return found


def missing(wanted: list[range], shown: int) -> int | None:
    """Return the first number behind the last row that was shown; None where all were."""
    return min((max(part[0], shown + 1) for part in wanted if part[-1] > shown), default=None)


def pieces(decode: Any, row: TokenRow) -> Iterator[Piece]:
    """Yield the row's tokens as text; those that are parts of one character come together.

    Each is what it adds to the one before: some tokenizers write a space between two, and none before the first.
    """
    before: list[int] = []
    start = 0
    for end in range(1, len(row) + 1):
        ids = list(row.ids[start:end])
        text = decode([*before, *ids])[len(decode(before)) :]
        ends = end == len(row) or row.trained[end] != row.trained[start]
        if text.endswith("\ufffd") and not ends and len(ids) < 8:
            continue
        yield Piece(text, len(ids), bool(row.trained[start]))
        before, start = ids, end


def shown_row(template: Template, row: TokenRow, colour: bool, tokens: bool) -> Text:
    """Return a row as text, in which what trains is green, or in brackets where there is no colour."""
    text = Text()
    for trained, span in itertools.groupby(pieces(template.decode, row), key=lambda piece: piece.trained):
        style = TRAINED if trained else CONTEXT
        if trained and not colour:
            text.append("⟦")
        if tokens:
            for piece in span:
                text.append(piece.text.translate(CONTROLS).replace("\n", "⏎\n"), style=style)
                text.append("│" if piece.tokens == 1 else f"×{piece.tokens}│", style=EDGE)
        else:
            text.append("".join(piece.text for piece in span).translate(CONTROLS), style=style)
        if trained and not colour:
            text.append("⟧")
    return text


def _rows(
    path: Path, kind: str, template: Template, wanted: list[range], bundles: Iterable[TokenRow | Tree] | None
) -> Iterator[tuple[int, str, TokenRow]]:
    """Yield number, title and tokens of each row that is wanted; nothing behind the last is read."""
    last = max(part[-1] for part in wanted)

    def is_wanted(number: int) -> bool:
        return any(number in part for part in wanted)

    if bundles:
        for number, bundle in enumerate(bundles, 1):
            for name, row in _parts(bundle) if is_wanted(number) else ():
                answers = sum(1 for at in range(len(row)) if row.trained[at] and not (at and row.trained[at - 1]))
                yield number, _title(f"bundle {number}{name}", row, f"{answers} answers, "), row
            if number == last:
                break
        return
    if kind == "tasks":
        yield from _openings(path, template, is_wanted, last)
        return
    pair, check = kind == "preference", ChatLines()
    for number, value in JsonLines(path):
        rows: Iterable[Any] = _pair(number, value) if pair else [("", check.row(number, value))]
        for name, one in rows if is_wanted(number) else ():
            row = template.token_row(one)
            yield number, _title(f"row {number}{name}", row), row
        if number == last:
            return


def _openings(
    path: Path, template: Template, is_wanted: Callable[[int], bool], last: int
) -> Iterator[tuple[int, str, TokenRow]]:
    """Yield the prompts that tasks open with, none of which trains."""
    check = TaskLines()
    for number, value in JsonLines(path):
        task = check.shape(number, value)
        if is_wanted(number):
            opening = check.opening(number, task)
            ids = array("i", template.prompt_ids(list(opening.messages), list(opening.tools) or None))
            yield number, f"task {number}, {task.id}: opens with {len(ids)} tokens", TokenRow(ids, bytearray(len(ids)))
        if number == last:
            return


def _bundles(
    steps: Iterator[TokenRow], most: int, base: BaseRef, folder: Path, tally: Tally
) -> Iterator[TokenRow] | Iterator[Tree]:
    """Bundle steps as a run on this base would that packs its rows."""
    # It imports torch, which nothing else here needs.
    from halo_trainer.attention import takes_trees

    config = load_config(base, folder)
    if takes_trees(config):
        return tree_bundles(steps, most, base.context_length, tally)
    return linear_bundles(steps, most, tally, reach(config))


def _parts(bundle: TokenRow | Tree) -> list[tuple[str, TokenRow]]:
    """Return the name and tokens of each part of a bundle; one that does not fork is a single part without a name."""
    if isinstance(bundle, TokenRow):
        return [("", bundle)]
    rows = [TokenRow(part.ids, part.trained, bundle.run) for part in bundle.segments]
    parents = [part.parent for part in bundle.segments]
    behind = ["" if parent is None else f" behind part {parent + 1}" for parent in parents]
    names = [f", part {number}{place}" for number, place in enumerate(behind, 1)] if len(rows) > 1 else [""]
    return list(zip(names, rows, strict=True))


def _pair(number: int, value: Any) -> list[tuple[str, Any]]:
    pair = preference_row(number, value)
    return [(", chosen", pair.chosen), (", rejected", pair.rejected)]


def _title(name: str, row: TokenRow, answers: str = "") -> str:
    run = f", run {row.run.translate(CONTROLS)!r}" if row.run else ""
    return f"{name}{run}: {len(row)} tokens, {answers}{row.trained_tokens} train"


def _steps(path: Path, template: Template) -> Iterator[TokenRow]:
    check = ChatLines()
    for number, value in JsonLines(path):
        row = check.row(number, value)
        if not row.run:
            raise RunFailure(
                Reason.INVALID_SPEC, f"--bundle: {path} has chats and no steps of agent runs; leave it out"
            )
        yield template.token_row(row)


def _kind(path: Path) -> str:
    """Return what kind of rows a file has by its first one."""
    for _, value in JsonLines(path):
        keys = value.keys() if isinstance(value, dict) else set()
        if {"chosen", "rejected"} & keys:
            return "preference"
        return "tasks" if {"environment", "payload"} <= keys else "chat"
    return "chat"


def _sources(options: argparse.Namespace) -> tuple[BaseRef, Path, list[tuple[Path, str | None]]]:
    """Return the base, its folder and the files with their kinds: as named, else those of the run file."""
    files: list[tuple[Path, str | None]] = [(Path(local_path(name, options.volumes)), None) for name in options.files]
    if options.base and files:
        base, folder = local_base(options.base, options.volumes)
        return base, folder, files
    if not options.run_file.is_file():
        what = "--base" if files else "FILE"
        raise RunFailure(
            Reason.INVALID_SPEC,
            f"no {what} is named and there is no run file {options.run_file}; name a base and files",
        )
    run = read_run_file(options.run_file)
    if not files and run.data:
        files = [(Path(volume_path(run.data.source, options.volumes)), run.data.kind)]
    if options.base:
        base, folder = local_base(options.base, options.volumes)
        return base, folder, files
    return run.base, Path(volume_path(run.base.source, options.volumes)), files
