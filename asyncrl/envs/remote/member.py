"""An environment of kind ``remote``, loaded and checked."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from asyncrl import __version__
from asyncrl.core.errors import EnvironmentLost, RecipeError
from asyncrl.core.recipe.environment import RemoteEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.own_loop import run_in_own_loop
from asyncrl.envs.member import Member
from asyncrl.envs.remote.connection import Connection, NotConnected
from asyncrl.envs.remote.environment import RemoteEnvironment
from asyncrl.envs.remote.pool import Servers, serving
from asyncrl.envs.secrets import Secrets, read_secrets

T = TypeVar("T")

CHECK_S = 60.0
"""Deadline of asking a server at launch whether the options fit."""
TASKS_S = 600.0
"""Deadline of having a server make tasks."""
CLIENT = f"asyncrl {__version__}"


class RemoteMember(Member):
    """An environment on servers.

    Raises:
        RecipeError: a URL is none of a WebSocket.
    """

    def __init__(self, spec: RemoteEnvironmentConfig, place: str) -> None:
        super().__init__(spec, place)
        self._spec = spec
        for url in spec.urls:
            if why := _wrong_with(url):
                raise RecipeError(f"{place}.urls", f"{url!r} {why}", "write it as ws://host:port")

    def make(self, provided: Provided = Provided()) -> Environment:  # noqa: B008 - immutable
        """Make the environment of one episode."""
        return RemoteEnvironment(provided.shared)

    def share(self, secrets: Secrets) -> AbstractAsyncContextManager[Any]:
        """Return the context of the connections."""
        spec = self._spec
        servers = Servers(
            urls=spec.urls,
            options=spec.options,
            tool_timeout_s=spec.tool_timeout_s,
            episode_timeout_s=spec.episode_timeout_s,
            wait_s=spec.server_timeout_s,
            client=CLIENT,
        )
        return serving(servers, secrets[spec.token_variable])

    def remarks(self, shared: Any) -> Sequence[str]:
        """Sentences about servers that were lost and came back."""
        return tuple(shared.remarks)

    def check(self, variables: Mapping[str, str]) -> None:
        """Ask every server whether it serves the same environment, and whether the options fit.

        Raises:
            RecipeError: a server cannot be reached or refuses us, or they differ.
        """
        environments: dict[str, str] = {}
        for url in self._spec.urls:

            async def ask(connection: Connection) -> str:
                await connection.describe(self._spec.options, CHECK_S)
                return connection.environment

            environments[url] = self._with(url, variables, ask)
        if len(set(environments.values())) > 1:
            served = ", ".join(f"{url} serves {name}" for url, name in environments.items())
            raise RecipeError(f"{self.place}.urls", f"the servers differ: {served}", "serve the same environment everywhere")

    def make_tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Have the first server make tasks."""
        options = self._spec.options

        async def ask(connection: Connection) -> list[Task]:
            return await connection.make_tasks(options, split, count, seed, TASKS_S)

        return self._with(self._spec.urls[0], os.environ, ask)

    def _with(self, url: str, variables: Mapping[str, str], ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask the server at ``url``."""
        token = read_secrets(self._spec, variables)[self._spec.token_variable]

        async def run() -> T:
            async with aiohttp.ClientSession() as session:
                connection = await Connection.open(url, token, CLIENT, session)
                try:
                    return await ask(connection)
                finally:
                    await connection.close()

        try:
            return run_in_own_loop(run, f"asking {url}")
        except NotConnected as problem:
            raise RecipeError(f"{self.place}.urls", problem.problem, problem.remedy) from problem
        except EnvironmentLost as lost:
            raise RecipeError(f"{self.place}.urls", str(lost), "see the server's log") from lost


def _wrong_with(url: str) -> str:
    """Return what keeps a URL from being one of a server; empty if nothing does."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("ws", "wss") or not parts.hostname or port == 0:
        return "is not the URL of a WebSocket"
    if "@" in parts.netloc:
        return "has a user or a password; the token comes from token_variable"
    return ""
