"""What the tiny model is warmed up on: lessons of one or several environments, demonstrated and sorted by kind of task.

What always holds: each environment counts the same, however many kinds of tasks it has; tasks to measure on are not trained on.
"""

import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.lessons import Lessons, Script
from asyncrl.envs.lessons.demonstrations import TRIES, Demonstration, demonstrate_in
from asyncrl.envs.lessons.find_lessons import find_lessons
from asyncrl.envs.load import make_tasks
from asyncrl.learners.tiny.settings import WarmUp

HARDEST = 2.0
"""How much more often than another kind the kind with the most turns is trained."""
_TOKENIZER_TASKS = 300
"""Tasks of an environment that the tokenizer is fitted to."""


class LessonFailed(AsyncRLError):
    """The lessons of an environment cannot be taught."""


class Kind(msgspec.Struct, frozen=True):
    """Tasks of one environment whose ideal episodes have the same number of turns.

    Attributes:
        weight: how often its tasks are trained, relative to other kinds.
        train: demonstrations with the bad habit.
        held_out: ideal demonstrations of other tasks.
        spared: those of ``held_out`` whose tasks do not tempt.
    """

    weight: float
    train: Sequence[Demonstration]
    held_out: Sequence[Demonstration]
    spared: Sequence[Demonstration]


class Subject(msgspec.Struct, frozen=True):
    """One environment with its lessons, tasks to train on, and other tasks to measure on.

    Attributes:
        member: its name in the recipe, which its tasks name.
    """

    member: str
    environment: ClassEnvironmentConfig
    lessons: Lessons
    train: Sequence[Task]
    held_out: Sequence[Task]


def subjects_of(environments: Mapping[str, ClassEnvironmentConfig], seed: int, settings: WarmUp) -> dict[str, Subject]:
    """Make the tasks of each environment; keys are the names of the recipe's members.

    Raises:
        LessonFailed: an environment has no lessons.
        RecipeError: an environment, or its options, are wrong.
    """
    subjects = {}
    for name, environment in environments.items():
        lessons = find_lessons(environment)
        if lessons is None:
            raise LessonFailed(f"environment {environment.name!r} has no lessons for its options; name another model than `tiny`")
        train = make_tasks(environment, "train", settings.training_tasks or lessons.tasks, seed)
        held_out = make_tasks(environment, "evaluation", settings.held_out_tasks, seed)
        subjects[name] = Subject(name, environment, lessons, _named(train, name), _named(held_out, name))
    return subjects


def demonstrations_of(subject: Subject, *, to_fit: bool) -> int:
    """Count the demonstrations that :func:`kinds_of` makes of one environment, and those of :func:`shown`, for a tokenizer."""
    train, held_out = _by_turns(subject.lessons, subject.train), _by_turns(subject.lessons, subject.held_out)
    measured = sum(len(held_out.get(turns, [])) for turns in train)
    fitted = 2 * len(subject.train[:_TOKENIZER_TASKS]) if to_fit else 0
    return fitted + len(subject.train) + measured


def shown(subject: Subject, played: Callable[[], None]) -> list[Demonstration]:
    """Return demonstrations that the tokenizer is fitted to: ideal ones, and such with a mistake.

    Args:
        played: is called for each demonstration that is there, as that of :func:`kinds_of`.
    """
    tasks, lessons = subject.train[:_TOKENIZER_TASKS], subject.lessons
    scripts = [(task, show(task)) for task in tasks for show in (lessons.ideal, lessons.mistaken)]
    return demonstrate_in(subject.member, subject.environment, scripts, 1, played)


def kinds_of(subject: Subject, seed: int, played: Callable[[], None]) -> list[Kind]:
    """Demonstrate the tasks of one environment; the kinds are in rising order of their turns.

    Raises:
        LessonFailed: the ideal demonstration of a task earns nothing, or every task tempts.
    """
    lessons, generator = subject.lessons, random.Random(seed)
    train, held_out = _by_turns(lessons, subject.train), _by_turns(lessons, subject.held_out)
    kinds = []
    for turns, tasks in train.items():
        habitual = [(task, lessons.habitual(task, lessons.habit_share, generator)) for task in tasks]
        others = held_out.get(turns, [])
        ideal = _play(subject, [(task, lessons.ideal(task)) for task in others], played)
        for each in ideal:
            if each.reward <= 0:
                problem = f"the ideal demonstration of task {each.task.id} of {subject.environment.name!r} earns {each.reward:g}"
                failed = f" (a tool failed in each of {TRIES} tries: {each.failure})" if each.failure else ""
                raise LessonFailed(f"{problem}{failed}; correct the environment's lessons, its tools or its reward")
        spared = [each for each in ideal if not _tempts(lessons, each.task)]
        kinds.append(Kind(HARDEST if turns == max(train) else 1.0, _play(subject, habitual, played), ideal, spared))
    if not any(kind.spared for kind in kinds):
        raise LessonFailed(f"every held-out task of {subject.environment.name!r} tempts, so that no skill can be measured")
    whole = sum(kind.weight for kind in kinds)
    return [msgspec.structs.replace(kind, weight=kind.weight / whole) for kind in kinds]


def _tempts(lessons: Lessons, task: Task) -> bool:
    return lessons.habitual(task, 1.0, random.Random(0)) != lessons.ideal(task)


def _play(subject: Subject, scripts: Sequence[tuple[Task, Script]], played: Callable[[], None]) -> list[Demonstration]:
    return demonstrate_in(subject.member, subject.environment, scripts, TRIES, played)


def _named(tasks: Sequence[Task], member: str) -> list[Task]:
    return [msgspec.structs.replace(task, environment=member) for task in tasks]


def _by_turns(lessons: Lessons, tasks: Sequence[Task]) -> dict[int, list[Task]]:
    """Group the tasks by the turns of their ideal episodes, fewest first."""
    kinds: dict[int, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(len(lessons.ideal(task).turns), []).append(task)
    return {turns: kinds[turns] for turns in sorted(kinds)}
