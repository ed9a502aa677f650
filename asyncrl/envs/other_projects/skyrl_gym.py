"""Environments of SkyRL-Gym: ``asyncrl env serve gsm8k --from skyrl-gym``.

Each turn of the model is an action, a text in which the environment finds its tools' marks by itself. Tasks come from files, as
SkyRL's own do: what the environment calls extras, such as ``reward_spec``, is the task's data.
"""

import importlib
from typing import Any

import skyrl_gym
from omegaconf import DictConfig, OmegaConf

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Observation, StepResult
from asyncrl.envs.other_projects.playing import Played, numbers, without_tools


class SkyRLGym(Played):
    """An environment of SkyRL-Gym.

    Args:
        name: its id, such as ``gsm8k``, or ``module:Class`` for one that is not registered.
        env_config: what its constructor gets as ``env_config``, which is a ``DictConfig`` as in SkyRL.
        extras: what its constructor gets as ``extras``, beside the task's data.
    """

    def __init__(self, name: str, env_config: dict[str, Any] = {}, extras: dict[str, Any] = {}) -> None:  # noqa: B006 - never changed
        self._name, self._config, self._extras = name, OmegaConf.create(env_config), extras
        self._played: Any = None

    async def reset(self, task: Task) -> Observation:
        """Begin an episode."""
        extras = {**self._extras, **task.data}
        self._played = await self.blocking(_made, self._name, self._config, extras)
        prompt = (
            [{"role": "user", "content": task.prompt}]
            if isinstance(task.prompt, str)
            else [each.as_template_input() for each in task.prompt]
        )
        messages, _ = await self.blocking(self._played.init, prompt)
        return Observation(_messages(messages))

    async def step(self, action: Action) -> StepResult:
        """Play a turn."""
        if action.calls:
            return without_tools(action)
        result = await self.blocking(self._played.step, action.content)
        done = bool(result["done"])
        metrics = numbers(result.get("metadata") or {})
        if done:
            metrics |= numbers(await self.blocking(self._played.get_metrics))
        return StepResult(Observation(_messages(result["observations"])), float(result["reward"]), done, metrics)

    async def close(self) -> None:
        """Close the environment."""
        if self._played is not None:
            await self.blocking(self._played.close)


def prepare(name: str, **_: Any) -> None:
    """See that there is an environment of this name.

    Raises:
        RecipeError: there is none.
    """
    module, separator, kind = name.partition(":")
    try:
        if not separator:
            skyrl_gym.spec(name)
        elif not callable(getattr(importlib.import_module(module), kind, None)):
            raise ImportError(f"it has no class {kind!r}")
    except (skyrl_gym.error.Error, ImportError) as error:
        problem = f"skyrl-gym has no environment {name!r}: {error}"
        remedy = (
            f"it has {', '.join(sorted(skyrl_gym.registry))}; for one of your own, set PYTHONPATH to the folder of its module"
        )
        raise RecipeError("environment.options.name", problem, remedy) from error


def _made(name: str, config: DictConfig, extras: dict[str, Any]) -> Any:
    prepare(name)
    module, separator, kind = name.partition(":")
    if separator:
        return getattr(importlib.import_module(module), kind)(env_config=config, extras=extras)
    return skyrl_gym.make(name, env_config=config, extras=extras)


def _messages(given: list[dict[str, str]]) -> tuple[Message, ...]:
    return tuple(Message("user" if each["role"] not in ("system", "tool") else each["role"], each["content"]) for each in given)  # type: ignore[arg-type]
