"""Starts a process by which an agent plays an episode, and waits for its end.

What always holds: nothing of the process is there any more when the wait is over, or the error says so.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.envs.played_by_agent import AGENT_ENDS_WITHIN_S

ENDED_WITHIN_S = 10.0
"""Seconds after which processes that are killed must be gone."""
MOST_OUTPUT = 1 << 20
"""Bytes of an agent's standard output that are read."""
TOLD_OUTPUT = 2000
"""Characters of standard error that are shown where an agent failed."""
_REMEDY = "look what its processes wait for, such as a file system that does not answer"
_KEEP = (
    "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
    "from asyncrl.envs.agent.command_keeper import main; sys.exit(main(sys.argv[1:]))"
)
"""Runs the keeper, whatever environment variables the agent has."""


class AgentProcess(Protocol):
    """A process that plays an episode."""

    async def ended(self) -> "Ended":
        """Wait for its end, and that of all that it started."""
        ...

    def end(self) -> None:
        """Have it killed, with all that it started."""
        ...


class Ended(msgspec.Struct, frozen=True):
    """How an agent's process ended.

    Attributes:
        status: its exit status, as a shell tells it.
        output: the beginning of its standard output.
        errors: the end of its standard error.
    """

    status: int
    output: str
    errors: str


async def until_ended(process: AgentProcess, limited: "asyncio.Future[Any]", what: str, seconds: float | None = None) -> Ended:
    """Wait for the end of a process that plays an episode.

    Args:
        limited: is done if the episode reaches a limit. The process then has :data:`AGENT_ENDS_WITHIN_S` to end by itself.
        what: names it in errors.
        seconds: after which it is killed.

    Raises:
        EnvironmentBroken: it was killed, and did not end.
    """
    ending = asyncio.create_task(process.ended(), name=f"waiting for the end of {what}")
    try:
        either: set[asyncio.Future[Any]] = {ending, limited}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if limited.done():
            await asyncio.wait({ending}, timeout=AGENT_ENDS_WITHIN_S)
    finally:
        if not ending.done():
            process.end()
            await asyncio.wait({ending}, timeout=ENDED_WITHIN_S)
        if not ending.done():
            ending.cancel()
            raise EnvironmentBroken(f"{what} was killed, and has not ended within {ENDED_WITHIN_S:g} s; {_REMEDY}")
    return ending.result()


class CommandProcess:
    """A command that plays an episode, in a process of its own, whose streams are pipes or those of this process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], room: Path, variables: Mapping[str, str]) -> "CommandProcess":
        """Start the command in the folder ``room``, with ``variables`` alone."""
        none, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        return cls(await kept(command, room, variables, none, pipe, pipe))

    async def ended(self) -> Ended:
        """Wait for its end, and that of all that it started."""
        output, errors, status = await asyncio.gather(
            first_of(self._process.stdout), last_of(self._process.stderr), self._process.wait()
        )
        return Ended(status, output, errors)

    def end(self) -> None:
        """Have it killed, with all that it started."""
        with suppress(ProcessLookupError):
            self._process.terminate()


async def kept(
    command: Sequence[str],
    room: Path,
    variables: Mapping[str, str],
    stdin: int,
    stdout: int | None = None,
    stderr: int | None = None,
) -> asyncio.subprocess.Process:
    """Start a command under its keeper; what it prints goes where ours does, unless it is said where."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _KEEP, os.pathsep.join(sys.path), str(os.getpid())),
        *command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=room,
        env=variables,
        start_new_session=True,
    )


@asynccontextmanager
async def kept_server(
    command: Sequence[str], variables: Mapping[str, str]
) -> AsyncIterator[tuple[socket.socket, asyncio.subprocess.Process]]:
    """Run a command whose standard input is a socket of packets; yields the other end. All of it has ended after the context."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.setblocking(False)
        with theirs:
            none, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
            process = await kept(command, Path.cwd(), variables, theirs.fileno(), none, pipe)
        try:
            yield ours, process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(ENDED_WITHIN_S):
                    await process.wait()
            except TimeoutError as late:
                problem = f"{command[0]} was told to end, and has not ended within {ENDED_WITHIN_S:g} s"
                raise EnvironmentBroken(f"{problem}; {_REMEDY}") from late


async def first_of(stream: asyncio.StreamReader | None) -> str:
    """Read a stream to its end; returns its beginning, which is empty if it is no pipe."""
    kept = bytearray()
    while part := b"" if stream is None else await stream.read(1 << 16):
        kept += part[: MOST_OUTPUT - len(kept)]
    return kept.decode(errors="replace")


async def last_of(stream: asyncio.StreamReader | None) -> str:
    """Read a stream to its end; returns its end, which is empty if it is no pipe."""
    kept = bytearray()
    while part := b"" if stream is None else await stream.read(1 << 16):
        kept = (kept + part)[-4 * TOLD_OUTPUT :]
    return kept.decode(errors="replace")
