"""A process that runs tools for a worker: what it is asked, what it answers, and its main loop.

What always holds: it runs one tool at a time; a tool's answer is plain data, never a pickle, so that what an untrusted tool
sends is only read; and when the worker is gone, so are this process and all that the tool has started in its process group.
"""

import asyncio
import importlib
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.process.standard_streams import logged_stream
from asyncrl.envs.tool_results import is_pending, settled, text_of_result

HEADER_BYTES = 4
LARGEST_MESSAGE = 64 << 20
"""The most bytes of one message."""


class Load(msgspec.Struct, frozen=True, tag=True):
    """Import an environment's class."""

    module: str
    name: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """Run a tool of a class that was loaded."""

    of: Load
    tool: str
    arguments: dict[str, Any]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """What was asked is done; ``text`` is what the tool returned."""

    text: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The tool raised ``ToolError``."""

    problem: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The class could not be loaded, or the tool raised anything else."""

    error: UsersError


Request = Load | Call
Answer = Answered | Refused | Failed


def frame(message: Request | Answer) -> bytes:
    """Return the bytes of a message on its way: its length and its JSON."""
    body = msgspec.json.encode(message)
    if len(body) > LARGEST_MESSAGE:
        raise ValueError(f"{len(body):,} bytes are more than the {LARGEST_MESSAGE:,} that a message may have")
    return len(body).to_bytes(HEADER_BYTES) + body


def find_class(load: Load) -> Any:
    """Import a class by its module and its qualified name."""
    found: Any = importlib.import_module(load.module)
    for part in load.name.split("."):
        found = getattr(found, part)
    return found


def main(descriptor: int) -> None:
    """Answer the requests that come over the socket, until the worker closes it."""
    sys.stdout, sys.stderr = logged_stream(1), logged_stream(2)  # the worker's log
    connection = socket.socket(fileno=descriptor)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, requests), name="reading requests", daemon=True).start()
    classes: dict[Load, Any] = {}
    while True:
        request = msgspec.json.decode(requests.get(), type=Request)
        try:
            answer = frame(_answer(request, classes))
        except (ValueError, TypeError, UnicodeEncodeError, RecursionError, OverflowError) as error:
            answer = frame(Refused(f"its answer cannot be sent: {error}"))
        connection.sendall(answer)


def _answer(request: Request, classes: dict[Load, Any]) -> Answer:
    from asyncrl.envs.tools import ToolError  # late: that module imports this one

    method = None
    try:
        if isinstance(request, Load):
            classes[request] = find_class(request)
            return Answered()
        tool = classes[request.of].tools[request.tool]
        method = tool.method
        return Answered(_run(tool, request.arguments))
    except ToolError as error:
        return Refused(str(error))
    except BaseException as error:  # noqa: BLE001 - told to the worker, also a SystemExit
        return Failed(UsersError.of(error, method))


def _run(tool: Any, arguments: Mapping[str, Any]) -> str:
    returned = tool.method(**tool.parameters.convert(arguments))
    if is_pending(returned):
        returned = asyncio.run(settled(returned))
    return text_of_result(tool.method, returned)


def _read(connection: socket.socket, requests: "queue.SimpleQueue[bytes]") -> None:
    """Queue what comes; when nothing more can come, end this process and its group, whatever they do."""
    with connection.dup().makefile("rb") as stream:
        while len(header := stream.read(HEADER_BYTES)) == HEADER_BYTES:
            requests.put(stream.read(int.from_bytes(header)))
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
