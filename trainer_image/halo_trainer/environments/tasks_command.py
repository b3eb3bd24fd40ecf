"""`halo-trainer tasks sql`: writes a data set of generated tasks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from halo_api.conditions import Reason
from halo_trainer.data.jsonl import file_digest
from halo_trainer.data.load import local_path
from halo_trainer.environments.sql_questions import TEMPLATES
from halo_trainer.environments.sql_tasks import all_kinds, generate, task_line
from halo_trainer.failures import RunFailure


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the environments that tasks can be generated for."""
    environments = parser.add_subparsers(required=True, metavar="ENVIRONMENT")
    text = "questions about made-up databases, each with the query that answers it; the same arguments write the same bytes"
    sql = environments.add_parser("sql", help=text, description=text)
    sql.add_argument(
        "--count", type=int, required=True, metavar="N", help="how many tasks, no two of which ask the same"
    )
    sql.add_argument(
        "--seed", type=int, default=0, metavar="S", help="another seed draws other tasks of the same split"
    )
    sql.add_argument(
        "--split", choices=("train", "eval"), required=True, help="no query of one is asked for by the other"
    )
    sql.add_argument("--out", required=True, metavar="FILE", help="a path or pvc://CLAIM/PATH")
    sql.add_argument("--difficulty", choices=(*TEMPLATES, "mixed"), default="mixed", help="easy: one table, short SQL")
    sql.add_argument(
        "--style", choices=("chat", "compact"), default="chat", help="compact: few tokens, one turn, no tools"
    )
    sql.add_argument(
        "--kind", action="append", default=[], metavar="KIND", help=f"only such questions: {', '.join(all_kinds())}"
    )
    sql.add_argument("--volumes", default="/volumes", metavar="FOLDER", help="pvc://CLAIM/PATH is FOLDER/CLAIM/PATH")
    sql.set_defaults(write=write)


def write(options: argparse.Namespace) -> int:
    """Write the tasks; return the exit code."""
    if options.count < 1:
        raise RunFailure(Reason.INVALID_SPEC, f"--count: found {options.count}; use 1 or more")
    path = Path(local_path(options.out, options.volumes))
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for task in generate(
                options.count, options.seed, options.split, options.difficulty, options.style, options.kind
            ):
                file.write(task_line(task) + "\n")
        os.replace(part, path)
    except ValueError as problem:
        raise RunFailure(Reason.INVALID_SPEC, f"tasks sql: {problem}") from problem
    finally:
        part.unlink(missing_ok=True)
    print(f"{path}: {options.count} tasks, {file_digest(path)}")
    return 0
