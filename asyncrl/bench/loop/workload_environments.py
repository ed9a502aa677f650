"""The environments of the benchmark's workloads, with the same tools and the same reward as a peer uses.

The model reads the same description of a tool on both sides: names, types and descriptions here equal those in the docstrings of
the plain functions, from which a peer takes them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from asyncrl.bench.peers import workload_tools
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs import Action, StepResult, ToolEnvironment, tool

LIKE_USERS_CODE = True
"""Errors of these environments are shown like those of the user's own (:mod:`asyncrl.core.plug_ins.users_error`)."""


class _WorkloadEnvironment(ToolEnvironment):
    """Rewards every turn, so that episodes that end at ``max_turns`` differ in their rewards, too."""

    def reward(self, task: Task, answer: str) -> float:
        """Return 0, since :meth:`step` rewards the answer's turn like every other turn."""
        return 0.0

    async def step(self, action: Action) -> StepResult:
        """Run the calls of the turn, and reward the turn."""
        result = await super().step(action)
        arguments = [value for call in action.calls if isinstance(call, ToolCall) for value in call.arguments.values()]
        return msgspec.structs.replace(result, reward=workload_tools.turn_reward(action.content, arguments))


class Adding(_WorkloadEnvironment):
    """The environment of the workloads ``short`` and ``tools``."""

    @tool
    async def add(
        self,
        a: Annotated[int, Meta(description="The first integer.")],
        b: Annotated[int, Meta(description="The second integer.")],
    ) -> int:
        """Add two integers."""
        return workload_tools.add(a, b)


class SlowAdding(_WorkloadEnvironment):
    """The environment of the workload ``slow``."""

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
    """The environment of the workload ``turns``."""

    @tool
    async def read_page(self, page: Annotated[int, Meta(description="The number of the page.")]) -> str:
        """Read a page of the manual."""
        return workload_tools.read_page(page)
