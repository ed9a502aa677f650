"""An endpoint of OpenAI's protocol on this machine, behind which is whoever plays the turns of an episode.

It is for environments that ask a model by themselves: what they ask becomes the next observation, and the turn that is played is
their answer. What always holds: only who knows an episode's address asks in its name; a request is answered once, by a turn;
a conversation only grows, so that no token of a turn has to be written again; and what a request asks of the turn beside messages
and tools is what the turn has, or refused, or named in the log.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.core.chat_prompt import read_message
from asyncrl.core.described_tools import described_tools
from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.text import short
from asyncrl.envs.base import Action

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
POLICY = "policy"
"""What environments call the model."""
_READ = {"messages", "model", "tools", "stream", "stream_options", "n", "stop"}
_RECIPES = {"temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"}
"""Parameters that say how tokens are sampled, which the recipe alone does."""
_NEUTRAL: Mapping[str, object] = {
    **dict.fromkeys(("logprobs", "return_token_ids"), False),
    **dict.fromkeys(("top_logprobs", "frequency_penalty", "presence_penalty"), 0),
    **{"repetition_penalty": 1, "logit_bias": {}, "response_format": {"type": "text"}},
    **{"tool_choice": "auto", "parallel_tool_calls": True, "functions": []},
}
"""Parameters without which a turn is another than was asked for, by the value with which they ask for nothing."""


class Line:
    """The requests of one episode, and the turns that answer them.

    Args:
        ignored: the parameters of requests that did nothing, of all episodes: each is named in the log once.
    """

    def __init__(self, url: str, ignored: set[str]) -> None:
        self.url = url
        self._ignored = ignored
        self._requests: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[Action]]] = asyncio.Queue()
        self._open: asyncio.Future[Action] | None = None
        self._seen: list[dict[str, Any]] = []
        self._stops: tuple[str, ...] = ()
        self.tools: tuple[ToolSpec, ...] = ()

    async def ask(self, body: dict[str, Any]) -> Action:
        """Ask for a turn, and wait for it."""
        answer: asyncio.Future[Action] = asyncio.get_running_loop().create_future()
        await self._requests.put((body, answer))
        return await answer

    async def request(self) -> tuple[Message, ...]:
        """Wait for the next request, and return the messages that are new in it.

        Raises:
            EnvironmentBroken: it changes what was said before, so that it is no continuation; a message says what would not
                reach the model; or it asks for several turns at once, or for a turn that the policy does not write.
        """
        body, self._open = await self._requests.get()
        if (several := body.get("n") or 1) != 1:
            raise EnvironmentBroken(f"the environment asks for {several} turns at once (n), and gets one; have it ask for one")
        _refuse_other_turns(body)
        stop = body.get("stop") or ()
        self._stops = (stop,) if isinstance(stop, str) else tuple(filter(None, stop))
        for name in {name for name, value in body.items() if value is not None} - _READ - _NEUTRAL.keys() - self._ignored:
            self._ignored.add(name)
            why = "is the recipe's (sampling)" if name in _RECIPES else "does nothing here"
            logger.warning("the environment asks for %s=%s, which %s", name, short(body[name]), why)
        messages, known = body["messages"], len(self._seen)
        if [_plain(each) for each in messages[:known]] != [_plain(each) for each in self._seen]:
            raise EnvironmentBroken(
                "the environment changes what was said before, which an environment of turns cannot; play it as an agent instead"
            )
        new = messages[known:]
        if known and (not new or new[0].get("role") != "assistant"):
            raise EnvironmentBroken(
                "the environment asks for a second turn in place of one that was played; play it as an agent instead"
            )
        self._seen = list(messages)
        self.tools = described_tools(body.get("tools"))
        return tuple(_later(each) for each in new[1:]) if known else tuple(map(_opening, new))

    def answer(self, action: Action) -> Action:
        """Answer the open request by a turn, and return it as the environment sees it: its calls have ids.

        Raises:
            EnvironmentBroken: the turn went on behind a text at which the environment has it end.
        """
        assert self._open is not None
        for stop in self._stops:
            said, found, later = action.content.partition(stop)
            if found and (later or action.calls):
                problem = f"the environment has turns end at {stop!r} (stop), and one went on behind it"
                raise EnvironmentBroken(f"{problem}; set sampling.stop of the recipe to {json.dumps(self._stops)}")
            action = Action(said, action.calls)
        action = Action(action.content, tuple(_with_id(call) for call in action.calls))
        if not self._open.done():
            self._open.set_result(action)
        return action

    def end(self) -> None:
        """Let nobody wait for a turn any more."""
        waiting = [] if self._open is None else [self._open]
        while not self._requests.empty():  # those that it made at once, which nobody has read
            waiting.append(self._requests.get_nowait()[1])
        for answer in waiting:
            answer.cancel()


class Endpoint:
    """Answers requests of environments on a free port. Call :meth:`start` in the environments' event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._ignored = set[str]()
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen."""
        application = web.Application(client_max_size=64 << 20)
        application.router.add_post("/{line}/v1/chat/completions", self._complete)
        application.router.add_get("/{line}/v1/models", self._models)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, 0)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self) -> Line:
        """Open the line of an episode."""
        name = secrets.token_urlsafe()
        line = self._lines[name] = Line(f"http://{LOOPBACK}:{self._port}/{name}/v1", self._ignored)
        return line

    def hang_up(self, line: Line) -> None:
        """Close the line of an episode."""
        line.end()
        self._lines = {name: each for name, each in self._lines.items() if each is not line}

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": POLICY, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        line = self._lines.get(request.match_info["line"])
        if line is None:
            return web.json_response({"error": {"message": "the episode has ended"}}, status=410)
        body = await request.json()
        try:
            action = await line.ask(body)
        except asyncio.CancelledError:
            return web.json_response({"error": {"message": "the episode has ended"}}, status=410)
        if body.get("stream"):
            return await _stream(request, action)
        choice = {"index": 0, "message": _assistant(action), "finish_reason": "tool_calls" if action.calls else "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return web.json_response({**_frame("chat.completion"), "choices": [choice], "usage": usage})


async def _stream(request: web.Request, action: Action) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    said = _assistant(action)
    delta = {
        **said,
        **({"tool_calls": [{"index": n, **each} for n, each in enumerate(said["tool_calls"])]} if action.calls else {}),
    }
    end = "tool_calls" if action.calls else "stop"
    for choice in ({"index": 0, "delta": delta, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": end}):
        event = {**_frame("chat.completion.chunk"), "choices": [choice]}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _frame(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": kind, "created": int(time.time()), "model": POLICY}


def _assistant(action: Action) -> dict[str, Any]:
    """A turn as the message of an assistant. A call that could not be read stays text, which is how the environment sees it."""
    malformed = "".join(call.text for call in action.calls if isinstance(call, MalformedCall))
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in action.calls
        if isinstance(call, ToolCall)
    ]
    # Clients take an answer without anything in it for a fault of the server; a policy may say nothing, and so does a dry run.
    said = action.content + malformed or ("" if calls else " ")
    return {"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})}


def _refuse_other_turns(body: Mapping[str, Any]) -> None:
    """Raise ``EnvironmentBroken`` if a request asks for a turn that the policy does not write."""
    for name, neutral in _NEUTRAL.items():
        if body.get(name) not in (None, neutral):
            problem = f"the environment asks for {name}={short(body[name])}, which turns here do not have"
            raise EnvironmentBroken(f"{problem}; have it leave {name} out, or play it as an agent instead")


def _with_id(call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
    return msgspec.structs.replace(call, id=f"call_{secrets.token_hex(8)}") if isinstance(call, ToolCall) else call


def _plain(message: Mapping[str, Any]) -> tuple[str, str]:
    return message.get("role", ""), _text(message.get("content"))


def _opening(message: Mapping[str, Any]) -> Message:
    """Return a message of those that an episode begins with, an example's calls and answers among them."""
    said = {key: message[key] for key in ("tool_calls", "tool_call_id") if message.get(key)}
    role = "system" if message.get("role") == "developer" else message.get("role")
    try:
        return read_message({"role": role, "content": _text(message.get("content")), **said})
    except ValueError as error:
        raise EnvironmentBroken(f"the environment opens with a message that {error}") from error


def _later(message: Mapping[str, Any]) -> Message:
    """Return a message that follows a turn; the ids of calls are the endpoint's own, which the model has never seen."""
    if message.get("tool_calls"):
        raise EnvironmentBroken(
            "the environment calls a tool in the model's name, which an environment of turns cannot; play it as an agent instead"
        )
    role = message.get("role")
    return Message(role if role in ("system", "assistant", "tool") else "user", _text(message.get("content")))


def _text(content: object) -> str:
    """Return the text of a message.

    Raises:
        EnvironmentBroken: it has parts that are no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    raise EnvironmentBroken("the environment shows what is no text, such as a picture, which cannot be served")
