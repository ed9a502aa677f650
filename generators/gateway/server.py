"""The gateway's HTTP server: agents talk to it as to OpenAI's or Anthropic's.

What always holds: an episode is reached under its own secret path alone. Its requests get an answer or an error in the form of
their protocol. It listens where nobody but this machine reaches it, unless it is told otherwise.
"""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.core.errors import ComponentFailed
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.workspaces import Workspaces
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Sampler
from asyncrl.generators.gateway.attempts import OUTLIVES_S, Attempt, Attempts
from asyncrl.generators.gateway.episode import GatewayEpisode, GatewayLimits, GatewayTurn
from asyncrl.generators.gateway.observer import Observer, Silent
from asyncrl.generators.gateway.problems import Kind, Problem
from asyncrl.generators.gateway.protocol import Protocol
from asyncrl.generators.gateway.protocols import Answer, Protocols
from asyncrl.generators.gateway.traffic import UNANSWERED, Exchange, TrafficRecorder

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
KEEP_ALIVE_S = 10.0
"""Seconds of silence in a stream after which something is sent: some agents give up after five minutes without."""
_KEEP_ALIVE = {
    Protocol.MESSAGES: b'event: ping\ndata: {"type": "ping"}\n\n',
    Protocol.CHAT: b": keep-alive\n\n",
    Protocol.RESPONSES: b": keep-alive\n\n",
    Protocol.GENERATE: b": keep-alive\n\n",
}
_LARGEST = 256 * 2**20
"""Bytes of the largest request."""
_EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class Played:
    """An episode that clients can reach.

    Attributes:
        openai_url, anthropic_url: what the libraries of OpenAI and Anthropic take as base URL.
        traffic: keeps what is asked and answered; None if nothing does.
    """

    def __init__(self, episode: GatewayEpisode, host: str, path: str, outlives_s: float) -> None:
        url, self._path = f"{host}{path}", f"{path}/"
        self.episode, self.attempts = episode, Attempts(episode.streams, outlives_s)
        self.traffic = TrafficRecorder() if episode.limits.keep_traffic else None
        self.openai_url, self.anthropic_url = f"{url}/v1", url

    async def kept(
        self,
        request: web.Request,
        protocol: Protocol,
        answer: Callable[[], Awaitable[Answer]],
        turn: GatewayTurn | None = None,
    ) -> Answer:
        """Wait for an answer, and keep it with its request if the episode's traffic is kept.

        Raises:
            Problem: it cannot be answered.
        """
        arrived = self.traffic.event() if self.traffic else 0
        status, told = UNANSWERED, Answer(())
        try:
            told = await answer()
            status = HTTPStatus.OK.value
        except Exception as error:
            problem = _problem(error)
            status, told = problem.status, Answer((msgspec.json.encode(problem.told_in(protocol)),))
            raise problem from error
        finally:
            if self.traffic:
                path = f"{request.method} {request.path.removeprefix(self._path)}"
                number = None if turn is None else turn.number
                asked, ended = await request.read(), self.traffic.event()  # it was read before, and is not waited for
                body = b"".join(told.chunks)
                self.traffic.add(Exchange(path, arrived, ended, asked, status, told.is_stream, body, number))
        return told


