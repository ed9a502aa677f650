"""Several rewards of one answer, each with a weight."""

import asyncio
import math
from collections.abc import Mapping

from asyncrl.core.errors import first_error
from asyncrl.core.task import Task
from asyncrl.envs.rewards.base import Reward


class Weighted(Reward):
    """The rewards of its parts by name, each times its weight; an episode's reward is their sum, and each is a metric.

    A part that has several rewards of its own gives them as ``PART.REWARD``. The parts are computed side by side.

    Args:
        parts: each part's weight and reward, by name.
    """

    def __init__(self, parts: Mapping[str, tuple[float, Reward]]) -> None:
        wrong = {name: weight for name, (weight, _) in parts.items() if not math.isfinite(weight)}
        if wrong or not parts:
            raise ValueError(f"Weighted needs parts with finite weights, got {wrong or 'none'}")
        self._parts = dict(parts)

    async def __call__(self, task: Task, answer: str) -> dict[str, float]:
        """Compute all parts. The first error of a part is raised, and the others are cancelled."""

        async def compute(reward: Reward) -> float | Mapping[str, float]:
            return await reward(task, answer)

        with first_error():
            async with asyncio.TaskGroup() as group:
                values = {name: group.create_task(compute(reward), name=name) for name, (_, reward) in self._parts.items()}
        named: dict[str, float] = {}
        for name, (weight, _) in self._parts.items():
            value = values[name].result()
            if isinstance(value, Mapping):
                named |= {f"{name}.{part}": weight * one for part, one in value.items()}
            else:
                named[name] = weight * value
        return named
