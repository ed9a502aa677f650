"""One connection of a worker to a server of environments.

What always holds: every request gets its answer, or an ``EnvironmentLost`` as soon as the connection has ended or its deadline is
long past; requests do not wait for each other.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
from aiohttp import WSMsgType

from asyncrl.core.errors import AsyncRLError, ComponentFailed, EnvironmentBroken, EnvironmentLost, RecipeError
from asyncrl.core.task import Task
from asyncrl.core.text import short
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
    Refused,
    Request,
    Reset,
    Step,
    Tasks,
    Welcome,
)

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
"""Seconds in which a server must take a connection and answer the hello."""
SLACK_S = 10.0
"""Seconds after a request's deadline in which its answer must have come, or else the connection is given up."""

A = TypeVar("A")


class NotConnected(AsyncRLError):
    """A connection could not be made.

    Args:
        final: whether another try cannot help before somebody changes something: the token or the version is refused.
    """

    def __init__(self, problem: str, remedy: str, final: bool) -> None:
        self.problem, self.remedy, self.final = problem, remedy, final
        super().__init__(f"{problem}; {remedy}")


class Connection:
    """A connection that is up, made by :meth:`open`; lives within one event loop.

    Attributes:
        url: the server's address.
        environment: what it serves.
        lost: set when the connection has ended.
        why: how it ended.
        episodes: how many episodes are open.
        lost_episodes: how many were open when the connection ended.
    """

    def __init__(self, url: str, socket: aiohttp.ClientWebSocketResponse, welcome: Welcome) -> None:
        self.url, self.environment = url, welcome.environment
        self._socket, self._session = socket, welcome.session
        # Named by this side: one incident is one failure, and the server must not say which of its failures are one.
        self._incident = f"{url} {secrets.token_hex(8)}"
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Queue[Answer | None]] = {}
        self.episodes, self.lost_episodes, self.why = 0, 0, ""
        self.lost = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name=f"reading from {url}")

    @classmethod
    async def open(cls, url: str, token: str, client: str, session: aiohttp.ClientSession) -> "Connection":
        """Connect to the server at ``url``.

        Args:
            client: the program and its version, as the server is told.

        Raises:
            NotConnected: there is no such server, or it refuses us.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await session.ws_connect(
                    url,
                    headers={"Authorization": f"Bearer {token}"},
                    heartbeat=protocol.PING_S,
                    max_msg_size=protocol.LARGEST_MESSAGE,
                    compress=0,
                )
                try:
                    return cls(url, socket, await _greet(url, socket, client))
                except BaseException:
                    await socket.close()
                    raise
        except aiohttp.WSServerHandshakeError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                raise NotConnected(f"{url} refuses the token", "give both sides the same one", final=True) from error
            if error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                problem = f"{url} takes no connection now: it answers with HTTP status {error.status}"
                remedy = "see whether the server runs, and what the log of a proxy before it says"
                raise NotConnected(problem, remedy, final=False) from error
            what = f"{url} is no server of environments: it answers with HTTP status {error.status}"
            raise NotConnected(what, "name the host and port of `asyncrl env serve`", final=True) from error
        except TimeoutError as error:
            raise NotConnected(f"{url} did not answer within {CONNECT_S:g} s", "see whether it runs", final=False) from error
        except aiohttp.ClientConnectorCertificateError as error:
            problem = f"{url} shows a certificate that is not accepted: {error.certificate_error}"
            remedy = "have it show one that is valid and names this host, or name its authority's file by SSL_CERT_FILE"
            raise NotConnected(problem, remedy, final=True) from error
        except (OSError, aiohttp.ClientError, ValueError) as error:
            problem = f"{url} cannot be reached: {error}"
            raise NotConnected(problem, "start it with `asyncrl env serve`, or correct the URL", final=False) from error

    async def describe(self, options: Mapping[str, Any], seconds: float) -> None:
        """Ask whether the options fit the environment's constructor.

        Raises:
            RecipeError: they do not.
            EnvironmentLost: there is no answer.
        """
        await self._ask(lambda number: Describe(id=number, deadline_s=seconds, options=dict(options)), Described)

    async def make_tasks(self, options: Mapping[str, Any], split: str, count: int, seed: int, seconds: float) -> list[Task]:
        """Have the server make tasks.

        Raises:
            RecipeError: the environment makes none.
            EnvironmentLost: there is no answer.
        """
        tasks: list[Task] = []

        def is_last(part: Tasks) -> bool:
            tasks.extend(part.tasks)
            return not part.more

        def request(number: int) -> MakeTasks:
            return MakeTasks(id=number, deadline_s=seconds, options=dict(options), split=split, count=count, seed=seed)

        await self._ask(request, Tasks, is_last)
        return tasks

    async def reset(self, request: Callable[[int], Reset]) -> protocol.Observed:
        """Begin an episode. Like :meth:`step`, raises ``EnvironmentBroken`` and ``EnvironmentLost``."""
        return await self._ask(request, protocol.Observed)

    async def step(self, request: Callable[[int], Step]) -> protocol.Stepped:
        """Play a turn."""
        return await self._ask(request, protocol.Stepped)

    async def close_episode(self, request: Callable[[int], Close]) -> None:
        """End an episode; nothing happens if the connection has ended, because the server has closed it then."""
        try:
            await self._ask(request, Closed)
        except EnvironmentLost:
            logger.debug("%s ended before an episode was closed", self.url)

    def lost_error(self) -> EnvironmentLost:
        """The error of those who depended on this connection."""
        return EnvironmentLost(
            f"the environment server {self.url} is gone: {self.why} (session {short(self._session)})", self._incident
        )

    async def close(self) -> None:
        """Close the connection."""
        self._end("it was closed")
        await self._socket.close()
        await self._reading

    async def _ask(self, make: Callable[[int], Request], expected: type[A], is_last: Callable[[A], bool] = lambda _: True) -> A:
        number = next(self._ids)
        request = make(number)
        answers = self._waiting[number] = asyncio.Queue()
        answered = False
        try:
            async with asyncio.timeout(request.deadline_s + SLACK_S):
                await self._send(request)  # which waits while the server reads nothing
                while True:
                    answer = None if self.lost.is_set() and answers.empty() else await answers.get()
                    if answer is None:
                        raise self.lost_error()
                    if isinstance(answer, Failed):
                        answered = True
                        raise self._error(answer)
                    if not isinstance(answer, expected):
                        self._end(f"it answered a {type(request).__name__.lower()} with {type(answer).__name__.lower()}")
                        raise self.lost_error()
                    if is_last(answer):
                        answered = True
                        return answer
        except TimeoutError as error:
            self._end(f"it did not answer a {type(request).__name__.lower()} within {request.deadline_s + SLACK_S:g} s")
            raise self.lost_error() from error
        finally:
            del self._waiting[number]
            if not answered and not self.lost.is_set():
                asyncio.create_task(self._cancel(number))  # noqa: RUF006 - it ends by itself, with the connection at the latest

    async def _send(self, request: Request) -> None:
        try:
            frame = protocol.encoder.encode(request)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EnvironmentBroken(f"a {type(request).__name__.lower()} cannot be sent to {self.url}: {error}") from error
        if len(frame) > protocol.LARGEST_MESSAGE:
            problem = f"a {type(request).__name__.lower()} for {self.url} has {len(frame):,} bytes"
            raise EnvironmentBroken(f"{problem}, and a message may have {protocol.LARGEST_MESSAGE:,}")
        if self.lost.is_set():
            raise self.lost_error()
        await self._write(frame)

    async def _cancel(self, number: int) -> None:
        if not self.lost.is_set():
            await self._write(protocol.encoder.encode(Cancel(number)))

    async def _write(self, frame: bytes) -> None:
        try:
            await self._socket.send_bytes(frame)
        except (OSError, aiohttp.ClientError, RuntimeError) as error:  # RuntimeError: the socket is closing
            self._end(f"writing to it failed: {error}")

    def _error(self, failed: Failed) -> AsyncRLError:
        match failed.reason:
            case FailureReason.REFUSED:
                return RecipeError(failed.place or "environment", f"{failed.problem} (says {self.url})", failed.remedy)
            case FailureReason.LOST:
                return EnvironmentLost(f"{self.url}: {failed.problem}", self._incident)
            case _:
                return EnvironmentBroken(failed.problem, failed.raised)

    async def _read(self) -> None:
        why = "the connection ended"
        try:
            async for message in self._socket:
                if message.type is WSMsgType.BINARY:
                    self._take(protocol.from_server(message.data))
                elif message.type is WSMsgType.ERROR:
                    why = f"the connection broke: {message.data}"
        except ComponentFailed as wrong:
            why = str(wrong)
        finally:
            said = self._socket.exception()
            code = self._socket.close_code
            self._end(f"{why}{f' ({said})' if said else ''}{f', close code {code}' if code else ''}")
            await self._socket.close()

    def _take(self, message: protocol.FromServer) -> None:
        if isinstance(message, Welcome | Refused):
            raise ComponentFailed("it sent a second greeting")
        if (answers := self._waiting.get(message.id)) is not None:
            answers.put_nowait(message)

    def _end(self, why: str) -> None:
        """Give the connection up, and tell everybody who waits."""
        if self.lost.is_set():
            return
        self.why, self.lost_episodes = why, self.episodes
        self.lost.set()
        for answers in self._waiting.values():
            answers.put_nowait(None)


async def _greet(url: str, socket: aiohttp.ClientWebSocketResponse, client: str) -> Welcome:
    await socket.send_bytes(protocol.encoder.encode(Hello(protocol.PROTOCOL, client)))
    first = await socket.receive()
    remedy = "install the same version of asyncrl on both sides"
    if first.type is not WSMsgType.BINARY:
        raise NotConnected(f"{url} answered the hello with {first.type.name}", "see its log", final=False)
    try:
        answer = protocol.from_server(first.data)
    except ComponentFailed as wrong:
        raise NotConnected(f"{url}: {wrong}", remedy, final=True) from wrong
    match answer:
        case Welcome(protocol=protocol.PROTOCOL):
            return answer
        case Welcome():
            problem = f"{url} speaks protocol {answer.protocol} ({answer.server}), and this side {protocol.PROTOCOL} ({client})"
            raise NotConnected(problem, remedy, final=True)
        case Refused():
            raise NotConnected(f"{url}: {answer.problem}", remedy, final=True)
        case _:
            raise NotConnected(f"{url} answered the hello with {type(answer).__name__}", remedy, final=True)
