"""An environment whose episodes wait for something, as real ones do, for runs that train while a test waits for something else.

In another one, engines and learner would take the cores from what comes up meanwhile.
"""

import asyncio
from pathlib import Path

from asyncrl.core.task import Task
from asyncrl.envs.base import Observation
from asyncrl.envs.builtin.calculator import Calculator

UNHURRIED = "environment.name=unhurried:Unhurried"
"""Makes a run play it, in which :data:`PLACE` is on the path of modules."""
PLACE = str(Path(__file__).parent)


class Unhurried(Calculator):
    """The calculator, whose episodes begin two seconds late."""

    async def reset(self, task: Task) -> Observation:
        """Wait, and begin an episode."""
        await asyncio.sleep(2)
        return await super().reset(task)
