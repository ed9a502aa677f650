"""A process that runs tools for a worker: its main loop.

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
from asyncrl.envs.hosting.tool_messages import HEADER_BYTES, Answer, Answered, Failed, Load, Refused, Request, ToolError, frame
from asyncrl.envs.tool_results import is_pending, settled, text_of_result


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
