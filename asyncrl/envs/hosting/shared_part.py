"""What all episodes of a worker share of one environment: entered before the first, left after the last.

What always holds: it is entered and left in one asyncio task, as anyio and libraries on top of it require; each takes no longer
than its deadline; and if it ends by itself, its owner is told.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from asyncrl.core.errors import DeadlineExceeded, EnvironmentBroken, ProcessDied
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.envs.hosting.guarded_calls import Raised, contained
from asyncrl.envs.member import Member
from asyncrl.envs.secrets import Secrets


class SharedPart:
    """The shared part of one member in one worker.

    Attributes:
        value: what the member's ``share`` yielded.
        task: the task in which it is entered and left.

    Args:
        worker: name of the worker, for errors.
        on_lost: called when it ends although nobody left it.
    """

    def __init__(self, member: Member, secrets: Secrets, worker: str, on_lost: Callable[[ProcessDied], None]) -> None:
        self._member, self._secrets, self._worker, self._on_lost = member, secrets, worker, on_lost
        self._name = f"share() of {member.spec.label}"
        self.value: Any = None
        self._entered, self._leaving = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(contained(self._run), name=f"{worker}: {self._name}")

    async def entered(self, seconds: float) -> None:
        """Wait until it is entered. Whatever comes of that, call :meth:`leave` afterwards.

        Raises:
            EnvironmentBroken: it raised instead.
            DeadlineExceeded: it takes longer than ``seconds``; it goes on until :meth:`leave`.
        """
        entering = asyncio.create_task(self._entered.wait())
        try:
            await asyncio.wait({entering, self.task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            entering.cancel()
        if self._entered.is_set():
            self.task.add_done_callback(self._ended)
            return
        if self.task.done():
            raise self._broken("set up")
        raise DeadlineExceeded(self._worker, self._name, seconds, "make it faster, or raise deadlines.start")

    async def leave(self, seconds: float) -> None:
        """Leave it, or give it up if it has not been entered.

        Raises:
            EnvironmentBroken: it raised.
            DeadlineExceeded: it takes longer than ``seconds``; it is abandoned.
        """
        self._leaving.set()
        entered = self._entered.is_set()
        if not entered:  # whoever waited for that knows why
            self.task.cancel()
        await asyncio.wait({self.task}, timeout=seconds)
        if not self.task.done():
            if entered:
                self.task.cancel()
            raise DeadlineExceeded(self._worker, f"the end of {self._name}", seconds, "it is abandoned; tear down faster")
        if entered and self._outcome() is not None:
            raise self._broken("torn down")

    async def _run(self) -> None:
        async with self._member.share(self._secrets) as value:
            self.value = value
            self._entered.set()
            await self._leaving.wait()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not self._leaving.is_set():
            how = str(self._broken("kept")) if self._outcome() is not None else f"{self._name} returned"
            self._on_lost(ProcessDied(f"{self._worker}: what its episodes share is gone: {how}"))

    def _outcome(self) -> BaseException | None:
        """Return what the ended task raised."""
        if self.task.cancelled():
            return asyncio.CancelledError()
        result = self.task.result()
        return result.error if isinstance(result, Raised) else None

    def _broken(self, what: str) -> EnvironmentBroken:
        error = self._outcome() or RuntimeError("it did not yield")
        raised = self._secrets.cleaned(UsersError.of(error))
        broken = EnvironmentBroken(f"{self._name} could not be {what}: it {raised.problem}{raised.where}", raised)
        broken.__cause__ = error
        return broken
