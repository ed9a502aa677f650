"""An environment that does as its task says, and records what was done to it."""

import asyncio
from typing import Any

from asyncrl.core.chat_prompt import opening
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import MalformedCall, Message
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult

SLOW = 3600.0


def task(name: str = "t", **data: Any) -> Task:
    return Task(id=TaskId(name), prompt=name, data=data)


class Scripted(Environment):
    """``task.data``: ``rewards`` of the steps, the last of which is done unless ``endless``; ``fault``, ``reply`` and ``metrics``
    of all; the method that ``breaks`` or ``hangs``."""

    def __init__(self, made: "list[Scripted] | None" = None) -> None:
        self.actions: list[Action] = []
        self.closed = 0
        if made is not None:
            made.append(self)

    async def reset(self, task: Task) -> Observation:
        self.data = task.data
        await self._act("reset")
        return Observation(opening("", task.prompt))

    async def step(self, action: Action) -> StepResult:
        self.actions.append(action)
        await self._act("step")
        rewards = self.data.get("rewards", [1.0])
        number = len(self.actions)
        malformed = any(isinstance(call, MalformedCall) for call in action.calls)
        return StepResult(
            Observation((Message("tool", self.data.get("reply", "ok")),)),
            reward=rewards[number - 1] if number <= len(rewards) else 0.0,
            done=number == len(rewards) and not self.data.get("endless"),
            metrics={"steps": 1.0, "malformed": float(malformed), **self.data.get("metrics", {})},
            fault=Fault.MALFORMED_CALL if malformed else self.data.get("fault"),
        )

    async def close(self) -> None:
        self.closed += 1
        await self._act("close")

    async def _act(self, method: str) -> None:
        if self.data.get("breaks") == method:
            raise ZeroDivisionError("scripted")
        if self.data.get("hangs") == method:
            await asyncio.sleep(SLOW)
