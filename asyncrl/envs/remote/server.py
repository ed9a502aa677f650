"""Serves an environment to workers elsewhere, over the protocol of docs/remote-environments.md.

It needs msgspec, numpy and aiohttp, but no torch, vLLM or Ray, so that it runs in the environment's own virtual environment. What
always holds:

* the socket has an event loop in which no environment runs: a blocked environment makes its own requests late, and neither
  pings nor other connections;
* each request is answered once, within its deadline, unless its connection ends;
* when a connection ends, for whatever reason, all its episodes are closed.
"""

import asyncio
import hmac
import logging
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from asyncrl.core.error_counts import ErrorCounts
from asyncrl.core.errors import (
    AsyncRLError,
    ComponentFailed,
    EnvironmentBroken,
    EnvironmentLost,
    EnvironmentUnreachable,
    ProcessDied,
    RecipeError,
)
from asyncrl.core.recipe.environment import ClassEnvironment
from asyncrl.core.task import Task
from asyncrl.core.users_error import UsersError
from asyncrl.envs.event_loop import EventLoopThread
from asyncrl.envs.hosted import HostedEnvironment, make_hosted
from asyncrl.envs.load import load_member, make_tasks
from asyncrl.envs.remote import protocol
from asyncrl.envs.remote.protocol import (
    Answer,
    Cancel,
    Close,
    Closed,
    Describe,
    Described,
    Failed,
    FailureReason,
    Hello,
    MakeTasks,
    Observed,
    Refused,
    Request,
    Reset,
    Step,
    Stepped,
    Tasks,
    Welcome,
)
from asyncrl.envs.secrets import Secrets, clean_logs, read_secrets
from asyncrl.envs.threads import run_in_daemon_thread
from asyncrl.envs.worker_environments import WorkerEnvironments

logger = logging.getLogger(__name__)

BLOCKED_S = 60.0
"""Seconds for which environments may block their event loop; after that the server ends and says which code blocked it."""
CLOSE_S = 10.0
"""Deadline of closing an environment whose client is gone."""
START_S = 300.0
"""Deadline of setting up what environments share."""
STOP_S = 10.0
"""Seconds that connections have to end when the server is stopped."""


class Served(msgspec.Struct, frozen=True):
    """What a server serves.

    Attributes:
        name: a built-in environment, or ``module:Class``.
        options: options of its constructor, which those of a client's recipe override.
        secrets: names of environment variables whose values the environment gets.
    """

    name: str
    options: Mapping[str, Any] = {}
    secrets: tuple[str, ...] = ()

    def spec(self, options: Mapping[str, Any], tool_timeout_s: float = 10.0) -> ClassEnvironment:
        """Describe the environment as a recipe would, with a client's options."""
        return ClassEnvironment(
            name=self.name, options={**self.options, **options}, secrets=self.secrets, tool_timeout_s=tool_timeout_s
        )


