"""A conversation with a model behind a server that speaks OpenAI's protocol, with an environment's tools in place.

What always holds: what the model is sent is what was said, in order; every call is answered by one message; and the environment
sees each turn with calls as it does in a run. A turn without calls is the person's to judge: no reward is computed.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Action
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.generators.episode import checked_reset, checked_step
from asyncrl.run.serving.server import Address

MakeEnvironment = Callable[[Task], HostedEnvironment]


class Said(msgspec.Struct, frozen=True):
    """A piece of what the model says; ``thought`` if it is of its reasoning."""

    text: str
    thought: bool = False


class Called(msgspec.Struct, frozen=True):
    """A call that the model made, as it wrote it."""

    name: str
    arguments: str


class ToolSaid(msgspec.Struct, frozen=True):
    """What a tool, or the environment, answered."""

    message: Message


class Over(msgspec.Struct, frozen=True):
    """The environment ended the episode, or the model used up its turns: the next message begins anew."""

    why: str


class Cut(msgspec.Struct, frozen=True):
    """The model's turn was cut off, so what it said is not all that it would have."""

    why: str


Piece = Said | Called | ToolSaid | Over | Cut
CONNECT_S = 30.0
"""How long a server may take to accept a connection."""
SILENT_S = 300.0
"""How long a server may say nothing, not even a comment: a long prompt is read before the first word."""


class Conversation:
    """Talks to the model ``name`` at ``address``.

    Args:
        make: makes the environment of an episode; None to talk without tools.
        max_turns: the most turns of the model after one message.
        sampling: further keys of each request, such as ``temperature``.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        address: Address,
        name: str,
        make: MakeEnvironment | None = None,
        max_turns: int = 6,
        sampling: dict[str, Any] | None = None,
    ) -> None:
        self._http, self._address, self._name, self._make, self._max_turns = http, address, name, make, max_turns
        self._sampling = sampling or {}
        self._environment: HostedEnvironment | None = None
        self._messages: list[dict[str, Any]] = []
        self._tools: tuple[ToolSpec, ...] = ()
        self._begun = 0

    async def say(self, text: str) -> AsyncIterator[Piece]:
        """Say something, and yield what the model and the tools say, until it is the person's turn again.

        Raises:
            ComponentFailed: the server refuses the request, or is gone.
            EnvironmentBroken: the environment raised.
        """
        if self._make is not None and self._environment is None:
            await self._begin(text)
        else:
            self._messages.append({"role": "user", "content": text})
        for _ in range(self._max_turns):
            content, calls = "", dict[int, dict[str, Any]]()
            async for piece in self._turn(calls):
                content += piece.text if isinstance(piece, Said) and not piece.thought else ""
                yield piece
            self._messages.append(
                {"role": "assistant", "content": content, **({"tool_calls": list(calls.values())} if calls else {})}
            )
            if not calls:
                return
            for made in calls.values():
                yield Called(made["function"]["name"], made["function"]["arguments"])
            if self._environment is None:
                yield Over("there is no environment that could answer the call")
                self._messages.clear()
                return
            action = Action(content, tuple(_read(made["function"]) for made in calls.values()))
            result = await checked_step(self._environment, action)
            answered = iter(calls.values())
            for message in result.observation.messages:
                call = next(answered, None) if message.role == "tool" else None
                answers = {} if call is None else {"tool_call_id": call["id"]}
                self._messages.append({"role": message.role, "content": message.content, **answers})
                yield ToolSaid(message)
            if result.done:
                yield Over("the environment ended the episode")
                await self.begin_anew()
                return
        yield Over(f"environment.max_turns = {self._max_turns} reached")
        await self.begin_anew()

    async def begin_anew(self) -> None:
        """Forget what was said, and end the environment's episode."""
        self._messages.clear()
        environment, self._environment = self._environment, None
        if environment is not None:
            await environment.close(10.0)

    async def _begin(self, text: str) -> None:
        assert self._make is not None
        self._begun += 1
        self._environment = self._make(Task(id=TaskId(f"chat-{self._begun}"), prompt=text))
        await self._environment.ready()
        observation = await checked_reset(self._environment)
        self._messages = [message.as_template_input() for message in observation.messages]
        self._tools = observation.tools

    async def _turn(self, calls: dict[int, dict[str, Any]]) -> AsyncIterator[Said | Cut]:
        """Have the model say a turn; its calls are put into ``calls``."""
        ended = False
        tools = {"tools": [tool.as_template_input() for tool in self._tools]} if self._tools else {}
        request = {"model": self._name, "messages": self._messages, "stream": True, **tools, **self._sampling}
        try:
            async with self._http.post(
                f"{self._address.url}/v1/chat/completions", json=request, headers=self._address.headers
            ) as answer:
                if answer.status != 200:
                    raise ComponentFailed(f"the server refuses the request: {short(await answer.text())}")
                async for line in answer.content:
                    kind, _, data = line.decode().strip().partition(":")
                    if kind != "data" or data.strip() == "[DONE]":  # comments keep a slow answer alive
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise ComponentFailed(f"the server cannot go on: {short(event['error'])}")
                    for choice in event.get("choices", ()):
                        delta, why = choice["delta"], choice.get("finish_reason")
                        ended = ended or why is not None
                        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                            yield Said(thought, thought=True)
                        if delta.get("content"):
                            yield Said(delta["content"])
                        for call in delta.get("tool_calls") or ():
                            _extend(calls, call)
                        if why == "length":
                            yield Cut("cut off: it has reached its most tokens, or the model's context is full")
            if not ended:
                yield Cut("cut off: the server ended its answer before the model had")
        except aiohttp.ServerTimeoutError as error:
            raise ComponentFailed(f"the server does not answer ({error}); see whether it goes on") from error
        except aiohttp.ClientError as error:
            raise ComponentFailed(f"the server is gone: {error}") from error
        except ValueError as error:
            problem = f"the server answers what is no event: {short(str(error))}"
            raise ComponentFailed(f"{problem}; name one of OpenAI's protocol as --url") from error


def _extend(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    """Add a piece of a call to the calls, by their places."""
    new = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(piece["index"], new)
    call["id"] = piece.get("id") or call["id"]
    for key, text in (piece.get("function") or {}).items():
        call["function"][key] += text or ""


def _read(function: dict[str, str]) -> ToolCall | MalformedCall:
    text = f"{function['name']}({function['arguments']})"
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return MalformedCall(text, f"the arguments are not JSON: {error}")
    return (
        ToolCall(function["name"], arguments) if isinstance(arguments, dict) else MalformedCall(text, "arguments are an object")
    )
