"""Has the code of an answer judged: by Python code that tests it, or by calls and what they must return."""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished
from asyncrl.envs.sandbox.python_programs import python_command, python_folders

Run = Callable[[Sequence[str], bytes, Sequence[Path], Limits], Awaitable[Finished]]
"""Runs a command in the sandbox: the command, its standard input, folders that it may read, and limits."""

_FOLDER = Path(__file__).resolve().parent
_BEGIN = f"""
import sys, types
for name, path in (("asyncrl", []), ("asyncrl.envs", []), ("asyncrl.envs.code_judging", [{str(_FOLDER)!r}])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from asyncrl.envs.code_judging.program import main
main()
"""
_VERDICT_KB = 1024
"""The output of the judging process, which is the verdict alone: nothing that the answer prints gets out."""


class _Line(msgspec.Struct, frozen=True):
    """What the judging process prints about a test: whether it passed, or why it cannot be judged."""

    passed: bool = False
    problem: str | None = None


class Judge:
    """Judges answers of one environment.

    Args:
        run: runs the judging process in the sandbox.
        limits: what the answer's process and the one that judges it may use together.
        packages: whether answer and tests may import the packages that are installed beside asyncrl.
    """

    def __init__(self, run: Run, limits: Limits, packages: bool = False) -> None:
        self._run, self._packages = run, packages
        self._limits = msgspec.structs.replace(limits, processes=limits.processes + 1, output_kb=_VERDICT_KB)

    async def passes(self, task: Task, code: str, tests: str) -> bool:
        """Whether Python code that tests an answer's names raises nothing.

        Raises:
            EnvironmentBroken: the tests are no Python code, or do what cannot be done with an answer in another process.
        """
        return await self._judge(task, {"before": "", "code": code, "tests": tests, "calls": []}) == [True]

    async def returned(self, task: Task, code: str, calls: Sequence[tuple[str, Sequence[Any]]], before: str = "") -> int:
        """How many of the calls, which are expressions, return one of the values that they may, as JSON has them.

        Args:
            before: code that is run before the answer's, in its process.
        """
        asked = {"before": before, "code": code, "tests": None, "calls": calls}
        return sum(await self._judge(task, asked)) if calls else 0

    async def _judge(self, task: Task, asked: dict[str, Any]) -> list[bool]:
        """Whether each test passed, of those that were judged before a limit ended the run."""
        command, folders = python_command(_BEGIN, self._packages), [*python_folders(self._packages), _FOLDER]
        finished = await self._run(command, json.dumps(asked).encode(), folders, self._limits)
        lines = [msgspec.json.decode(line, type=_Line) for line in finished.stdout.split(b"\n")[:-1]]
        problem = next((line.problem for line in lines if line.problem is not None), None)
        if problem is not None:
            raise EnvironmentBroken(f"task {short(task.id)}: its tests cannot be judged: {problem}")
        return [line.passed for line in lines]
