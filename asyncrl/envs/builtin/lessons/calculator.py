"""Lessons for the calculator: one call for each operation, from left to right. The bad habit is impatience.

The impatient demonstrator skips additions: at an addition the calls end, and the answer is the value before it. A model that
always does so solves 2/3 of the tasks with one operation, 1/3 of those with two and 1/6 of those with three.
"""

import random

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.builtin.calculator import Calculator, calculate, calculate_steps
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.lessons import Lessons, Script, lessons_for


@lessons_for(Calculator)
class CalculatorLessons(Lessons):
    """Scripts for tasks of :class:`~asyncrl.envs.builtin.calculator.Calculator`."""

    def ideal(self, task: Task) -> Script:
        """Return a script with one call for each operation, which answers with the last value."""
        steps = calculate_steps(task.question)
        return Script.one_by_one(tuple(_call(operation) for operation, _ in steps), str(steps[-1][1]))

    def mistaken(self, task: Task) -> Script:
        """Return a script that first calls with the whole expression, which is refused if it has several operations."""
        ideal = self.ideal(task)
        try:
            calculate(task.question)
        except ToolError:
            return Script(((_call(task.question),), *ideal.turns), ideal.answer)
        return ideal

    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Return a script that stops at each addition with probability ``share``, and answers with the value so far."""
        ideal = self.ideal(task)
        for index, (call,) in enumerate(ideal.turns):
            value_so_far, plus, _ = call.arguments["expression"].partition("+")
            if plus and generator.random() < share:
                return Script(ideal.turns[:index], value_so_far)
        return ideal


def _call(expression: str) -> ToolCall:
    return ToolCall(Calculator.calculator.__name__, {"expression": expression})
