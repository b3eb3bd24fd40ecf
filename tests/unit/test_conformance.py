"""docs/conformance.md points at rows and tests that exist, and says of every rule what shows it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from halo_api.grpo_run import GrpoRunSpec
from halo_api.recipe_names import RECIPES, RETIRED
from halo_api.training_methods import RftSpec, RlvrSpec

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
TABLES = sorted(path.stem for path in (ROOT / "tests" / "refusals").glob("*.py") if "_" in path.stem.strip("_"))
# What later issues build is checked and refused as NotYetAvailable, or not there at all.
UNSHOWN = "issue "


def rules() -> list[list[str]]:
    """Return the cells of every rule."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() != "the reference says"]


def test_rows_that_it_names_are_in_the_tables() -> None:
    known = {row.what for table in TABLES for row in importlib.import_module(f"tests.refusals.{table}").ROWS}
    named = set(re.findall(r"row \*(.+?)\*", PAGE))
    assert len(named) > 50
    assert named - known == set()


def test_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"(test_\w+\.py)::(test_\w+)", PAGE))
    there = {
        f"{path.name}::{test}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for test in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.M)
    }
    assert {f"{file}::{test}" for file, test in named} - there == set()


def test_every_rule_says_what_shows_it_or_when_it_comes() -> None:
    assert [row[0] for row in rules() if len(row) != 3 or not (row[2] or UNSHOWN in row[1])] == []


def test_every_recipe_and_field_of_the_references_is_on_it() -> None:
    """A reference's row of its own for each; suspend and tasksFrom are ours."""
    page = re.sub(r"code_contests_v1 to v3", "code_contests_v1, code_contests_v2, code_contests_v3", PAGE)
    assert [name for name in (*RECIPES, *RETIRED) if not re.search(rf"\b{name}\b", page)] == []
    fields = {f.alias or n for spec in (GrpoRunSpec, RlvrSpec, RftSpec) for n, f in spec.model_fields.items()}
    snake = {field: re.sub(r"(?<!^)(?=[A-Z])", "_", field).lower() for field in fields - {"suspend", "tasksFrom"}}
    words = set(re.findall(r"[A-Za-z0-9_]+", page))
    assert [field for field in snake if not {field, snake[field]} & words] == []
