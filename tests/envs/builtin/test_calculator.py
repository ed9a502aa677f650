"""The calculator task: one operation a call, disjoint splits, and what counts as the right answer."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action, Fault, ToolError
from asyncrl.envs.builtin.calculator import Calculator, calculate, calculate_steps
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.builtin.splits import split_of


def operations(task: Task) -> int:
    return len(calculate_steps(task.prompt))


@given(st.integers(), st.sampled_from("+-*"), st.integers())
def test_one_operation_on_any_integers(left: int, operator: str, right: int):
    right_value = {"+": left + right, "-": left - right, "*": left * right}[operator]
    assert calculate(f"{left}{operator}{right}") == right_value
    assert calculate(f" {left} {operator} {right} ") == right_value


@pytest.mark.parametrize("expression", ["3*4+5", "3", "", "3/4", "3**4", "(3+4)", "3.5+1", "a+b", "3+", "+3", "3+4=", "٣+٤"])
def test_anything_else_is_refused(expression: str):
    with pytest.raises(ToolError, match="one operation"):
        calculate(expression)


async def test_too_long_an_expression_is_a_tool_error():
    environment = Calculator()
    await environment.reset(Calculator.make_tasks("train", 1, 0)[0])
    result = await environment.step(Action("", (ToolCall("calculator", {"expression": "3*4+5"}),)))
    assert result.fault is Fault.TOOL_ERROR
    assert result.observation.messages[0].content == "error: not one operation on two integers"


def test_integers_that_python_would_not_read_are_the_models_fault():
    nines = "9" * 1000
    assert calculate(f"{nines}*{nines}") == int(nines) ** 2
    with pytest.raises(ToolError, match="at most 1000 digits"):
        calculate(f"1+{'9' * 5000}")
    assert Calculator().reward(Calculator.make_tasks("train", 1, 0)[0], "9" * 5000) == 0.0


def test_expected_answers_are_what_python_says():
    for task in Calculator.make_tasks("train", 300, 7):
        assert task.data["answer"] == eval(task.prompt)


def test_tasks_are_a_pure_function_of_their_arguments_and_all_different():
    tasks = Calculator.make_tasks("train", 500, 3)
    assert tasks == Calculator.make_tasks("train", 500, 3)
    assert tasks != Calculator.make_tasks("train", 500, 4)
    assert tasks[:100] == Calculator.make_tasks("train", 100, 3)
    assert len({task.id for task in tasks}) == 500


def test_splits_share_no_task_whatever_the_seed():
    train = {task.id for seed in range(3) for task in Calculator.make_tasks("train", 3000, seed)}
    evaluation = {task.id for seed in range(3) for task in Calculator.make_tasks("evaluation", 1000, seed)}
    assert not train & evaluation
    assert {split_of(expression) for expression in evaluation} == {"evaluation"}


def test_numbers_of_operations_take_turns():
    tasks = Calculator.make_tasks("evaluation", 300, 0)
    assert [operations(task) for task in tasks] == [1, 2, 3] * 100
    assert {operations(task) for task in Calculator.make_tasks("train", 50, 0, max_operations=1)} == {1}


def test_a_kind_that_is_used_up_leaves_the_others():
    one, two = 20 * 20 * 3, 100
    tasks = Calculator.make_tasks("train", one + two, 0, max_operations=2)
    singles = sum(operations(task) == 1 for task in tasks)
    assert len(tasks) == one + two
    assert singles == (one + two) / 2
    everything = Calculator.make_tasks("train", 10_000, 0, max_operations=1)
    assert len(everything) + len(Calculator.make_tasks("evaluation", 10_000, 0, max_operations=1)) == one


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("-7", 1),
        ("-7.", 1),
        ("The answer is -7", 1),
        ("10-3 is not it, -7 is", 1),
        ("3, then -7\n", 1),
        ("7", 0),
        ("-7 or 8", 0),
        ("-7.5", 0),
        ("-77", 0),
        ("10-7", 0),
        ("", 0),
        ("minus seven", 0),
    ],
)
def test_the_last_number_of_the_answer_counts(answer: str, reward: float):
    assert Calculator().reward(Task(id=TaskId("3-10"), prompt="3-10", data={"answer": -7}), answer) == reward


def test_impatience_only_skips_additions():
    lessons, generator = CalculatorLessons(), random.Random(0)
    skipped = 0
    for task in Calculator.make_tasks("train", 60, 0):
        skips = len(lessons.habitual(task, 0.5, generator).turns) < operations(task)
        assert not skips or "+" in task.prompt
        skipped += skips
    assert skipped > 10


def test_the_habit_at_its_most_frequent_solves_two_fifths():
    tasks = Calculator.make_tasks("evaluation", 450, 0)
    solved = [operations(task) == len(CalculatorLessons().habitual(task, 1.0, random.Random(0)).turns) for task in tasks]
    assert 0.3 < sum(solved) / len(solved) < 0.48
