"""The documentation says what the code says: every reason, every field, every file that it links."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from halo_api.conditions import ConditionType, Reason

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONDITIONS = (DOCS / "conditions.md").read_text()
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def section(title: str) -> str:
    """Return what stands under a second-level heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", CONDITIONS, re.M | re.S)
    assert found, title
    return found[1]


def first_cells(text: str) -> list[str]:
    """Return the words in code style that begin a table's rows."""
    return re.findall(r"^\| `(\w+)` \|", text, re.M)


def test_every_condition_type_is_explained_once() -> None:
    assert Counter(first_cells(section("Condition types"))) == Counter(ConditionType)


def test_every_reason_is_explained_once_and_no_other() -> None:
    assert Counter(first_cells(section("Reasons"))) == Counter(Reason)


def test_every_state_is_explained() -> None:
    states = first_cells(section("The STATE column"))
    wanted = first_cells(section("Reasons").split("###")[1])
    assert sorted(states) == sorted(wanted)


def test_api_md_is_generated() -> None:
    done = subprocess.run([sys.executable, ROOT / "hack" / "api-docs", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(file: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_files_that_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/.-])(?:\./)?((?:hack|examples|crds|charts|tests)/[\w./-]*\w)", page.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()
