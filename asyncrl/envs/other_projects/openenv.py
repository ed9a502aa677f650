"""Environments behind a server of OpenEnv: ``asyncrl env serve http://host:8000 --from openenv``.

The model acts by a tool, ``act``, whose arguments are the fields of the environment's own action, or, where that is a call of a
tool (``MCPEnvironment``), by these tools; what it sees is the observation, as JSON, or the tool's text. Each action's reward is
its turn's. An action that the server refuses is the policy's fault, an exception of its environment is not.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosedOK, WebSocketException

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, RecipeError
from asyncrl.core.messages import CallOutcome, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Action, Fault, Observation, StepResult
from asyncrl.envs.other_projects.playing import Seeded, answered, numbers

ACT = "act"
_ACT = "Take an action, and see what follows."
ANSWER_S = 30.0
"""How long the server may take to say what its actions are."""
_NO_ANSWER = (aiohttp.ClientError, TimeoutError)
"""What is raised where no server answers."""
_NOT_SHOWN = {"done", "reward", "metadata"}
_REFUSAL = re.compile(r"\(code: VALIDATION_ERROR\)$|Unable to serialize .*\(code: SESSION_ERROR\)$", re.DOTALL)
"""How the error of a step ends that is the action's: it does not fit, or a validator of its own refuses it, of which the server
ends the session, as it cannot send the validator's exception."""
_SESSION_ENDED = "(code: SESSION_ERROR)"
_OUTCOMES = {
    "execution_error": CallOutcome.ERROR,
    "transport_error": CallOutcome.ERROR,
    "timeout": CallOutcome.TIMEOUT,
}
"""What became of a tool's call, by the type of its error; any other is the call's own."""


class _Client(GenericEnvClient):  # type: ignore[misc]
    """The client of a session, which keeps where an action does not fit. The library's own drops what the server says of it."""

    misfits: tuple[str, ...] = ()

    async def _receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = await super()._receive()
        errors = (answer.get("data") or {}).get("errors", ()) if answer.get("type") == "error" else ()
        self.misfits = tuple(error["loc"][0] for error in errors if error["loc"])
        return answer


class OpenEnv(Seeded):
    """An environment behind a server of OpenEnv.

    Args:
        name: the server's address.
        system_prompt: the system message; none if empty.
        prompt: the user's message, before the first observation.
    """

    def __init__(self, name: str, system_prompt: str = "", prompt: str = "Begin.") -> None:
        self._url, self._system_prompt, self._prompt = name, system_prompt, prompt
        self._client: Any = None
        self._tools: dict[str, ToolSpec] = {}
        self._calls_tools = False
        self._scored = False

    @classmethod
    def check(cls, **options: Any) -> None:
        """Ask the server for the fields of its actions."""
        try:
            asyncio.run(_action_schema(options["name"]))
        except _NO_ANSWER as error:
            raise _no_actions(options["name"], error) from error

    async def reset(self, task: Task) -> Observation:
        """Begin an episode with the task's seed."""
        try:
            schema = await _action_schema(self._url)
            self._calls_tools = _calls_tools(schema)
            self._client = _Client(base_url=self._url)
            await self._client.connect()
            tools = await self._listed() if self._calls_tools else (ToolSpec(ACT, _ACT, schema),)
            begun = await self._client.reset(seed=task.data.get("seed"))
        except (RuntimeError, ConnectionClosedOK) as error:
            # Such as for want of room, which is for one session unless it is made larger.
            remedy = "give it room for as many sessions as there are episodes at once (max_concurrent_envs)"
            raise EnvironmentBroken(f"the OpenEnv server {self._url} begins no episode: {error}; {remedy}") from error
        except (*_NO_ANSWER, OSError, WebSocketException) as error:
            raise self._lost(error) from error
        system = (Message("system", self._system_prompt),) if self._system_prompt else ()
        opening = Message("user", "\n".join(filter(None, (self._prompt, _shown(begun.observation)))))
        self._tools = {tool.name: tool for tool in tools}
        return Observation((*system, opening), tools)

    async def _listed(self) -> tuple[ToolSpec, ...]:
        """Ask for the tools that actions call."""
        listed = (await self._client.step({"type": "list_tools"})).observation.get("tools") or []
        if not listed:
            raise EnvironmentBroken(f"the OpenEnv server {self._url} lists no tools; see what its environment logs")
        return tuple(ToolSpec(each["name"], each["description"], each["input_schema"]) for each in listed)

    async def step(self, action: Action) -> StepResult:
        """Take the actions of a turn, one after the other, until the episode is over."""
        if not action.calls:
            asked = Message("user", f"Act by calling {' or '.join(f'`{name}`' for name in self._tools)}.")
            return StepResult(Observation((asked,)), 0.0, False, fault=Fault.MALFORMED_CALL)
        reward, done, fault, metrics = 0.0, False, None, dict[str, float]()
        pairs = []
        for call in action.calls:
            if done:
                pairs.append(answered(call, "The episode is over.", time.monotonic()))
                continue
            taken = await self._taken(call)
            reward, done, metrics = reward + taken.reward, taken.done, taken.metrics
            fault = taken.fault or fault
            pairs.append((taken.observation.messages[0], taken.calls[0]))
        messages, records = zip(*pairs, strict=True)
        return StepResult(Observation(messages), reward, done, metrics, fault, records)

    async def _taken(self, call: ToolCall | MalformedCall) -> StepResult:
        """Take one action.

        Raises:
            EnvironmentLost: the server is gone.
            EnvironmentBroken: its environment raised, or ended the episode without a reward.
        """
        began = time.monotonic()
        if isinstance(call, MalformedCall):
            return _failed(call, began, call.problem)
        if call.name not in self._tools:
            return _failed(call, began, f"there is no tool {call.name!r}")
        arguments = dict(call.arguments)
        called = self._calls_tools
        sent = {"type": "call_tool", "tool_name": call.name, "arguments": arguments} if called else arguments
        fields = self._tools[call.name].parameters.get("properties", {})
        try:
            result = await self._client.step(sent)
        except TimeoutError:
            # The server lives, as it answers pings; its answer would be taken for that of the next action.
            return _failed(call, began, "the action took too long, and the episode is over", CallOutcome.TIMEOUT, done=True)
        except (OSError, WebSocketException) as error:
            raise self._lost(error) from error
        except ValueError as error:  # what JSON cannot say
            return _failed(call, began, str(error))
        except RuntimeError as error:
            # A model that the environment makes of something else may not fit either; its fields are others.
            if not _REFUSAL.search(str(error)) or not {*self._client.misfits} <= {*sent, *fields}:
                raise EnvironmentBroken(
                    f"the environment of the OpenEnv server {self._url} failed at {short(arguments)}: {error}; mend it, or have "
                    "it refuse such an action by an observation or a type of its field"
                ) from error
            ended = str(error).endswith(_SESSION_ENDED)
            known = ", ".join(f"{name} ({each.get('type', 'see the schema')})" for name, each in fields.items())
            told = (
                "the server refused the action, and the episode is over"
                if ended
                else f"this is no action; its fields are {known}"
            )
            return _failed(call, began, told, done=ended)
        self._scored |= result.reward is not None
        done, metrics = bool(result.done), dict[str, float]()
        if done and not self._scored:
            problem = f"the OpenEnv server {self._url} ended the episode, and no observation of it had a reward"
            raise EnvironmentBroken(f"{problem}; have its environment set `reward`")
        if done:
            metrics = numbers(result.observation.get("metadata") or {})
        failure = result.observation.get("error") if called else None
        if failure:
            outcome = _OUTCOMES.get(failure["error_type"], CallOutcome.MALFORMED)
            return _failed(call, began, failure["message"], outcome, float(result.reward or 0.0), done, metrics)
        message, record = answered(call, _returned(result.observation) if called else _shown(result.observation), began)
        return StepResult(Observation((message,)), float(result.reward or 0.0), done, metrics, calls=(record,))

    def _lost(self, error: Exception) -> EnvironmentLost:
        return EnvironmentLost(f"the OpenEnv server {self._url} is gone: {error or type(error).__name__}", self._url)

    async def close(self) -> None:
        """End the session."""
        if self._client is not None:
            await self._client.close()


