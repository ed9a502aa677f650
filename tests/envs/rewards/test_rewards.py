"""Rewards that environments share: exact, mathematics, several with weights, and how recipes name them."""

import asyncio
import re
from fractions import Fraction
from pathlib import Path

import math_answers
import pytest
import virtual_time

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.rewards import Exact, MathEquivalence, Reward, RewardUnavailable, Weighted
from asyncrl.envs.rewards.load import load_reward
from asyncrl.envs.rewards.math_comparison import is_equal, wanted_of

# The processes for comparisons belong to a loop, and take a second to start.
in_one_loop = pytest.mark.asyncio(loop_scope="module")


def task(**data: object) -> Task:
    return Task(id=TaskId("t"), prompt="?", data=data)


@pytest.fixture(scope="module")
def maths() -> MathEquivalence:
    return MathEquivalence(deadline_s=60.0)


@in_one_loop
@pytest.mark.parametrize(
    ("expected", "answer", "reward"),
    [
        ("1/2", r"so it is $\frac{2}{4}$", 1.0),
        ("x^2+2x+1", r"\boxed{(x+1)^2}", 1.0),
        ("7", r"First 7, but then \boxed{8}", 0.0),
        ("7", "no idea", 0.0),
        ("7", "", 0.0),
        ("7", "7\ud800" + "(" * 3000, 1.0),
        (r"\{1,2\}", r"$\{2,1\}$", 1.0),
    ],
)
async def test_math_counts_what_is_equal(maths: MathEquivalence, expected: str, answer: str, reward: float):
    assert await maths(task(answer=expected), answer) == reward


@pytest.mark.parametrize("shape", math_answers.SHAPES, ids=lambda shape: f"{shape.of}: {shape.expected}")
def test_math_reads_answers_as_data_sets_have_them(shape: math_answers.Shape):
    wanted = wanted_of(str(shape.expected))
    assert wanted is not None
    same = str(shape.expected) if shape.of == "dollars" or "#" in str(shape.expected) else f"So \\boxed{{{shape.expected}}}."
    assert [answer for answer in (same, *shape.right) if not is_equal(wanted, answer)] == []
    assert [answer for answer in shape.wrong if is_equal(wanted, answer)] == []


@pytest.mark.parametrize(
    "shape",
    [shape for shape in math_answers.SHAPES if shape.of != "dollars"],
    ids=lambda shape: f"{shape.of}: {shape.expected}",
)
def test_math_reads_what_stands_in_a_box_as_it_reads_it_alone(shape: math_answers.Shape):
    wanted = wanted_of(str(shape.expected))
    assert wanted is not None
    alone = [
        answer
        for answer in (*shape.right, *shape.wrong)
        if not re.search(r"[A-Za-z] [A-Za-z]|, then|: |#|<|box|[`\uff1a是为]|结果", answer)
    ]
    for answer in alone:
        boxed = f"We have $x = 3$, so it is $\\boxed{{{answer}}}$, as 7 is not 8."
        assert is_equal(wanted, boxed) == is_equal(wanted, answer), answer


@pytest.mark.parametrize(
    "answer",
    [
        "<think>perhaps \\boxed{4}? No.</think> The answer is 5.",
        "Perhaps \\boxed{4}? No.\n</think>\n\nThe answer is 5.",
        "<think>the answer is 4?</think> **5**",
        "<think>So <answer>4</answer>.</think>$5$",
        "<think>$x = 4$, or</think>we have five of them, since there are so many, namely 5 apples",
        "<think>no</think> 4 <think>or</think> 5",
        "<think>So \\boxed{5}.\n</think>\n",
    ],
)
def test_math_counts_what_was_said_and_not_what_was_thought(answer: str):
    five, four = wanted_of("<think>\n\\boxed{4}?\n</think>\n5"), wanted_of("4")
    assert five is not None
    assert four is not None
    assert (is_equal(five, answer), is_equal(four, answer)) == (True, False)


