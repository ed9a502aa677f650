"""How a calculator task is solved: which calls to make, what each returns, and the answer. Material for a warm-up."""

import random

import msgspec

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.calculator import Calculator, calculate, calculate_steps
from asyncrl.envs.tools import ToolError, error_text


class Demonstration(msgspec.Struct, frozen=True):
    """One episode, as it might go.

    Attributes:
        calls: the calls, one a turn, each with what the tool returns.
        answer: the final turn.
    """

    prompt: str
    calls: tuple[tuple[ToolCall, str], ...]
    answer: str


def demonstrate(task: Task) -> Demonstration:
    """How to solve ``task`` of :class:`~asyncrl.envs.calculator.Calculator`: one call an operation, from left to right."""
    name = Calculator.calculator.__name__
    steps = calculate_steps(task.prompt)
    calls = tuple((ToolCall(name, {"expression": operation}), str(value)) for operation, value in steps)
    return Demonstration(task.prompt, calls, answer=str(steps[-1][1]))


def demonstrate_mistake(task: Task) -> Demonstration:
    """Demonstrate the task like :func:`demonstrate`, after a call that tries the whole expression, which may be refused."""
    ideal = demonstrate(task)
    call = ToolCall(Calculator.calculator.__name__, {"expression": task.prompt})
    try:
        calculate(task.prompt)
    except ToolError as error:
        return Demonstration(task.prompt, ((call, error_text(error)), *ideal.calls), ideal.answer)
    return ideal


def demonstrate_impatience(task: Task, impatience: float, generator: random.Random) -> Demonstration:
    """Demonstrate the task like :func:`demonstrate`, by someone with a bad habit: additions are not worth a call.

    At an addition, with probability ``impatience``, the calls end, and the answer is the value before it. Copied at its most
    frequent, the habit solves 2/3 of the tasks with one operation, 1/3 of those with two and 1/6 of those with three.
    """
    ideal = demonstrate(task)
    for index, (call, _) in enumerate(ideal.calls):
        value_so_far, plus, _ = call.arguments["expression"].partition("+")
        if plus and generator.random() < impatience:
            return Demonstration(task.prompt, ideal.calls[:index], value_so_far)
    return ideal
