"""Built-in environment: tasks that the model solves by running Python code in a sandbox.

Tasks come from files, or are made here for the tiny model: small computations whose code is short. What always holds: code of the
model runs in the sandbox only, and what it does wrong is told to the model or costs the reward, never breaks the episode.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.base import Observation
from asyncrl.envs.builtin.answers import is_answer
from asyncrl.envs.builtin.sandboxed import SandboxedEnvironment, data_of, encoded, write_files
from asyncrl.envs.builtin.splits import different_tasks
from asyncrl.envs.code_judging.judge import Judge
from asyncrl.envs.expected_answer import says_nothing
from asyncrl.envs.sandbox.fenced_code import code_in
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Choice, Finished
from asyncrl.envs.sandbox.python_programs import RUN_CODE, python_command, python_folders
from asyncrl.envs.sandbox.run_report import describe_run
from asyncrl.envs.tool_marks import tool


class PythonData(msgspec.Struct, frozen=True):
    """What the data of a task say beside the prompt.

    Attributes:
        answer: the expected answer: a number, or text; see :func:`~asyncrl.envs.builtin.answers.is_answer`.
        tests: Python code that raises unless the code in the model's answer is right.
        files: files that the episode's folder has in the beginning, by path.
    """

    answer: float | int | str | None = None
    tests: str | None = None
    files: dict[str, str] = {}

    def __post_init__(self) -> None:
        if (self.answer is None) == (self.tests is None):
            raise ValueError("give the task either `answer` or `tests`")
        if self.tests is not None and _is_json(self.tests):
            remedy = "have them judged by the reward CodeTests in an environment of your own (docs/how-to/rewards.md)"
            raise ValueError(f"its `tests` are JSON, and here they are Python code; {remedy}")
        if self.answer is not None and says_nothing(self.answer):
            raise ValueError(f"its `answer` is {self.answer!r}; give a text or a number")


def _is_json(tests: str) -> bool:
    """Whether tests are a list or an object of JSON, as data sets have them, and no code."""
    try:
        return isinstance(json.loads(tests), list | dict)
    except ValueError:
        return False


class Python(SandboxedEnvironment):
    """The model runs Python code in a sandbox, and answers.

    Args:
        sandbox: which sandbox to use; see :class:`~asyncrl.envs.builtin.sandboxed.SandboxedEnvironment`.
        limits: what one call may use.
        packages: whether code may import the packages that are installed beside asyncrl, such as numpy.
    """

    def __init__(self, sandbox: Choice = Choice.AUTO, limits: Limits = Limits(), packages: bool = False) -> None:  # noqa: B008
        super().__init__(sandbox, limits)
        self.packages = packages
        self._data = PythonData(answer=0)

    @tool
    async def python(self, code: str) -> str:
        """Run Python code; returns what it prints. Files in the current folder are kept."""
        return describe_run(await self._run_python(RUN_CODE, encoded(code, "code")), self.limits)

    async def reset(self, task: Task) -> Observation:
        """Begin an episode with the files of the task."""
        self._data = data_of(task, PythonData)
        await write_files(self.workspace, self._data.files)
        return await super().reset(task)

    async def reward(self, task: Task, answer: str) -> float:
        """1 if the answer is the expected one, or its code passes the tests; else 0."""
        if self._data.tests is None:
            assert self._data.answer is not None
            return float(is_answer(answer, self._data.answer))
        return float(await Judge(self.run, self.limits, self.packages).passes(task, code_in(answer), self._data.tests))

    async def _run_python(self, program: str, typed: bytes) -> Finished:
        return await self.run(python_command(program, self.packages), typed, python_folders(self.packages))

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make up to ``count`` different computations of ``split``, of each kind in turn."""
        generator = random.Random(f"{split} {seed}")

        def make(number: int) -> Task:
            computation = COMPUTATIONS[number % len(COMPUTATIONS)]
            low = generator.randint(1, 40)
            high = low + generator.randint(2, 30)
            prompt = computation.prompt.format(low=low, high=high)
            data = {"answer": computation.value(low, high), "low": low, "high": high, "kind": computation.name}
            return Task(id=TaskId(prompt), prompt=prompt, data=data)

        return different_tasks(split, count, make)


class Computation(msgspec.Struct, frozen=True):
    """A kind of tasks for the tiny model: the prompt, and the code that computes the answer from two numbers.

    Attributes:
        up_to: whether it counts from ``low`` up to ``high``, both included: where ``range`` tempts to leave out the last.
    """

    name: str
    prompt: str
    code: str
    value: Callable[[int, int], int]
    up_to: bool = False


COMPUTATIONS = (
    Computation("product", "{low} times {high}", "{low}*{high}", lambda low, high: low * high),
    Computation("sum", "sum of {low} to {high}", "sum(range({low},{high}+1))", lambda low, high: sum(range(low, high + 1)), True),
    Computation("remainder", "{high} modulo {low}", "{high}%{low}", lambda low, high: high % low),
    Computation(
        "squares",
        "sum of squares of {low} to {high}",
        "sum(i*i for i in range({low},{high}+1))",
        lambda low, high: sum(i * i for i in range(low, high + 1)),
        True,
    ),
)


def computation_of(task: Task) -> tuple[Computation, str]:
    """The kind of a task that :meth:`Python.make_tasks` made, and the code that solves it."""
    found = next(each for each in COMPUTATIONS if each.name == task.data["kind"])
    return found, found.code.format(low=task.data["low"], high=task.data["high"])


def call(code: str) -> ToolCall:
    """A call of the tool ``python``."""
    return ToolCall(Python.python.__name__, {"code": code})
