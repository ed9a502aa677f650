"""Environments of Gymnasium whose actions can be written: ``asyncrl env serve FrozenLake-v1 --from gym``.

The model acts by a tool, ``act``; what it sees is what the environment renders as text, or else the observation. Each action's
reward is the turn's, so the episode's is their sum.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Action, Fault, Observation, StepResult
from asyncrl.envs.other_projects.playing import Seeded, answered, numbers

ACT = "act"
_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m")
"""What an environment marks with a colour, such as where the player is; the model sees it in brackets."""


class Gym(Seeded):
    """An environment of Gymnasium.

    Args:
        name: its id, such as ``FrozenLake-v1``.
        arguments: keyword arguments of ``gymnasium.make``.
        actions: names of its actions, in order, if they are a few numbered ones.
        system_prompt: the system message; none if empty.
    """

    def __init__(self, name: str, arguments: dict[str, Any] = {}, actions: list[str] = [], system_prompt: str = "") -> None:  # noqa: B006 - never changed
        self._name, self._arguments, self._actions, self._system_prompt = name, arguments, actions, system_prompt
        self._played: Any = None

    @classmethod
    def check(cls, **options: Any) -> None:
        """Make the environment once."""
        made = _made(options["name"], options.get("arguments", {}))
        try:
            _schema(made.action_space, options.get("actions", []))
        finally:
            made.close()

    async def reset(self, task: Task) -> Observation:
        """Begin an episode with the task's seed."""
        self._played = await self.blocking(_made, self._name, self._arguments)
        seen, _ = await self.blocking(self._played.reset, seed=task.data.get("seed"))
        schema = _schema(self._played.action_space, self._actions)
        parameters = {"type": "object", "properties": schema, "required": ["action"]}
        tool = ToolSpec(ACT, "Take an action, and see what follows.", parameters)
        system = (Message("system", self._system_prompt),) if self._system_prompt else ()
        opening = Message("user", f"{task.question}\n{await self._shown(seen)}")
        return Observation((*system, opening), (tool,))

    async def step(self, action: Action) -> StepResult:
        """Take the actions of a turn, one after the other, until the episode is over."""
        if not action.calls:
            asked = Message("user", f"Act by calling `{ACT}`.")
            return StepResult(Observation((asked,)), 0.0, False, fault=Fault.MALFORMED_CALL)
        reward, done, fault = 0.0, False, None
        messages, records, metrics = [], [], {}
        for call in action.calls:
            began = time.monotonic()
            if done:
                message, record = answered(call, "The episode is over.", began)
            else:
                problem, value = self._read(call)
                if problem:
                    fault = Fault.MALFORMED_CALL
                    message, record = answered(call, "", began, problem)
                else:
                    seen, gained, terminated, truncated, info = await self.blocking(self._played.step, value)
                    reward, done = reward + float(gained), bool(terminated or truncated)
                    metrics = {**numbers(info), "reached_end": float(terminated)} if done else {}
                    message, record = answered(call, await self._shown(seen), began)
            messages.append(message)
            records.append(record)
        return StepResult(Observation(tuple(messages)), reward, done, metrics, fault, tuple(records))

    async def close(self) -> None:
        """Close the environment."""
        if self._played is not None:
            await self.blocking(self._played.close)

    def _read(self, call: ToolCall | MalformedCall) -> tuple[str, Any]:
        """Return what is wrong with a call, or empty and the action that it means."""
        if isinstance(call, MalformedCall):
            return call.problem, None
        if call.name != ACT:
            return f"there is no tool {call.name!r}, only {ACT!r}", None
        if "action" not in call.arguments:
            return "the argument `action` is missing", None
        given, space = call.arguments["action"], self._played.action_space
        try:
            if isinstance(space, spaces.Discrete):
                if self._actions:
                    value: Any = space.start + self._actions.index(given)
                elif isinstance(given, bool) or (isinstance(given, float) and not given.is_integer()):
                    return f"{given} is no whole number", None
                else:
                    value = int(given)
                value = np.int64(value)
            else:
                value = given if isinstance(space, spaces.Text) else _array(given, space.dtype)
        except (ValueError, TypeError, OverflowError):
            value = None
        known = value is not None and space.contains(value)
        return ("", value) if known else (f"{short(given)} is no action; {_choices(space, self._actions)}", None)

    async def _shown(self, seen: Any) -> str:
        if self._played.render_mode == "ansi":
            return _COLOURED.sub(r"[\1]", str(await self.blocking(self._played.render))).strip("\n")
        return _text(seen)


