"""Families of reasoning-gym: tasks by weight, rewards by the library, and a refusal of what it does not know."""

import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action
from asyncrl.envs.builtin.reasoning_gym_families import UNREPEATABLE
from asyncrl.envs.builtin.reasoning_gym_scoring import EXPRESSIONS_PARSED, LISTS_EVALUATED, Scoring
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.tool_messages import Load
from asyncrl.envs.hosting.tool_processes import ToolProcesses
from asyncrl.envs.lessons.find_lessons import find_lessons
from asyncrl.envs.load import load_member, make_tasks
from asyncrl.envs.secrets import Secrets

SMALL = {"min_numbers": 3, "max_numbers": 3, "max_decimals": 0, "min_value": 0, "max_value": 1}


def gym(families: dict[str, Any]) -> ClassEnvironmentConfig:
    return ClassEnvironmentConfig(name="reasoning_gym", options={"families": families})


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
        for answer, expected in (
            (f" {task.data['answer']}\n", 1.0),
            (f"<think>It is x.</think>\n<answer>{task.data['answer']}</answer>", 1.0),
            ("", 0.0),
        ):
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
        ({"ransom_note": {}}, r"families.ransom_note: its items differ from process to process, .*; leave it out"),
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


WRITES = "open('written-by-an-answer', 'w')"
CHEATS = [
    ("binary_matrix", WRITES),
    ("spiral_matrix", f"[{WRITES}]"),
    ("string_insertion", f"[{WRITES}]"),
    ("n_queens", f"[{WRITES}]"),
    ("countdown", f"{WRITES}.write('1')"),
    ("puzzle24", f"{WRITES}.write('1')"),
    ("puzzle24", "6*4 # 1 1"),
    ("simple_integration", WRITES),
    ("simple_integration", "Integral({integrand}, {variable})"),
    ("intermediate_integration", "Integral({integrand}, {variable})"),
    ("complex_arithmetic", "nan"),
    ("complex_arithmetic", "nan+nanj"),
    ("boxnet", "null"),
    ("prime_factorization", "no idea"),
]
"""Answers that run as code, that do not compute what they should, and that a scorer fails at, by family."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scoring(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[ToolProcesses, Path]]:
    """A process that has imported the library, once for all tests that only ask it for scores, and the folder it is in."""
    folder = tmp_path_factory.mktemp("scoring")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        processes = ToolProcesses("scoring", most=1)
        await processes.load(Load(Scoring.__module__, Scoring.__qualname__))
    yield processes, folder
    processes.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("family", "answer"), CHEATS)
async def test_no_code_of_an_answer_is_run(family: str, answer: str, scoring: tuple[ToolProcesses, Path]):
    processes, folder = scoring
    member = load_member(gym({family: {}}))
    (task,) = member.make_tasks("train", 1, 0)
    async with member.share(Secrets()) as shared:
        asked = shared.entry(task)["metadata"]
        environment = member.make(Provided(shared=shared, processes=processes))
        await environment.reset(task)
        filled = answer.format(**asked) if "{" in answer else answer
        assert (await environment.step(Action(filled, ()))).reward <= 0.01
        await environment.close()
    assert os.listdir(folder) == []


async def test_a_score_that_never_ends_is_0_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    member = load_member(gym({"countdown": {}}))
    (task,) = member.make_tasks("train", 1, 0)
    monkeypatch.setattr("asyncrl.envs.builtin.reasoning_gym_scoring.SECONDS", 2.0)
    async with member.share(Secrets()) as shared:
        environment = member.make(Provided(shared=shared))
        for answer, reward in (("9**9**9**9", 0.0), (str(task.data["answer"]), 1.0)):
            await environment.reset(task)
            assert (await environment.step(Action(answer, ()))).reward == reward
        await environment.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "family", sorted({place.partition(".")[2] for place in (*LISTS_EVALUATED, *EXPRESSIONS_PARSED)} - {*UNREPEATABLE})
)
async def test_right_answers_are_still_right_where_code_is_not_run(family: str, scoring: tuple[ToolProcesses, Path]):
    member = load_member(gym({family: {}}))
    tasks = member.make_tasks("train", 5, 0)
    async with member.share(Secrets()) as shared:
        environment = member.make(Provided(shared=shared, processes=scoring[0]))
        for task in tasks:
            await environment.reset(task)
            right = task.data["answer"] or shared.entry(task)["metadata"]["valid_answers"][0]
            assert "Integral" in right or (await environment.step(Action(right, ()))).reward == 1.0
        await environment.close()


def test_the_items_of_all_families_are_the_same_in_every_process():
    """But for those that are refused. What is found here after another version is installed is to be refused, too."""
    program = (
        "import reasoning_gym, reasoning_gym.factory as f\n"
        "for name in sorted(f.DATASETS):\n"
        "    if name == 'composite': continue\n"
        "    items = reasoning_gym.create_dataset(name, seed=7, size=9)\n"
        "    print(name, [items[i]['question'] for i in range(3)])\n"
    )
    questions = []
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        questions.append(ran.stdout.splitlines())
    assert {one.partition(" ")[0] for one, other in zip(*questions, strict=True) if one != other} == {*UNREPEATABLE}


def test_no_other_scorer_of_the_library_evaluates_an_answer():
    """What is found here after another version of the library is installed wants a look."""
    folder = Path(str(importlib.import_module("reasoning_gym").__file__)).parent
    evaluates = re.compile(r"\b(?:eval|exec|sympify|parse_expr|S)\([^()]*(?:answer|solution|response)\w*[),]")
    found = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if any(evaluates.search(line) and "entry[" not in line for line in path.read_text().splitlines())
    }
    assert found == {*LISTS_EVALUATED, *EXPRESSIONS_PARSED}