def test_a_formula_in_a_short_sentence_that_is_expected_is_not_the_whole():
    wanted = wanted_of("$n$ must be even")
    assert wanted is not None
    assert [is_equal(wanted, answer) for answer in ("\\boxed{n must be even}", "\\boxed{n}", "$n$", "even")] == [True] + 3 * [
        False
    ]


@in_one_loop
@pytest.mark.parametrize("expected", math_answers.UNREADABLE)
async def test_an_expected_answer_that_cannot_be_read_breaks_the_task_and_is_no_reward_of_0(
    maths: MathEquivalence, expected: str
):
    with pytest.raises(EnvironmentBroken, match="task 't': math cannot read the expected answer"):
        await maths(task(answer=expected), "3")


async def test_math_kills_what_takes_too_long_and_goes_on(monkeypatch: pytest.MonkeyPatch):
    maths = MathEquivalence(deadline_s=60.0, processes=1)
    assert await maths(task(answer="1/2"), "0.5") == 1.0
    endless = asyncio.create_task(maths(task(answer="7"), "$9^{9^{9^{9^{9}}}}$"))
    while maths._processes.get()._idle:  # noqa: ASYNC110 - until the process that compared before is asked
        await asyncio.sleep(0)
    virtual_time.skip(monkeypatch, 60.0)
    assert await endless == 0.0
    assert await maths(task(answer="7"), r"\sqrt{49}") == 1.0


async def test_an_expected_answer_that_takes_too_long_breaks_the_task_and_is_no_reward_of_0():
    maths = MathEquivalence(deadline_s=1.0, processes=1)
    with pytest.raises(EnvironmentBroken, match=r"math needs more than 1 s, or too much memory, for the expected answer '?\$9"):
        await maths(task(answer="$9^{9^{9^{9^{9}}}}$"), "3")


@in_one_loop
async def test_a_task_without_a_readable_answer_is_broken_and_not_rewarded(maths: MathEquivalence):
    with pytest.raises(EnvironmentBroken, match="cannot read the expected answer"):
        await maths(task(answer="\\frac{"), "3")
    with pytest.raises(EnvironmentBroken, match=r"needs data 'answer', and the task has result"):
        await maths(task(result="3"), "3")


async def test_exact_ignores_white_space_and_case_only_if_told():
    assert [await Exact()(task(answer=3), each) for each in (" 3\n", "3.0")] == [1.0, 0.0]
    assert [await Exact(ignore_case=flag)(task(answer="Ja"), "JA") for flag in (False, True)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("expected", "answer", "reward"),
    [
        ("Ja", "<think>Nein?</think>\n\nJa", 1.0),
        ("Ja", "Nein?\n</think>\nJa", 1.0),
        ("Ja", "<think>Ja</think>Nein", 0.0),
        ("Ja", "<think>Ja", 0.0),
        ("Ja", "So <answer>Nein</answer> or <answer>\nJa</answer>", 1.0),
        ("Ja", "So <answer>\nJa\n", 1.0),
        ("Ja", "<answer>Ja</answer>, as <answer> is the tag", 1.0),
        ("<think>Nein?</think>Ja", "Ja", 1.0),
        ("<answer>Ja</answer>", "<answer>Ja</answer>", 1.0),
        ("<answer>Ja</answer>", "Nein", 0.0),
    ],
)
async def test_exact_compares_what_was_said_and_not_what_was_thought(expected: str, answer: str, reward: float):
    assert await Exact()(task(answer=expected), answer) == reward


