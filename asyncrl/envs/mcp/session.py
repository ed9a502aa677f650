"""One session with an MCP server, over the standard streams of a process or over streamable HTTP.

What always holds: the session is entered and left in an asyncio task of its own, as the SDK requires; everybody who waits for an
answer is told at once when the session has ended; calls do not wait for each other.
"""

import asyncio
import logging
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import AsyncRLError, EnvironmentLost
from asyncrl.core.messages import ToolSpec
from asyncrl.core.text import describe_error, short
from asyncrl.envs.hosting.guarded_calls import Raised, contained
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.mcp.errors_log import ErrorsLog
from asyncrl.envs.mcp.http_answers import (
    FORBIDDING,
    LEAST_S,
    answers_request,
    asked_wait,
    failure,
    has_ended,
    is_unspoken,
    wait_before_next,
)
from asyncrl.envs.mcp.noted_end import noting_end
from asyncrl.envs.mcp.results import result_text
from asyncrl.envs.mcp.schema_checks import SchemaChecks
from asyncrl.envs.mcp.tool_list import MOST_PAGES, TooManyPages, all_tools, changed_tools, compare_when, listen_for_changes

if TYPE_CHECKING:
    import httpx2
    from mcp import Client, MCPError
    from mcp.client._transport import Transport
    from mcp.types import CallToolResult

logger = logging.getLogger(__name__)

START_S = 60.0
"""Seconds in which a server must have started, answered the handshake and listed its tools."""
END_S = 10.0
"""Seconds that a session has to end; its process is killed sooner."""
CONNECT_S = 30.0
LAST_WORDS_S = 1.0
"""Seconds to wait for what a process wrote before it ended; a child of it may keep its standard error open."""
PYTHON = ("python", "python3")
"""Programs that mean the interpreter that runs this code, which need not be on the path."""
_APART = "set it to shared if its tools depend on their arguments alone, or have the server keep sessions"
_NEWEST_ONLY = (-32601, -32022, -32020)
"""Codes with which servers of the newest protocol alone refuse the handshake: no such method, version, or header."""
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""Names that MCP allows for tools."""


class McpServer(msgspec.Struct, frozen=True):
    """How a server is reached.

    Attributes:
        command: its command line; empty if it is reached by ``url``.
        url: where it answers.
        tools: names of the tools that are used; all if empty.
        variables: environment variables that its process gets beside the usual ones.
        token: bearer token that is sent to ``url``; none if empty.
        keeps_apart: whether a server at ``url`` must know one session from another, as it keeps state for each.
    """

    command: tuple[str, ...]
    url: str
    tools: tuple[str, ...]
    variables: Mapping[str, str]
    token: str = ""
    keeps_apart: bool = False

    @property
    def name(self) -> str:
        """The server's name in messages."""
        program, *arguments = self.command or ("",)
        return f"the MCP server {self.url or ' '.join((Path(program).name, *arguments))[:60]}"

    def __repr__(self) -> str:
        """Show no variable's value."""
        return f"McpServer({self.name})"


class NoSession(AsyncRLError):
    """A session could not be begun.

    Args:
        key: key of the environment's section that is to blame.
        wait_s: seconds that the server asks to wait before the next session is begun.
    """

    def __init__(self, key: str, problem: str, remedy: str, wait_s: float = 0.0) -> None:
        self.key, self.problem, self.remedy, self.wait_s = key, problem, remedy, wait_s
        super().__init__(f"{problem}; {remedy}")


