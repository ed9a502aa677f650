"""An environment of kind ``mcp``, loaded and checked.

The environment of an episode whose tools are those of an MCP server.
"""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import ToolSpec
from asyncrl.core.recipe.environment import McpEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.own_loop import run_in_own_loop
from asyncrl.envs.mcp.schema_checks import SchemaChecks, schema_text
from asyncrl.envs.mcp.session import McpServer, McpSession, NoSession
from asyncrl.envs.mcp.sessions import Sessions, mcp_sessions
from asyncrl.envs.member import Member
from asyncrl.envs.rewards.load import RewardFunction, load_reward
from asyncrl.envs.secrets import Secrets, read_secrets
from asyncrl.envs.signature import SchemaParameters
from asyncrl.envs.task_maker import load_maker
from asyncrl.envs.tool_marks import Marks
from asyncrl.envs.tools import Tool, ToolEnvironment


class McpMember(Member):
    """The tools of an MCP server, with a reward.

    Raises:
        RecipeError: there is no such reward or maker of tasks, or neither or both of ``command`` and ``url`` are given.
    """

    def __init__(self, spec: McpEnvironmentConfig, place: str) -> None:
        super().__init__(spec, place)
        self._spec = spec
        if find_spec("mcp") is None:
            raise RecipeError(place, "environments of kind mcp need the package mcp", 'run `pip install "asyncrl[mcp]"`')
        if bool(spec.command) == bool(spec.url):
            given = "both are given" if spec.url else "neither is given"
            raise RecipeError(place, f"of command and url {given}", "name one of them")
        if spec.url and not spec.url.startswith(("http://", "https://")):
            raise RecipeError(f"{place}.url", f"{spec.url!r} is no HTTP address", "write it as http://host:port/path")
        if spec.token_variable and not spec.url:
            raise RecipeError(f"{place}.token_variable", "a token is sent to a url only", "name it under secrets")
        self._reward = load_reward(spec.reward, f"{place}.reward")
        self._make_tasks = load_maker(spec.tasks, f"{place}.tasks") if spec.tasks else None

    def make(self, provided: Provided = Provided()) -> Environment:  # noqa: B008 - immutable
        """Make the environment of one episode."""

        environment = McpToolEnvironment(provided.shared, self._reward, self._spec.system_prompt, self._spec.tool_timeout_s)
        environment.provided = provided
        return environment

    def share(self, secrets: Secrets) -> AbstractAsyncContextManager[Any]:
        """Return the context of the sessions."""
        spec = self._spec
        return mcp_sessions(self._server(secrets), shared=spec.session == "shared", wait_s=spec.server_timeout_s)

    def remarks(self, shared: Any) -> Sequence[str]:
        """Sentences about sessions that ended and were begun again."""
        return tuple(shared.remarks)

    def check(self, variables: Mapping[str, str]) -> None:
        """Begin a session, and check the tools.

        Raises:
            RecipeError: that cannot be done.
        """
        server = self._server(read_secrets(self._spec, variables))
        run_in_own_loop(lambda: self._check(server), f"checking {server.name}")

    async def _check(self, server: McpServer) -> None:
        checks = SchemaChecks(server.name)
        session = McpSession(server, checks)
        try:
            await session.start()
            await session.end()
        except NoSession as problem:
            raise RecipeError(f"{self.place}.{problem.key}", problem.problem, problem.remedy) from problem
        finally:
            checks.close()

    def make_tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Make tasks by the function that ``tasks`` names."""
        return (self._make_tasks or super().make_tasks)(split, count, seed)

    def _server(self, secrets: Secrets) -> McpServer:
        spec = self._spec
        return McpServer(
            command=spec.command,
            url=spec.url,
            tools=spec.tools,
            variables={name: secrets[name] for name in spec.secrets},
            token=secrets[spec.token_variable] if spec.token_variable else "",
            keeps_apart=spec.session == "episode",
        )


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
        return await self._session.call(name, arguments, self.tool_timeout_s)

    def reward(self, task: Task, answer: str) -> float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]:
        """The reward that the recipe names."""
        return self._reward(task, answer)

    async def close(self) -> None:
        """Give the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._sessions.give_back(session)
