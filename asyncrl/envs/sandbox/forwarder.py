"""Brings the one port that an agent may reach into a network of its own, and then becomes the agent.

It is run as a file within the sandbox, and imports the standard library alone. What always holds: the port is there before the
agent begins; each connection to it is one to the socket in a file, which is all that leads out of the network.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

NOT_FOUND = 127
"""Exit status if there is no such command, as a shell has it."""
_CHUNK = 1 << 16


def main(arguments: list[str]) -> None:
    """Listen at the port, and execute the command; a process beside it forwards.

    Args:
        arguments: the socket's file, the port, and the command.
    """
    file, port, *command = arguments
    listening = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    if os.fork() == 0:
        try:
            if os.fork() == 0:
                asyncio.run(_forward(listening, file))
        finally:
            os._exit(0)
    os.wait()  # the forwarder has another parent: a command that waits for all its children has none that it does not know
    listening.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.exit(NOT_FOUND)


async def _forward(listening: socket.socket, file: str) -> None:
    """Forward for ever: the sandbox ends with the agent."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            outside, to_outside = await asyncio.open_unix_connection(file)
        except OSError:  # nobody listens any more: the client hears the same
            writer.transport.abort()
            return
        await asyncio.gather(_copy(reader, to_outside), _copy(outside, writer))

    await (await asyncio.start_server(connected, sock=listening)).serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection until its end, or until the other side has lost it."""
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        writer.transport.abort()


if __name__ == "__main__":
    main(sys.argv[1:])
