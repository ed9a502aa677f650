"""The reward of a program that passes its task's tests, run in the sandbox.

What always holds: the process that runs the program is never told the expected results, so it can only pass by producing them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from math import isclose
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asyncrl.core.errors import EnvironmentBroken, first_error
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.code_judging.judge import Judge
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.rewards.base import Reward, expected
from asyncrl.envs.rewards.code_test_shapes import (
    IMPORTED,
    SHAPES,
    CallTest,
    CodeTest,
    FunctionTest,
    LooseOutputTest,
    OutputTest,
    read_tests,
)
from asyncrl.envs.sandbox.fenced_code import code_in
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished
from asyncrl.envs.sandbox.python_programs import RUN_ANSWER, python_command, python_folders
from asyncrl.envs.sandbox.sandbox import Sandbox

_USUAL = Limits()
RUNS_AT_ONCE = 4
"""Runs of one answer at one moment."""
CLOSE = 1e-6
"""How far a fraction may be from the expected one, of it or in all, where a data set's judges allow for it."""


class CodeTests(Reward):
    """The share of the task's tests that a program passes; with ``all_or_nothing``, 1 if it passes all, else 0.

    The program is the last fenced block of Python in the answer, else the last without a tag, or else the whole answer; what the
    model thought, until ``</think>``, is none of it.
    ``task.data[key]`` is a list of ``{"call": "add(1, 2)", "returns": 3}`` or ``{"stdin": "1 2", "stdout": "3"}``, or the column
    ``input_output`` of APPS and TACO, or ``public_test_cases`` or ``private_test_cases`` of LiveCodeBench, whose ``metadata``
    the task's data keep. These call a function, or a method of the answer's class ``Solution``.

    Args:
        sandbox: where programs run; enter it in the environment's ``share``.
        key: where ``task.data`` holds the tests; of several keys, all tests count.
        all_or_nothing: whether passing some of the tests is worth nothing.
        limits: of each run. All calls are made in one run; each test of what is printed has a run of its own, which may print
            more by twice what it must.
    """

    def __init__(
        self, sandbox: Sandbox, key: str | Sequence[str] = "tests", all_or_nothing: bool = True, limits: Limits = _USUAL
    ) -> None:
        self._sandbox, self._all_or_nothing, self._limits = sandbox, all_or_nothing, limits
        self._keys = (key,) if isinstance(key, str) else tuple(key)

    async def __call__(self, task: Task, answer: str) -> float:
        """Run the tests."""
        tests = await run_in_daemon_thread(partial(self._tests, task), name="reading the tests of a task")
        code = code_in(answer)
        calls = [(test.call, _accepted(test)) for test in tests if isinstance(test, CallTest | FunctionTest)]
        before = IMPORTED if any(isinstance(test, FunctionTest) for test in tests) else ""
        printing = [(test, self._limits_of(task, test)) for test in tests if isinstance(test, OutputTest | LooseOutputTest)]
        passed = await Judge(self._run, self._limits).returned(task, code, calls, before)
        if not self._all_or_nothing or passed == len(calls):
            passed += await self._printed(code, printing)
        return float(passed == len(tests)) if self._all_or_nothing else passed / len(tests)

    def _tests(self, task: Task) -> list[CodeTest]:
        tests = [test for key in self._keys for test in self._tests_in(task, key)]
        if not tests:
            places = " + ".join(f"data[{key!r}]" for key in self._keys)
            raise EnvironmentBroken(f"task {short(task.id)}: {places} holds no test; give at least one")
        return tests

    def _tests_in(self, task: Task, key: str) -> list[CodeTest]:
        found = expected(task, key, "code tests")
        try:
            return read_tests(found, task.data.get("metadata"))
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"data[{key!r}] cannot be read as tests ({error})"
            raise EnvironmentBroken(f"task {short(task.id)}: {problem}; {SHAPES}") from error

    def _limits_of(self, task: Task, test: OutputTest | LooseOutputTest) -> Limits:
        try:
            return self._limits.with_room_for(test.stdout)
        except ValueError as error:
            raise EnvironmentBroken(f"task {short(task.id)}: a test cannot be run: {error}") from error

    async def _printed(self, code: str, printing: Sequence[tuple[OutputTest | LooseOutputTest, Limits]]) -> int:
        """How many tests of what is printed pass; with ``all_or_nothing``, of those up to the first that do not.

        A few are run at once: hundreds, of a program that never ends, would keep all others from the sandbox.
        """
        passed = 0
        for begin in range(0, len(printing), RUNS_AT_ONCE):
            some = printing[begin : begin + RUNS_AT_ONCE]
            with first_error():
                async with asyncio.TaskGroup() as group:
                    runs = [group.create_task(self._prints(code, test, limits)) for test, limits in some]
            passed += sum(each.result() for each in runs)
            if self._all_or_nothing and not all(each.result() for each in runs):
                break
        return passed

    async def _prints(self, code: str, test: OutputTest | LooseOutputTest, limits: Limits) -> bool:
        command, readable = python_command(RUN_ANSWER, packages=False), python_folders(packages=False)
        finished = await self._run(command, test.stdin.encode(), readable, limits, {"answer.py": code})
        same = _is_alike if isinstance(test, LooseOutputTest) else _is_same
        return finished.exit_code == 0 and same(finished.stdout.decode(errors="replace"), test.stdout)

    async def _run(
        self,
        command: Sequence[str],
        stdin: bytes,
        readable: Sequence[Path],
        limits: Limits,
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> Finished:
        """Run a command in a folder of its own, which holds the files."""
        async with self._sandbox.folder() as folder:
            for name, content in files.items():
                (folder / name).write_text(content, errors="replace")
            return await self._sandbox.run(command, folder, limits, stdin, readable)


def _accepted(test: CallTest | FunctionTest) -> tuple[Any, ...]:
    return test.accepted if isinstance(test, FunctionTest) else (test.returns,)


def _is_same(printed: str, wanted: str) -> bool:
    """Whether the lines are the same, but for white space at their ends."""
    mine, theirs = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (printed, wanted))
    return mine == theirs


def _is_alike(printed: str, wanted: str) -> bool:
    """Whether the lines are the same, but for white space, blank lines and the last digits of fractions."""
    mine, theirs = ([words for line in text.splitlines() if (words := line.split())] for text in (printed, wanted))
    return [len(words) for words in mine] == [len(words) for words in theirs] and all(
        map(_is_close, chain.from_iterable(mine), chain.from_iterable(theirs))
    )


def _is_close(word: str, wanted: str) -> bool:
    """Whether a word is the one that is wanted, or a number as good as it; a fraction may stand for an integer that it hits.

    Of an integer, a share is not allowed for: an estimate of a large one would pass.
    """
    if word == wanted:
        return True
    try:
        if "." in wanted:
            return isclose(float(word), float(wanted), rel_tol=CLOSE, abs_tol=CLOSE)
        return "." in word and abs(Decimal(word) - Decimal(wanted)) <= CLOSE
    except (ValueError, ArithmeticError):  # one of them is no number
        return False