async def _action_schema(url: str) -> dict[str, Any]:
    """Return the JSON schema of the server's actions.

    Raises:
        aiohttp.ClientError, TimeoutError: the server does not answer.
        RecipeError: it is another server.
    """
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{url.rstrip('/')}/schema") as answer:
        answer.raise_for_status()
        try:
            schema = (await answer.json())["action"]
        except (KeyError, TypeError, ValueError) as error:
            raise _no_actions(url, error) from error
    properties = {name: each for name, each in schema.get("properties", {}).items() if name not in _NOT_SHOWN}
    required = [name for name in schema.get("required", []) if name in properties]
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": properties, "required": required, **definitions}


def _calls_tools(schema: Mapping[str, Any]) -> bool:
    """Whether actions are calls of tools, which the environment lists."""
    return bool(schema["properties"].get("type", {}).get("const") == "call_tool")


def _failed(
    call: ToolCall | MalformedCall,
    began: float,
    problem: str,
    outcome: CallOutcome = CallOutcome.MALFORMED,
    reward: float = 0.0,
    done: bool = False,
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> StepResult:
    """Return the result of an action that was not taken, or whose tool failed."""
    fault = Fault.MALFORMED_CALL if outcome is CallOutcome.MALFORMED else Fault.TOOL_ERROR
    message, record = answered(call, "", began, problem, outcome)
    return StepResult(Observation((message,)), reward, done, dict(metrics), fault, (record,))


def _no_actions(url: str, error: Exception) -> RecipeError:
    problem = f"{url} says of no actions: {error or type(error).__name__}"
    return RecipeError("environment.options.name", problem, "start the OpenEnv server, and name it as http://host:port")


def _shown(observation: Mapping[str, Any]) -> str:
    """Write an observation as text; empty if there is nothing in it."""
    seen = {name: value for name, value in observation.items() if name not in _NOT_SHOWN}
    if len(seen) == 1 and isinstance(only := next(iter(seen.values())), str):
        return only
    return msgspec.json.encode(seen).decode() if seen else ""


def _returned(observation: Mapping[str, Any]) -> str:
    """Write what a tool returned as text: that of MCP's content, if it has no other."""
    result = observation.get("result")
    content = result.get("content") if isinstance(result, Mapping) else None
    if content and all(part.get("type") == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()
