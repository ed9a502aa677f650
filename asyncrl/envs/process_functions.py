"""Functions of our own that run in a worker's processes for tools, because what they are given may keep them for ever.

What always holds: a call ends at its deadline, whatever it does, and blocks no event loop.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.envs.tool_marks import marked_methods
from asyncrl.envs.tool_process import Answered, Load, Refused
from asyncrl.envs.tool_processes import ToolProcesses
from asyncrl.envs.tools import Tool, ToolError


class ProcessFunctions:
    """Static methods marked by ``@tool(process=True)``, which a process finds as it finds the tools of an environment."""

    tools: ClassVar[Mapping[str, Tool]] = {}

    def __init_subclass__(cls) -> None:
        cls.tools = {marked.name: Tool(marked) for marked in marked_methods(cls, reserved=frozenset())}

    @classmethod
    async def call(cls, processes: ToolProcesses, name: str, arguments: Mapping[str, Any], seconds: float) -> str:
        """Call a function in a process, and return its text.

        Raises:
            ToolError: the function raised it.
            Overdue: it took longer than ``seconds``, and was killed.
            ProcessEnded: it ended its process.
            EnvironmentBroken: it raised anything else, or no process could be started.
        """
        answer = await processes.call(Load(cls.__module__, cls.__qualname__), name, arguments, seconds)
        match answer:
            case Answered():
                return answer.text
            case Refused():
                raise ToolError(answer.problem)
            case _:
                raise EnvironmentBroken(f"{name} {answer.error.problem}{answer.error.where}", answer.error)
