"""Lessons for the terminal: one command, then "done". The bad habit is to sort numbers as if they were words.

The careless demonstrator writes ``sort`` for ``sort -n``. A model that always does so solves the half of the tasks that sort
nothing.
"""

import random

from asyncrl.core.task import Task
from asyncrl.envs.builtin.terminal import Terminal, call, errand_of
from asyncrl.envs.lessons import Lessons, Script, lessons_for

_DONE = "done"


@lessons_for(Terminal)
class TerminalLessons(Lessons):
    """Scripts for tasks that :meth:`asyncrl.envs.builtin.terminal.Terminal.make_tasks` made."""

    tasks = 800

    def ideal(self, task: Task) -> Script:
        """Return a script that runs the right command."""
        return Script.one_by_one((call(errand_of(task)[1]),), _DONE)

    def mistaken(self, task: Task) -> Script:
        """Return a script that first runs the prompt, which the shell cannot find."""
        ideal = self.ideal(task)
        return Script(((call(task.question),), *ideal.turns), ideal.answer)

    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Return a script that leaves out ``-n`` with probability ``share``, where something is sorted."""
        errand, command = errand_of(task)
        if not (errand.sorts and generator.random() < share):
            return self.ideal(task)
        return Script.one_by_one((call(command.replace(" -n ", " ", 1)),), _DONE)
