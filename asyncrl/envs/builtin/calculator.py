"""Built-in environment: arithmetic with a calculator that does one operation per call.

``3*4+5-7`` takes three calls (``3*4``, ``12+5``, ``17-7``) and an answer. Only the first operator may be ``*``, so
evaluating from left to right respects the usual precedence. A checksum of the expression decides whether it is a training or an
evaluation task, so no expression is ever in both splits, whatever the seeds and counts.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta

from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.builtin.answers import is_answer
from asyncrl.envs.builtin.splits import split_of
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.tool_marks import tool
from asyncrl.envs.tools import ToolEnvironment

LIKE_USERS_CODE = True
"""Errors of this environment are shown like those of the user's own (:mod:`asyncrl.core.plug_ins.users_error`)."""
LARGEST_OPERAND = 20
FIRST_OPERATORS = "+-*"
LATER_OPERATORS = "+-"
MOST_DIGITS = 1000
"""The most digits of an integer in a call. Python refuses to read or write integers of more than 4300."""

_OPERATION = re.compile(r"\s*(-?[0-9]+)\s*([-+*])\s*(-?[0-9]+)\s*")


class Calculator(ToolEnvironment):
    """The model evaluates an expression of one to ``max_operations`` operations on integers from 1 to 20.

    Args:
        max_operations: the most operations of a task. Each number of operations from 1 on is equally frequent, as long as there
            are enough different expressions (with one operation there are about 1000 for training).
    """

    def __init__(self, max_operations: Annotated[int, Meta(ge=1, le=5)] = 3) -> None:
        self.max_operations = max_operations

    @tool
    async def calculator(self, expression: str) -> str:
        """One operation on two integers: +, - or *."""
        return str(calculate(expression))

    def reward(self, task: Task, answer: str) -> float:
        """1 if the last number in ``answer`` is the value of the expression, else 0."""
        return float(is_answer(answer, task.data["answer"]))

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make up to ``count`` different expressions of ``split``, with 1, 2, 3, ... operations in turn."""
        generator = random.Random(f"{split} {seed}")
        sources = [_expressions(operations, split, generator) for operations in range(1, cls(**options).max_operations + 1)]
        tasks: list[Task] = []
        while sources and len(tasks) < count:
            source = sources.pop(0)
            expression = next(source, None)
            if expression is not None:
                answer = calculate_steps(expression)[-1][1]
                tasks.append(Task(id=TaskId(expression), prompt=expression, data={"answer": answer}))
                sources.append(source)
        return tasks


def calculate(expression: str) -> int:
    """The value of one binary operation on integers.

    Raises:
        ToolError: ``expression`` is anything else; the message says what is expected.
    """
    operation = _OPERATION.fullmatch(expression)
    if operation is None:
        raise ToolError("not one operation on two integers")
    if max(len(operation[1]), len(operation[3])) > MOST_DIGITS:
        raise ToolError(f"an integer may have at most {MOST_DIGITS} digits")
    left, operator, right = int(operation[1]), operation[2], int(operation[3])
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case _:
            return left * right


def calculate_steps(expression: str) -> list[tuple[str, int]]:
    """The operations that evaluate a task's expression from left to right, each with its value."""
    first, *later = re.findall(r"[-+*]?[0-9]+", expression)
    value = int(first)
    steps: list[tuple[str, int]] = []
    for operator_and_operand in later:
        operation = f"{value}{operator_and_operand}"
        value = calculate(operation)
        steps.append((operation, value))
    return steps


def _expressions(operations: int, split: str, generator: random.Random) -> Iterator[str]:
    """Yield all expressions of ``split`` with this number of operations, each once, in random order."""
    remaining = LARGEST_OPERAND ** (operations + 1) * len(FIRST_OPERATORS) * len(LATER_OPERATORS) ** (operations - 1)
    seen: set[str] = set()
    while remaining:
        expression = str(generator.randint(1, LARGEST_OPERAND))
        for index in range(operations):
            operator = generator.choice(LATER_OPERATORS if index else FIRST_OPERATORS)
            expression += f"{operator}{generator.randint(1, LARGEST_OPERAND)}"
        if expression in seen:
            continue
        seen.add(expression)
        remaining -= 1
        if split_of(expression) == split:
            yield expression
