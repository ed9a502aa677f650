"""Lessons of the built-in environments: ideal scripts solve their tasks, habits leave room to learn, demonstrations are real."""

import random
from statistics import fmean
from typing import Any, ClassVar

import pytest

from asyncrl.core.messages import Message, ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Observation, StepResult
from asyncrl.envs.builtin.calculator import Calculator, calculate
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.lessons import Lessons, Script, lessons_for
from asyncrl.envs.lessons.demonstrations import Demonstration, LessonUnfit, demonstrate, demonstrate_in
from asyncrl.envs.lessons.find_lessons import find_lessons, lessons_digest
from asyncrl.envs.load import make_tasks
from asyncrl.envs.tool_marks import tool

SORTING = {"families": {"number_sorting": {"options": {"min_numbers": 3, "max_numbers": 3, "max_decimals": 0, "min_value": 0}}}}
PATIENT = {"limits": {"wall_s": 120.0, "cpu_s": 60.0}}
TAUGHT: list[tuple[str, dict[str, Any]]] = [
    ("calculator", {}),
    ("python", PATIENT),
    ("search", {"snippet_words": 0}),
    ("search", {}),
    ("sql", {}),
    ("terminal", PATIENT),
    ("reasoning_gym", SORTING),
]
"""Built-in environments with the options of their recipes, and limits that a slow machine keeps."""


def found_lessons(name: str, options: dict[str, Any]) -> tuple[ClassEnvironmentConfig, Lessons]:
    environment = ClassEnvironmentConfig(name=name, options=options, tool_timeout_s=240.0)
    lessons = find_lessons(environment)
    assert lessons is not None
    return environment, lessons


def played(environment: ClassEnvironmentConfig, scripts: list[tuple[Task, Script]]) -> list[Demonstration]:
    return demonstrate_in("", environment, scripts)


@pytest.mark.parametrize(("name", "options"), TAUGHT)
def test_ideal_scripts_solve_their_tasks_also_after_a_mistake(name: str, options: dict[str, Any]):
    environment, lessons = found_lessons(name, options)
    tasks = make_tasks(environment, "evaluation", 15, 0)
    for show in (lessons.ideal, lessons.mistaken):
        assert [each.reward for each in played(environment, [(task, show(task)) for task in tasks])] == [1.0] * len(tasks)


@pytest.mark.parametrize(("name", "options"), TAUGHT)
def test_the_habit_costs_reward_but_not_at_every_task(name: str, options: dict[str, Any]):
    """So a greedy model that has the habit leaves something to learn, and shows whether it has learned anything at all."""
    environment, lessons = found_lessons(name, options)
    tasks = make_tasks(environment, "evaluation", 60, 0)
    scripts = [(task, lessons.habitual(task, 1.0, random.Random(0))) for task in tasks]
    rewards = [each.reward for each in played(environment, scripts)]
    assert 0.2 < fmean(rewards) < 0.7
    tempted = [script != lessons.ideal(task) for task, script in scripts]
    assert {reward for reward, fell in zip(rewards, tempted, strict=True) if not fell} == {1.0}
    assert fmean(reward for reward, fell in zip(rewards, tempted, strict=True) if fell) < 0.3  # some are right by luck
    never = [lessons.habitual(task, 0.0, random.Random(0)) for task in tasks]
    assert never == [lessons.ideal(task) for task in tasks]


@pytest.mark.parametrize(("name", "options"), TAUGHT)
def test_lessons_depend_on_the_task_only(name: str, options: dict[str, Any]):
    environment, lessons = found_lessons(name, options)
    tasks = make_tasks(environment, "train", 20, 3)
    _, others = found_lessons(name, options)
    assert [lessons.ideal(task) for task in tasks] == [others.ideal(task) for task in tasks]
    seeded = [[each.habitual(task, 0.5, random.Random(1)) for task in tasks] for each in (lessons, others)]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize(("name", "options"), TAUGHT)
def test_splits_share_no_task_and_ids_follow_from_the_seed(name: str, options: dict[str, Any]):
    environment, _ = found_lessons(name, options)
    train = [make_tasks(environment, "train", 300, seed) for seed in (0, 0, 1)]
    evaluation = {task.id for seed in (0, 1) for task in make_tasks(environment, "evaluation", 100, seed)}
    assert train[0] == train[1] != train[2]
    assert not evaluation & {task.id for tasks in train for task in tasks}
    asked = {(task.question, str(task.data)): task.id for task in train[0]}
    assert len(set(asked.values())) == len(asked) == 300


def test_a_demonstration_is_what_the_environment_says():
    task = Calculator.make_tasks("train", 3, 0)[2]
    environment, lessons = found_lessons("calculator", {})
    (shown,) = played(environment, [(task, lessons.mistaken(task))])
    assert shown.opening == (Message("user", task.question),)
    assert [spec.name for spec in shown.tools] == ["calculator"]
    assert shown.turns[0][1] == (Message("tool", "error: not one operation on two integers"),)
    for (call,), (result,) in shown.turns[1:]:
        assert eval(call.arguments["expression"]) == int(result.content)


class Short(Environment):
    """Ends after a given number of turns."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    async def reset(self, task: Task) -> Observation:
        return Observation((Message("user", task.question),))

    async def step(self, action: Action) -> StepResult:
        self.left -= 1
        return StepResult(Observation(()), 0.0, done=self.left == 0)


@pytest.mark.parametrize(("turns", "problem"), [(1, "ends at"), (3, "goes on after the answer '7'")])
def test_a_script_that_does_not_fit_is_refused(turns: int, problem: str):
    task = Calculator.make_tasks("train", 1, 0)[0]
    script = Script.one_by_one((ToolCall("calculator", {"expression": "3+4"}),), "7")
    with pytest.raises(LessonUnfit, match=f"task .*{problem}"):
        demonstrate(lambda task: Short(turns), [(task, script)])


class Moody(Calculator):
    """Its tool fails the first time that it is asked something."""

    asked: ClassVar[set[str]] = set()

    @tool
    async def calculator(self, expression: str) -> str:
        if expression not in Moody.asked:
            Moody.asked.add(expression)
            raise OSError("the line is busy")
        return str(calculate(expression))


def test_a_demonstration_in_which_a_tool_fails_by_chance_is_played_again():
    environment = ClassEnvironmentConfig(name=f"{__name__}:Moody", options={"max_operations": 1})
    scripts = [(task, CalculatorLessons().ideal(task)) for task in make_tasks(environment, "train", 3, 0)]
    played: list[None] = []
    for tries, failures in ((1, 3), (2, 0)):
        Moody.asked.clear()
        shown = demonstrate_in("", environment, scripts, tries, lambda: played.append(None))
        assert [each.failure for each in shown].count("OSError: the line is busy") == failures
    assert len(played) == 6


class Untaught(Calculator):
    """Has no lessons for long expressions."""


@lessons_for(Untaught)
def lessons_of_short_ones(max_operations: int) -> Lessons | None:
    return CalculatorLessons() if max_operations == 1 else None


class Heir(Calculator):
    """Has the lessons of the calculator."""


def test_lessons_may_depend_on_the_options_and_are_told_apart_by_their_code():
    short, long = (ClassEnvironmentConfig(name=f"{__name__}:Untaught", options={"max_operations": n}) for n in (1, 2))
    assert find_lessons(short) is not None
    assert find_lessons(long) is None
    assert isinstance(find_lessons(ClassEnvironmentConfig(name=f"{__name__}:Heir")), CalculatorLessons)
    digests = {lessons_digest(each) for each in (short, long, ClassEnvironmentConfig(name="calculator"))}
    assert len(digests) == 3
