"""Plays one episode of a task by a script instead of a model: reset, an empty answer, close.

It calls and checks the environment as a real episode does, but does without an engine and a tokenizer. No tool is called, because
tools may change things outside the run.
"""

import asyncio
from collections.abc import Callable

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Observation
from asyncrl.envs.hosting.hosted import make_hosted
from asyncrl.generators.episode import EpisodeLimits, checked_reset, checked_step


async def play_dry_episode(
    task: Task,
    make_environment: Callable[[Task], Environment],
    limits: EpisodeLimits,
    at: Callable[[str], None],
    *,
    to_end: bool,
) -> Observation:
    """Play ``task`` within the deadlines of a real episode; returns what the model is shown at the start.

    Args:
        at: called with the name of the method that is called next.
        to_end: answer with an empty text; otherwise the episode is left after its reset.

    Raises:
        EnvironmentBroken: a method raised, returned something invalid, or took too long.
    """
    at("the constructor")
    environment = make_hosted(make_environment, task)
    method = "reset"
    try:
        async with asyncio.timeout(limits.episode_timeout_s):
            at("ready()")
            await environment.ready()
            at("reset()")
            observation = await checked_reset(environment)
            with environment.blamed("reset"):
                _check_shown(observation)
            if to_end:
                method = "step"
                at("step() with an empty answer")
                await checked_step(environment, Action("", ()))
            return observation
    except TimeoutError as error:
        limit = f"environment.episode_timeout_s = {limits.episode_timeout_s:g} s"
        raise EnvironmentBroken(f"task {task.id}: {method}() took longer than {limit}") from error
    finally:
        at("close()")
        await environment.close(limits.close_timeout_s)


def _check_shown(observation: Observation) -> None:
    """Check what the model is shown at the start: messages of text, and tools whose parameters are a JSON schema.

    Raises:
        TypeError, ValueError: something cannot be shown.
    """
    for message in observation.messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            raise TypeError(f"its observation has the message {message!r}, which must be a Message whose content is text")
    names: set[str] = set()
    for tool in observation.tools:
        if not isinstance(tool, ToolSpec):
            raise TypeError(f"its observation has the tool {tool!r}, which must be a ToolSpec")
        if tool.name in names:
            raise ValueError(f"two of its tools are named {tool.name!r}, so a call would not say which it means; rename one")
        names.add(tool.name)
        try:
            schema = msgspec.json.decode(msgspec.json.encode(tool.parameters))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"the parameters of its tool {tool.name!r} are not a JSON schema: {error}") from error
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise TypeError(f"the parameters of its tool {tool.name!r} are not a JSON schema of type object")