def _made(name: str, arguments: Mapping[str, Any]) -> Any:
    """Make an environment, one that renders text if it can.

    Raises:
        RecipeError: there is none of this name, or the arguments do not fit.
    """
    try:
        modes = gymnasium.spec(name).kwargs.get("render_mode") or getattr(_class_of(name), "metadata", {}).get("render_modes", ())
        text: dict[str, Any] = {"render_mode": "ansi"} if "ansi" in modes and "render_mode" not in arguments else {}
        return gymnasium.make(name, **text, **arguments)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        problem = f"gymnasium cannot make {name!r}: {error}"
        unknown = isinstance(error, gymnasium.error.UnregisteredEnv)
        remedy = (
            "gymnasium.pprint_registry() lists what there is" if unknown else "correct its arguments, or install what it needs"
        )
        raise RecipeError("environment.options.name", problem, remedy) from error


def _class_of(name: str) -> Any:
    entry = gymnasium.spec(name).entry_point
    return gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry


def _schema(space: Any, actions: list[str]) -> dict[str, Any]:
    """Describe the actions of a space to the model.

    Raises:
        RecipeError: they cannot be written.
    """
    match space:
        case spaces.Discrete():
            last = int(space.start + space.n - 1)
            if actions and len(actions) != space.n:
                problem = f"{len(actions)} names are given, and there are {space.n} actions"
                raise RecipeError("environment.options.actions", problem, "name each action, in order")
            schema: dict[str, Any] = {"type": "integer", "minimum": int(space.start), "maximum": last}
            return {"action": {"type": "string", "enum": actions} if actions else schema}
        case spaces.Text():
            return {"action": {"type": "string", "maxLength": int(space.max_length)}}
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box() if len(space.shape) == 1:
            kind = "number" if isinstance(space, spaces.Box) else "integer"
            size = int(space.shape[0])
            items = {"items": {"type": kind}, "minItems": size, "maxItems": size}
            return {"action": {"type": "array", **items, "description": f"one of {space}"}}
    problem = f"its actions are of {space}, which nobody can write"
    raise RecipeError("environment.options.name", problem, "wrap the environment so that its actions are numbers, a list or text")


def _array(given: Any, kind: Any) -> Any:
    """Return the numbers of an action as an array of this kind.

    Raises:
        ValueError, TypeError, OverflowError: they are none, or others in this kind, such as 1.9 as an integer.
    """
    with np.errstate(over="ignore"):
        value = np.asarray(given, dtype=kind)
    if not np.isfinite(value).all() or (np.issubdtype(kind, np.integer) and not np.array_equal(value, np.asarray(given, float))):
        raise ValueError
    return value


def _choices(space: Any, actions: list[str]) -> str:
    return f"choose one of {', '.join(actions)}" if actions else f"choose one of {space}"


def _text(seen: Any) -> str:
    """Write an observation as text."""
    if isinstance(seen, dict):
        return "\n".join(f"{name}: {_text(value)}" for name, value in seen.items())
    if isinstance(seen, tuple | list):
        return ", ".join(map(_text, seen))
    if isinstance(seen, np.ndarray):
        return np.array2string(seen, threshold=400, precision=4, separator=", ")
    return str(seen.item() if hasattr(seen, "item") else seen)
