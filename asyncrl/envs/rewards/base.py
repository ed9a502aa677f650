"""What a reward is: a call with the task and the model's answer, which returns a number, or several by name.

What always holds: a reward says something about the answer. What says nothing about it, such as a judge that stays away or a task
without an expected answer, is an exception and never a number.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Number
from typing import Any

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.expected_answer import says_nothing


class RewardUnavailable(EnvironmentLost):
    """What computes the reward is not to be had for a while, so the episode is played again; nothing counts against its task."""


class Reward(ABC):
    """A reward that environments share. One instance serves all episodes of a process.

    In an environment::

        class Sums(ToolEnvironment):
            correct = MathEquivalence()

            async def reward(self, task: Task, answer: str) -> float:
                return await self.correct(task, answer)
    """

    @abstractmethod
    async def __call__(self, task: Task, answer: str) -> float | Mapping[str, float]:
        """Return the reward of ``answer``, or several rewards by name, which are added up.

        Raises:
            RewardUnavailable: what computes it is not to be had at the moment.
            EnvironmentUnreachable: it will not be had in this run, which ends with the reason.
            EnvironmentBroken: this task cannot be rewarded.
        """


def expected(task: Task, key: str, of: str) -> Any:
    """Return ``task.data[key]``.

    Raises:
        EnvironmentBroken: the task has no such data, or they say nothing.
    """
    if key not in task.data:
        found = ", ".join(sorted(task.data)) or "nothing"
        raise EnvironmentBroken(
            f"task {short(task.id)}: the reward {of} needs data {key!r}, and the task has {found}; "
            "add it to the task, or name the key that holds it"
        )
    value = task.data[key]
    if says_nothing(value):
        raise EnvironmentBroken(
            f"task {short(task.id)}: the reward {of} needs data {key!r}, which is {short(value)}; "
            "write there what is expected, or leave the task out"
        )
    return value


def expected_texts(task: Task, key: str, of: str) -> tuple[str, ...]:
    """Return ``task.data[key]`` as a text, in every spelling that JSON and Python have for it; the first is the plainest.

    A list of one text is that text.

    Raises:
        EnvironmentBroken: the task has no such data, or they say nothing, or are neither a text, a number nor true or false.
    """
    match expected(task, key, of):
        case bool() as value:
            return (str(value).lower(), str(value))
        case float() as value if value.is_integer():  # also an integer whose column has gaps in other rows
            return (str(int(value)), str(value))
        case str() | Number() as value:
            return (str(value),)
        case [str() as value] if not says_nothing(value):
            return (value,)
        case value:
            raise EnvironmentBroken(
                f"task {short(task.id)}: the reward {of} compares with one text, number or truth value, and data {key!r} is "
                f"{short(value)} of type {type(value).__name__}; write the one answer there, or name the key that holds it"
            )
