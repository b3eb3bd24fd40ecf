"""What the documentation says of a reason: the tables of docs/conditions.md itself, which the package carries along."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# In an installed package beside this module; in a checkout where it is written.
PLACES = (Path(__file__).parent / "conditions.md", Path(__file__).parents[2] / "docs" / "conditions.md")
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", re.M)


@dataclass(frozen=True)
class Explanation:
    """A row of the table: what the reason means, and what to do."""

    reason: str
    meaning: str
    cure: str


@cache
def reasons() -> dict[str, Explanation]:
    """Return every reason that is documented."""
    page = next(place for place in PLACES if place.exists()).read_text()
    table = page[page.index("\n## Reasons\n") : page.index("\n## Events\n")]
    return {name: Explanation(name, plain(meaning), plain(cure)) for name, meaning, cure in ROW.findall(table)}


def plain(text: str) -> str:
    """Take the marks of emphasis away that a terminal does not show; code keeps its quotes."""
    return re.sub(r"(?<!\w)\*([^*]+)\*", r"\1", text)
