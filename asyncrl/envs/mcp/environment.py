"""The environment of an episode whose tools are those of an MCP server."""

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from asyncrl.core.messages import ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.mcp.schema_checks import SchemaChecks, schema_text
from asyncrl.envs.mcp.session import McpSession
from asyncrl.envs.mcp.sessions import Sessions
from asyncrl.envs.rewards.load import RewardFunction
from asyncrl.envs.signature import SchemaParameters
from asyncrl.envs.tool_marks import Marks
from asyncrl.envs.tools import Tool, ToolEnvironment


class McpTool(Tool):
    """A tool of a server."""

    def __init__(self, spec: ToolSpec, checks: SchemaChecks) -> None:
        self.name, self.spec = spec.name, spec
        self.parameters = SchemaParameters(spec)
        self.method = McpToolEnvironment.call
        self.marks = Marks()
        self._checks, self._schema = checks, schema_text(spec.parameters)

    async def converted(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check ``arguments`` by the server's schema; the server gets them as they are.

        Raises:
            msgspec.ValidationError: they do not fit.
        """
        if misfit := await self._checks.misfit(self._schema, arguments):
            raise msgspec.ValidationError(misfit)
        return arguments

    async def __call__(self, environment: Environment, arguments: Mapping[str, Any]) -> str:
        """Have the server run the tool."""
        assert isinstance(environment, McpToolEnvironment)
        return await environment.call(self.name, arguments)


class McpToolEnvironment(ToolEnvironment):
    """Passes calls on to a session with the server, and rewards the final answer by a function.

    A session that ends is an ``EnvironmentLost``: the episode is issued again.

    Args:
        reward: is called with the task and the answer.
    """

    def __init__(self, sessions: Sessions, reward: RewardFunction, system_prompt: str, tool_timeout_s: float) -> None:
        self._sessions, self._reward = sessions, reward
        self.system_prompt, self.tool_timeout_s = system_prompt, tool_timeout_s
        self._session: McpSession | None = None

    async def ready(self) -> None:
        """Wait for a session."""
        self._session = await self._sessions.take()
        self.tools = {spec.name: McpTool(spec, self._sessions.checks) for spec in self._session.tools}  # type: ignore[misc]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the server."""
        if self._session is None:
            raise RuntimeError("ready() comes before a call")
        return await self._session.call(name, arguments)

    def reward(self, task: Task, answer: str) -> float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]:
        """The reward that the recipe names."""
        return self._reward(task, answer)

    async def close(self) -> None:
        """Give the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._sessions.give_back(session)
