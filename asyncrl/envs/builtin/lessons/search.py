"""Lessons for `search` on its made corpus: search for a person, read the document, and go on to the teacher if asked to.

The bad habit is to stop too early: asked where somebody's teacher lives, the demonstrator answers where the pupil lives.
"""

import random
import re
from typing import Any

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.builtin.made_corpus import people
from asyncrl.envs.builtin.search import Search
from asyncrl.envs.lessons import Lessons, Script, lessons_for

_QUESTION = re.compile(r"Where does (the teacher of )?(.*) live\?")


class SearchLessons(Lessons):
    """Scripts for tasks of :func:`asyncrl.envs.builtin.made_corpus.questions`."""

    tasks = 2000
    pieces = (r"(?<![A-Za-z])[A-Z][a-z]+(?= |\.|\"|<|\?|\\n|$)",)

    def ideal(self, task: Task) -> Script:
        """Look up the person, and then the teacher if the question is about that one."""
        name, of_teacher = _asked(task)
        names = [name, people()[name].teacher] if of_teacher else [name]
        return _look_up(names)

    def mistaken(self, task: Task) -> Script:
        """First read a document that does not exist, and search for nothing."""
        ideal = self.ideal(task)
        wrong = (_read("0"),), (_search(""),)
        return Script((*wrong, *ideal.turns), ideal.answer)

    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Stop at the pupil with probability ``share``."""
        name, of_teacher = _asked(task)
        return _look_up([name]) if of_teacher and generator.random() < share else self.ideal(task)


@lessons_for(Search)
def search_lessons(corpus: str = "", **options: Any) -> SearchLessons | None:
    """Return the lessons of the made corpus; there are none for a corpus of the user's own."""
    return None if corpus else SearchLessons()


def _asked(task: Task) -> tuple[str, bool]:
    """Return the person that a question names, and whether it is about that person's teacher."""
    match = _QUESTION.fullmatch(task.question)
    assert match is not None, f"{task.question!r} is no question of the made corpus"
    return match[2], match[1] is not None


def _look_up(names: list[str]) -> Script:
    calls = [call for name in names for call in (_search(name), _read(str(people()[name].number)))]
    return Script.one_by_one(tuple(calls), people()[names[-1]].town)


def _search(query: str) -> ToolCall:
    return ToolCall(Search.search.__name__, {"query": query, "k": 1})


def _read(number: str) -> ToolCall:
    return ToolCall(Search.read.__name__, {"id": number})
