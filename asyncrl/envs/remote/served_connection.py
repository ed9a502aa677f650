"""One connection of a client to a server of environments, as the server sees it.

What always holds: each request is answered once, within its deadline, unless the connection ends; when it ends, for whatever
reason, all its episodes are closed.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from asyncrl.core.errors import (
    AsyncRLError,
    ComponentFailed,
    EnvironmentBroken,
    EnvironmentLost,
    EnvironmentUnreachable,
    ProcessDied,
    RecipeError,
)
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.envs.hosting.hosted import HostedEnvironment, make_hosted
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.load import make_tasks
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
from asyncrl.envs.remote.served_environments import CLOSE_S, ServedEnvironments

logger = logging.getLogger(__name__)


class ServedConnection:
    """The connection of one client.

    Args:
        remote: the client's address, for logs.

    Attributes:
        episodes: the open episodes, by the client's numbers.
    """

    def __init__(self, environments: ServedEnvironments, socket: web.WebSocketResponse, remote: str) -> None:
        self._environments, self._socket, self._remote = environments, socket, remote
        self._answering: dict[int, asyncio.Task[None]] = {}
        self.episodes: dict[int, HostedEnvironment] = {}

    async def serve(self) -> None:
        """Answer requests until the connection ends."""
        try:
            if await self._greet():
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
                f"{self._environments.name} speaks protocol {protocol.PROTOCOL}, and {hello.client} speaks {hello.protocol}; "
                "install the same version of asyncrl on both sides"
            )
            logger.warning("%s: %s", self._remote, problem)
            await self._send(Refused(protocol.PROTOCOL, problem))
            await self._socket.close(code=protocol.REFUSED_CODE, message=b"another version of the protocol")
            return False
        served, session = self._environments.served.name, secrets.token_hex(8)
        await self._send(Welcome(protocol.PROTOCOL, served, self._environments.name, session))
        logger.info("%s connected (session %s)", self._remote, session)
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
            why = self._environments.blocked_by
            problem = f"{type(request).__name__.lower()} took longer than {request.deadline_s:g} s{f': {why}' if why else ''}"
            frames = [_encoded(Failed(id=request.id, reason=FailureReason.LATE, problem=problem))]
        except AsyncRLError as error:
            frames = [_encoded(self._failed(request, error))]
        for frame in frames:
            await self._socket.send_bytes(frame)

    async def _do(self, request: Describe | MakeTasks | Reset | Step | Close) -> Sequence[Answer]:
        environments = self._environments
        match request:
            case Describe():
                environments.check(request.options)
                return [Described(request.id)]
            case MakeTasks():
                spec = environments.served.spec(request.options)
                make = partial(make_tasks, spec, request.split, request.count, request.seed)
                return _tasks(request.id, await run_in_daemon_thread(make, "making tasks"))
            case Reset():
                if request.episode in self.episodes:
                    raise ComponentFailed(f"episode {request.episode} is already open")
                return [await environments.call(partial(self._reset, request))]
            case Step():
                return [await environments.call(partial(self._step, request, self._episode(request.episode)))]
            case Close():
                await environments.call(partial(self._close, request))
                return [Closed(request.id)]

    def _episode(self, number: int) -> HostedEnvironment:
        environment = self.episodes.get(number)
        if environment is None:
            raise EnvironmentBroken(f"there is no open episode {number} in this connection")
        return environment

    async def _reset(self, request: Reset) -> Observed:
        environments = await self._environments.made_for(request.options, request.tool_timeout_s)
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
                    self._environments.errors.count(error.raised, self._remote)
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
            await self._environments.call(self._close_episodes)
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