@pytest.mark.parametrize("reward", [Exact(), MathEquivalence()], ids=["exact", "math"])
@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (None, r"needs data 'answer', which is None; write there what is expected, or leave the task out"),
        ("", r"needs data 'answer', which is ''; write"),
        (" \n", r"needs data 'answer', which is ' \\n'; write"),
        (float("nan"), r"needs data 'answer', which is nan; write"),
        (
            ["42", "43"],
            r"compares with one text, number or truth value, and data 'answer' is \['42', '43'\] of type list; write the one",
        ),
        ([" "], r"compares with one text, number or truth value, and data 'answer' is \[' '\] of type list; write the one"),
        ([], r"compares with one text, number or truth value, and data 'answer' is \[\] of type list; write the one"),
        (
            [["42"]],
            r"compares with one text, number or truth value, and data 'answer' is \[\['42'\]\] of type list; write the one",
        ),
        (
            {"value": "5"},
            r"compares with .* data 'answer' is \{'value': '5'\} of type dict; write the one answer there, or name the key",
        ),
    ],
    ids=repr,
)
async def test_what_is_no_expected_answer_breaks_the_task_whatever_is_answered(reward: Reward, expected: object, problem: str):
    for answer in ("", "None", "42", "nan", str(expected)):
        with pytest.raises(EnvironmentBroken, match=f"task 't': the reward (exact|math) {problem}"):
            await reward(task(answer=expected), answer)


@in_one_loop
@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        (42.0, ("42", "42.0"), ("4", "420")),
        (-7, ("-7",), ("7",)),
        (0.5, ("0.5",), ("0", "5")),
        (1e22, ("10000000000000000000000", "1e+22"), ("1", "22")),
        (True, ("true", "True"), ("false", "1")),
        (Fraction(1, 3), ("1/3",), ("1", "3")),
        (["42"], ("42",), ("4", "43")),
    ],
    ids=repr,
)
async def test_numbers_truth_values_and_a_list_of_one_text_are_expected_as_json_and_python_write_them(
    maths: MathEquivalence, expected: object, right: tuple[str, ...], wrong: tuple[str, ...]
):
    for reward in (Exact(), maths):
        assert [await reward(task(answer=expected), answer) for answer in right] == [1.0] * len(right)
        assert [await reward(task(answer=expected), answer) for answer in wrong] == [0.0] * len(wrong)


class Fixed(Reward):
    def __init__(self, value: object) -> None:
        self.value, self.cancelled = value, False

    async def __call__(self, task: Task, answer: str) -> float:
        try:
            if self.value is None:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


async def test_weighted_names_each_part_times_its_weight():
    both = Weighted({"right": (2.0, Fixed(0.5)), "style": (-1.0, Fixed({"short": 1.0, "kind": 0.25}))})
    assert await both(task(), "a") == {"right": 1.0, "style.short": -1.0, "style.kind": -0.25}


async def test_weighted_raises_the_error_of_a_part_itself_and_cancels_the_rest():
    waiting = Fixed(None)
    with pytest.raises(RewardUnavailable, match="away"):
        await Weighted({"judge": (1.0, Fixed(RewardUnavailable("away", "incident"))), "other": (1.0, waiting)})(task(), "a")
    assert waiting.cancelled


def test_weights_are_finite():
    with pytest.raises(ValueError, match="finite"):
        Weighted({"a": (float("nan"), Fixed(1.0))})
    with pytest.raises(ValueError, match="parts"):
        Weighted({})


async def test_recipes_name_built_in_rewards_functions_and_rewards(tmp_path: Path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(
        "from asyncrl.envs.rewards import Exact\n"
        "exact = Exact('result')\n"
        "Kind = Exact\n"
        "number = 3\n"
        "def long(task, answer):\n    return len(answer)\n"
        "def wrong(task):\n    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert await load_reward("exact", "environment.reward")(task(answer="3"), "3") == 1.0
    assert isinstance(load_reward("math", "environment.reward"), MathEquivalence)
    assert load_reward("own_rewards:long", "environment.reward")(task(), "abc") == 3
    assert await load_reward("own_rewards:exact", "environment.reward")(task(result="3"), "3") == 1.0
    for name, problem in (
        ("maths", "there is no reward 'maths'; use one of exact, math"),
        ("own_rewards:missing", "has no 'missing'"),
        ("own_rewards:Kind", "is a class; make an instance"),
        ("own_rewards:number", "is of type int"),
        ("own_rewards:wrong", "cannot be called with a task and an answer"),
        ("nowhere:f", "there is no module 'nowhere'"),
    ):
        with pytest.raises(RecipeError, match=r"environment\.reward: .*" + problem):
            load_reward(name, "environment.reward")
