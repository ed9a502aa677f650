"""Environments behind a server of OpenEnv: ``asyncrl env serve http://host:8000 --from openenv``.

The model acts by a tool, ``act``, whose arguments are the fields of the environment's own action; what it sees is the
observation, as JSON. Each action's reward is its turn's.
"""

import asyncio
import time
from typing import Any

import aiohttp
import msgspec
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import WebSocketException

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, RecipeError
from asyncrl.core.messages import CallOutcome, MalformedCall, Message, ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Fault, Observation, StepResult
from asyncrl.envs.other_projects.playing import Seeded, answered, numbers

ACT = "act"
ANSWER_S = 30.0
"""How long the server may take to say what its actions are."""
_NO_ANSWER = (aiohttp.ClientError, TimeoutError)
"""What is raised where no server answers."""
_NOT_SHOWN = {"done", "reward", "metadata"}


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
            self._client = GenericEnvClient(base_url=self._url)
            await self._client.connect()
            begun = await self._client.reset(seed=task.data.get("seed"))
        except (*_NO_ANSWER, OSError, WebSocketException) as error:
            raise self._lost(error) from error
        except RuntimeError as error:  # such as for want of room, which is for one session unless it is made larger
            remedy = "give it room for as many sessions as there are episodes at once (max_concurrent_envs)"
            raise EnvironmentBroken(f"the OpenEnv server {self._url} begins no episode: {error}; {remedy}") from error
        system = (Message("system", self._system_prompt),) if self._system_prompt else ()
        opening = Message("user", f"{self._prompt}\n{_shown(begun.observation)}")
        return Observation((*system, opening), (ToolSpec(ACT, "Take an action, and see what follows.", schema),))

    async def step(self, action: Action) -> StepResult:
        """Take the actions of a turn, one after the other, until the episode is over."""
        if not action.calls:
            asked = Message("user", f"Act by calling `{ACT}`.")
            return StepResult(Observation((asked,)), 0.0, False, fault=Fault.MALFORMED_CALL)
        reward, done, fault, metrics = 0.0, False, None, dict[str, float]()
        pairs = []
        for call in action.calls:
            began = time.monotonic()
            problem = (
                call.problem if isinstance(call, MalformedCall) else "" if call.name == ACT else f"there is no tool {call.name!r}"
            )
            if done:
                pairs.append(answered(call, "The episode is over.", began))
            elif isinstance(call, MalformedCall) or problem:
                fault = Fault.MALFORMED_CALL
                pairs.append(answered(call, "", began, problem))
            else:
                try:
                    result = await self._client.step(dict(call.arguments))
                except TimeoutError:
                    # The server lives, as it answers pings; its answer would be taken for that of the next action.
                    done, fault = True, Fault.TOOL_ERROR
                    late = "the action took too long, and the episode is over"
                    pairs.append(answered(call, "", began, late, CallOutcome.TIMEOUT))
                    continue
                except (OSError, WebSocketException) as error:
                    raise self._lost(error) from error
                except (RuntimeError, ValueError) as error:  # the server refuses the action
                    fault = Fault.MALFORMED_CALL
                    pairs.append(answered(call, "", began, str(error)))
                    continue
                self._scored |= result.reward is not None
                reward, done = reward + float(result.reward or 0.0), bool(result.done)
                if done and not self._scored:
                    problem = f"the OpenEnv server {self._url} ended the episode, and no observation of it had a reward"
                    raise EnvironmentBroken(f"{problem}; have its environment set `reward`")
                if done:
                    metrics = numbers(result.observation.get("metadata") or {})
                pairs.append(answered(call, _shown(result.observation), began))
        messages, records = zip(*pairs, strict=True)
        return StepResult(Observation(messages), reward, done, metrics, fault, records)

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


def _no_actions(url: str, error: Exception) -> RecipeError:
    problem = f"{url} says of no actions: {error or type(error).__name__}"
    return RecipeError("environment.options.name", problem, "start the OpenEnv server, and name it as http://host:port")


def _shown(observation: dict[str, Any]) -> str:
    seen = {name: value for name, value in observation.items() if name not in _NOT_SHOWN}
    if len(seen) == 1 and isinstance(only := next(iter(seen.values())), str):
        return only
    return msgspec.json.encode(seen).decode()
