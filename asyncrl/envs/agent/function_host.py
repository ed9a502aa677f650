"""The worker's side of :mod:`asyncrl.envs.agent.host`, which has imported the agent's function, and forks for each episode.

What always holds: each episode that was started ends, or is lost with the host; if the host ends by itself, so does its context.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, first_error
from asyncrl.envs.agent import host
from asyncrl.envs.agent.agent_process import TOLD_OUTPUT, Ended, first_of, kept_server, last_of
from asyncrl.envs.sandbox import processes

_LARGEST_MESSAGE = 1 << 17


class FunctionHost:
    """Starts episodes in a host that has imported the function.

    Attributes:
        remarks: what importing the function's module has done that episodes will miss.
    """

    def __init__(self, control: socket.socket, function: str, remarks: Sequence[str]) -> None:
        self._control = control
        self.remarks = tuple(f"{function}: {remark}" for remark in remarks)
        self._outbox: asyncio.Queue[tuple[bytes, tuple[int, ...]]] = asyncio.Queue()
        self._playing: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._lost: EnvironmentLost | None = None

    async def play(self, task: Path, folder: Path, variables: Mapping[str, str]) -> "FunctionProcess":
        """Start an episode.

        Args:
            task: the task's file.
            folder: the episode's working directory.
            variables: environment variables beside those that the host has.

        Raises:
            EnvironmentLost: the host has ended.
        """
        if self._lost is not None:
            raise self._lost
        self._next += 1
        number = self._next
        (output, ours_output), (errors, ours_errors) = await _pipe(), await _pipe()
        message = {"play": number, "task": str(task), "folder": str(folder), "variables": variables}
        status = self._playing[number] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait((msgspec.json.encode(message), (ours_output, ours_errors)))
        return FunctionProcess(self, number, status, (output, errors))

    def end(self, number: int) -> None:
        """Have an episode killed."""
        self._outbox.put_nowait((msgspec.json.encode({"end": number}), ()))

    async def send(self) -> None:
        """Send what is to be sent, for ever."""
        while True:
            message, descriptors = await self._outbox.get()
            await _writable(self._control)
            socket.send_fds(self._control, [message], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    async def listen(self) -> None:
        """Hear of the ends of episodes, until the host has ended."""
        loop = asyncio.get_running_loop()
        while packet := await loop.sock_recv(self._control, _LARGEST_MESSAGE):
            message = msgspec.json.decode(packet)
            status = self._playing.pop(message["ended"])
            if not status.done():  # else it was killed, and nobody waits any longer
                status.set_result(message["status"])

    def lose(self, problem: str) -> None:
        """Tell all episodes that the host is gone."""
        self._lost = EnvironmentLost(problem, uuid.uuid4().hex)
        for status in self._playing.values():
            if not status.done():
                status.set_exception(self._lost)
        while not self._outbox.empty():
            for descriptor in self._outbox.get_nowait()[1]:
                os.close(descriptor)


class FunctionProcess:
    """A call of the function, in a process of its own."""

    def __init__(
        self,
        host: FunctionHost,
        number: int,
        status: "asyncio.Future[int]",
        output_and_errors: tuple[asyncio.StreamReader, asyncio.StreamReader],
    ) -> None:
        self._host, self._number, self._status = host, number, status
        self._output, self._errors = output_and_errors

    async def ended(self) -> Ended:
        """Wait for its end, and that of all that it started.

        Raises:
            EnvironmentLost: the host has ended.
        """
        output, errors, status = await asyncio.gather(first_of(self._output), last_of(self._errors), self._status)
        return Ended(status, output, errors)

    def end(self) -> None:
        """Have it killed, with all that it started."""
        self._host.end(self._number)


@asynccontextmanager
async def function_host(
    function: str, interpreter: str, folders: Sequence[str], variables: Mapping[str, str]
) -> AsyncIterator[FunctionHost]:
    """Run a host; its context ends by itself if the host does.

    Args:
        function: ``module:function``.
        interpreter: the Python that runs it.
        folders: where modules are searched for, after the interpreter's own path.
        variables: all environment variables of the host.

    Raises:
        EnvironmentBroken: there is no such function, its module cannot be imported, or the host ended.
    """
    files = (str(Path(module.__file__ or "")) for module in (host, processes))
    host_file, processes_file = files
    command = (interpreter, host_file, processes_file, function, *folders)
    async with kept_server(command, variables) as (control, process):
        assert process.stderr is not None
        errors = asyncio.create_task(last_of(process.stderr), name="reading what the host of an agent's function says")
        loop = asyncio.get_running_loop()
        try:
            packet = await loop.sock_recv(control, _LARGEST_MESSAGE)
            if not packet:
                raise EnvironmentBroken(f"{function} cannot be imported: {(await errors).strip()[-TOLD_OUTPUT:]}")
            made = FunctionHost(control, function, msgspec.json.decode(packet)["ready"])
            try:
                with first_error():
                    async with asyncio.TaskGroup() as group:
                        helpers = [group.create_task(made.send()), group.create_task(_lost_if_ended(made, errors, function))]
                        yield made
                        for helper in helpers:
                            helper.cancel()
            finally:
                made.lose(f"the process that runs {function} is being ended")
        finally:
            errors.cancel()


async def _lost_if_ended(made: FunctionHost, errors: "asyncio.Task[str]", function: str) -> None:
    await made.listen()
    told = (await errors).strip()[-TOLD_OUTPUT:]
    problem = f"the process that runs {function} has ended{f': {told}' if told else ', without a word'}"
    made.lose(problem)
    raise EnvironmentBroken(problem)


async def _pipe() -> tuple[asyncio.StreamReader, int]:
    """Return a reader, and the descriptor whose writing end it reads."""
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()

    def protocol() -> Any:
        return asyncio.StreamReaderProtocol(reader)

    await asyncio.get_running_loop().connect_read_pipe(protocol, os.fdopen(reading, "rb", 0))
    return reader, writing


async def _writable(control: socket.socket) -> None:
    """Wait until a packet can be sent."""
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(control, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(control)
