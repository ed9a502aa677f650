"""The base of environments whose tools run in the sandbox, in the folder of the episode."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from asyncrl.core.task import Task
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Choice, Finished
from asyncrl.envs.sandbox.sandbox import Sandbox, problem_of
from asyncrl.envs.tools import ToolEnvironment

T = TypeVar("T")


class SandboxedEnvironment(ToolEnvironment):
    """An environment with a sandbox, which all episodes of a worker share, and a folder for each episode.

    Args:
        sandbox: which sandbox to use: the first that works here (``auto``), one by name, or ``none`` to let the model's commands
            do whatever you may do (docs/reference/sandbox.md).
        limits: what one call may use. The recipe's ``tool_timeout_s`` should be longer than ``wall_s``: it includes the time
            that a call waits while the sandbox is busy with others.
    """

    def __init__(self, sandbox: Choice = Choice.AUTO, limits: Limits = Limits()) -> None:  # noqa: B008 - it cannot be changed
        self.sandbox, self.limits = sandbox, limits
        self._own: Sandbox | None = None

    @classmethod
    @asynccontextmanager
    async def share(cls, sandbox: Choice = Choice.AUTO, **_: Any) -> AsyncIterator[Sandbox]:
        """Start the sandbox of a worker.

        Raises:
            RecipeError: there is no sandbox to be had here; says what is missing.
        """
        async with Sandbox(sandbox) as shared:
            yield shared

    async def close(self) -> None:
        """End the sandbox, if it is the episode's own."""
        if self._own is not None:
            await self._own.__aexit__(None, None, None)

    async def run(
        self,
        command: Sequence[str],
        stdin: bytes = b"",
        readable: Sequence[Path] = (),
        limits: Limits | None = None,
        folder: Path | None = None,
    ) -> Finished:
        """Run a command in the episode's folder or another, within the limits of a call or others.

        Raises:
            EnvironmentBroken: the sandbox failed.
        """
        sandbox = self.shared
        if sandbox is None:  # outside a worker, such as in a test
            self._own = self._own or await Sandbox(self.sandbox).__aenter__()
            sandbox = self._own
        assert isinstance(sandbox, Sandbox)
        return await sandbox.run(command, folder or self.workspace, limits or self.limits, stdin, readable)


def checked(text: str, what: str) -> str:
    """``text``, if it can be passed to a command.

    Raises:
        ToolError: it cannot; the message tells the model why.
    """
    if (problem := problem_of(text)) is not None:
        raise ToolError(f"the {what} cannot be run: {problem}")
    return text


def encoded(text: str, what: str) -> bytes:
    """The bytes of a text that a command reads.

    Raises:
        ToolError: it has none; the message tells the model why.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"the {what} contains a character that is not text: {text[error.start : error.end]!a}") from error


async def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files that a task begins with, by their path in ``folder``.

    Raises:
        ValueError: a path leads out of the folder.
    """

    def write() -> None:
        for name, content in files.items():
            path = Path(name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"file {name!r} of the task is not in its folder; name it by a relative path without `..`")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)

    await run_in_daemon_thread(write, name="writing the files of a task")


def data_of(task: Task, kind: type[T]) -> T:
    """Return the task's data as ``kind``.

    Raises:
        ValueError: they do not fit; says where.
    """
    try:
        return msgspec.convert(task.data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"task {task.id}: its data do not fit: {error}") from error
