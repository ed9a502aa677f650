"""Lessons for Python: one call with the code, then the value. The bad habit is to forget that ``range`` leaves out its end.

The forgetful demonstrator writes ``range(3,9)`` for 3 to 9. A model that always does so solves the half of the tasks that have no
range.
"""

import random

from asyncrl.core.task import Task
from asyncrl.envs.builtin.python import Python, call, computation_of
from asyncrl.envs.lessons import Lessons, Script, lessons_for


@lessons_for(Python)
class PythonLessons(Lessons):
    """Scripts for tasks that :meth:`asyncrl.envs.builtin.python.Python.make_tasks` made."""

    tasks = 800

    def ideal(self, task: Task) -> Script:
        """Return a script that runs the right code, and answers with its value."""
        _, code = computation_of(task)
        return Script.one_by_one((call(code),), str(task.data["answer"]))

    def mistaken(self, task: Task) -> Script:
        """Return a script that first runs the prompt, which is no Python."""
        ideal = self.ideal(task)
        return Script(((call(task.question),), *ideal.turns), ideal.answer)

    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Return a script that leaves out the last number of a range with probability ``share``, where there is a range."""
        computation, code = computation_of(task)
        if not (computation.up_to and generator.random() < share):
            return self.ideal(task)
        low, high = task.data["low"], task.data["high"]
        return Script.one_by_one((call(code.replace("+1", "")),), str(computation.value(low, high - 1)))
