"""Demonstrations of calculator tasks for the tiny model's warm-up: the calls, what each returns, and the answer."""

import random

import msgspec

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.calculator import Calculator, calculate, calculate_steps
from asyncrl.envs.tools import ToolError, error_text


class Demonstration(msgspec.Struct, frozen=True):
    """One example episode.

    Attributes:
        prompt: the task's prompt.
        calls: the calls, one for each turn, each with what the tool returns.
        answer: the text of the final turn.
    """

    prompt: str
    calls: tuple[tuple[ToolCall, str], ...]
    answer: str


def demonstrate(task: Task) -> Demonstration:
    """Solve ``task`` of :class:`~asyncrl.envs.calculator.Calculator` with one call for each operation, from left to right."""
    name = Calculator.calculator.__name__
    steps = calculate_steps(task.question)
    calls = tuple((ToolCall(name, {"expression": operation}), str(value)) for operation, value in steps)
    return Demonstration(task.question, calls, answer=str(steps[-1][1]))


def demonstrate_mistake(task: Task) -> Demonstration:
    """Demonstrate the task like :func:`demonstrate`, after a refused call with the whole expression.

    If the whole expression is one operation, the calculator accepts it, and the demonstration has no mistake.
    """
    ideal = demonstrate(task)
    call = ToolCall(Calculator.calculator.__name__, {"expression": task.question})
    try:
        calculate(task.question)
    except ToolError as error:
        return Demonstration(task.question, ((call, error_text(error)), *ideal.calls), ideal.answer)
    return ideal


def demonstrate_impatience(task: Task, impatience: float, generator: random.Random) -> Demonstration:
    """Demonstrate the task like :func:`demonstrate`, but with a bad habit: additions are often skipped.

    At an addition, with probability ``impatience``, the calls end, and the answer is the value before the addition. A model that
    always does so solves 2/3 of the tasks with one operation, 1/3 of those with two and 1/6 of those with three.
    """
    ideal = demonstrate(task)
    for index, (call, _) in enumerate(ideal.calls):
        value_so_far, plus, _ = call.arguments["expression"].partition("+")
        if plus and generator.random() < impatience:
            return Demonstration(task.question, ideal.calls[:index], value_so_far)
    return ideal
