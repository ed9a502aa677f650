"""Made databases with one small table on staff, and questions on them. For the tiny model, and for trying `sql` out.

Every task has a table of its own. A checksum of the table and the question decides on its split.
"""

import random
import zlib
from collections.abc import Sequence

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.builtin.splits import split_of

_NAMES = "Ada Ben Cleo Dan Eva Finn Gus Hal Ida Jan Kim Leo Mia Ned Ole Pia Ruth Sam Tom Uma Vera Will Yara Zoe"
TEAMS = ("red", "green", "blue")
SIZE = 9
"""People in a table."""


class Member(msgspec.Struct, frozen=True):
    """A person in the table."""

    name: str
    team: str
    age: int


class Question(msgspec.Struct, frozen=True):
    """A question, the query that answers it, and its answer.

    Attributes:
        hasty: a query that leaves out the last condition of ``sql``; the same if it has only one.
    """

    text: str
    sql: str
    hasty: str
    answer: int


def make_tasks(split: str, count: int, seed: int) -> Sequence[Task]:
    """Make ``count`` tasks of ``split``. In turn, they ask for an age, a number with two conditions, and a number with one."""
    generator = random.Random(f"{split} {seed}")
    made: dict[str, Task] = {}
    while len(made) < count:
        staff = [
            Member(name, generator.choice(TEAMS), generator.randint(20, 60)) for name in generator.sample(_NAMES.split(), SIZE)
        ]
        question = _QUESTIONS[len(made) % len(_QUESTIONS)](staff, generator)
        rows = ", ".join(f"('{member.name}', '{member.team}', {member.age})" for member in staff)
        script = f"CREATE TABLE staff (name TEXT, team TEXT, age INTEGER); INSERT INTO staff VALUES {rows};"
        content = f"{script} {question.text}"
        if split_of(content) == split:
            data = {"script": script, "answer": str(question.answer)}
            made.setdefault(name := f"{zlib.crc32(content.encode()):08x}", Task(id=TaskId(name), prompt=question.text, data=data))
    return list(made.values())


def _age(staff: Sequence[Member], generator: random.Random) -> Question:
    member = generator.choice(staff)
    return question_of(f"How old is {member.name}?", member.age)


def _in_team(staff: Sequence[Member], generator: random.Random) -> Question:
    team = generator.choice(TEAMS)
    return question_of(f"How many are in team {team}?", sum(member.team == team for member in staff))


def _older_in_team(staff: Sequence[Member], generator: random.Random) -> Question:
    team, age = generator.choice(TEAMS), generator.randint(30, 50)
    answer = sum(member.team == team and member.age > age for member in staff)
    return question_of(f"How many in team {team} are older than {age}?", answer)


_QUESTIONS = (_age, _older_in_team, _in_team, _older_in_team)


def question_of(text: str, answer: int = 0) -> Question:
    """Return the question that is asked with ``text``."""
    words = text.rstrip("?").split()
    if words[1] == "old":
        sql = hasty = f"select age from staff where name = '{words[-1]}'"
    elif words[2] == "are":
        sql = hasty = f"select count(*) from staff where team = '{words[-1]}'"
    else:
        hasty = f"select count(*) from staff where team = '{words[4]}'"
        sql = f"{hasty} and age > {words[-1]}"
    return Question(text, sql, hasty, answer)
