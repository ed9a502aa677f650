"""Functions of our own that run in a worker's processes for tools, because what they are given may keep them for ever.

What always holds: a call ends at its deadline, whatever it does, and blocks no event loop.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.envs.hosting.tool_messages import Answered, Load, Refused, ToolError
from asyncrl.envs.hosting.tool_processes import ToolProcesses
from asyncrl.envs.signature import Parameters


class _Function:
    """One function, as a process looks for it."""

    def __init__(self, name: str, method: Callable[..., str]) -> None:
        self.method, self.parameters = method, Parameters(method, name, is_static=True)


class ProcessFunctions:
    """Typed static methods that return text. A process finds them as it finds the tools of an environment."""

    tools: ClassVar[Mapping[str, _Function]] = {}

    def __init_subclass__(cls) -> None:
        static = {name: value.__func__ for name, value in vars(cls).items() if isinstance(value, staticmethod)}
        cls.tools = {name: _Function(name, function) for name, function in static.items()}

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
