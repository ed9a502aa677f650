"""Queries read and do nothing else; what a task expects is compared as an answer or as rows; bad databases are named."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action
from asyncrl.envs.builtin.database import Database, DatabaseError, QueryRefused
from asyncrl.envs.builtin.sql import Sql
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.tool_processes import ToolProcesses
from asyncrl.envs.lessons.find_lessons import find_lessons
from asyncrl.envs.load import load_member, make_tasks

SCRIPT = "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL), (4, x'00ff');"


@pytest.fixture
def database() -> Database:
    return Database.build(SCRIPT, seconds=0.5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data base?.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SCRIPT)
    connection.close()
    return path


def test_results_as_text(database: Database):
    assert str(database.query("select a, b from t", 10)) == "a | b\n1 | x\n2 | y\n3 | NULL\n4 | x'00ff'"
    assert str(database.query("select a from t", 2)) == "a\n1\n2\n(more rows)"
    assert str(database.query("select a from t where a > 9", 2)) == "a"
    assert len(str(database.query("select printf('%.*c', 5000, 'x')", 1))) < 1100


HOSTILE = [
    "insert into t values (5, 'z')",
    "update t set a = 0",
    "delete from t",
    "drop table t",
    "create table u (a)",
    "create temp table u (a)",
    "attach '/etc/passwd' as p",
    "attach ':memory:' as p",
    "vacuum into '/tmp/out'",
    "pragma writable_schema = 1",
    "pragma table_info(t)",
    "begin",
    "select load_extension('x')",
    "select writefile('/tmp/out', 'x')",
    "select 1; select 2",
    "select a from nowhere",
    "select",
    "",
    "-- nothing",
    "\x00",
    "select '\ud800'",
    "select zeroblob(2000000000)",
    "select group_concat(printf('%.*c', 900000, 'x')) from t",
    "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n",
    "select " + "(" * 5000 + "1" + ")" * 5000,
    "select '" + "x" * 2_000_000 + "'",
]


@pytest.mark.parametrize("sql", HOSTILE, ids=lambda sql: sql[:30].encode(errors="replace").decode())
def test_what_is_no_query_or_takes_too_long_is_refused_and_changes_nothing(file: Path, sql: str):
    for opened in (Database.build(SCRIPT, 0.2), Database.open_file(file, 0.2)):
        with pytest.raises(QueryRefused):
            opened.query(sql, 5)
        assert [a for (a,) in opened.query("select a from t", 10).rows] == [1, 2, 3, 4]
        opened.close()


@given(st.text(max_size=60))
def test_any_text_is_answered_or_refused(text: str):
    opened = Database.build(SCRIPT, 1.0)
    for sql in (text, f"select {text}", f"select * from t where {text}"):
        try:
            str(opened.query(sql, 3))
        except QueryRefused:
            continue
    assert len(opened.query("select a from t", 10).rows) == 4


def test_a_file_is_opened_without_a_lock_and_never_written(file: Path):
    file.chmod(0o444)
    before = file.read_bytes()
    opened = Database.open_file(file, 1.0)
    assert opened.query("select max(a) from t", 1).rows == ((4,),)
    opened.close()
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_bad_databases_are_named(tmp_path: Path):
    with pytest.raises(DatabaseError, match="there is no database file"):
        Database.open_file(tmp_path / "none", 1.0)
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(DatabaseError, match=r"cannot read .*text: file is not a database"):
        Database.open_file(tmp_path / "text", 1.0)
    with pytest.raises(DatabaseError, match=r"syntax error.*begins with 'CREATE TABL t"):
        Database.build("CREATE TABL t (a);", 1.0)
    with pytest.raises(DatabaseError, match="too many attached"):
        Database.build(f"ATTACH '{tmp_path}/x' AS x;", 1.0)
    endless = "CREATE TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n LIMIT 1000000000"
    with pytest.raises(DatabaseError, match=r"longer than 0.2 s"):
        Database.build(endless, 0.2)


async def rewarded(data: dict[str, Any], *answers: str) -> list[float]:
    rewards, processes = [], ToolProcesses("tests", most=1)
    for answer in answers:
        environment = Sql(query_timeout_s=0.5)
        environment.provided = Provided(processes=processes)
        await environment.reset(Task(id=TaskId("1"), prompt="?", data={"script": SCRIPT, **data}))
        rewards.append((await environment.step(Action(answer, ()))).reward)
        await environment.close()
    processes.close()
    return rewards


async def test_answers():
    assert await rewarded({"answer": 3}, "3", " 3.0 ", "three", "", "nan") == [1, 1, 0, 0, 0]
    assert await rewarded({"answer": 10**17 + 1}, "100000000000000001", "100000000000000000", "1e17") == [1, 0, 0]
    assert await rewarded({"answer": str(10**17 + 1)}, "100000000000000001.0", "100000000000000000") == [1, 0]
    assert await rewarded({"answer": "Ada Berg"}, "ada berg\n", "Ada") == [1, 0]
    assert await rewarded({"answer": "0.3333333333"}, "0.33333333", "0.33") == [1, 0]
    assert await rewarded({"answer": "Infinity"}, "infinity", "inf", "5", "x") == [1, 0, 0, 0]
    assert await rewarded({"answer": "Nan"}, "nan", "Ada") == [1, 0]
    assert await rewarded({"answer": 3, "rows": None}, "3", "4") == [1, 0]
    said = ("<think>4?</think>\n3", "So <answer>3</answer>", "<think>3</think> 4")
    assert await rewarded({"answer": 3}, *said) == [1, 1, 0]


async def test_rows_in_any_order():
    answers = [
        "select a, b from t where a < 3",
        "select a, b from t where a < 3 order by a desc",
        "select a from t",
        "drop table t",
    ]
    assert await rewarded({"rows": [[1, "x"], [2, "y"]], "answer": None}, *answers) == [1, 1, 0, 0]
    assert await rewarded({"rows": [["1", "x"], ["2", "y"]]}, *answers) == [1, 1, 0, 0]
    sums = ["select 0.1+0.2+0.3", "select 0.3+0.2+0.1", "select '0.6'", "select 0.600001"]
    assert await rewarded({"rows": [[0.6]]}, *sums) == [1, 1, 1, 0]
    assert await rewarded({"rows": [["007"], ["12345678901234567"]]}, "select 7 union all select 12345678901234567") == [0]
    fenced = [
        "<think>select 1?</think>It is\n```sql\nselect a, b from t where a < 3;\n```\nwhich gives\n```\n1 | x\n```",
        "<answer>select a, b from t where a < 3</answer>",
        "```SQLite\nselect a, b from t where a < 3\n```",
        "<think>\n```sql\nselect a, b from t where a < 3\n```\n</think>\n```sql\nselect a from t\n```",
    ]
    assert await rewarded({"rows": [[1, "x"], [2, "y"]]}, *fenced) == [1, 1, 1, 0]
    mixed = ["select 10 union all select 2.0 union all select null", "select 10.0 union all select 2 union all select 'null'"]
    assert await rewarded({"rows": [[2], [None], [10.0]]}, *mixed) == [1, 0]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "give one of them"),
        ({"answer": "1", "rows": [[1]]}, "give one of them"),
        ({"answer": [1]}, "give one of them"),
        ({"answer": " "}, "give one of them"),
        ({"answer": float("nan")}, "give one of them"),
        ({"rows": [1]}, "give one of them"),
        ({"rows": [[[1]]]}, "lists of texts, numbers and nulls"),
        ({"answer": 1, "script": "CREATE"}, "incomplete input|script of the database fails"),
        ({"answer": 1, "script": "", "database": "/nowhere.sqlite"}, "there is no database file /nowhere.sqlite"),
        ({"answer": 1, "script": ""}, "it has no database; give the task `script` or `database`"),
    ],
)
async def test_bad_tasks_break_their_environment(data: dict[str, Any], problem: str):
    environment = Sql()
    with pytest.raises(EnvironmentBroken, match=problem):
        await environment.reset(Task(id=TaskId("1"), prompt="?", data={"script": SCRIPT, **data}))
    await environment.close()


async def test_the_model_is_told_what_went_wrong_and_calls_may_run_side_by_side(file: Path):
    environment = Sql(database=str(file), max_rows=1)
    await environment.reset(Task(id=TaskId("1"), prompt="?", data={"answer": 1}))
    queries = ("select a from t", "delete from t", "select c from t")
    result = await environment.step(Action("", tuple(ToolCall("query", {"sql": sql}) for sql in queries)))
    shown = [message.content for message in result.observation.messages]
    assert shown == ["a\n1\n(more rows)", "error: not authorized; only SELECT is allowed", "error: no such column: c"]
    await environment.close()


INSTR = "select instr(printf('%.*c', 999999, 'a'), printf('%.*c', 499999, 'a') || 'b')"
"""Compares half a million bytes half a million times within one function, which SQLite does not interrupt."""


async def test_a_query_that_sqlite_cannot_interrupt_ends_soon_after_its_deadline_and_takes_nothing_along(file: Path):
    environment = Sql(database=str(file), query_timeout_s=0.2)
    await environment.reset(Task(id=TaskId("1"), prompt="?", data={"rows": [[4]]}))
    async with asyncio.timeout(60):
        asked = [ToolCall("query", {"sql": sql}) for sql in (INSTR, "select max(a) from t")]
        result = await environment.step(Action("", tuple(asked)))
        assert [message.content for message in result.observation.messages] == [
            "error: the query took longer than 0.2 s",
            "max(a)\n4",
        ]
        assert (await environment.step(Action(INSTR, ()))).reward == 0.0
        assert (await environment.step(Action("select max(a) from t", ()))).reward == 1.0
        await environment.close()


async def test_a_query_has_bounds_of_memory():
    environment = Sql(query_timeout_s=20.0)
    await environment.reset(Task(id=TaskId("1"), prompt="?", data={"answer": 1, "script": SCRIPT}))
    numbers = "with recursive n(i) as (select 1 union all select i + 1 from n limit {}) select {} from n {}"
    result = await environment.step(
        Action(
            "",
            tuple(
                ToolCall("query", {"sql": numbers.format(*parts)})
                for parts in (
                    (40, ", ".join(["printf('%.*c', 900000, 'x')"] * 2), ""),
                    (2000, "printf('%.*c', 900000, 'x') || i", "order by 1"),
                )
            ),
        )
    )
    shown = [message.content for message in result.observation.messages]
    assert shown == [
        "error: its rows have more than 67,108,864 bytes; select fewer of them",
        "error: the query needs more than 1,073,741,824 bytes of memory",
    ]
    await environment.close()


def test_ones_own_database_has_no_tasks_and_no_lessons():
    own = ClassEnvironmentConfig(name="sql", options={"database": "mine.sqlite"})
    assert find_lessons(own) is None
    with pytest.raises(RecipeError, match=r"tasks.kind.*makes no tasks of its own"):
        make_tasks(own, "train", 3, 0)


@pytest.mark.parametrize("options", [{"max_rows": 0}, {"query_timeout_s": 0}, {"database": 3}, {"databases": "a"}])
def test_wrong_options_are_refused(options: dict[str, object]):
    with pytest.raises(RecipeError, match=r"environment\.options"):
        load_member(ClassEnvironmentConfig(name="sql", options=options))
