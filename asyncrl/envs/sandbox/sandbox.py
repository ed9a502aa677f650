"""The sandbox that environments use: an async client of one supervisor process, which is started when it is first needed.

What always holds: a run that returns has left no process behind; what the command does wrong is a :class:`Finished`, and what
the sandbox does wrong is an :class:`EnvironmentBroken`, so it never becomes a reward.
"""

import asyncio
import logging
import os
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.workspaces import Workspaces, remove_after_episode
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import (
    LENGTH_BYTES,
    REPLIES,
    AgentsPart,
    BackendName,
    Broken,
    Choice,
    Finished,
    Ready,
    Reply,
    Request,
    Start,
    Stop,
    Unusable,
    framed,
    length_of,
)
from asyncrl.envs.sandbox.processes import kill_below

logger = logging.getLogger(__name__)

STARTED_WITHIN_S = 60.0
"""Seconds in which the supervisor must have tried its backends."""
STOPPED_WITHIN_S = 0.8
"""Seconds for which a cancelled run waits until its processes are gone."""
REPORTED_WITHIN_S = 20.0
"""Seconds after a run's deadline in which the supervisor must have reported."""
LONGEST_ARGUMENT = 100_000
"""Bytes of one argument; Linux takes 128 KiB."""
ROOM_WITHIN_S = 120.0
"""Seconds that a run may wait for others before it."""
_RUNS_AT_ONCE = 4 * usable_cores()
_NO_CONFINEMENT = (
    "sandbox: none: commands of the model run with your rights, your files and your network; "
    "choose `auto` unless this machine holds nothing of value"
)


class Use(msgspec.Struct, frozen=True):
    """What a sandbox is for.

    Attributes:
        auto: the backends of which the first is taken that works here, if the recipe names none.
        key: the recipe's key of the choice.
        otherwise: what to do where no backend can be had.
    """

    auto: tuple[BackendName, ...]
    key: str
    otherwise: str


FOR_TOOLS = Use(
    (BackendName.SANDLOCK, BackendName.BUBBLEWRAP),
    "environment.options.sandbox",
    "set `sandbox: none` to let the model's commands do whatever you may do",
)