class EnvironmentServer:
    """Serves one kind of environment to all clients that show the token.

    Attributes:
        secrets: what the environment gets of this process's environment variables.
        errors: counts the errors of the environment's code.

    Args:
        name: the server's program and version, as clients are told.

    Raises:
        RecipeError: there is no such environment, its options do not fit, or a secret is not set.
    """

    def __init__(self, served: Served, token: str, name: str) -> None:
        self.served, self.name = served, name
        self.check({})
        self.secrets: Secrets = read_secrets(served.spec({}), os.environ)
        self._token = token.encode()
        self._environments: dict[bytes, asyncio.Task[WorkerEnvironments]] = {}
        self._runner: web.AppRunner | None = None
        self._connections: set[_Connection] = set()
        self._loop: EventLoopThread
        self._sockets_loop: asyncio.AbstractEventLoop
        self._failed: asyncio.Future[ComponentFailed]
        self.errors = ErrorCounts()

    async def start(self, host: str, port: int) -> int:
        """Listen at ``host`` and ``port``, or at a free port if that is 0; returns the port.

        Raises:
            OSError: the address cannot be used.
        """
        self._sockets_loop = asyncio.get_running_loop()
        self._failed = self._sockets_loop.create_future()
        self._loop = EventLoopThread("the environments", BLOCKED_S)
        application = web.Application()
        application.router.add_get("/{path:.*}", self._connect)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=STOP_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self._loop.watch()
        listening: int = self._runner.addresses[0][1]
        return listening

    async def wait_failed(self) -> ComponentFailed:
        """Wait until the environments' event loop has ended or is blocked for too long, or what they share has ended by itself.

        Returns:
            What happened.
        """
        return await asyncio.shield(self._failed)

    async def close(self) -> None:
        """End all connections and close their environments."""
        await asyncio.gather(*(each.end() for each in self._connections))
        if self._runner is not None:
            await self._runner.cleanup()
            try:
                await self._loop.call(self._close_environments)
            except ProcessDied as death:
                logger.warning("%s", death)
            self._loop.close()

    @property
    def episodes(self) -> int:
        """How many episodes are open."""
        return sum(len(each.episodes) for each in self._connections)

    async def call(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` in the environments' event loop. If that loop is gone, the server ends."""
        try:
            return await self._loop.call(work)
        except ProcessDied as death:
            self._fail(death)
            raise

    def _fail(self, failure: ComponentFailed) -> None:
        if not self._failed.done():
            self._failed.set_result(failure)

    @property
    def blocked_by(self) -> str:
        """What blocks or has blocked the environments' event loop; empty if nothing did."""
        return "; ".join(self._loop.blocked_by)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise ``RecipeError`` if a client's options do not fit."""
        load_member(self.served.spec(options))

    async def environments(self, options: Mapping[str, Any], tool_timeout_s: float) -> WorkerEnvironments:
        """Return what makes environments with these options; what they share is set up first. Called in their event loop.

        Raises:
            RecipeError: the options do not fit.
            EnvironmentBroken: what they share cannot be set up.
        """
        key = protocol.encoder.encode((options, tool_timeout_s))
        if (starting := self._environments.get(key)) is None:
            spec = self.served.spec(options, tool_timeout_s)
            starting = self._environments[key] = asyncio.create_task(self._start_environments(spec))
        try:
            return await asyncio.shield(starting)
        except AsyncRLError:
            self._environments.pop(key, None)
            raise

    async def _start_environments(self, spec: ClassEnvironment) -> WorkerEnvironments:
        made = WorkerEnvironments({"": load_member(spec)}, self.secrets, self.name)
        await made.start(START_S)
        made.lost.add_done_callback(lambda lost: self._sockets_loop.call_soon_threadsafe(self._fail, lost.result()))
        return made

    async def _close_environments(self) -> None:
        """Close what is set up, and give up what is still being set up. Called in the environments' event loop."""
        starting = list(self._environments.values())
        if not starting:
            return
        for each in starting:
            each.cancel()  # which changes nothing where it has ended
        _, going_on = await asyncio.wait(starting, timeout=CLOSE_S)
        if going_on:
            logger.warning("setting up what episodes share was cancelled, and went on for %g s: it is abandoned", CLOSE_S)
        made = [each.result() for each in starting if each.done() and not each.cancelled() and each.exception() is None]
        await asyncio.gather(*(environments.close(CLOSE_S) for environments in made))

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(shown, b"Bearer " + self._token):
            logger.warning("%s connected without the token", request.remote)
            return web.Response(status=HTTPStatus.UNAUTHORIZED, text="show the token: Authorization: Bearer TOKEN")
        socket = web.WebSocketResponse(heartbeat=protocol.PING_S, max_msg_size=protocol.LARGEST_MESSAGE, compress=False)
        if not socket.can_prepare(request).ok:
            return web.Response(status=HTTPStatus.UPGRADE_REQUIRED, text="environments are served over a WebSocket")
        await socket.prepare(request)
        connection = _Connection(self, socket, str(request.remote))
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)
        return socket


class _Connection:
    """The connection of one client.

    Attributes:
        episodes: the open episodes, by the client's numbers.
    """

    def __init__(self, server: EnvironmentServer, socket: web.WebSocketResponse, remote: str) -> None:
        self._server, self._socket, self._remote = server, socket, remote
        self._answering: dict[int, asyncio.Task[None]] = {}
        self.episodes: dict[int, HostedEnvironment] = {}

    async def serve(self) -> None:
        """Answer requests until the connection ends."""
        try:
            if await self._greet():
                logger.info("%s connected", self._remote)
                async for message in self._socket:
                    if message.type is not WSMsgType.BINARY:
                        raise ComponentFailed("messages are binary")
                    self._take(protocol.from_client(message.data))
        except ComponentFailed as wrong:
            logger.warning("%s: %s", self._remote, wrong)
            await self._socket.close(code=WSCloseCode.PROTOCOL_ERROR, message=str(wrong).encode()[:120])
        finally:
            await asyncio.shield(asyncio.create_task(self._abandon()))

    async def end(self) -> None:
        """Close the connection, because the server is stopped."""
        await self._socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server was stopped")

    async def _greet(self) -> bool:
        """Exchange the first messages; returns whether both sides speak the same version."""
        try:
            first = await self._socket.receive(timeout=protocol.HELLO_S)
        except TimeoutError as error:
            raise ComponentFailed(f"no hello came within {protocol.HELLO_S:g} s") from error
        if first.type is not WSMsgType.BINARY:
            raise ComponentFailed("the first message was no hello")
        hello = protocol.from_client(first.data)
        if not isinstance(hello, Hello):
            raise ComponentFailed("the first message was no hello")
        if hello.protocol != protocol.PROTOCOL:
            problem = (
                f"{self._server.name} speaks protocol {protocol.PROTOCOL}, and {hello.client} speaks {hello.protocol}; "
                "install the same version of asyncrl on both sides"
            )
            logger.warning("%s: %s", self._remote, problem)
            await self._send(Refused(protocol.PROTOCOL, problem))
            await self._socket.close(code=protocol.REFUSED_CODE, message=b"another version of the protocol")
            return False
        served = self._server.served.name
        await self._send(Welcome(protocol.PROTOCOL, served, self._server.name, secrets.token_hex(8)))
        return True

    def _take(self, message: protocol.FromClient) -> None:
        match message:
            case Hello():
                raise ComponentFailed("a second hello")
            case Cancel(id=number):
                if (answering := self._answering.get(number)) is not None:
                    answering.cancel()
            case _:
                if message.id in self._answering:
                    raise ComponentFailed(f"two open requests have the id {message.id}")
                task = asyncio.create_task(self._answer(message), name=f"request {message.id} of {self._remote}")
                self._answering[message.id] = task
                task.add_done_callback(partial(self._answered, message.id))

    def _answered(self, number: int, task: "asyncio.Task[None]") -> None:
        del self._answering[number]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("request %d of %s could not be answered, so its connection ends", number, self._remote, exc_info=error)
            closing = asyncio.ensure_future(self._socket.close(code=WSCloseCode.INTERNAL_ERROR))
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _answer(self, request: Describe | MakeTasks | Reset | Step | Close) -> None:
        try:
            async with asyncio.timeout(request.deadline_s):
                answer = await self._do(request)
                frames = [_encoded(each) for each in answer]
        except TimeoutError:
            why = self._server.blocked_by
            problem = f"{type(request).__name__.lower()} took longer than {request.deadline_s:g} s{f': {why}' if why else ''}"
            frames = [_encoded(Failed(id=request.id, reason=FailureReason.LATE, problem=problem))]
        except AsyncRLError as error:
            frames = [_encoded(self._failed(request, error))]
        for frame in frames:
            await self._socket.send_bytes(frame)

    async def _do(self, request: Describe | MakeTasks | Reset | Step | Close) -> Sequence[Answer]:
        server = self._server
        match request:
            case Describe():
                server.check(request.options)
                return [Described(request.id)]
            case MakeTasks():
                spec = server.served.spec(request.options)
                make = partial(make_tasks, spec, request.split, request.count, request.seed)
                return _tasks(request.id, await run_in_daemon_thread(make, "making tasks"))
            case Reset():
                if request.episode in self.episodes:
                    raise ComponentFailed(f"episode {request.episode} is already open")
                return [await server.call(partial(self._reset, request))]
            case Step():
                return [await server.call(partial(self._step, request, self._episode(request.episode)))]
            case Close():
                await server.call(partial(self._close, request))
                return [Closed(request.id)]

    def _episode(self, number: int) -> HostedEnvironment:
        environment = self.episodes.get(number)
        if environment is None:
            raise EnvironmentBroken(f"there is no open episode {number} in this connection")
        return environment

    async def _reset(self, request: Reset) -> Observed:
        environments = await self._server.environments(request.options, request.tool_timeout_s)
        # Here is one environment, whatever the client's recipe calls it.
        task = msgspec.structs.replace(request.task, environment="")
        environment = self.episodes[request.episode] = make_hosted(environments.make, task)
        await environment.ready()
        observation = await environment.reset()
        with environment.blamed("reset"):
            return protocol.observed(request.id, observation, environment.scores_answers)

    async def _step(self, request: Step, environment: HostedEnvironment) -> Stepped:
        result = await environment.step(protocol.action_of(request))
        with environment.blamed("step"):
            return protocol.stepped(request.id, result)

    async def _close(self, request: Close) -> None:
        # In the environments' event loop, a reset that was cancelled in the middle of a constructor has put it in by now.
        if (environment := self.episodes.pop(request.episode, None)) is not None:
            await environment.close(request.deadline_s)

    def _failed(self, request: Request, error: AsyncRLError) -> Failed:
        match error:
            case RecipeError():
                refused = FailureReason.REFUSED
                return Failed(id=request.id, reason=refused, problem=error.problem, remedy=error.remedy, place=error.place)
            case EnvironmentLost() | EnvironmentUnreachable() | ProcessDied():
                return Failed(id=request.id, reason=FailureReason.LOST, problem=str(error))
            case EnvironmentBroken():
                if error.raised is not None:
                    self._server.errors.count(error.raised, self._remote)
                return Failed(id=request.id, reason=FailureReason.BROKEN, problem=str(error), raised=error.raised)
            case _:
                return Failed(id=request.id, reason=FailureReason.BROKEN, problem=str(error))

    async def _send(self, message: Welcome | Refused) -> None:
        await self._socket.send_bytes(protocol.encoder.encode(message))

    async def _abandon(self) -> None:
        """Stop what is being answered, and close all episodes."""
        answering = list(self._answering.values())
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        try:
            await self._server.call(self._close_episodes)
        except ProcessDied as death:
            logger.warning("closing the episodes of %s: %s", self._remote, death)

    async def _close_episodes(self) -> None:
        """Close all episodes, also one that was just being made. Called in the environments' event loop."""
        episodes = list(self.episodes.values())
        self.episodes.clear()
        if episodes:
            logger.info("%s is gone; its %d open episodes are closed", self._remote, len(episodes))
        for outcome in await asyncio.gather(*(each.close(CLOSE_S) for each in episodes), return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.warning("closing an episode of %s: %s", self._remote, outcome)


def _encoded(answer: Answer) -> bytes:
    """Return an answer as bytes; if it cannot be sent, an answer that says so."""
    try:
        frame = protocol.encoder.encode(answer)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raised = UsersError("", "", 0, type(error).__name__, f"returned what cannot be sent: {error}")
        return protocol.encoder.encode(
            Failed(id=answer.id, reason=FailureReason.BROKEN, problem=f"the environment {raised.problem}", raised=raised)
        )
    if len(frame) <= protocol.LARGEST_MESSAGE:
        return frame
    problem = f"the answer has {len(frame):,} bytes, and a message may have {protocol.LARGEST_MESSAGE:,}"
    return protocol.encoder.encode(Failed(id=answer.id, reason=FailureReason.BROKEN, problem=problem))


def _tasks(number: int, tasks: Sequence[Task]) -> list[Tasks]:
    size = protocol.TASKS_IN_A_MESSAGE
    parts = [tuple(tasks[begin : begin + size]) for begin in range(0, len(tasks), size)] or [()]
    return [Tasks(number, part, more=index + 1 < len(parts)) for index, part in enumerate(parts)]


async def serve(served: Served, token: str, host: str, port: int, name: str, listening: Callable[[int], None]) -> None:
    """Serve an environment until the process is told to stop.

    Args:
        listening: is called with the port as soon as clients can connect.

    Raises:
        RecipeError: the environment cannot be used.
        OSError: the address cannot be used.
        ComponentFailed: the environments' event loop ended or was blocked for too long, or what they share ended by itself.
    """
    server = EnvironmentServer(served, token, name)
    clean_logs(server.secrets, logging.getLogger().handlers)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listening(await server.start(host, port))
    failing = asyncio.create_task(server.wait_failed())
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        raise failing.result()
    failing.cancel()
    await server.close()
