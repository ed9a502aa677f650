"""The environment of an episode whose tools are those of an MCP server."""

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from asyncrl.core.messages import ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.mcp.session import McpSession
from asyncrl.envs.mcp.sessions import Sessions
from asyncrl.envs.rewards.load import RewardFunction
from asyncrl.envs.signature import Parameters
from asyncrl.envs.tools import Tool, ToolEnvironment


class SchemaParameters(Parameters):
    """Parameters that a server describes by a JSON schema."""

    def __init__(self, spec: ToolSpec) -> None:
        self.schema = spec.parameters
        properties = spec.parameters.get("properties", {})
        required = spec.parameters.get("required", [])
        self.names = tuple(properties)
        shown = (f"{name}{'' if name in required else '?'}: {_type(schema)}" for name, schema in properties.items())
        self.usage = f"{spec.name}({', '.join(shown)})"
        self._validator: Validator = validator_for(self.schema)(self.schema)

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check ``arguments``, which the server gets as they are.

        Raises:
            msgspec.ValidationError: they do not fit the schema.
        """
        error = best_match(self._validator.iter_errors(dict(arguments)))
        if error is not None:
            place = "".join(f"[{part!r}]" for part in error.absolute_path)
            raise msgspec.ValidationError(f"{error.message[:300]}{f' at {place}' if place else ''}")
        return dict(arguments)


def _type(schema: object) -> str:
    kind = schema.get("type", "any") if isinstance(schema, dict) else "any"
    return kind if isinstance(kind, str) else " or ".join(map(str, kind))


def check_schema(spec: ToolSpec) -> str:
    """Return what is wrong with a tool's schema; empty if nothing is."""
    if spec.parameters.get("type") != "object":
        return f"the schema of tool {spec.name} is not of type object"
    try:
        validator_for(spec.parameters).check_schema(spec.parameters)
    except SchemaError as error:
        return f"the schema of tool {spec.name} is wrong: {error.message}"
    return ""


class McpTool(Tool):
    """A tool of a server."""

    def __init__(self, spec: ToolSpec) -> None:
        self.name, self.spec = spec.name, spec
        self.parameters = SchemaParameters(spec)
        self.method = McpToolEnvironment.call
        self.timeout_s = self.max_calls = None
        self.in_process = False

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
        self.tools = {spec.name: McpTool(spec) for spec in self._session.tools}  # type: ignore[misc]

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