class McpSession:
    """A session; call :meth:`start` first and :meth:`end` last.

    Args:
        checks: checks the schemas of the tools.

    Attributes:
        tools: the tools that are used, in the server's order.
        lost: set when the session has ended, whoever ended it.
    """

    def __init__(self, server: McpServer, checks: SchemaChecks) -> None:
        self.server, self._checks = server, checks
        self.tools: tuple[ToolSpec, ...] = ()
        self.lost = asyncio.Event()
        self._begun, self._leaving, self._told_of_changes = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._incident = f"{server.name} {secrets.token_hex(8)}"
        self._client: Client
        self._errors: ErrorsLog | None = None
        self._failure, self._failed_status, self._has_id = "", 0, False
        self._task: asyncio.Task[Raised | None]

    async def start(self) -> None:
        """Begin the session and list the tools.

        Raises:
            NoSession: that cannot be done.
        """
        self._task = asyncio.create_task(contained(self._run), name=f"session with {self.server.name}")
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait({begun, self._task}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._begun.is_set():
                raise await self._not_begun()
            self._check_id()
            self._check_tools()
            await self._check_schemas()
        except BaseException:
            await self.end()
            raise
        finally:
            begun.cancel()

    async def call(self, name: str, arguments: Mapping[str, Any], wait_s: float = 0.0) -> str:
        """Call a tool, and return its result as text.

        Args:
            wait_s: seconds for which a busy server over HTTP may have the call wait.

        Raises:
            ToolError: the server or the tool says that the call failed.
            EnvironmentLost: the session ended.
        """
        from mcp import MCPError
        from pydantic import ValidationError

        until = time.monotonic() + wait_s
        while True:
            if self.lost.is_set():
                raise self.lost_error()
            asked = time.monotonic()
            try:
                result = await self._client.call_tool(name, dict(arguments))
                break
            except MCPError as error:
                took_s = time.monotonic() - asked  # a busy server must be able to refuse the next request in time, too
                await self._wait_or_raise(error, until - LEAST_S - 2 * took_s)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
                raise ToolError(f"the server answered with what is no result of a tool: {short(what)}") from error
        text = result_text(result)
        if result.is_error:
            raise ToolError(text or "the tool failed, and did not say why")
        return text

    async def _wait_or_raise(self, error: "MCPError", until: float) -> None:
        """Wait as long as a busy server asks, but not beyond ``until``, or raise what else became of a call."""
        wait_s = asked_wait(error) if self.server.url else None
        if wait_s is not None and time.monotonic() + wait_s < until:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.lost.wait(), wait_s)
            return
        unspoken = bool(self.server.url) and is_unspoken(error.code, error.message)
        if wait_s is not None:
            self._failure = f"{error.message}, and asks to wait {wait_s:g} s"
        elif unspoken:
            self._failure = self._failure or f"it gave no answer of MCP: {short(error.message)}"
        if wait_s is not None or unspoken or has_ended(error.code, error.message):
            self._leave()
            raise self.lost_error() from error
        raise ToolError(error.message or "the server refused the call, and did not say why") from error

    def lost_error(self) -> EnvironmentLost:
        """The error of those who depended on this session."""
        why = f": {self._failure}" if self._failure else ""
        return EnvironmentLost(f"the session with {self.server.name} has ended{why}{self._said()}", self._incident)

    async def end(self) -> None:
        """End the session, and its process."""
        self._leave()
        if not self._begun.is_set():
            self._task.cancel()  # it waits for the server's answer, and not to be told to leave
        await asyncio.wait({self._task}, timeout=END_S)
        if not self._task.done():
            self._task.cancel()
            logger.warning("a session with %s did not end within %g s and is abandoned", self.server.name, END_S)

    def _leave(self) -> None:
        self.lost.set()
        self._leaving.set()

    async def _run(self) -> None:
        from mcp import Client

        # Of its newest protocol servers know no sessions over HTTP.
        mode = "legacy" if self.server.keeps_apart and self.server.url else "auto"
        try:
            async with (
                AsyncExitStack() as stack,
                Client(
                    noting_end(self._transport(stack), self._leave), cache=None, mode=mode, message_handler=self._hear
                ) as client,
            ):
                self._client = client
                self.tools = await all_tools(client)
                # It would check results in this event loop by a schema of the server's, which may take for ever.
                client.session.validate_tool_result = _anything  # type: ignore[method-assign]
                self._begun.set()
                async with asyncio.TaskGroup() as group:
                    watching = (
                        group.create_task(listen_for_changes(client, self._told_of_changes)),
                        group.create_task(compare_when(self._told_of_changes, self._compare_tools)),
                    )
                    await self._leaving.wait()
                    for each in watching:
                        each.cancel()
        finally:
            self._leave()

    async def _hear(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._told_of_changes.set()

    async def _compare_tools(self) -> None:
        """End the session if its tools can no longer be called as the model has read."""
        server = self.server
        if changed := await changed_tools(self._client, self.tools, server.name, all_are_used=not server.tools):
            named = ", ".join(map(repr, changed))
            self._failure = f"it has changed the tools {named}; name those that stay the same under environment.tools"
            self._leave()

    def _transport(self, stack: AsyncExitStack) -> "Transport":
        server = self.server
        if server.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            from asyncrl.envs.mcp.busy_client import BusyClient

            client = BusyClient(
                headers={"Authorization": f"Bearer {server.token}"} if server.token else None,
                # A tool has the environment's deadline, and each call in flight needs a connection of its own.
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                event_hooks={"response": [self._note_failure]},
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            )
            stack.push_async_callback(client.aclose)  # the SDK only closes clients that it has made itself
            # What a tool returns may be as long over HTTP as over standard streams.
            return streamable_http_client(server.url, http_client=client, max_sse_event_size=None)
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        errors = self._errors = ErrorsLog(server.name)
        stack.callback(errors.close)
        program, *arguments = server.command
        if program in PYTHON:
            program = sys.executable
        return stdio_client(
            StdioServerParameters(command=program, args=arguments, env=dict(server.variables)), errlog=errors.file
        )

    async def _note_failure(self, response: "httpx2.Response") -> None:
        """End the session if the server fails; while it begins, the SDK tries one handshake after the other."""
        self._has_id |= "mcp-session-id" in response.headers
        if not await answers_request(response) or wait_before_next(response) is not None:
            return
        failed, begun = await failure(response), self._begun.is_set()
        if failed or not begun:
            self._failure, self._failed_status = failed, response.status_code
        if failed and begun:
            raise ConnectionError(failed)

    async def _not_begun(self) -> NoSession:
        """Say why the session has not begun."""
        server = self.server
        key, remedy = ("url", "correct the URL, or start the server") if server.url else ("command", "run it by hand to see why")
        if not self._task.done():
            problem = f"{server.name} did not answer the handshake of MCP within {START_S:g} s{self._said()}"
            return NoSession(key, problem, remedy)
        if self._errors is not None:
            await run_in_daemon_thread(partial(self._errors.join, LAST_WORDS_S), f"last words of {server.name}")
        outcome = self._task.result()
        error = _leaf(outcome.error) if isinstance(outcome, Raised) else ConnectionError("it ended")
        if isinstance(error, TooManyPages):
            problem = f"{server.name} lists its tools on more than {MOST_PAGES} pages"
            return NoSession("tools", problem, "correct the server, or list more on a page")
        if (wait_s := asked_wait(error)) is not None:
            problem = f"{server.name} is busy: {error}, and asks to wait {wait_s:g} s"
            return NoSession("url", problem, "try again later, or have it take more requests", wait_s)
        if isinstance(error, FileNotFoundError | PermissionError) and server.command:
            program = server.command[0]
            why = (
                "cannot be executed" if shutil.which(program, mode=0) or isinstance(error, PermissionError) else "does not exist"
            )
            return NoSession("command", f"the program {program!r} {why}", "install it where the run is launched, or correct it")
        code: int = getattr(error, "code", 0)
        if server.url and server.keeps_apart and code in _NEWEST_ONLY and not is_unspoken(code, str(error)):
            problem = f"{server.name} does not speak the protocol before 2026-07-28, which has sessions ({error})"
            return NoSession("session", f"{problem}, so it cannot keep apart what episodes do", _APART)
        if self._failure and self._failed_status in FORBIDDING:
            correct_token = "name the variable that holds the server's token, or correct the token"
            return NoSession("token_variable", f"{server.name} refuses us: {self._failure}", correct_token)
        what = "ended, or does not speak MCP" if server.command else "cannot be reached, or does not speak MCP"
        return NoSession(key, f"{server.name} {what}: {self._failure or describe_error(error)}{self._said()}", remedy)

    def _said(self) -> str:
        last = self._errors.last if self._errors is not None else ""
        return f"; its last words: {last}" if last else ""

    def _check_id(self) -> None:
        """Refuse a server over HTTP that cannot know one session from another, where it has to."""
        if self.server.url and self.server.keeps_apart and not self._has_id:
            problem = f"{self.server.name} gives its sessions no ids, so it cannot keep apart what episodes do"
            raise NoSession("session", problem, _APART)

    def _check_tools(self) -> None:
        """Keep the tools that are used, and check their names."""
        server, known = self.server, {tool.name: tool for tool in self.tools}
        if len(known) < len(self.tools):
            raise NoSession("tools", f"{server.name} lists two tools of the same name", "correct the server")
        missing = [name for name in server.tools if name not in known]
        if missing:
            listed = ", ".join(known) or "none"
            raise NoSession("tools", f"{server.name} has no tool {missing[0]!r}", f"its tools are: {listed}")
        if not known:
            raise NoSession("tools", f"{server.name} has no tools", "use a server that has some")
        used = server.tools or tuple(known)
        strange = [name for name in used if not _NAME.fullmatch(name)]
        if strange:
            raise NoSession("tools", f"{server.name} has a tool named {strange[0]!r}", "use letters, digits and _ . / - in names")
        self.tools = tuple(known[name] for name in used)

    async def _check_schemas(self) -> None:
        for tool in self.tools:
            if wrong := await self._checks.wrong_with(tool):
                raise NoSession("tools", wrong, "correct the server, or leave this tool out of `tools`")


async def _anything(name: str, result: "CallToolResult") -> None:
    """Let any result pass: the model is shown what the server says."""


def _leaf(error: BaseException) -> BaseException:
    """The first error that a group of errors holds."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
