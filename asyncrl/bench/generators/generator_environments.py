"""The environment of ``asyncrl bench generators``: one tool that takes as long as its episode says, and never blocks."""

import asyncio
from typing import Annotated

from msgspec import Meta

from asyncrl.core.task import Task
from asyncrl.envs import ToolEnvironment, tool


class Waiting(ToolEnvironment):
    """Every turn calls a tool that waits.

    Args:
        wait_s: seconds that a call takes.
    """

    def __init__(self, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s

    @tool
    async def add(
        self,
        a: Annotated[int, Meta(description="The first integer.")],
        b: Annotated[int, Meta(description="The second integer.")],
    ) -> int:
        """Add two integers."""
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        return a + b

    def reward(self, task: Task, answer: str) -> float:
        """Return 0: the scripted model never answers, and nothing is trained."""
        return 0.0
