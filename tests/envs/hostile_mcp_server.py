"""An MCP server whose schemas are made to harm whoever reads them, written with the SDK alone. An empty cursor ends its list."""

import asyncio
import sys
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

BOMB = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
TOOLS = [
    Tool(name="bomb", description="Its result is checked for ever.", input_schema={"type": "object"}, output_schema=BOMB),
    Tool(
        name="remote",
        description="Its arguments are described elsewhere.",
        input_schema={"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:1/s.json"}}},
    ),
]


async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=TOOLS, next_cursor="more" if "endless" in sys.argv else "")


async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
    said = "a" * 60 + "!"
    return CallToolResult(content=[TextContent(text=said)], structured_content={"x": said})


async def main() -> None:
    server: Server[Any] = Server("hostile", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
