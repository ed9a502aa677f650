"""Built-in environment: a folder of files and a shell in a sandbox; the reward is what the folder looks like in the end.

Tasks come from files, or are made here for the tiny model: one-line errands with files of numbers. What always holds: commands of
the model run in the sandbox only, and what it leaves in the folder is looked at from inside the sandbox too,
by programs that find nothing there that could tell them what to do.
"""

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.base import Observation
from asyncrl.envs.builtin.answers import is_answer
from asyncrl.envs.builtin.sandboxed import SandboxedEnvironment, checked, data_of, write_files
from asyncrl.envs.builtin.splits import different_tasks
from asyncrl.envs.expected_answer import says_nothing
from asyncrl.envs.hosting.workspaces import remove_after_episode
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished, Reason
from asyncrl.envs.sandbox.run_report import describe_run
from asyncrl.envs.tool_marks import tool

SHELL = "/bin/sh"

CHECK = """
cp -RP "$1/." model && cd model || exit 1
(cd "$1" && find . -type f -perm -u+x -print0) | xargs -0 -r chmod +x || exit 1
export CHECK="$2" PYTHONPATH="$2" PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 MAKEFLAGS=B
exec /bin/sh -c "$0" >/dev/null 2>&1
"""
"""Runs the check in a copy of the model's folder. The home of the check, and all that it is configured by, is of our own making,
Python imports nothing from the folder, and make takes no file in it for a target that is up to date. Nobody reads what the check
prints, so it may print any amount."""


class TerminalData(msgspec.Struct, frozen=True):
    """What the data of a task say beside the prompt. The reward is 1 if all that is expected holds, else 0.

    Attributes:
        files: files that the folder has in the beginning, by path.
        check: a shell command that must end with exit status 0 in the end; see :data:`CHECK`.
        check_files: files of the check, by path in the folder ``$CHECK``, where the model can never write.
        expected: what files must contain in the end, by path; spaces and empty lines at the end do not matter.
        answer: what the final answer must be; see :func:`~asyncrl.envs.builtin.answers.is_answer`.
    """

    files: dict[str, str] = {}
    check: str | None = None
    check_files: dict[str, str] = {}
    expected: dict[str, str] = {}
    answer: float | int | str | None = None

    def __post_init__(self) -> None:
        if self.check is None and self.answer is None and not self.expected:
            raise ValueError("say what is expected: `check`, `expected` or `answer`")
        if self.answer is not None and says_nothing(self.answer):
            raise ValueError(f"its `answer` is {self.answer!r}; give a text or a number, or leave it out")
        if self.check_files and self.check is None:
            raise ValueError("there are `check_files` and no `check` that uses them; give the task both")
        for content in self.expected.values():
            Limits().with_room_for(content)


class Terminal(SandboxedEnvironment):
    """The model runs shell commands in the folder of its episode, and says when it is done."""

    _data: TerminalData

    @tool
    async def shell(self, command: str) -> str:
        """Run a shell command in the current folder; returns what it prints. Files are kept, variables are not."""
        return describe_run(await self._sh(checked(command, "command")), self.limits)

    async def reset(self, task: Task) -> Observation:
        """Begin an episode with the files of the task."""
        self._data = data_of(task, TerminalData)
        await write_files(self.workspace, self._data.files)
        return await super().reset(task)

    async def reward(self, task: Task, answer: str) -> float:
        """1 if all that the task expects holds, else 0."""
        data = self._data
        if data.answer is not None and not is_answer(answer, data.answer):
            return 0.0
        for name, content in data.expected.items():
            limits = self.limits.with_room_for(content)
            if _printed(await self.run(["/bin/cat", "--", f"./{name}"], limits=limits)) != content.rstrip():
                return 0.0
        return float(data.check is None or await self._checks(data.check, data.check_files))

    async def _checks(self, check: str, files: Mapping[str, str]) -> bool:
        """Whether the check ends well, in folders that the model has never seen, whose names it cannot know."""
        folders = [Path(tempfile.mkdtemp(prefix="check-", dir=self.workspace.parent)) for _ in range(2)]
        home, own = folders
        try:
            await write_files(own, files)
            command = [SHELL, "-c", CHECK, check, str(self.workspace.resolve()), str(own.resolve())]
            return _printed(await self.run(command, readable=[self.workspace, own], folder=home)) is not None
        finally:
            for each in folders:
                await remove_after_episode(each)

    async def _sh(self, command: str) -> Finished:
        return await self.run([SHELL, "-c", command])

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make up to ``count`` different errands of ``split``, of each kind in turn."""
        generator = random.Random(f"{split} {seed}")

        def make(number: int) -> Task:
            source, target = generator.sample(range(10, 100), 2)
            return _task(ERRANDS[number % len(ERRANDS)], source, target)

        return different_tasks(split, count, make)


class Errand(msgspec.Struct, frozen=True):
    """A kind of tasks for the tiny model: the prompt, the command that does it, and what it makes of the numbers.

    Attributes:
        sorts: whether the command sorts numbers, where a plain ``sort`` tempts.
    """

    name: str
    prompt: str
    command: str
    value: Callable[[list[int]], int]
    sorts: bool = False


ERRANDS = (
    Errand("count", "lines of {source} to {target}", "wc -l <{source} >{target}", len),
    Errand("largest", "largest of {source} to {target}", "sort -n {source}|tail -n1 >{target}", max, True),
    Errand("first", "first of {source} to {target}", "head -n1 {source} >{target}", lambda numbers: numbers[0]),
    Errand("smallest", "smallest of {source} to {target}", "sort -n {source}|head -n1 >{target}", min, True),
)


def errand_of(task: Task) -> tuple[Errand, str]:
    """The kind of a task that :meth:`Terminal.make_tasks` made, and the command that does it."""
    found = next(each for each in ERRANDS if each.name == task.data["kind"])
    return found, found.command.format(source=task.data["source"], target=task.data["target"])


def call(command: str) -> ToolCall:
    """A call of the tool ``shell``."""
    return ToolCall(Terminal.shell.__name__, {"command": command})


def _task(errand: Errand, source: int, target: int) -> Task:
    prompt = errand.prompt.format(source=source, target=target)
    numbers = _numbers(random.Random(prompt))
    data = {
        "kind": errand.name,
        "source": source,
        "target": target,
        "files": {str(source): "".join(f"{number}\n" for number in numbers)},
        "expected": {str(target): str(errand.value(numbers))},
    }
    return Task(id=TaskId(prompt), prompt=prompt, data=data)


def _numbers(generator: random.Random) -> list[int]:
    """Numbers whose order as words puts others at both ends than their order as numbers does."""
    while True:
        numbers = [generator.randint(1, 300) for _ in range(generator.randint(5, 9))]
        as_words = sorted(map(str, numbers))
        if as_words[0] != str(min(numbers)) and as_words[-1] != str(max(numbers)):
            return numbers


def _printed(finished: Finished) -> str | None:
    """Return what a command printed, without spaces at the end; None if it did not end well."""
    well = finished.reason is Reason.EXITED and finished.exit_code == 0
    return finished.stdout.decode(errors="replace").rstrip() if well else None
