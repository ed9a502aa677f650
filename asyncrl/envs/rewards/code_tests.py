"""The reward of a program that passes its task's tests, run in the sandbox.

What always holds: the process that runs the program is never told the expected results, so it can only pass by producing them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from asyncrl.core.errors import EnvironmentBroken, first_error
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.code_judging.judge import Judge
from asyncrl.envs.rewards.base import Reward, expected
from asyncrl.envs.sandbox.fenced_code import code_in
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished
from asyncrl.envs.sandbox.python_programs import RUN_ANSWER, python_command, python_folders
from asyncrl.envs.sandbox.sandbox import Sandbox

_USUAL = Limits()


class CallTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expression in the names of the program, such as ``add(1, 2)``, and its value as JSON has it."""

    call: str
    returns: Any


class OutputTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the program reads, and what it must print. White space at the ends of lines does not count."""

    stdin: str
    stdout: str


class CodeTests(Reward):
    """The share of the task's tests that a program passes; with ``all_or_nothing``, 1 if it passes all, else 0.

    The program is the last fenced block of Python in the answer, else the last without a tag, or else the whole answer; what the
    model thought, until ``</think>``, is none of it.
    ``task.data[key]`` is a list of ``{"call": "add(1, 2)", "returns": 3}`` or ``{"stdin": "1 2", "stdout": "3"}``.

    Args:
        sandbox: where programs run; enter it in the environment's ``share``.
        key: where ``task.data`` holds the tests.
        all_or_nothing: whether passing some of the tests is worth nothing.
        limits: of each run. All calls are made in one run; each test of what is printed has a run of its own, which may print
            more by twice what it must.
    """

    def __init__(self, sandbox: Sandbox, key: str = "tests", all_or_nothing: bool = True, limits: Limits = _USUAL) -> None:
        self._sandbox, self._key, self._all_or_nothing, self._limits = sandbox, key, all_or_nothing, limits

    async def __call__(self, task: Task, answer: str) -> float:
        """Run the tests."""
        tests = self._tests(task)
        code = code_in(answer)
        calls = [(test.call, test.returns) for test in tests if isinstance(test, CallTest)]
        printing = [(test, self._limits_of(task, test)) for test in tests if isinstance(test, OutputTest)]
        with first_error():
            async with asyncio.TaskGroup() as group:
                called = group.create_task(Judge(self._run, self._limits).returned(task, code, calls))
                printed = [group.create_task(self._prints(code, test, each)) for test, each in printing]
        passed = called.result() + sum(each.result() for each in printed)
        return float(passed == len(tests)) if self._all_or_nothing else passed / len(tests)

    def _tests(self, task: Task) -> list[CallTest | OutputTest]:
        found = expected(task, self._key, "code tests")
        if isinstance(found, str):
            said = f"if it is JSON, say so with the source of its task: json: [{self._key}]"
            raise EnvironmentBroken(f"task {short(task.id)}: data[{self._key!r}] is the text {short(found)} and no list; {said}")
        kinds: Mapping[bool, type] = {True: CallTest, False: OutputTest}
        try:
            tests: list[CallTest | OutputTest] = [msgspec.convert(test, kinds["call" in test]) for test in found]
        except (msgspec.ValidationError, TypeError) as error:
            shapes = '{"call": ..., "returns": ...} or {"stdin": ..., "stdout": ...}'
            raise EnvironmentBroken(f"task {short(task.id)}: a test cannot be read ({error}); write {shapes}") from error
        if not tests:
            raise EnvironmentBroken(f"task {short(task.id)}: data[{self._key!r}] holds no test; give at least one")
        return tests

    def _limits_of(self, task: Task, test: OutputTest) -> Limits:
        try:
            return self._limits.with_room_for(test.stdout)
        except ValueError as error:
            raise EnvironmentBroken(f"task {short(task.id)}: a test cannot be run: {error}") from error

    async def _prints(self, code: str, test: OutputTest, limits: Limits) -> bool:
        command, readable = python_command(RUN_ANSWER, packages=False), python_folders(packages=False)
        finished = await self._run(command, test.stdin.encode(), readable, limits, {"answer.py": code})
        printed = finished.stdout.decode(errors="replace")
        return finished.exit_code == 0 and _stripped(printed) == _stripped(test.stdout)

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


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