class Gateway:
    """Serves the episodes of one worker. Made within the event loop in which it serves.

    Args:
        host: the address at which it listens.
        outlives_s: seconds for which a request goes on without its client.
        observer: hears of the requests of all episodes.
    """

    def __init__(
        self,
        protocols: Protocols,
        chat: ChatFormat,
        host: str = LOOPBACK,
        outlives_s: float = OUTLIVES_S,
        keep_alive_s: float = KEEP_ALIVE_S,
        observer: Observer = Silent(),  # noqa: B008 - it has no state
    ) -> None:
        self._protocols, self._chat, self._host = protocols, chat, host
        self._outlives_s, self._keep_alive_s, self._observer = outlives_s, keep_alive_s, observer
        self._played: dict[str, Played] = {}
        self._told: set[str] = set()
        app = web.Application(client_max_size=_LARGEST)
        for way in Protocol:
            app.router.add_post(f"/e/{{secret}}/{way.path}", self._handler(way, partial(self._answered, protocol=way)))
        app.router.add_post("/e/{secret}/v1/messages/count_tokens", self._simple(Protocol.MESSAGES, self._count))
        app.router.add_get("/e/{secret}/v1/models", self._simple(None, self._models))
        app.router.add_get("/e/{secret}/v1/models/{name:.+}", self._simple(None, self._model))
        app.router.add_route("*", "/e/{secret}/{rest:.*}", self._simple(None, _unknown))
        app.router.add_route("*", "/{rest:.*}", self._handler(None, _unknown))
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._url = ""
        self._workspaces: Workspaces | None = None

    @property
    def socket(self) -> str:
        """The socket in a file at which it listens, too; empty if there is none."""
        return str(self._workspaces.folder / "socket") if self._workspaces else ""

    async def start(self, port: int = 0, *, for_sandboxes: bool = False) -> None:
        """Listen at ``port``; 0 takes one that is free.

        Args:
            for_sandboxes: whether to listen at a socket in a file, too, which leads into networks of sandboxes.

        Raises:
            ComponentFailed: there can be no socket in a file.
        """
        await self._runner.setup()
        if for_sandboxes:
            self._workspaces = await run_in_daemon_thread(partial(Workspaces, "gateway"), name="making room for the gateway")
            try:
                await web.UnixSite(self._runner, self.socket, backlog=1024).start()
            except OSError as error:
                remedy = "set TMPDIR to a folder of yours with a shorter name"
                raise ComponentFailed(f"the gateway cannot listen at {self.socket}: {error}; {remedy}") from error
        site = web.TCPSite(self._runner, self._host, port, backlog=1024)
        await site.start()
        host, port = next(each[:2] for each in self._runner.addresses if not isinstance(each, str))
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()
        if self._workspaces is not None:
            await run_in_daemon_thread(self._workspaces.close, name="removing the gateway's folder")

    @asynccontextmanager
    async def playing(self, limits: GatewayLimits, sampler: Sampler) -> AsyncIterator[Played]:
        """Return the context of an episode that clients can reach. After it, they are told that it is over."""
        secret = secrets.token_urlsafe(16)
        episode = GatewayEpisode(limits, sampler, self._chat, self._observer)
        played = Played(episode, self._url, f"/e/{secret}", self._outlives_s)
        self._played[secret] = played
        try:
            yield played
        finally:
            del self._played[secret]
            played.episode.over.cancel()
            await played.attempts.end()
            self._tell(played.episode)

    def _tell(self, episode: GatewayEpisode) -> None:
        """Log what requests ask for in vain, each kind once."""
        for what in episode.asked_in_vain.keys() - self._told:
            self._told.add(what)
            logger.warning("requests of agents: %s (sampling is the recipe's)", what)

    def _of(self, request: web.Request) -> Played:
        played = self._played.get(request.match_info["secret"])
        if played is None:
            raise Problem(Kind.OVER, "there is no such episode; it may be over")
        return played

    def _handler(self, protocol: Protocol | None, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        """Return an answer as aiohttp calls it, whose problems the observer hears of, and the client in its protocol."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await answer(request)
            except ConnectionError:  # there is nobody to be told
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told in its protocol
                problem = _problem(error)
                self._observer.refused(problem)
                told = problem.told_in(_told_in(request, protocol))
                # no library takes it for a reason to ask again
                return web.json_response(told, status=problem.status, headers={"x-should-retry": "false"})

        return handle

    async def _answered(self, request: web.Request, *, protocol: Protocol) -> web.StreamResponse:
        self._of(request)  # what has no episode is not read
        raw = await request.read()
        played, body = self._of(request), _object(raw)
        digest = hashlib.blake2b(protocol.encode() + raw, digest_size=16).digest()

        def answering() -> Coroutine[Any, Any, Answer]:
            turn = GatewayTurn(played.episode, protocol, str(body.get("model") or ""))
            return played.kept(request, protocol, partial(self._protocols.answer, turn, body), turn)

        attempt = played.attempts.at(digest, request.headers, answering)
        has_arrived = False
        try:
            response = await self._sent(request, protocol, attempt, streams=body.get("stream") is True)
            has_arrived = attempt.can_answer
            return response
        finally:
            attempt.leave(has_arrived=has_arrived)

    async def _sent(self, request: web.Request, protocol: Protocol, attempt: Attempt, *, streams: bool) -> web.StreamResponse:
        """Wait for the answer, and send it whole.

        Raises:
            Problem: there is no answer, and nothing was sent yet.
        """
        response: web.StreamResponse | None = None
        while not (await asyncio.wait({attempt.task}, timeout=self._keep_alive_s if streams else None))[0]:
            if response is None:
                response = web.StreamResponse(headers=_EVENT_STREAM)
                await response.prepare(request)
            await response.write(_KEEP_ALIVE[protocol])
        try:
            answer = _result(attempt)
        except Problem as problem:
            if response is None:
                raise
            self._observer.refused(problem)
            await response.write(_as_event(problem, protocol))
            await response.write_eof()
            return response
        if response is None:
            length = sum(map(len, answer.chunks))
            whole = {"content-type": "application/json", "content-length": str(length)}
            response = web.StreamResponse(headers=_EVENT_STREAM if answer.is_stream else whole)
            await response.prepare(request)
        for chunk in answer.chunks:
            await response.write(chunk)
        await response.write_eof()
        return response

    def _simple(self, protocol: Protocol | None, answer: Callable[[web.Request, GatewayEpisode], Awaitable[Answer]]) -> Any:
        """Return an answer that is no turn as aiohttp calls it."""

        async def answered(request: web.Request) -> web.StreamResponse:
            played = self._of(request)
            whole = await played.kept(request, _told_in(request, protocol), partial(answer, request, played.episode))
            return web.Response(body=whole.chunks[0], content_type="application/json")

        return self._handler(protocol, answered)

    async def _count(self, request: web.Request, episode: GatewayEpisode) -> Answer:
        return await self._protocols.count_tokens(episode, _object(await request.read()))

    async def _models(self, _: web.Request, __: GatewayEpisode) -> Answer:
        return await self._protocols.models()

    async def _model(self, request: web.Request, _: GatewayEpisode) -> Answer:
        return await self._protocols.model(request.match_info["name"])


async def _unknown(request: web.Request, *_: GatewayEpisode) -> Any:
    ways = ", ".join(f"/{way.path}" for way in Protocol)
    path = re.sub(r"^/e/[^/]*(?=/|$)", "", request.path) or "/"  # without the secret
    raise Problem(Kind.NOT_FOUND, f"the gateway has no {request.method} {path}; it has {ways}")


def _told_in(request: web.Request, protocol: Protocol | None) -> Protocol:
    """Return the protocol in which a client is told of errors; None if the request has to say which it is."""
    return protocol or (Protocol.MESSAGES if "anthropic-version" in request.headers else Protocol.CHAT)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # msgspec's ValidationError is a DecodeError
        raise Problem(Kind.REFUSED, f"the request is no JSON object: {error}; send one in UTF-8") from error


def _result(attempt: Attempt) -> Answer:
    """Return the answer of an attempt that is over.

    Raises:
        Problem: there is none.
    """
    try:
        return attempt.task.result()
    except asyncio.CancelledError:
        raise Problem(Kind.OVER, "the episode is over") from None
    except Exception as error:
        raise _problem(error) from error


def _problem(error: Exception) -> Problem:
    """Return what a client is told of an error; one that nobody expects is logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ComponentFailed):
        return Problem(Kind.DEAD, f"the engine died: {error}")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Problem(Kind.REFUSED, f"the request has more than {_LARGEST} bytes")
    if isinstance(error, web.RequestPayloadError):
        return Problem(Kind.REFUSED, "the request's body is not encoded as its headers say; send it without content-encoding")
    logger.error("a request to the gateway failed", exc_info=error)
    return Problem(Kind.FAILED, f"the gateway failed: {type(error).__name__}: {error}")


def _as_event(problem: Problem, protocol: Protocol) -> bytes:
    """Return a problem as the event of a stream that has begun."""
    told = msgspec.json.encode(problem.told_in(protocol)).decode()
    if protocol is Protocol.MESSAGES:
        return f"event: error\ndata: {told}\n\n".encode()
    return f"data: {told}\n\ndata: [DONE]\n\n".encode()
