"""An MCP server for the tests, written with the SDK alone: by standard streams, or `http` and a port for streamable HTTP."""

import asyncio
import os
import sys

import mcp.types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

server = MCPServer("tests")
held = asyncio.Event()
waiting = 0
notes: list[str] = []


@server.tool()
async def echo(text: str, seconds: float = 0.0) -> str:
    """Say it again."""
    await asyncio.sleep(seconds)
    return text


@server.tool()
async def hold(until: int) -> int:
    """Answer when so many calls wait."""
    global waiting
    waiting += 1
    if waiting >= until:
        held.set()
    await held.wait()
    return waiting


@server.tool()
async def note(text: str) -> list[str]:
    """Keep a note for the whole session."""
    notes.append(text)
    return notes


@server.tool()
async def fail(text: str) -> str:
    """Fail."""
    raise ToolError(text)


@server.tool()
async def picture() -> mcp.types.ImageContent:
    """Return what is not text."""
    return mcp.types.ImageContent(type="image", data="aGk=", mime_type="image/png")


@server.tool()
async def variable(name: str) -> str:
    """Read an environment variable."""
    return os.environ.get(name, "not set")


@server.tool()
async def change(context: Context, drop: str, add: str, times: int = 1) -> str:  # type: ignore[type-arg]
    """Change the tools, and tell of it in the way of each protocol, so many times."""
    if drop:
        server.remove_tool(drop)
    if add:
        server.add_tool(echo, name=add)
    for _ in range(times):
        await context.notify_tools_changed()
        if context.session.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            await context.session.send_tool_list_changed()
    return "changed"


@server.tool()
async def die() -> str:
    """End the process."""
    print("dying now", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        print("hello from the server", file=sys.stderr, flush=True)
        server.run("stdio")
