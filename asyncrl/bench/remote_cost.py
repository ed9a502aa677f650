"""What a step costs where tools run elsewhere: on an environment server, and in an MCP server, each in a process of its own."""

import asyncio
import os
import secrets
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from asyncrl import __version__
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action
from asyncrl.envs.mcp.session import McpServer
from asyncrl.envs.mcp.sessions import mcp_sessions
from asyncrl.envs.remote.environment import RemoteEnvironment
from asyncrl.envs.remote.pool import Servers, serving

_TOKEN_VARIABLE = "ASYNCRL_BENCH_TOKEN"
_START_S = 60.0
_WARM_UP = 50
_CALL = ToolCall("calculator", {"expression": "3*4"})


async def remote_step_ms(steps: int = 1_000) -> float:
    """Median milliseconds of a step with one call of the calculator on a server on this machine, one step at a time.

    Raises:
        ComponentFailed: the server does not start.
    """
    token = secrets.token_urlsafe()
    async with _server(token) as url:
        servers = Servers(
            (url,), {}, tool_timeout_s=10.0, episode_timeout_s=60.0, wait_s=_START_S, client=f"asyncrl {__version__}"
        )
        async with serving(servers, token) as pool:
            environment = RemoteEnvironment(pool)
            await environment.ready()
            await environment.reset(Task(id=TaskId("bench"), prompt="3*4", data={"answer": 12}))
            turn = Action("", (_CALL,))
            milliseconds = await _median_ms(lambda: environment.step(turn), steps)
            await environment.close()
            return milliseconds


async def mcp_call_ms(calls: int = 500) -> float:
    """Median milliseconds of a call of the calculator's MCP server over standard streams, one call at a time."""
    command = (sys.executable, "-m", "asyncrl.envs.mcp.calculator_server")
    paths = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    async with mcp_sessions(McpServer(command, "", (), paths), shared=True, wait_s=_START_S) as sessions:
        session = await sessions.take()
        milliseconds = await _median_ms(lambda: session.call(_CALL.name, _CALL.arguments), calls)
        sessions.give_back(session)
        return milliseconds


async def _median_ms(call: Callable[[], Awaitable[object]], times: int) -> float:
    seconds: list[float] = []
    for _ in range(_WARM_UP + times):
        began = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds[_WARM_UP:])


@asynccontextmanager
async def _server(token: str) -> AsyncIterator[str]:
    """Serve the calculator in a process of its own, and return its URL."""
    command = (sys.executable, "-P", "-m", "asyncrl.cli.main", "env", "serve", "calculator", "--port", "0")
    process = await asyncio.create_subprocess_exec(
        *command,
        "--token-variable",
        _TOKEN_VARIABLE,
        env={**os.environ, _TOKEN_VARIABLE: token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            said = (await process.stdout.readline()).decode()
        _, found, rest = said.partition(" at ")
        if not found:
            raise ComponentFailed(f"`asyncrl env serve` did not say where it serves, but {said!r}")
        yield rest.partition(";")[0]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
