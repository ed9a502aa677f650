"""The environments of the benchmark's workloads: the tools that peers call too, and the same reward.

The model is told of a tool in the same words on both sides: names, types and descriptions here are those of the plain functions'
docstrings, from which a peer takes them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from asyncrl.bench.peers import workload_tools
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action, StepResult, ToolEnvironment, tool


class _WorkloadEnvironment(ToolEnvironment):
    """Every turn is rewarded, so that episodes that end at ``max_turns`` differ in their rewards as others do."""

    def reward(self, task: Task, answer: str) -> float:
        """Return 0: the answer's turn is rewarded like every other."""
        return 0.0

    async def step(self, action: Action) -> StepResult:
        """Run the calls of the turn and reward it."""
        result = await super().step(action)
        arguments = [value for call in action.calls if isinstance(call, ToolCall) for value in call.arguments.values()]
        return msgspec.structs.replace(result, reward=workload_tools.turn_reward(action.content, arguments))


class Adding(_WorkloadEnvironment):
    """Workloads ``short`` and ``tools``."""

    @tool
    async def add(
        self,
        a: Annotated[int, Meta(description="The first integer.")],
        b: Annotated[int, Meta(description="The second integer.")],
    ) -> int:
        """Add two integers."""
        return workload_tools.add(a, b)


class SlowAdding(_WorkloadEnvironment):
    """Workload ``slow``."""

    @tool
    def slow_add(
        self,
        a: Annotated[int, Meta(description="The first integer.")],
        b: Annotated[int, Meta(description="The second integer.")],
        c: Annotated[int, Meta(description="The third integer.")],
    ) -> int:
        """Add three integers on a machine far away."""
        return workload_tools.slow_add(a, b, c)


class PageReading(_WorkloadEnvironment):
    """Workload ``turns``."""

    @tool
    async def read_page(self, page: Annotated[int, Meta(description="The number of the page.")]) -> str:
        """Read a page of the manual."""
        return workload_tools.read_page(page)
