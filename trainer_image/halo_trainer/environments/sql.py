"""The environment `sql`: a question about a database, answered by one SELECT that is run on it and on hidden variants of it.

An answer passes where its rows are the gold query's on every database. Everything else is 0, with the reason: no query, a wrong
or hostile one, one that does not end.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from halo_api.recipe_settings import TaskEnvironment
from halo_trainer.environments.base import EnvironmentFailed, Observation, Opening, Score, Task
from halo_trainer.environments.contained import Died, Endless, contained
from halo_trainer.environments.sql_case import Case, SqlTask, case_of, sql_task
from halo_trainer.environments.sql_sandbox import HEAP_BYTES, Limits, QueryRefused, Result, limit_heap, select
from halo_trainer.environments.sql_schema import Value
from halo_trainer.environments.sql_variants import NoVariant

# For all databases of an answer together: what the limit of steps does not end. A right answer takes milliseconds.
CPU_SECONDS = 2.0
MORE_MEMORY = HEAP_BYTES + (128 << 20)
TOOL = "run_sql"
SHOWN_ROWS = 20
SHOWN_CHARACTERS = 2000
_EXAMPLES = 3
_FENCE = re.compile(r"```(?:(?:sqlite|sql)\b)?(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Run one SELECT of SQLite on the database and see its rows.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "The SELECT."}},
                "required": ["query"],
            },
        },
    },
)
_SYSTEM = (
    "You answer questions about a database with one SELECT statement of SQLite. "
    f"Where you have the tool {TOOL}, you may try queries first. Your answer is the last query, in a ```sql block. "
    "It must be right for other rows in the same tables too."
)


class SqlEnvironment:
    """SQL tasks with a recipe's settings: whether there are hidden variants, and what they do with orphan foreign keys."""

    def __init__(self, settings: TaskEnvironment) -> None:
        self._hidden = settings.hidden_variants
        self._skips = settings.skip_orphan_foreign_keys
        # The episodes of one task come one after the other.
        self._case = functools.lru_cache(maxsize=64)(self._built)

    def check(self, payload: dict[str, Any]) -> None:
        """Raise ValueError for a payload that is no task of SQL, or that no answer could be scored on."""
        sql_task(payload)
        try:
            self._case(json.dumps(payload))
        except NoVariant as problem:
            words = f"payload.schema: found none that hidden variants can be drawn for: {problem}; mend the schema or the rows"
            raise ValueError(words) from problem

    def session(self, task: Task) -> SqlSession:
        """Begin an episode; a task that can't be scored is EnvironmentFailed."""
        try:
            parsed = sql_task(task.payload)
            return SqlSession(parsed, self._case(json.dumps(task.payload)))
        except (NoVariant, ValueError) as problem:
            raise EnvironmentFailed(f"task {task.id} can't be scored: {problem}") from problem

    def _built(self, payload: str) -> Case:
        return case_of(sql_task(json.loads(payload)), self._hidden, self._skips)


class SqlSession:
    """One episode of one SQL task."""

    def __init__(self, task: SqlTask, case: Case) -> None:
        self._task = task
        self._case = case

    def open(self) -> Opening:
        """Return the schema and the question."""
        if self._task.style == "compact":
            return Opening(({"role": "user", "content": f"{_names(self._case)}\n{self._task.question}"},))
        text = f"{self._task.schema.strip()}\n\n{_examples(self._case)}\n\nQuestion: {self._task.question}"
        return Opening(({"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}), _TOOLS)

    def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        """Run a query of the model's on the database that is shown; whatever is wrong with the call is told to the model."""
        if name != TOOL:
            return Observation(f"error: there is no tool {name[:60]!r}; call {TOOL}")
        query = arguments.get("query")
        if not isinstance(query, str):
            return Observation(f'error: {TOOL} needs the argument "query", a string')
        limits = Limits(rows=SHOWN_ROWS, cut=True)
        found = _run([lambda: select(self._case.held[0].database, query, limits)])[0]
        return Observation(f"error: {found}" if isinstance(found, str) else _shown(found))

    def score(self, answer: str) -> Score:
        """Run the answer's query on every database and hold its rows to the gold query's."""
        query = query_of(answer)
        limits = Limits()
        results = _run([functools.partial(select, one.database, query, limits) for one in self._case.held])
        checks: dict[str, bool] = {}
        reason = ""
        for held, found in zip(self._case.held, results, strict=False):
            if isinstance(found, str):
                problem: str | None = found
            else:
                wrong = self._case.difference(held, found)
                where = "the database" if held is self._case.held[0] else "a hidden variant of the database"
                problem = f"on {where} the query gives {wrong}" if wrong else None
            checks[held.name] = problem is None
            reason = reason or problem or ""
        passed = len(checks) == len(self._case.held) and all(checks.values())
        return Score(float(passed), passed, reason or "the query gives the gold rows on every database", checks)

    def close(self) -> None:
        """Let go of nothing: databases are the environment's."""


def query_of(answer: str) -> str:
    """Return the query of an answer: its last block in a fence, else all of it; what it thought before is left off."""
    text = answer.rpartition("</think>")[2]
    blocks = _FENCE.findall(text)
    return str(blocks[-1] if blocks else text).strip()


def _run(queries: Sequence[Callable[[], Result]]) -> list[Result | str]:
    """Return each query's result, or why it has none; nothing is run behind the first that has none."""

    def work() -> list[Any]:
        limit_heap()
        done: list[Any] = []
        for query in queries:
            try:
                found = query()
            except QueryRefused as refused:
                return [*done, str(refused)]
            except MemoryError:
                return [*done, "the query needs more memory than it may have"]
            rows = [[_to_json(value) for value in row] for row in found.rows]
            done.append({"columns": found.columns, "rows": rows, "more": found.more})
        return done

    try:
        answers = contained(work, CPU_SECONDS, MORE_MEMORY)
    except (Endless, Died) as problem:
        return [f"the query does not end well: {problem}"]
    return [answer if isinstance(answer, str) else _result(answer) for answer in answers]


def _to_json(value: Value) -> Any:
    return {"blob": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _result(answer: dict[str, Any]) -> Result:
    rows = (
        tuple(base64.b64decode(value["blob"]) if isinstance(value, dict) else value for value in row)
        for row in answer["rows"]
    )
    return Result(tuple(answer["columns"]), tuple(rows), answer["more"])


def _names(case: Case) -> str:
    """Return the tables as names alone, one a line."""
    return "\n".join(f"{table.name}({', '.join(column.name for column in table.columns)})" for table in case.tables)


def _examples(case: Case) -> str:
    parts = []
    for table in case.tables:
        rows = case.shown[table.name]
        lines = [_line(row) for row in rows[:_EXAMPLES]]
        parts.append(
            "\n".join([f"{table.name} has {len(rows)} rows, such as:", *lines] if rows else [f"{table.name} is empty."])
        )
    return "\n\n".join(parts)


def _shown(found: Result) -> str:
    """Return rows as text for the model."""
    if not found.rows:
        return "no rows"
    lines = [" | ".join(found.columns), *(_line(row) for row in found.rows)]
    text = "\n".join(lines)
    cut = len(text) > SHOWN_CHARACTERS
    return text[:SHOWN_CHARACTERS] + ("\n..." if cut else "") + ("\nthere are more rows" if found.more else "")


def _line(row: Sequence[Value]) -> str:
    return " | ".join("NULL" if value is None else str(value) for value in row)
