"""When two results of SQL are the same: the rules that docs/environments.md tells.

Columns are told by their place and not by their name. Rows have an order only where the gold query ends in ORDER BY; else
they are compared as a bag, so that duplicates count. NULL is only NULL, text is only the same text, a number is only a
number: two whole ones must be the same, any others may differ by what sums in another order differ by.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from halo_trainer.environments.sql_schema import Value

RELATIVE = 1e-9
ABSOLUTE = 1e-9
# A string, a quoted name or a comment; a bracket; or the words that order what stands outside all brackets.
_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)|(?P<bracket>[()])|(?P<order>\border\s+by\b)""",
    re.IGNORECASE | re.DOTALL,
)

Row = Sequence[Value]


def is_ordered(query: str) -> bool:
    """Whether the query's own rows, not those of a query in brackets, have an order."""
    depth = 0
    for token in _TOKENS.finditer(query):
        if bracket := token["bracket"]:
            depth += 1 if bracket == "(" else -1
        elif token["order"] and depth == 0:
            return True
    return False


def difference(gold: Sequence[Row], found: Sequence[Row], columns: tuple[int, int], ordered: bool) -> str | None:
    """Say in what way the found rows are not the gold ones; None: they are the same. `columns`: of gold, of found."""
    if columns[0] != columns[1]:
        return f"{_counted(columns[1], 'column')} instead of {columns[0]}"
    if len(gold) != len(found):
        return f"{_counted(len(found), 'row')} instead of {len(gold)}"
    values = itertools.chain.from_iterable(itertools.chain(gold, found))
    numbers = _classes(value for value in values if isinstance(value, int | float))
    wanted, given = ([tuple(_key(value, numbers) for value in row) for row in rows] for rows in (gold, found))
    if wanted == given:
        return None
    if Counter(wanted) != Counter(given):
        return "other values"
    return "another order" if ordered else None


def same_number(a: float, b: float) -> bool:
    """Whether two numbers are the same: two whole ones exactly, any others to nine digits."""
    if a == b:
        return True
    if _is_whole(a) and _is_whole(b):
        return False
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _classes(values: Iterable[float]) -> dict[float, int]:
    """Return for each number which of the sets it is in: neighbours that are the same number share one."""
    ordered = sorted(set(values))
    numbers: dict[float, int] = {}
    for before, value in itertools.pairwise([None, *ordered]):
        assert value is not None
        same = before is not None and same_number(before, value)
        numbers[value] = numbers[before] if same and before is not None else len(numbers)
    return numbers


def _key(value: Value, numbers: dict[float, int]) -> tuple[str, object]:
    if isinstance(value, int | float):
        return "number", numbers[value]
    return type(value).__name__, value


def _is_whole(value: float) -> bool:
    return isinstance(value, int) or value.is_integer()


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
