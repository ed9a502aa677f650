"""Lessons for `reasoning_gym`: sorting numbers. The bad habit is to sort in ascending order, whatever was asked for."""

import random
from typing import Any, ClassVar

from asyncrl.core.task import Task
from asyncrl.envs.builtin.reasoning_gym import ReasoningGym
from asyncrl.envs.builtin.reasoning_gym_families import Families, Family
from asyncrl.envs.lessons import Lessons, Script, lessons_for


class ReasoningGymLessons(Lessons):
    """Scripts for tasks of the family ``number_sorting``."""

    FAMILIES: ClassVar[frozenset[str]] = frozenset({"number_sorting"})
    """The families that there are lessons for."""

    steps = 200

    def __init__(self, families: Families) -> None:
        self._families = families

    def ideal(self, task: Task) -> Script:
        """Answer what the library expects."""
        return Script((), task.data["answer"])

    def mistaken(self, task: Task) -> Script:
        """There are no tools that could report a mistake."""
        return self.ideal(task)

    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Sort in ascending order with probability ``share`` where the other one was asked for."""
        asked = self._families.entry(task)["metadata"]
        if asked["direction"] == "descending" and generator.random() < share:
            return Script((), str(asked["sorted_numbers"][::-1]))
        return self.ideal(task)


@lessons_for(ReasoningGym)
def reasoning_gym_lessons(families: dict[str, Family], **options: Any) -> ReasoningGymLessons | None:
    """Return the lessons, if there are some for all families."""
    return ReasoningGymLessons(Families(families)) if families.keys() <= ReasoningGymLessons.FAMILIES else None