class Sandbox:
    """Runs commands, each confined to one folder.

    Used as ``async with Sandbox(Choice.AUTO) as sandbox``, which starts the supervisor and ends it with everything it runs.

    Args:
        choice: which backend to use.
        use: what it is for.

    Attributes:
        backend: the backend in use; known once the sandbox has been entered.
    """

    backend: BackendName

    def __init__(self, choice: Choice = Choice.AUTO, use: Use = FOR_TOOLS) -> None:
        self._choice, self._use = choice, use
        self._supervisor: _Supervisor | None = None
        self._folders: Workspaces | None = None
        self._starting = asyncio.Lock()
        self._running = asyncio.Semaphore(_RUNS_AT_ONCE)

    async def __aenter__(self) -> "Sandbox":
        """Start the supervisor.

        Raises:
            RecipeError: no backend of the choice works here; says what is missing for each.
        """
        started = await self._alive()
        self.backend = started.ready.backend
        if self.backend is BackendName.NONE:
            logger.warning(_NO_CONFINEMENT)
        else:
            logger.info("sandbox: %s%s", self.backend, "".join(f" (not {why})" for why in started.ready.passed_over))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the supervisor and all runs, and remove the folders that were made."""
        if self._supervisor is not None:
            await self._supervisor.close()
        if self._folders is not None:
            await run_in_daemon_thread(self._folders.close, name="removing folders of the sandbox")

    async def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        stdin: bytes = b"",
        readable: Sequence[Path] = (),
    ) -> Finished:
        """Run ``command`` in ``folder``, the only one it may write to.

        Args:
            command: program and arguments; see :func:`problem_of` for what arguments may be.
            stdin: what the command reads from its standard input.
            readable: folders that it may read, besides ``folder`` and the system's programs and libraries.

        Raises:
            EnvironmentBroken: the sandbox failed, not the command.
        """
        async with self._room():
            supervisor = await self._alive()
            return await supervisor.run(_request(command, folder, readable, limits, stdin))

    async def play(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        readable: Sequence[Path],
        agent: AgentsPart,
        stopped: "asyncio.Future[None]",
    ) -> Finished:
        """Run the command of an agent in ``folder``, however many others run.

        Args:
            stopped: is done when it is to be ended.

        Raises:
            EnvironmentBroken: the sandbox failed, not the command.
        """
        supervisor = await self._alive()
        return await supervisor.run(_request(command, folder, readable, limits, agent=agent), stopped)

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """Make an empty folder for runs that have none, and remove it afterwards, even after a kill.

        Raises:
            ComponentFailed: there is no room for it.
        """
        async with self._starting:
            if self._folders is None:
                self._folders = await run_in_daemon_thread(partial(Workspaces, "sandbox"), name="making room for the sandbox")
        folder = self._folders.next()
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            await remove_after_episode(folder)

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """Wait until fewer runs than there is room for are under way."""
        try:
            async with asyncio.timeout(ROOM_WITHIN_S):
                await self._running.acquire()
        except TimeoutError:
            problem = f"a run waited {ROOM_WITHIN_S:g} s for the {_RUNS_AT_ONCE} before it in the sandbox"
            raise EnvironmentBroken(f"{problem}; lower generators.max_running, or the limits of a run") from None
        try:
            yield
        finally:
            self._running.release()

    async def _alive(self) -> "_Supervisor":
        """The supervisor: a new one if there is none yet, or if the last one died."""
        async with self._starting:
            if self._supervisor is None or self._supervisor.lost is not None:
                self._supervisor = await _Supervisor.start(self._choice, self._use)
            return self._supervisor


def problem_of(argument: str) -> str | None:
    """Say why a text cannot be an argument of a command; None if it can."""
    if "\0" in argument:
        return "it contains a NUL character"
    try:
        size = len(argument.encode())
    except UnicodeEncodeError as error:
        return f"it contains a character that is not text: {error.object[error.start : error.end]!a}"
    return f"it is longer than {LONGEST_ARGUMENT} bytes" if size > LONGEST_ARGUMENT else None


def _request(
    command: Sequence[str],
    folder: Path,
    readable: Sequence[Path],
    limits: Limits,
    stdin: bytes = b"",
    agent: AgentsPart | None = None,
) -> Start:
    """Return the request of a run that has no number yet."""
    paths = [str(each.resolve()) for each in readable]
    if agent:  # whose command may name them by links
        paths = list(dict.fromkeys([*paths, *map(str, readable)]))
    return Start(0, tuple(command), str(folder.resolve()), tuple(paths), stdin, limits, agent)


class _Lost(Exception):
    """The supervisor process can no longer be talked to; the text says why."""


class _Supervisor:
    """The supervisor process as its client sees it.

    Attributes:
        ready: its first message.
        lost: why it can no longer be used; None as long as it can.
    """

    def __init__(self, process: asyncio.subprocess.Process, ready: Ready) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.ready = ready
        self.lost: str | None = None
        self._process, self._requests, self._replies = process, process.stdin, process.stdout
        self._last = 0
        self._waiting: dict[int, asyncio.Future[Finished | Broken]] = {}
        self._reading = asyncio.create_task(self._read(), name="replies of the sandbox's supervisor")

    @classmethod
    async def start(cls, choice: Choice, use: Use) -> "_Supervisor":
        """Start the process, and wait until it has found a backend."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "asyncrl.envs.sandbox.supervisor"),
            *choice.backends(use.auto),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that the terminal's Ctrl-C does not reach it
        )
        assert process.stdout is not None
        first: Reply | None = None
        try:
            async with asyncio.timeout(STARTED_WITHIN_S):
                first = await _receive(process.stdout)
        except (_Lost, TimeoutError) as error:
            how = str(error) if isinstance(error, _Lost) else f"it has not tried its backends within {STARTED_WITHIN_S:g} s"
            raise EnvironmentBroken(f"the sandbox's supervisor process: {how}; its last words are in the log") from error
        finally:
            if not isinstance(first, Ready):
                await _end(process)
        if isinstance(first, Unusable):
            raise RecipeError(
                use.key, f"`{choice}` cannot be had here ({'; '.join(first.missing)})", f"{_REMEDY}, or {use.otherwise}"
            )
        assert isinstance(first, Ready)
        return cls(process, first)

    async def run(self, start: Start, stopped: "asyncio.Future[None] | None" = None) -> Finished:
        """Run the command of ``start``, which is given a number, and wait for its end.

        If ``stopped`` is done or the caller is cancelled, the run is ended first.
        """
        self._last += 1
        number, limits = self._last, start.limits
        reply: asyncio.Future[Finished | Broken] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply

        def stop(_: object) -> None:
            if not reply.done():
                self._send(Stop(number))

        try:
            self._send(msgspec.structs.replace(start, run=number))
            if stopped is not None:
                stopped.add_done_callback(stop)
            seconds = limits.wall_s + REPORTED_WITHIN_S
            await asyncio.wait({reply}, timeout=seconds)
            if not reply.done():
                self.lost = f"the supervisor process has not reported a run within {seconds:g} s"
                await self._kill()
                raise EnvironmentBroken(f"the sandbox failed: {self.lost}; it was killed with all its runs")
            ended = reply.result()
        except asyncio.CancelledError:
            self._send(Stop(number))
            await asyncio.wait({reply}, timeout=STOPPED_WITHIN_S)
            raise
        finally:
            del self._waiting[number]
            if stopped is not None:
                stopped.remove_done_callback(stop)
        if isinstance(ended, Broken):
            raise EnvironmentBroken(f"the sandbox failed: {ended.problem}")
        return ended

    async def close(self) -> None:
        """End all runs and the process."""
        self._requests.close()
        try:
            async with asyncio.timeout(REPORTED_WITHIN_S):
                await self._reading
                await self._process.wait()
        except TimeoutError:
            logger.warning("the sandbox's supervisor process did not end within %g s and is killed", REPORTED_WITHIN_S)
            await self._kill()

    async def _kill(self) -> None:
        """Kill the process and everything below it, also if none of them gets a processor any more."""
        if self._process.returncode is not None:
            return
        left = await run_in_daemon_thread(partial(kill_below, self._process.pid), name="killing runs of the sandbox")
        if left:
            logger.warning("processes %s of the sandbox are left behind: they did not end when they were killed", left)
        with suppress(ProcessLookupError):  # it has ended
            self._process.kill()

    def _send(self, request: Request) -> None:
        self._requests.write(framed(request))

    async def _read(self) -> None:
        """Hand each reply to the run that waits for it; at the end, whatever it is, tell those that still wait."""
        try:
            while True:
                reply = await _receive(self._replies)
                if isinstance(reply, Finished | Broken) and reply.run in self._waiting and not self._waiting[reply.run].done():
                    self._waiting[reply.run].set_result(reply)
        except _Lost as lost:
            self.lost = self.lost or str(lost)
            await self._kill()
            for number, waiting in self._waiting.items():
                if not waiting.done():
                    waiting.set_result(Broken(number, self.lost))


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with suppress(ProcessLookupError):  # it has ended
        process.kill()
    await process.wait()


async def _receive(stream: asyncio.StreamReader) -> Reply:
    """The next message.

    Raises:
        _Lost: there is none any more, or it cannot be read.
    """
    try:
        return REPLIES.decode(await stream.readexactly(length_of(await stream.readexactly(LENGTH_BYTES))))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise _Lost("the supervisor process ended") from error
    except (msgspec.MsgspecError, struct.error) as error:
        raise _Lost(f"the supervisor process sent what is no reply: {error}") from error


_REMEDY = "install sandlock (pip install 'asyncrl[sandbox]'; Linux 6.12 or later) or bubblewrap (apt-get install bubblewrap)"
