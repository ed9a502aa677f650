"""An MCP server with one tool, written with the SDK alone: ``python -m asyncrl.envs.mcp.calculator_server``."""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from asyncrl.envs.calculator import calculate
from asyncrl.envs.tools import ToolError as WrongExpression

server = MCPServer("calculator")


@server.tool()
async def calculator(expression: str) -> str:
    """One operation on two integers: +, - or *."""
    try:
        return str(calculate(expression))
    except WrongExpression as error:
        raise ToolError(str(error)) from error  # the text of any other error stays here


if __name__ == "__main__":
    server.run("stdio")
