"""A worker's processes for tools that are declared to run in one: their deadline kills them, whatever they do.

What always holds: there are at most ``most`` processes; a process runs one tool at a time; one that missed a deadline, or whose
call was cancelled, is killed with all of its process group and never used again. A process is started when a call finds none
free, by executing a new interpreter, never by forking the worker, which holds an engine's threads.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.text import describe_error
from asyncrl.envs.hosting.guarded_calls import Overdue
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.tool_messages import HEADER_BYTES, LARGEST_MESSAGE, Answer, Answered, Call, Failed, Load, Request, frame

START_S = 60.0
"""How long a process may take to start and to import an environment's module."""
MOST = 8
"""The most processes of one worker, if it has as many processors."""

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from asyncrl.envs.hosting.tool_process import main; main(int(sys.argv[1]))"
)


class ProcessEnded(Exception):
    """A process ended in the middle of a call, or sent something that is no answer; the text says how."""


class ToolProcesses:
    """The processes of one worker, for the tools of all its episodes. Used in one event loop.

    Args:
        worker: name of the worker, for errors.
        most: the most processes; calls that find them all busy wait, which does not count as time of the tool.
    """

    def __init__(self, worker: str, most: int | None = None) -> None:
        self._worker = worker
        self._room = asyncio.Semaphore(most or min(MOST, usable_cores()))
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    async def load(self, of: Load) -> None:
        """Load a class in a process, to see whether that works.

        Raises:
            EnvironmentBroken: it does not.
        """
        await self._with_process(of, None, START_S)

    async def call(self, of: Load, tool: str, arguments: Mapping[str, Any], seconds: float) -> Answer:
        """Run a tool, for at most ``seconds``.

        Raises:
            Overdue: it took longer, and was killed.
            ProcessEnded: it ended its process.
            EnvironmentBroken: no process could be started, or the class cannot be loaded in it.
        """
        return await self._with_process(of, Call(of, tool, dict(arguments)), seconds)

    def close(self) -> None:
        """Kill all processes."""
        self._closed = True
        for process in tuple(self._all):
            self._discard(process)

    async def _with_process(self, of: Load, call: Call | None, seconds: float) -> Answer:
        async with self._room:
            process = await self._free()
            try:
                if of not in process.loaded:
                    await self._load(process, of)
                answer = Answered() if call is None else await process.ask(call, seconds)
            except BaseException:
                self._discard(process)
                raise
            self._idle.append(process)
            return answer

    async def _free(self) -> "_Process":
        while self._idle:
            process = self._idle.pop()
            if process.lives():
                return process
            self._discard(process)
        if self._closed:
            raise EnvironmentBroken(f"{self._worker} runs no more tools: it is closed")
        try:
            process = await _Process.start()
        except OSError as error:
            remedy = "the machine may be out of processes or memory; lower generators.max_running"
            raise EnvironmentBroken(f"{self._worker} cannot start a process for a tool: {error}; {remedy}") from error
        self._all.add(process)
        return process

    async def _load(self, process: "_Process", of: Load) -> None:
        what = f"{of.module}:{of.name} cannot be loaded in a process of its own"
        try:
            answer = await process.ask(of, START_S)
        except (Overdue, ProcessEnded) as error:
            problem = f"importing it takes longer than {START_S:g} s" if isinstance(error, Overdue) else str(error)
            raise EnvironmentBroken(f"{what}: {problem}; its tools with process=True need that") from error
        if isinstance(answer, Failed):
            error_of_module = answer.error
            remedy = "put it into a module that can be imported without side effects"
            raise EnvironmentBroken(f"{what}: {error_of_module.problem}{error_of_module.where}; {remedy}", error_of_module)
        process.loaded.add(of)

    def _discard(self, process: "_Process") -> None:
        self._all.discard(process)
        process.kill()


class _Process:
    """One process, and the connection to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.loaded: set[Load] = set()

    @classmethod
    async def start(cls) -> "_Process":
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno()), json.dumps(sys.path)]

        def execute() -> "subprocess.Popen[bytes]":
            # Closed by this thread, which goes on if nobody waits for it any more: its number must not become another file's.
            with theirs:
                # A session of its own, so that its process group can be killed without ours.
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True)

        try:
            process = await run_in_daemon_thread(execute, name="starting a process for tools")
        except BaseException:
            ours.close()  # by which the process ends, if it is still started
            raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=LARGEST_MESSAGE)
        return cls(process, reader, writer)

    def lives(self) -> bool:
        return self._how_it_ended(os.WNOHANG) is None

    def _how_it_ended(self, options: int) -> "os.waitid_result | None":
        # It is left unreaped: its id, which is also that of its group, is not given to another process before kill().
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options)

    async def ask(self, request: Request, seconds: float) -> Answer:
        """Raises ``Overdue`` and ``ProcessEnded``."""
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                self._writer.write(frame(request))
                await self._writer.drain()
                size = int.from_bytes(await self._reader.readexactly(HEADER_BYTES))
                if size > LARGEST_MESSAGE:
                    raise ProcessEnded(f"its process sent a message of {size:,} bytes")
                answer: Answer = msgspec.json.decode(await self._reader.readexactly(size), type=Answer)
                return answer
        except TimeoutError as error:
            if scope.expired():
                raise Overdue(seconds) from error
            raise
        except (EOFError, OSError) as error:
            raise ProcessEnded(await self._why_ended()) from error
        except msgspec.MsgspecError as error:
            raise ProcessEnded(f"its process sent what is no answer: {describe_error(error)}") from error

    async def _why_ended(self) -> str:
        try:
            ended = await asyncio.wait_for(run_in_daemon_thread(lambda: self._how_it_ended(0), name="a tool's end"), 1.0)
        except TimeoutError:
            return "its process closed its connection"
        assert ended is not None
        how = "exited with code" if ended.si_code == os.CLD_EXITED else "was killed by signal"
        return f"its process {how} {ended.si_status}"

    def kill(self) -> None:
        """Kill the process and its group. Does not wait."""
        self._writer.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
            os.killpg(self._process.pid, signal.SIGKILL)
        threading.Thread(target=self._process.wait, name="reaping a tool's process", daemon=True).start()
