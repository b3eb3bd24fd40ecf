"""The escape suite: hostile SQL is harmless, scored 0 with its reason, and told to a model that sends it through the tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_trainer.environments.base import Task
from halo_trainer.environments.registry import checking_settings, environment_of
from halo_trainer.environments.sql import SqlSession
from halo_trainer.environments.sql_sandbox import LONGEST_QUERY, MOST_ROWS

TASK = Task(
    "t-1",
    "sql",
    {
        "schema": "CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);",
        "rows": {"pets": [[i, f"pet {i}", i % 5] for i in range(1, 13)]},
        "question": "How many pets are older than 2?",
        "gold": "SELECT COUNT(*) FROM pets WHERE age > 2",
    },
)
ENVIRONMENT = environment_of(checking_settings("sql"))
GOLD = str(TASK.payload["gold"])
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
NOT_ALLOWED = "may only SELECT"
# Name: query, and a part of the reason.
HOSTILE: dict[str, tuple[str, str]] = {
    "attach": ("ATTACH DATABASE '{folder}/made.db' AS other", "ATTACH"),
    "attach in memory": ("ATTACH ':memory:' AS other", "ATTACH"),
    "attach by a uri": ("ATTACH 'file:{folder}/made.db?mode=rwc' AS other", "ATTACH"),
    "detach": ("DETACH main", "DETACH"),
    "vacuum": ("VACUUM", ""),
    "vacuum into": ("VACUUM INTO '{folder}/made.db'", ""),
    "pragma": ("PRAGMA query_only = OFF", "PRAGMA"),
    "pragma that writes": ("PRAGMA journal_mode = WAL", "PRAGMA"),
    "pragma of the schema": ("PRAGMA writable_schema = ON", "PRAGMA"),
    "pragma as a table": ("SELECT * FROM pragma_database_list", ""),
    "pragma of functions as a table": ("SELECT name FROM pragma_function_list", ""),
    "page contents as a table": ("SELECT * FROM dbstat", ""),
    "statements as a table": ("SELECT * FROM sqlite_stmt", ""),
    "load_extension": ("SELECT load_extension('{folder}/evil.so')", "load_extension"),
    "readfile": ("SELECT readfile('/etc/passwd')", ""),
    "writefile": ("SELECT writefile('{folder}/made.db', 'x')", ""),
    "edit": ("SELECT edit('x', 'touch {folder}/made.db')", ""),
    "fts3 tokenizer": ("SELECT fts3_tokenizer('simple', x'4141414141414141')", "fts3_tokenizer"),
    "fts table": ("CREATE VIRTUAL TABLE made USING fts5(x)", NOT_ALLOWED),
    "rtree table": ("CREATE VIRTUAL TABLE made USING rtree(a, b, c)", NOT_ALLOWED),
    "temporary table": ("CREATE TEMP TABLE made AS SELECT * FROM pets", NOT_ALLOWED),
    "temporary trigger": ("CREATE TEMP TRIGGER made AFTER INSERT ON pets BEGIN SELECT 1; END", NOT_ALLOWED),
    "view": ("CREATE VIEW made AS SELECT 1", NOT_ALLOWED),
    "insert": ("INSERT INTO pets VALUES (99, 'x', 9)", "INSERT"),
    "insert that returns": ("INSERT INTO pets VALUES (99, 'x', 9) RETURNING 5", "INSERT"),
    "update": ("UPDATE pets SET age = 9", "UPDATE"),
    "delete": ("DELETE FROM pets", "DELETE"),
    "replace": ("REPLACE INTO pets VALUES (1, 'x', 9)", ""),
    "write behind a cte": ("WITH a AS (SELECT 1) DELETE FROM pets WHERE id IN a", "DELETE"),
    "drop": ("DROP TABLE pets", NOT_ALLOWED),
    "alter": ("ALTER TABLE pets ADD COLUMN x", ""),
    "the catalog itself": ("UPDATE sqlite_master SET sql = ''", ""),
    "begin": ("BEGIN EXCLUSIVE", "BEGIN"),
    "savepoint": ("SAVEPOINT a", "SAVEPOINT"),
    "analyze": ("ANALYZE", NOT_ALLOWED),
    "reindex": ("REINDEX", "no SELECT"),
    "two statements": (f"{GOLD}; DROP TABLE pets", "more than one statement"),
    "two statements behind a comment": (f"{GOLD}; -- fine\nDELETE FROM pets", "more than one statement"),
    "comment alone": ("-- SELECT 5", "no SELECT"),
    "comment without an end": ("/* SELECT 5", ""),
    "nothing": ("   ", "no query"),
    "a NUL": (f"{GOLD}\0; DROP TABLE pets", "NUL"),
    "half a surrogate pair": ("SELECT '\ud800'", "surrogate"),
    "letters that look like others": ("ЅELECT COUNT(*) FROM pets WHERE age > 2", ""),
    "spaces that are none": ("SELECT\u00a0COUNT(*)\u200bFROM pets", ""),
    "long query": ("SELECT '" + "x" * LONGEST_QUERY + "'", "bytes"),
    "deep brackets": ("SELECT " + "(" * 900 + "1" + ")" * 900, ""),
    "deep negation": ("SELECT " + "NOT " * 3000 + "1", ""),
    "deep subqueries": ("SELECT * FROM " + "(SELECT * FROM " * 300 + "pets" + ")" * 300, ""),
    "many unions": (" UNION ALL ".join(["SELECT 1"] * 400), ""),
    "many columns": ("SELECT " + ", ".join(["1"] * 3000), ""),
    "endless recursion": (f"{ENDLESS} SELECT COUNT(*) FROM n", "steps"),
    "endless recursion with a limit": (f"{ENDLESS} SELECT x FROM n LIMIT 1000000000", "more than"),
    "recursion that grows a string": (
        "WITH RECURSIVE n(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM n) SELECT MAX(LENGTH(x)) FROM n",
        "bytes",
    ),
    "recursion that sorts": (f"{ENDLESS} SELECT x FROM n ORDER BY x DESC LIMIT 1", "more than"),
    "cross joins": ("SELECT COUNT(*) FROM pets a, pets b, pets c, pets d, pets e, pets f, pets g, pets h", "steps"),
    "many rows": ("SELECT a.id FROM pets a, pets b, pets c, pets d", f"more than {MOST_ROWS} rows"),
    "zeroblob": ("SELECT zeroblob(1000000000)", "zeroblob"),
    "randomblob": ("SELECT randomblob(1000000000)", "randomblob"),
    "random": ("SELECT random()", "random"),
    "printf giant": ("SELECT printf('%.*c', 1000000000, 'x')", "seconds of a core"),
    "replace giant": ("SELECT replace(hex(printf('%60000s', '')), '20', printf('%60000s', ''))", ""),
    "group_concat giant": (
        f"{ENDLESS} SELECT group_concat(x || printf('%9000s', '')) FROM (SELECT x FROM n LIMIT 1000)",
        "bytes",
    ),
    "giant rows": (
        f"{ENDLESS}, m AS (SELECT x FROM n LIMIT 1000) SELECT printf('%60000s', x) FROM m",
        "1 MiB of values",
    ),
    "giant sort": (f"{ENDLESS} SELECT DISTINCT printf('%60000s', x) AS p FROM n ORDER BY p LIMIT 3", ""),
    "pattern that takes for ever": (
        "SELECT printf('%60000s', '') LIKE '" + "%_" * 60 + "x'",
        "",
    ),
    "glob that takes for ever": ("SELECT printf('%60000s', '') GLOB '" + "*?" * 60 + "x'", ""),
    "parameter": ("SELECT COUNT(*) FROM pets WHERE age > ?", ""),
    "numbered parameter": ("SELECT ?999999999", ""),
    "another table": ("SELECT COUNT(*) FROM secrets", "no such table"),
    "virtual table that nothing is read of": ("SELECT COUNT(*) FROM dbstat", NOT_ALLOWED),
    "pragma as a table that nothing is read of": ("SELECT COUNT(*) FROM pragma_database_list", NOT_ALLOWED),
    "files as a table": ("SELECT * FROM fsdir('/')", ""),
    "json as a table": ("SELECT * FROM json_each('[1]')", NOT_ALLOWED),
    "explain": (f"EXPLAIN {GOLD}", ""),
    "a deep tree of joined results": (
        "WITH a0 AS (SELECT 1 AS x), "
        + ", ".join(f"a{i + 1} AS (SELECT x FROM a{i} UNION ALL SELECT x FROM a{i})" for i in range(30))
        + " SELECT COUNT(*) FROM a30",
        "",
    ),
    "a function call a row": (
        f"{ENDLESS} SELECT COUNT(date('2024-01-01', '+' || x || ' days')) FROM n",
        "",
    ),
    "the time": ("SELECT strftime('%s', 'now')", "other values"),
    "hard-coded": ("SELECT 4", "hidden variant"),
    "right for these rows alone": ("SELECT COUNT(*) FROM pets WHERE age >= 3 AND id <= 12", "hidden variant"),
    "no SQL at all": ("I am sorry, I can't do that.", ""),
}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> SqlSession:
    # A right answer takes milliseconds of it.
    monkeypatch.setattr("halo_trainer.environments.sql.CPU_SECONDS", 0.5)
    session = ENVIRONMENT.session(TASK)
    assert isinstance(session, SqlSession)
    return session


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sql_is_scored_0_with_its_reason_and_harms_nothing(
    name: str, session: SqlSession, tmp_path: Path
) -> None:
    query, reason = HOSTILE[name]
    query = query.replace("{folder}", str(tmp_path))
    score = session.score(query)
    assert (score.reward, score.passed) == (0.0, False)
    assert reason in score.reason
    assert len(score.reason) > 10
    assert "\n" not in score.reason
    assert list(tmp_path.iterdir()) == []
    assert session.score(GOLD).passed


@pytest.mark.parametrize("name", HOSTILE)
def test_the_tool_takes_the_same_and_tells_the_model_what_is_wrong(
    name: str, session: SqlSession, tmp_path: Path
) -> None:
    query = HOSTILE[name][0].replace("{folder}", str(tmp_path))
    told = session.call("run_sql", {"query": query}).content
    assert len(told) < 2500
    assert list(tmp_path.iterdir()) == []
    assert session.call("run_sql", {"query": GOLD}).content == "COUNT(*)\n4"


GOOD = (
    "WITH old AS (SELECT * FROM pets WHERE age > 2) SELECT COUNT(*) FROM old",
    "SELECT COUNT(*) FROM (SELECT id FROM pets WHERE age > 2) AS old",
    "select sum(case when age > 2 then 1 else 0 end) as n from pets -- all of them\n;",
    "SELECT COUNT(id) FROM main.pets WHERE age > 2 AND (SELECT COUNT(*) FROM sqlite_master) = 1",
    "WITH RECURSIVE n(x) AS (SELECT 3 UNION ALL SELECT x + 1 FROM n WHERE x < 99) SELECT COUNT(*) FROM pets JOIN n ON age = x",
    "<think>PRAGMA?</think>Let me see.\n```sql\nSELECT 1\n```\nNo:\n```sql\nSELECT COUNT(*) FROM pets WHERE NOT age <= 2\n```",
    "```\nSELECT COUNT(*) FROM pets WHERE age > 2",
    "It is ```SQL SELECT COUNT(*) FROM pets WHERE age > 2``` then.",
)


@pytest.mark.parametrize("answer", GOOD)
def test_what_is_right_passes_however_it_is_written(answer: str, session: SqlSession) -> None:
    score = session.score(answer)
    assert score.passed, score.reason


def test_a_tool_call_that_is_none_is_told(session: SqlSession) -> None:
    assert session.call("rm", {}).content == "error: there is no tool 'rm'; call run_sql"
    assert session.call("run_sql", {"query": 3}).content == 'error: run_sql needs the argument "query", a string'
    many = session.call("run_sql", {"query": "SELECT a.id FROM pets a, pets b"}).content.splitlines()
    assert (len(many), many[-1]) == (22, "there are more rows")
