"""The gateway's HTTP server: agents talk to it as to OpenAI's or Anthropic's.

What always holds: an episode is reached under its own secret path alone. Its requests get an answer or an error in the form of
their protocol. It listens where nobody but this machine reaches it, unless it is told otherwise.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.core.errors import ComponentFailed
from generators.chat_format import ChatFormat
from generators.completion import Sampler
from generators.gateway.attempts import OUTLIVES_S, Attempt, Attempts
from generators.gateway.episode import GatewayEpisode, GatewayLimits
from generators.gateway.observer import Observer, Silent
from generators.gateway.problems import Kind, Problem
from generators.gateway.protocol import Protocol
from generators.gateway.protocols import Answer, Protocols

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
KEEP_ALIVE_S = 10.0
"""Seconds of silence in a stream after which something is sent: some agents give up after five minutes without."""
_KEEP_ALIVE = {
    Protocol.MESSAGES: b'event: ping\ndata: {"type": "ping"}\n\n',
    Protocol.CHAT: b": keep-alive\n\n",
    Protocol.RESPONSES: b": keep-alive\n\n",
}
_LARGEST = 256 * 2**20
"""Bytes of the largest request."""
_EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class Played:
    """An episode that clients can reach.

    Attributes:
        openai_url, anthropic_url: what the libraries of OpenAI and Anthropic take as base URL.
    """

    def __init__(self, episode: GatewayEpisode, url: str, outlives_s: float) -> None:
        self.episode, self.attempts = episode, Attempts(episode.streams, outlives_s)
        self.openai_url, self.anthropic_url = f"{url}/v1", url


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
            app.router.add_post(f"/e/{{secret}}/v1/{way}", self._handler(way))
        app.router.add_post("/e/{secret}/v1/messages/count_tokens", self._count)
        app.router.add_get("/e/{secret}/v1/models", self._models)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._url = ""

    async def start(self, port: int = 0) -> None:
        """Listen at ``port``; 0 takes one that is free."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, port, backlog=1024)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    @asynccontextmanager
    async def playing(self, limits: GatewayLimits, sampler: Sampler) -> AsyncIterator[Played]:
        """Return the context of an episode that clients can reach. After it, they are told that it is over."""
        secret = secrets.token_urlsafe(16)
        episode = GatewayEpisode(limits, sampler, self._chat, self._observer)
        played = Played(episode, f"{self._url}/e/{secret}", self._outlives_s)
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

    def _handler(self, protocol: Protocol) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await self._answered(request, protocol)
            except Problem as problem:
                self._observer.refused(problem)
                return _refused(problem, protocol)

        return handle

    async def _answered(self, request: web.Request, protocol: Protocol) -> web.StreamResponse:
        raw = await request.read()
        played, body = self._of(request), _object(raw)
        digest = hashlib.blake2b(protocol.encode() + raw, digest_size=16).digest()
        episode = played.episode
        attempt = played.attempts.at(digest, request.headers, lambda: self._protocols.answer(episode, protocol, body))
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

    async def _count(self, request: web.Request) -> web.StreamResponse:
        try:
            episode = self._of(request).episode
            answer = await self._protocols.count_tokens(episode, _object(await request.read()))
        except Problem as problem:
            return _refused(problem, Protocol.MESSAGES)
        return web.Response(body=answer.chunks[0], content_type="application/json")

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            self._of(request)
        except Problem as problem:
            return _refused(problem, Protocol.CHAT)
        return web.Response(body=(await self._protocols.models()).chunks[0], content_type="application/json")

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        ways = ", ".join(f"/v1/{way}" for way in Protocol)
        problem = Problem(
            Kind.NOT_FOUND, f"the gateway has no {request.method} {request.path.rpartition('/e/')[2]}; it has {ways}"
        )
        self._observer.refused(problem)
        is_anthropic = "anthropic-version" in request.headers
        return _refused(problem, Protocol.MESSAGES if is_anthropic else Protocol.CHAT)


def _refused(problem: Problem, protocol: Protocol) -> web.Response:
    """Return a problem as an answer, which no library takes for a reason to ask again."""
    return web.json_response(problem.told_in(protocol), status=problem.status, headers={"x-should-retry": "false"})


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Problem(Kind.REFUSED, f"the request is no JSON object: {error}") from error


def _result(attempt: Attempt) -> Answer:
    """Return the answer of an attempt that is over.

    Raises:
        Problem: there is none.
    """
    try:
        return attempt.task.result()
    except asyncio.CancelledError:
        raise Problem(Kind.OVER, "the episode is over") from None
    except ComponentFailed as error:
        raise Problem(Kind.DEAD, f"the engine died: {error}") from error
    except Problem:
        raise
    except Exception as error:
        logger.exception("a request to the gateway failed")
        raise Problem(Kind.FAILED, f"the gateway failed: {type(error).__name__}: {error}") from error


def _as_event(problem: Problem, protocol: Protocol) -> bytes:
    """Return a problem as the event of a stream that has begun."""
    told = msgspec.json.encode(problem.told_in(protocol)).decode()
    if protocol is Protocol.MESSAGES:
        return f"event: error\ndata: {told}\n\n".encode()
    return f"data: {told}\n\ndata: [DONE]\n\n".encode()
