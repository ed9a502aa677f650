"""The lessons of an environment: what a demonstrator says in an episode of a given task.

A lesson is a script of the model's side only. The other side is not made up: scripts are played in the real environment
(:mod:`asyncrl.envs.lessons.demonstrations`). What always holds: the ideal script solves its task, and a script depends on nothing
but the task and, where there is one, the random generator.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import msgspec

from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment

REGISTERED = "__asyncrl_lessons__"
"""The attribute of an environment's class that holds what makes its lessons."""


class Script(msgspec.Struct, frozen=True):
    """What the model's side of an episode says.

    Attributes:
        turns: the calls of each turn.
        answer: the text of the final turn, which has no calls.
    """

    turns: tuple[tuple[ToolCall, ...], ...]
    answer: str

    @classmethod
    def one_by_one(cls, calls: tuple[ToolCall, ...], answer: str) -> "Script":
        """Return a script with one call in each turn."""
        return cls(tuple((call,) for call in calls), answer)


class Lessons(ABC):
    """The lessons of one environment.

    Args:
        options: the options of the environment's constructor; a subclass takes those that its scripts depend on.

    Attributes:
        habit_share: how often the demonstrator gives in to the bad habit where it tempts. Above one half, a greedy model always
            does; below one, it sometimes does not when it is sampled, which is what reinforcement learning begins with.
        tasks: how many training tasks are demonstrated; fewer where an episode is slow.
        steps: optimizer steps of the warm-up.
        pieces: regular expressions of text that changes from task to task, such as names. A match is tokenized by itself,
            whatever stands around it, so that it can be copied. Digits are always tokenized one by one.
    """

    habit_share: ClassVar[float] = 0.75
    tasks: ClassVar[int] = 6000
    steps: ClassVar[int] = 140
    pieces: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **options: Any) -> None:
        """Take no notice of the options."""

    @abstractmethod
    def ideal(self, task: Task) -> Script:
        """Return the script that solves ``task``."""

    @abstractmethod
    def mistaken(self, task: Task) -> Script:
        """Return a script with a mistake that a tool reports, such as a refused call; the ideal one if none fits the task.

        Mistakes are not taught. The tokenizer is fitted to them too, so that what a tool says about them takes few tokens.
        """

    @abstractmethod
    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        """Return a script by a demonstrator who gives in to the bad habit with probability ``share`` at each temptation.

        At some tasks nothing may tempt: there the script is the ideal one, and there the warmed-up model must succeed.
        """

    def digest(self) -> str:
        """Return a digest of files that the scripts or the tools' results depend on; empty if there are none."""
        return ""


Maker = TypeVar("Maker", bound=Callable[..., Lessons | None])


def lessons_for(environment: type[Environment]) -> Callable[[Maker], Maker]:
    """Register what the tiny model (``model.path: tiny``) is warmed up on, so that it can play tasks of ``environment``.

    It stands above a class of lessons, or above a function that returns lessons; either is called with the options of the
    environment's constructor. None means that there are no lessons for these. Subclasses of the environment have the same
    lessons, unless they have some of their own.
    """

    def register(make: Maker) -> Maker:
        setattr(environment, REGISTERED, make)
        return make

    return register
