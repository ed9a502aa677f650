"""Lessons for `sql` on its made tables: one query, and its result as the answer. The bad habit is to leave out a condition."""

import random
from typing import Any

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.builtin.database import Database
from asyncrl.envs.builtin.made_tables import question_of
from asyncrl.envs.builtin.sql import Sql
from asyncrl.envs.lessons import Lessons, Script, lessons_for


class SqlLessons(Lessons):
    """Scripts for tasks of :func:`asyncrl.envs.builtin.made_tables.make_tasks`."""

    pieces = (r"(?<![A-Za-z])[A-Z][a-z]+(?![A-Za-z])", r"(?<![a-z])(?:red|green|blue)(?![a-z])")

    def ideal(self, task: Task) -> Script:
        """Query with all conditions."""
        return _ask(question_of(task.question).sql, task)

    def mistaken(self, task: Task) -> Script:
        """First query a table that does not exist."""
        ideal = self.ideal(task)
        return Script(((_query("select age from people"),), *ideal.turns), ideal.answer)

    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Leave out the second condition, if there is one, with probability ``share``."""
        question = question_of(task.question)
        if question.hasty != question.sql and generator.random() < share:
            return _ask(question.hasty, task)
        return self.ideal(task)


@lessons_for(Sql)
def sql_lessons(database: str = "", **options: Any) -> SqlLessons | None:
    """Return the lessons of the made tables; there are none for a database of the user's own."""
    return None if database else SqlLessons()


def _ask(sql: str, task: Task) -> Script:
    database = Database.build(task.data["script"], seconds=10.0)
    ((answer,),) = database.query(sql, rows=1).rows
    database.close()
    return Script.one_by_one((_query(sql),), str(answer))


def _query(sql: str) -> ToolCall:
    return ToolCall(Sql.query.__name__, {"sql": sql})
