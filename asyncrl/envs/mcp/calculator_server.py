"""An MCP server with one tool, written with the SDK alone: ``python -m asyncrl.envs.mcp.calculator_server``.

Its tool looks to a model exactly like that of the built-in calculator, so that the tiny model, which is warmed up on that one,
can use it.
"""

import asyncio
import re
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

CALCULATOR = Tool(
    name="calculator",
    description="One operation on two integers: +, - or *.",
    input_schema={
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
)
_OPERATION = re.compile(r"\s*(-?[0-9]+)\s*([-+*])\s*(-?[0-9]+)\s*")
_OPERATORS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
    """Say which tools there are."""
    return ListToolsResult(tools=[CALCULATOR])


async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
    """Calculate."""
    expression = (params.arguments or {}).get("expression")
    operation = _OPERATION.fullmatch(expression) if isinstance(expression, str) else None
    if params.name != CALCULATOR.name or operation is None:
        return CallToolResult(content=[TextContent(text="not one operation on two integers")], is_error=True)
    left, operator, right = operation.groups()
    return CallToolResult(content=[TextContent(text=str(_OPERATORS[operator](int(left), int(right))))])


async def main() -> None:
    """Serve over standard input and output."""
    server: Server[Any] = Server("calculator", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
