"""The environments of one worker: enters what their episodes share, makes one for each episode, and cleans up after them.

What always holds: a task is played by the member that it names; nothing of an episode outlives the worker, but for what a killed
process left behind, and that goes when the next worker starts.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from asyncrl.core.errors import EnvironmentBroken, ProcessDied
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.hosted import not_made
from asyncrl.envs.hosting.shared_part import SharedPart
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.tool_processes import ToolProcesses
from asyncrl.envs.hosting.workspaces import Workspaces
from asyncrl.envs.member import Member
from asyncrl.envs.secrets import Secrets

logger = logging.getLogger(__name__)

T = TypeVar("T")

ABANDONED_S = 1.0
"""How long what other members share may take to be torn down, if one member's cannot be set up."""


class WorkerEnvironments:
    """Makes the environments of a worker's episodes, between :meth:`start` and :meth:`close`, in one event loop.

    Args:
        members: by name; see :func:`asyncrl.envs.load.load_members`.
        secrets: those of all members.
        worker: name of the worker.
    """

    def __init__(self, members: Mapping[str, Member], secrets: Secrets, worker: str) -> None:
        self._members, self._secrets, self._worker = members, secrets, worker
        self._shared: dict[str, SharedPart] = {}
        self._workspaces: Workspaces | None = None
        self._processes = ToolProcesses(worker)
        self._lost: asyncio.Future[ProcessDied]

    async def start(self, seconds: float) -> None:
        """Enter what the episodes of each member share, all at the same time.

        Raises:
            EnvironmentBroken: a member's ``share`` raised.
            DeadlineExceeded: one takes longer than ``seconds``.
            ComponentFailed: there is no room for the episodes' folders.
        """
        self._lost = asyncio.get_running_loop().create_future()
        self._workspaces = await run_in_daemon_thread(partial(Workspaces, self._worker), name="making room for episodes")
        self._shared = {
            name: SharedPart(member, self._own_secrets(member), self._worker, self._on_lost)
            for name, member in self._members.items()
        }
        try:
            await asyncio.gather(*(part.entered(seconds) for part in self._shared.values()))
        except BaseException:
            await self.close(ABANDONED_S)
            raise

    async def try_processes(self) -> None:
        """Load each class that has tools with a process of their own in one, to see whether that works.

        Raises:
            EnvironmentBroken: it does not.
        """
        for member in self._members.values():
            if (of := member.process_class) is not None:
                await self._processes.load(of)

    def make(self, task: Task) -> Environment:
        """Make the environment of one episode of ``task``.

        Raises:
            EnvironmentBroken: the task names no member, or the environment's constructor raised.
        """
        member = self._members.get(task.environment)
        if member is None or self._workspaces is None:
            known = ", ".join(map(repr, self._members))
            raise EnvironmentBroken(f"task {task.id} names environment {task.environment!r}; there are {known}")
        provided = Provided(
            secrets=self._own_secrets(member),
            shared=self._shared[task.environment].value,
            workspace=self._workspaces.next(),
            processes=self._processes,
        )
        try:
            return member.make(provided)
        except BaseException as error:
            raise not_made(task, provided.secrets.cleaned(UsersError.of(error))) from error

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for the user about what the episodes share."""
        parts = ((self._members[name], part) for name, part in self._shared.items())
        return tuple(sentence for member, part in parts for sentence in member.remarks(part.value))

    @property
    def lost(self) -> "asyncio.Future[ProcessDied]":
        """Has a result as soon as something that the episodes share has ended by itself. Known once started."""
        return self._lost

    async def while_shared(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work``, unless something that the episodes share ends by itself.

        Raises:
            ProcessDied: it did.
            Exception: what ``work`` raises.
        """
        working = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {working, self._lost}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise self._lost.result()
            return working.result()
        finally:
            working.cancel()

    async def close(self, seconds: float) -> None:
        """Leave what the episodes shared, within ``seconds``, and remove their folders and processes. Problems are logged."""
        left = await asyncio.gather(*(part.leave(seconds) for part in self._shared.values()), return_exceptions=True)
        for problem in left:
            if problem is not None:
                logger.warning("%s: %s", self._worker, problem)
        self._shared = {}
        self._processes.close()
        if self._workspaces is not None:
            await run_in_daemon_thread(self._workspaces.close, name="removing the folders of episodes")
            self._workspaces = None

    def _own_secrets(self, member: Member) -> Secrets:
        return self._secrets.only(member.spec.secret_variables)

    def _on_lost(self, died: ProcessDied) -> None:
        if not self._lost.done():
            self._lost.set_result(died)
