"""Families of reasoning-gym: tasks by weight, rewards by the library, and a refusal of what it does not know."""

import sys
from collections import Counter
from typing import Any

import pytest

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.environment import ClassEnvironment
from asyncrl.core.task import Task
from asyncrl.envs import Action
from asyncrl.envs.load import find_lessons, load_member, make_tasks
from asyncrl.envs.provided import Provided
from asyncrl.envs.secrets import Secrets

SMALL = {"min_numbers": 3, "max_numbers": 3, "max_decimals": 0, "min_value": 0, "max_value": 1}


def gym(families: dict[str, Any]) -> ClassEnvironment:
    return ClassEnvironment(name="reasoning_gym", options={"families": families})


def test_families_take_turns_by_weight():
    spec = gym({"leg_counting": {"weight": 3}, "number_sorting": {}})
    tasks = make_tasks(spec, "train", 40, 0)
    assert Counter(task.data["family"] for task in tasks) == {"leg_counting": 30, "number_sorting": 10}
    assert tasks[:10] == make_tasks(spec, "train", 10, 0)


def test_a_family_that_is_used_up_leaves_the_others():
    tasks = make_tasks(gym({"number_sorting": {"options": SMALL}, "leg_counting": {}}), "train", 60, 0)
    counts = Counter(task.data["family"] for task in tasks)
    assert counts["number_sorting"] < 20
    assert counts.total() == 60


async def test_the_library_scores():
    member = load_member(gym({"spell_backward": {}}))
    (task,) = member.make_tasks("train", 1, 0)
    async with member.share(Secrets()) as shared:
        for answer, expected in ((f" {task.data['answer']}\n", 1.0), ("", 0.0)):
            environment = member.make(Provided(shared=shared))
            observation = await environment.reset(task)
            assert observation.tools == ()
            result = await environment.step(Action(answer, ()))
            assert (result.reward, result.done) == (expected, True)
        await environment.reset(Task(id=TaskId("mine"), prompt="?", data={}))
        with pytest.raises(EnvironmentBroken, match="task mine was not made by this environment"):
            await environment.step(Action("x", ()))


@pytest.mark.parametrize(
    ("families", "problem"),
    [
        ({"number_sortin": {}}, r"families.number_sortin: .*did you mean `number_sorting`"),
        ({"number_sorting": {"options": {"numbers": 3}}}, r"number_sorting.options: .*is refused: .*numbers"),
        ({"number_sorting": {"options": {"min_numbers": 9, "max_numbers": 3}}}, r"is refused: .*max_numbers"),
        ({"number_sorting": {"options": {"seed": 3}}}, r"options.seed: it is set by the run"),
        ({}, "there is no family"),
    ],
)
def test_what_the_library_does_not_know_is_refused(families: dict[str, Any], problem: str):
    with pytest.raises(RecipeError, match=problem):
        make_tasks(gym(families), "train", 3, 0)


@pytest.mark.parametrize(
    "families", [{"number_sorting": {"weight": 0}}, {"number_sorting": {"size": 3}}, {"number_sorting": 1}, "all"]
)
def test_wrong_options_are_refused(families: Any):
    with pytest.raises(RecipeError, match=r"environment\.options"):
        load_member(gym(families))


def test_without_the_package_the_command_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(RecipeError, match=r"which is missing; run `pip install reasoning-gym==0.1.25`"):
        make_tasks(gym({"number_sorting": {}}), "train", 3, 0)


def test_lessons_are_for_families_that_have_them():
    assert find_lessons(gym({"number_sorting": {}})) is not None
    assert find_lessons(gym({"number_sorting": {}, "leg_counting": {}})) is None
