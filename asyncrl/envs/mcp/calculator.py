"""Tasks and rewards of the MCP server that ships with asyncrl: those of the built-in calculator."""

from collections.abc import Sequence

from asyncrl.core.task import Task
from asyncrl.envs.builtin.calculator import Calculator


def make_tasks(split: str, count: int, seed: int) -> Sequence[Task]:
    """Make arithmetic tasks; see :meth:`asyncrl.envs.builtin.calculator.Calculator.make_tasks`."""
    return Calculator.make_tasks(split, count, seed)


def reward(task: Task, answer: str) -> float:
    """1 if the last number in ``answer`` is right, else 0."""
    return Calculator().reward(task, answer)
