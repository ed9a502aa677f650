"""The reward of a program that passes its task's tests, run in the sandbox.

What always holds: the expected results never enter the sandbox, so a program can only pass by producing them.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.python_programs import RUN_ANSWER, RUN_CALLS, code_in, python_command, python_folders
from asyncrl.envs.rewards.base import Reward, expected
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished
from asyncrl.envs.sandbox.sandbox import Sandbox
from asyncrl.envs.threads import run_in_daemon_thread
from asyncrl.envs.workspaces import remove_after_episode

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

    The program is the last fenced block of code in the answer, or else the whole answer. ``task.data[key]`` is a list of
    ``{"call": "add(1, 2)", "returns": 3}`` or ``{"stdin": "1 2", "stdout": "3"}``.

    Args:
        sandbox: where programs run; enter it in the environment's ``share``.
        key: where ``task.data`` holds the tests.
        all_or_nothing: whether passing some of the tests is worth nothing.
        limits: of each run. All calls are made in one run; each test of what is printed has a run of its own.
    """

    def __init__(self, sandbox: Sandbox, key: str = "tests", all_or_nothing: bool = True, limits: Limits = _USUAL) -> None:
        self._sandbox, self._key, self._all_or_nothing, self._limits = sandbox, key, all_or_nothing, limits

    async def __call__(self, task: Task, answer: str) -> float:
        """Run the tests."""
        tests = self._tests(task)
        code = code_in(answer)
        calls = [test for test in tests if isinstance(test, CallTest)]
        printing = [test for test in tests if isinstance(test, OutputTest)]
        try:
            async with asyncio.TaskGroup() as group:
                called = group.create_task(self._passed_calls(code, calls))
                printed = [group.create_task(self._prints(code, test)) for test in printing]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        passed = called.result() + sum(each.result() for each in printed)
        return float(passed == len(tests)) if self._all_or_nothing else passed / len(tests)

    def _tests(self, task: Task) -> list[CallTest | OutputTest]:
        found = expected(task, self._key, "code tests")
        kinds: Mapping[bool, type] = {True: CallTest, False: OutputTest}
        try:
            tests: list[CallTest | OutputTest] = [msgspec.convert(test, kinds["call" in test]) for test in found]
        except (msgspec.ValidationError, TypeError) as error:
            shapes = '{"call": ..., "returns": ...} or {"stdin": ..., "stdout": ...}'
            raise EnvironmentBroken(f"task {short(task.id)}: a test cannot be read ({error}); write {shapes}") from error
        if not tests:
            raise EnvironmentBroken(f"task {short(task.id)}: data[{self._key!r}] holds no test; give at least one")
        return tests

    async def _passed_calls(self, code: str, tests: list[CallTest]) -> int:
        if not tests:
            return 0
        given = json.dumps([code, [test.call for test in tests]]).encode()
        _, lines = await self._run(RUN_CALLS, code, given, len(tests))
        results = [_decoded(line) for line in lines]
        return sum(result == [test.returns] for result, test in zip(results, tests, strict=False))

    async def _prints(self, code: str, test: OutputTest) -> bool:
        finished, _ = await self._run(RUN_ANSWER, code, test.stdin.encode())
        printed = finished.stdout.decode(errors="replace")
        return finished.exit_code == 0 and _stripped(printed) == _stripped(test.stdout)

    async def _run(self, program: str, code: str, stdin: bytes, results: int = 0) -> tuple[Finished, list[str]]:
        """Run ``program``; returns how it ended, and the first lines of ``results`` that it wrote.

        What the program leaves in its folder may be much, so it is read and removed in a thread.
        """
        command, folders = python_command(program, packages=False), python_folders(packages=False)
        folder = Path(tempfile.mkdtemp(prefix="asyncrl-tests-"))
        try:
            (folder / "answer.py").write_text(code, errors="replace")
            finished = await self._sandbox.run(command, folder, self._limits, stdin, folders)
            read = partial(_lines, folder / "results", results)
            return finished, await run_in_daemon_thread(read, "reading results of tests") if results else []
        finally:
            await remove_after_episode(folder)


def _lines(results: Path, count: int) -> list[str]:
    """The first lines of a file that the program wrote. A link could lead out of its folder; what is no file might never end."""
    if results.is_symlink() or not results.is_file():
        return []
    with results.open(errors="replace") as lines:
        return list(islice(lines, count))


def _decoded(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
