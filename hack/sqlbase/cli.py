"""The command line of hack/sql-base: makes the base where it is missing, or of other settings than these, and prints its folder."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from hack.imaging.common import REPO, Trouble, cache, digest, free_space, guarded, locked, say
from hack.sqlbase.recipe import Recipe

NAME = "sql-tiny"
# Beside the base: what it was made from, so that another language or other settings make it anew.
MADE_FROM = "made-from"
SOURCES = (
    *(f"hack/sqlbase/{part}.py" for part in ("language", "tokens", "train")),
    *(
        f"trainer_image/halo_trainer/environments/sql_{part}.py"
        for part in ("tasks", "templates", "questions", "questions_easy", "questions_hard", "scenes")
    ),
)


def made_from(recipe: Recipe) -> str:
    """Return a digest of all that decides the base."""
    return digest([json.dumps(dataclasses.asdict(recipe)), *(REPO / source for source in SOURCES)])


def revision(folder: Path) -> str:
    """Return the digest over the base's files, which its catalog entry names."""
    files = [file for file in sorted(folder.iterdir()) if file.name not in ("revision", MADE_FROM)]
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def put(recipe: Recipe, target: Path) -> None:
    """Make the base beside the target, then rename: a half-made one is never seen."""
    from hack.sqlbase.train import make

    free_space(target.parent, 0.2, "the base model")
    mark = made_from(recipe)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        made = Path(scratch) / target.name
        made.mkdir()
        make(recipe, made, say)
        (made / "revision").write_text(revision(made) + "\n")
        (made / MADE_FROM).write_text(mark + "\n")
        # Weights are written for their owner alone; pods read them under another user.
        for file in made.iterdir():
            file.chmod(0o644)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)


def is_there(recipe: Recipe, target: Path) -> bool:
    """Whether the target holds the base of this recipe."""
    mark = target / MADE_FROM
    return mark.exists() and mark.read_text().strip() == made_from(recipe)


def parser() -> argparse.ArgumentParser:
    """Return the parser: an option for each number of the recipe."""
    made = argparse.ArgumentParser(
        prog="hack/sql-base",
        description="Print the folder of a base model of a few million parameters that answers SQL tasks carelessly; it is "
        "trained from random weights, in minutes, where it is missing.",
    )
    made.add_argument("--out", type=Path, metavar="FOLDER", help=f"default: {NAME} among the models of the cache")
    for field in dataclasses.fields(Recipe):
        made.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default, metavar="N",
            help=f"default: {field.default}",
        )  # fmt: skip
    return made


def run() -> int:
    """Make the base if need be."""
    options = vars(parser().parse_args())
    target: Path = options.pop("out") or cache("models") / NAME
    recipe = Recipe(**options)
    if not is_there(recipe, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(NAME):
            if not is_there(recipe, target):
                put(recipe, target)
    print(target)
    return 0


def main() -> None:
    """Run; trouble is a sentence."""

    def told() -> int:
        try:
            return run()
        except ValueError as error:
            raise Trouble(str(error)) from error

    guarded(told)
